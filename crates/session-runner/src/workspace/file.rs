//! Files that are there whole or not at all.

use std::io::{self, Write as _};

use camino::Utf8Path;

use crate::private;

/// What a file must outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// The death of any process.
    Processes,
    /// A crash of the machine too. Costs a flush of the disk.
    TheMachine,
}

/// Puts `bytes` in the place of the file: a reader sees the old content or the new. Mode 0600.
pub(crate) fn replace(path: &Utf8Path, bytes: &[u8], outlives: Outlives) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other(format!("{path} has no directory")))?;
    let prefix = format!(".{}.", path.file_name().unwrap_or_default());
    // Temporary files are their owner's alone.
    let mut file = tempfile::Builder::new().prefix(&prefix).tempfile_in(directory)?;
    file.write_all(bytes)?;
    if outlives == Outlives::TheMachine {
        file.as_file().sync_all()?;
    }
    file.persist(path).map_err(|error| error.error)?;
    if outlives == Outlives::TheMachine {
        private::sync_directory(directory)?;
    }
    Ok(())
}
