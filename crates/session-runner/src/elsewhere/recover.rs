//! After the loss of a host: none of its processes was on this system.

use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::error::StoreResult;
use session_core::ports::ClaimedRun;
use session_core::run::Run;
use session_manager::Dispatcher;
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

/// Ends no process, for there is none to be found here, and is no sign of life of what a host on Linux may still hold.
pub async fn recover(
    dispatcher: &dyn Dispatcher,
    _: &Layout,
    profile: &RunnerProfile,
    _: OnHostLoss,
    _: Duration,
) -> StoreResult<Recovery> {
    dispatcher.heartbeat(profile.id, Vec::new()).await?;
    Ok(Recovery::default())
}
