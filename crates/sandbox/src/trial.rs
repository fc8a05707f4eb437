//! Tries to break out for real, in a throw-away session, for whoever wants to see it held: promise by promise.
//!
//! Each attempt is one of those that escaped from some sandbox of this kind, under the same name as in this crate's
//! tests. What it did is judged from outside by its effect wherever there is one. Where an attempt succeeds it touches
//! nothing but what was made for it.

use std::io;
use std::process::Command;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::gap::Gap;
use crate::launch::LaunchError;
use crate::level::Level;
use crate::policy::PolicyError;

/// What came of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its name: a letter for the group (`F` files, `W` workspace, `I` other processes and what is inherited,
    /// `N` network, `K` kernel, `R` resources) and a number.
    pub name: String,
    /// What should hold, in one sentence.
    pub promise: String,
    /// The layers that see to it at this level.
    pub enforced_by: String,
    /// Whether it holds.
    pub outcome: Outcome,
}

/// Whether a promise holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// It does.
    Held,
    /// It does not, and the report does not say so either: this sandbox must not be relied on.
    GotOut,
    /// It does not, as the report says.
    Gap {
        /// What the report names.
        gap: Gap,
    },
    /// It could not be found out here.
    NotTried {
        /// Why not.
        why: String,
    },
}

/// Why no attempt was made.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The session did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The place of the trial is no place for a session.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// What the attempts aim at cannot be made.
    #[error("the trial cannot be set up: {what}: give it an empty directory from which programs can be run")]
    Setup {
        /// What was to be made.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// How a trial is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// An empty directory of this user, where programs can be run: by its real path. It is empty again afterwards.
    pub directory: Utf8PathBuf,
    /// The words by which the launcher's program runs [`main`], such as `["__trial"]`.
    pub arguments: Vec<String>,
    /// The level that is tried.
    pub level: Level,
}

/// Runs the trial. `launcher` makes the launcher's command, as for [`SealedPolicy::launch`](crate::SealedPolicy::launch).
/// Takes less than a second, and no longer than a minute whatever happens.
///
/// Blocks, and starts processes of its own, which have all ended when it returns.
pub fn run(trial: &Trial, launcher: impl FnMut() -> Command) -> Result<Vec<Finding>, TrialError> {
    platform::run(trial, Some(trial.level), launcher)
}

/// Makes the same attempts without any sandbox: a finding that still says [`Outcome::Held`] is one whose attempt the
/// machine itself refuses, and proves nothing. For whoever doubts the trial.
pub fn control(trial: &Trial, launcher: impl FnMut() -> Command) -> Result<Vec<Finding>, TrialError> {
    platform::run(trial, None, launcher)
}

/// The program inside: makes the attempts that its arguments name, and never returns. A host dispatches it like the
/// [`launcher`](crate::launcher), before anything else.
pub fn main() -> ! {
    std::process::exit(platform::inside())
}

#[cfg(target_os = "linux")]
use crate::linux::trial as platform;

#[cfg(not(target_os = "linux"))]
mod platform {
    use super::{Command, Finding, Level, Trial, TrialError};
    use crate::elsewhere::refusal;
    use crate::launch::LaunchError;

    pub(super) fn run(
        _: &Trial,
        _: Option<Level>,
        _: impl FnMut() -> Command,
    ) -> Result<Vec<Finding>, TrialError> {
        Err(LaunchError::Refused { program: String::new(), refusal: refusal() }.into())
    }

    pub(super) fn inside() -> i32 {
        crate::launcher::REFUSED
    }
}
