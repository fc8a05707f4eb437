//! The session's log: what the runs of a session wrote, and their changes of state, in rotated files.
//!
//! The format is that of the container runtimes (CRI), one record a line:
//! `2026-11-21T04:31:00.123Z stdout F text`. `F` ends a line of the program, `P` is a piece of one.

mod follower;
mod reader;
mod record;
mod writer;

pub use follower::LogFollower;
pub use reader::{LogReader, Start};
pub use record::{LogRecord, Stream};
pub use writer::{LogRotation, LogWriter, PIECE_BYTES};

use camino::{Utf8Path, Utf8PathBuf};

/// The file of this age: 0 is the one that is written, 1 the one before it, and so on.
pub(crate) fn rotated(log: &Utf8Path, age: u32) -> Utf8PathBuf {
    if age == 0 { log.to_owned() } else { Utf8PathBuf::from(format!("{log}.{age}")) }
}
