//! The words of Windows.

use std::io;
use std::path::Path;

use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

/// The variable that leads to the user's files.
pub const HOME_VARIABLE: &str = "USERPROFILE";
/// Variables that name the user, the first that is set.
pub const USER_VARIABLES: [&str; 1] = ["USERNAME"];

/// What a user is called whom no variable names.
pub fn nameless_user() -> String {
    "local".into()
}

/// What this machine is called.
#[expect(clippy::disallowed_methods, reason = "the system tells it in a variable, which is asked for once")]
pub fn hostname() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".into())
}

/// Whether the user may write to this directory: nothing tells before it is tried.
#[expect(clippy::unnecessary_wraps, reason = "as on Unix, where it can be told")]
pub fn may_write(_: &Path) -> io::Result<()> {
    Ok(())
}

/// How many columns the terminal has: not known, so nothing is cut.
pub fn columns() -> Option<usize> {
    None
}

/// Ctrl-C and Ctrl-Break.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: CtrlC,
    terminate: CtrlBreak,
}

impl EndSignals {
    /// Receives them from now on.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: ctrl_c()?, terminate: ctrl_break()? })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
