//! Processes: none is started here.

use std::convert::Infallible;
use std::io;
use std::process::ExitCode;

use camino::Utf8Path;
use session_core::RunId;

/// The keeper's exit code: it keeps nothing.
const REFUSED: u8 = 126;

/// There is nothing to keep.
#[must_use]
pub fn keeper_main() -> ExitCode {
    ExitCode::from(REFUSED)
}

/// A keeper that another process started: there is none.
#[derive(Debug)]
pub struct LivingKeeper {
    never: Infallible,
}

impl LivingKeeper {
    /// Waits for its end.
    #[expect(clippy::unused_async, reason = "as on Linux, where there is something to wait for")]
    pub async fn wait(&self) -> io::Result<()> {
        match self.never {}
    }
}

/// The keeper of this run, if it is at work: not on this machine.
pub fn living_keeper(_: &Utf8Path, _: RunId) -> io::Result<Option<LivingKeeper>> {
    Ok(None)
}

/// Tools such as git.
pub(crate) mod tool {
    use std::io;
    use std::time::Duration;

    use camino::Utf8Path;
    use sandbox::Policy;

    use crate::Launcher;
    use crate::elsewhere::refusal::sentence;

    /// What a tool came to.
    #[derive(Debug)]
    pub(crate) struct Finished {
        /// It exited with code 0.
        pub(crate) success: bool,
        /// Its output.
        pub(crate) stdout: Vec<u8>,
        /// What it said.
        pub(crate) stderr: Vec<u8>,
    }

    /// Refuses.
    pub(crate) fn run(
        _: &str,
        _: &[&str],
        _: &Utf8Path,
        _: &[(String, String)],
        _: Duration,
    ) -> io::Result<Finished> {
        Err(refused())
    }

    /// Refuses.
    pub(crate) fn run_confined(_: &Launcher, _: Policy, _: &[String], _: Duration) -> io::Result<Finished> {
        Err(refused())
    }

    fn refused() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, sentence())
    }
}
