//! The words of Unix.

use std::io;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::geteuid;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The variable that leads to the user's files.
pub const HOME_VARIABLE: &str = "HOME";
/// Variables that name the user, the first that is set.
pub const USER_VARIABLES: [&str; 2] = ["USER", "LOGNAME"];

/// What a user is called whom no variable names.
pub fn nameless_user() -> String {
    format!("uid:{}", geteuid().as_raw())
}

/// What this machine is called.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether the user may write to this directory.
pub fn may_write(directory: &Path) -> io::Result<()> {
    Ok(access(directory, Access::WRITE_OK)?)
}

/// How many columns the terminal has that is stdout.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Leaves the terminal and the process group of whoever started this process.
#[cfg(target_os = "linux")]
pub fn leave_session() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

/// Stops this process, until somebody kills it or lets it go on.
#[cfg(debug_assertions)]
pub fn stop_here() -> io::Result<()> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?)
}

/// SIGINT and SIGTERM.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Receives them from now on.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
