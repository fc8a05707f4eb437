//! What a host hears of a launch: the program that runs, or why none does.

use std::fs::File;
use std::io;
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

use crate::level::Refusal;
use crate::policy::PolicyError;
use crate::report::Report;

/// How long a launcher may take to answer. It takes milliseconds; a machine under load takes longer.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(20);

/// A program that runs confined.
#[derive(Debug)]
pub struct Confined {
    /// The launcher: at floor it has become the program, at full it stands for it. Its end is that of the program
    /// (the same exit code or signal), and at full also the end of everything that the program started.
    pub child: Child,
    /// What was applied.
    pub report: Report,
    /// What the session hangs on: to be kept for as long as it may run.
    pub lifeline: Lifeline,
    /// At full, `/proc/PID/io` of the session's first process: what it counts are the processes that nobody else has
    /// waited for. Nobody may look into that process, so an ordinary user cannot open the file; what is open can be
    /// read, again and again from its beginning. `None` at floor, and where the kernel does not count.
    pub account: Option<File>,
}

/// The host's end of a session's lifeline. At [`Level::Full`](crate::Level::Full) the launcher ends the session with all
/// its processes as soon as this end is closed, for whatever reason: it was dropped, or the process that held it has
/// ended, however it did. At floor nobody watches the other end: ending what is left is up to a keeper.
///
/// The descriptor is closed when another program is started; a process that forks without that holds a second end.
#[derive(Debug)]
pub struct Lifeline {
    #[cfg(unix)]
    _end: OwnedFd,
}

impl Lifeline {
    #[cfg(target_os = "linux")]
    pub(crate) fn new(end: OwnedFd) -> Self {
        Self { _end: end }
    }
}

/// Why no program was started. Nothing of it ran, and no process is left.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher refused.
    #[error("the sandbox refused to start {program:?}: {refusal}; {}", refusal.code.advice())]
    Refused {
        /// The first word of the command line.
        program: String,
        /// The step and the reason.
        refusal: Refusal,
    },
    /// The launcher itself could not be started.
    #[error("cannot start the sandbox launcher {program:?}")]
    Start {
        /// The launcher's program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The launcher ended, or said nothing in time, or something that is no answer.
    #[error("the sandbox launcher gave no answer: use a launcher and a host of the same version")]
    Silent(#[source] io::Error),
    /// The policy of a probe was refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}
