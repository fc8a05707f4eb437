//! After the loss of a host: none of its processes was on this system.

use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::error::StoreResult;
use session_core::ports::ClaimedRun;
use session_core::run::Run;
use session_manager::Coordinator;
use session_manager::recovery::OnHostLoss;

use crate::workspace::Layout;

/// What became of the runs of a host that went away.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Those that are over now.
    pub ended: Vec<Run>,
    /// Those that live on: none.
    pub adopted: Vec<Adopted>,
}

/// A run that lives on under its keeper.
#[derive(Debug)]
pub struct Adopted {
    /// The run, under its new claim.
    pub claimed: ClaimedRun,
}

/// Ends no process, for there is none to be found here. What a host on Linux may still hold is left to it; a run whose claim
/// has run out is lost.
pub async fn recover(
    coordinator: &Coordinator,
    _: &Layout,
    _: &RunnerProfile,
    _: OnHostLoss,
    _: Duration,
) -> StoreResult<Recovery> {
    Ok(Recovery { ended: coordinator.reap().await?, adopted: Vec::new() })
}
