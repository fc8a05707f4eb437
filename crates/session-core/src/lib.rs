//! Types, state machines and ports of roomette: what a session is, what can happen to it, and what the program
//! needs of the world.
//!
//! This crate knows no runtime, no database, no process and no network. Its only I/O is the resolution of a
//! repository's path ([`identity::RepoRoot::resolve`]) and the operating system's clock and randomness behind
//! [`env::Env`].
//!
//! ```
//! use session_core::identity::{AgentContext, RepoRoot, Scope, SessionIdentity};
//! use session_core::state::{SessionState, Trigger};
//! use session_core::Env;
//!
//! let env = Env::system();
//! let identity = SessionIdentity {
//!     machine: "laptop".parse()?,
//!     repo_root: RepoRoot::resolve(".".into())?,
//!     scope: Scope::Project { execution_id: "fix-42".parse()? },
//!     agent: AgentContext::default().key(false)?,
//! };
//! assert_eq!(identity.key(), identity.clone().key());
//!
//! let idle = SessionState::Active.on(Trigger::IdleTimeout, env.now())?;
//! assert_eq!(idle.on(Trigger::Activity, env.now())?, SessionState::Active);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod affinity;
pub mod approval;
pub mod approvals;
pub mod asked;
pub mod budget;
pub mod context;
pub mod correlation;
pub mod digest;
pub mod env;
pub mod error;
pub mod event;
pub mod family;
#[cfg(test)]
mod golden;
pub mod grants;
pub mod history;
pub mod identity;
pub mod ids;
pub mod names;
pub mod ports;
pub mod record;
pub mod run;
pub mod runner;
pub mod sandbox;
pub mod session;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod token;
pub mod tools;
pub mod turn;
pub mod wake;

pub use digest::Digest;
pub use env::{Clock, Env, IdSource};
pub use error::{Conflict, StoreError, StoreResult};
pub use event::{Event, EventKind, NewEvent, Seq};
pub use ids::{ApprovalId, ClaimId, CrewId, Id, IdError, RunId, RunnerId, SessionId, SessionRef, TokenId};
pub use ports::Store;
pub use run::{Ending, Fence, Run, RunPhase};
pub use sandbox::SandboxSpec;
pub use session::{ManagedSession, SessionSummary, WorkspaceKind};
pub use state::{SessionState, TerminationReason};
