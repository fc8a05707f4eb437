//! The process between host and program: it confines itself, checks itself, and becomes the program.
//!
//! It is a hidden subcommand of the host's own binary. The host dispatches it before any runtime, logger or thread
//! starts, because Landlock and namespaces are taken on by a single thread.

/// Does what the request on stdin says. Never returns: the process ends as the program ends, or with
/// [`REFUSED`] after it told the host why no program was started.
///
/// Must be called by the only thread of the process; it refuses otherwise.
#[cfg(target_os = "linux")]
pub fn main() -> ! {
    std::process::exit(crate::linux::stages::run())
}

/// There is no sandbox on this system: ends with [`REFUSED`].
#[cfg(not(target_os = "linux"))]
pub fn main() -> ! {
    std::process::exit(REFUSED)
}

/// The exit code of a launcher that started nothing. The reason is on the socket.
pub const REFUSED: i32 = 126;
