//! The runners that there are.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::affinity::RunnerProfile;
use crate::error::StoreResult;
use crate::ids::{RunnerId, SessionId};
use crate::names::ProgramVersion;
use crate::run::Epoch;
use crate::runner::RunnerRecord;

/// The registry of runners. A runner's id is its own and lasts; each time it starts it registers and is another instance.
#[async_trait]
pub trait RunnerStore: Send + Sync {
    /// Registers a runner under its next instance, which takes over from every earlier one. It gets runs at once, unless
    /// it was told to drain.
    async fn register(
        &self,
        profile: RunnerProfile,
        version: ProgramVersion,
        now: Timestamp,
    ) -> StoreResult<RunnerRecord>;

    /// A sign of life of this instance, which is written down once in [`SEEN_EVERY`](crate::runner::SEEN_EVERY) at the
    /// most. `UnknownRunner`; `Conflict::Superseded` if another instance counts.
    async fn seen(&self, id: RunnerId, instance: Epoch, now: Timestamp) -> StoreResult<RunnerRecord>;

    /// Tells a runner to take no more runs, or to take some again. What it has it brings to its end. Wakes
    /// `Topic::Runner`, and `Topic::Queue` when it takes runs again. `UnknownRunner`.
    async fn drain(&self, id: RunnerId, draining: bool) -> StoreResult<RunnerRecord>;

    /// Forgets a runner: it is listed no more and gets no runs until it registers again, under a later instance than ever.
    /// Returns the live sessions that are bound to it or have their files there, newest first and at most [`BOUND_MAX`]:
    /// their further runs go elsewhere from now on, those of bound ones when they begin from the log. When it registers again
    /// it has the files of all that did not go elsewhere. `UnknownRunner`; `Conflict::RunnerBusy` while it holds a run.
    async fn forget(&self, id: RunnerId) -> StoreResult<Vec<SessionId>>;

    /// One runner.
    async fn runner(&self, id: RunnerId) -> StoreResult<Option<RunnerRecord>>;

    /// All runners, in the order of their ids, which sort by their first start.
    async fn runners(&self) -> StoreResult<Vec<RunnerRecord>>;
}

/// How many sessions [`RunnerStore::forget`] names.
pub const BOUND_MAX: u32 = 1_000;
