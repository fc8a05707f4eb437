//! The session's log: what the runs of a session wrote, and their changes of state, in rotated files.
//!
//! The format is that of the container runtimes (CRI), one record a line:
//! `2026-11-21T04:31:00.123Z stdout F text`. `F` ends a line of the program, `P` is a piece of one.
//!
//! It is written on Linux alone, where runs are. A log that was brought elsewhere can be read there.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod follower;
#[cfg(target_os = "linux")]
mod prefix;
mod reader;
mod record;
#[cfg(target_os = "linux")]
mod writer;

#[cfg(not(target_os = "linux"))]
use elsewhere as files;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::LogFollower;
#[cfg(target_os = "linux")]
pub use follower::LogFollower;
pub use reader::{LogReader, Start};
pub use record::{LogRecord, Stream};
#[cfg(target_os = "linux")]
pub use writer::{LogRotation, LogWriter, PIECE_BYTES};

use camino::{Utf8Path, Utf8PathBuf};

/// The most files that are looked for.
const FILES_MAX: u32 = 1000;

/// The file of this age: 0 is the one that is written, 1 the one before it, and so on.
pub(crate) fn rotated(log: &Utf8Path, age: u32) -> Utf8PathBuf {
    if age == 0 { log.to_owned() } else { Utf8PathBuf::from(format!("{log}.{age}")) }
}
