//! What executes a run.

mod adopted;
mod agent;
mod bridged;
mod desk;
mod entry;
pub(crate) mod execution;
pub(crate) mod outcome;
mod settling;
mod spec;
mod verdict;

use session_core::run::StopMode;

/// What the runner may tell an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Somebody wants the run to end.
    Stop(StopMode),
    /// This host goes away and takes its runs with it.
    HostEnds,
    /// This host goes away, and the next one takes the run over.
    Leave,
}
