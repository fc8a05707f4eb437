//! Logs on a system where nobody writes them: what is there is all that comes.

use std::fs::{self, File};
use std::io;

use camino::Utf8Path;

use super::reader::{LogReader, Start};
use super::record::LogRecord;
use super::{FILES_MAX, rotated};

/// The most records that one call of [`LogFollower::next`] gives.
const BATCH_RECORDS: usize = 4096;

/// Follows a log that does not grow.
#[derive(Debug)]
pub struct LogFollower {
    reader: LogReader,
}

impl LogFollower {
    /// Begins to follow. The log need not be there.
    pub fn open(log: &Utf8Path, start: Start) -> io::Result<Self> {
        Ok(Self { reader: LogReader::open(log, start)? })
    }

    /// The next records, at least one; waits for ever when there are no more.
    pub async fn next(&mut self) -> io::Result<Vec<LogRecord>> {
        let records = self.available()?;
        if records.is_empty() { std::future::pending().await } else { Ok(records) }
    }

    /// The records that are there and were not given yet. Empty when there are none; a long backlog comes in several calls.
    pub fn available(&mut self) -> io::Result<Vec<LogRecord>> {
        self.reader.by_ref().take(BATCH_RECORDS).collect()
    }

    /// Whether records are missing: nobody rotates the log.
    #[must_use]
    pub fn lost_records(&self) -> bool {
        false
    }
}

/// All files of the log, the oldest first. A link is none of them.
pub(super) fn open_files(log: &Utf8Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for age in 0..FILES_MAX {
        let path = rotated(log, age);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => files.push(File::open(&path)?),
            Ok(_) => return Err(io::Error::other(format!("{path} is no file"))),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if age == 0 => {}
            Err(_) => break,
        }
    }
    files.reverse();
    Ok(files)
}
