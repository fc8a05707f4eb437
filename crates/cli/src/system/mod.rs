//! What every system offers in words of its own: who the user is, how wide the terminal, what asks a process to end.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub use unix::leave_session;
#[cfg(all(unix, debug_assertions))]
pub use unix::stop_here;
#[cfg(unix)]
pub use unix::{EndSignals, HOME_VARIABLE, USER_VARIABLES, columns, hostname, may_write, nameless_user};
#[cfg(windows)]
pub use windows::{EndSignals, HOME_VARIABLE, USER_VARIABLES, columns, hostname, may_write, nameless_user};
