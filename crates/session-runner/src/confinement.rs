//! What the sandbox of this machine can hold: found out once, by trying.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use rustix::time::{ClockId, clock_gettime};
use sandbox::{LaunchError, Support};

use crate::process::spawn;

/// After this long it is tried again whether something that was missing is there by now.
const TRY_AGAIN_AFTER: Duration = Duration::from_mins(1);

/// The clock that only goes forward.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default())
}

/// This program as the sandbox's launcher, and what the machine offers it.
#[derive(Debug)]
pub struct Launcher {
    program: Utf8PathBuf,
    arguments: Vec<String>,
    // A std mutex: held for the milliseconds of one trial, never across an await.
    support: Mutex<Option<(Support, Duration)>>,
}

impl Launcher {
    /// `program` with these arguments calls [`sandbox::launcher::main`] before anything else. Keepers start their own
    /// file with the same arguments, so it is the program that keeps runs.
    #[must_use]
    pub fn new(program: impl Into<Utf8PathBuf>, arguments: Vec<String>) -> Self {
        Self { program: program.into(), arguments, support: Mutex::new(None) }
    }

    /// By which arguments it is the launcher.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// It, as a command that is not started yet.
    #[must_use]
    pub fn command(&self) -> Command {
        spawn::tried_launcher(&self.program, &self.arguments)
    }

    /// What this machine offers. The first call tries it, which takes some milliseconds and blocks: on a runtime, call it
    /// from a thread that may. A trial that failed by itself is made again.
    pub fn support(&self) -> Result<Support, LaunchError> {
        let mut known = self.support.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now();
        if let Some((support, at)) = &*known
            && (support.full.works() || now.saturating_sub(*at) < TRY_AGAIN_AFTER)
        {
            return Ok(support.clone());
        }
        let support = Support::probe(|| self.command())?;
        Ok(known.insert((support, now)).0.clone())
    }

    /// Something that was there has been refused: the next question is answered by trying again.
    pub(crate) fn forget(&self) {
        *self.support.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
