//! The ports: what the program needs of a store and of whatever is alive behind a session, told by meaning and not by
//! table or process.
//!
//! Rules that hold for every method of a store: it is one transaction; what is not found is `Ok(None)` where the answer is
//! the thing itself, and an error where something was to be done to it; times are arguments and come from one
//! clock; an error means that nothing has changed. Every implementation passes the conformance suite in
//! [`testing`](crate::testing) (feature `testing`).

mod approvals;
mod engine;
mod events;
mod families;
mod ledger;
mod lifecycle;
mod runners;
mod runs;
mod sessions;
mod sweep;
mod tokens;

pub use approvals::{APPROVALS_PAGE_MAX, ApprovalFilter, ApprovalStore};
pub use engine::{Engine, EngineError, Orchestrator, Release, SessionFactory};
pub use events::{Appended, Author, EventStore, NotePart};
pub use families::FamilyStore;
pub use ledger::{Ledger, MINUTES_KEPT};
pub use lifecycle::{LifecycleEvent, LifecycleSink, ResumeStep, SinkError};
pub use runners::{BOUND_MAX, RunnerStore};
pub use runs::{
    ClaimedRun, Directive, IDEMPOTENCY_KEPT, Idempotency, NewCrew, NewRun, RunOf, RunProgress, RunStore,
    Spent,
};
pub use sessions::{Cursor, Listing, Page, STAMP_EVERY, SessionFilter, SessionStore};
pub use sweep::{Sweep, Swept};
pub use tokens::{TOKENS_PAGE_MAX, TokenStore};

use crate::wake::{Listener, Topic};

/// Everything that a host needs of its store.
pub trait Store:
    SessionStore + RunStore + EventStore + ApprovalStore + TokenStore + RunnerStore + FamilyStore + Ledger + Wakes
{
}

impl<S> Store for S where
    S: SessionStore
        + RunStore
        + EventStore
        + ApprovalStore
        + TokenStore
        + RunnerStore
        + FamilyStore
        + Ledger
        + Wakes
{
}

/// How one learns of changes without asking again and again.
pub trait Wakes: Send + Sync {
    /// Listens to a topic from now on. A change between this call and the first wait is not lost.
    fn listen(&self, topic: Topic) -> Listener;
}
