//! Systems without a sandbox of ours. They say so, and start nothing.

use std::process::Command;

use crate::launch::{Confined, LaunchError};
use crate::level::{Level, Offer, Refusal, RefusalCode, Support};
use crate::seal::SealedPolicy;

/// What a program's stdin could be.
#[cfg(unix)]
type Stdin = std::os::fd::OwnedFd;
/// What a program's stdin could be.
#[cfg(not(unix))]
type Stdin = std::process::Stdio;

impl SealedPolicy {
    /// Refuses: no program is started on this system.
    pub fn launch(
        &self,
        _launcher: Command,
        _level: Level,
        argv: &[String],
        _stdin: Option<Stdin>,
    ) -> Result<Confined, LaunchError> {
        Err(LaunchError::Refused { program: argv.first().cloned().unwrap_or_default(), refusal: refusal() })
    }
}

impl Support {
    /// Neither level can be had.
    pub fn probe(_launcher: impl FnMut() -> Command) -> Result<Self, LaunchError> {
        let missing = || Offer::Missing { refusal: refusal() };
        Ok(Self { full: missing(), floor: missing() })
    }
}

fn refusal() -> Refusal {
    Refusal::new(RefusalCode::System, format!("{} has no sandbox of ours", std::env::consts::OS))
}
