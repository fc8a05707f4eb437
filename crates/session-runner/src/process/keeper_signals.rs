//! Signals as bytes in pipes, so that one `poll` waits for them too.
//!
//! A signal that is caught is back to its default in the program that we start; one that is ignored would stay
//! ignored there.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::pipe;

/// The signals of a keeper.
#[derive(Debug)]
pub(super) struct Signals {
    /// A process of ours has ended.
    pub(super) child: Caught,
    /// SIGTERM and SIGINT: stop the run, as a host does that has not started this keeper.
    pub(super) stop: Caught,
    /// SIGUSR1: kill the run.
    pub(super) kill: Caught,
    /// Of no meaning to us, and not to end us either.
    _ignored: Caught,
}

impl Signals {
    /// Catches them from now on.
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            child: Caught::new(&[SIGCHLD])?,
            stop: Caught::new(&[SIGTERM, SIGINT])?,
            kill: Caught::new(&[SIGUSR1])?,
            _ignored: Caught::new(&[SIGHUP])?,
        })
    }
}

/// Whether one of some signals has come.
#[derive(Debug)]
pub(super) struct Caught {
    pipe: UnixStream,
}

impl Caught {
    fn new(signals: &[i32]) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        for signal in signals {
            pipe::register(*signal, write.try_clone()?)?;
        }
        Ok(Self { pipe: read })
    }

    /// Becomes readable when one comes.
    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Whether one came since the last time.
    pub(super) fn take(&self) -> bool {
        let mut buffer = [0; 256];
        let mut came = false;
        while matches!((&self.pipe).read(&mut buffer), Ok(read) if read > 0) {
            came = true;
        }
        came
    }
}
