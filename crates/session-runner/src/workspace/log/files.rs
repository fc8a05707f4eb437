//! The files of a log, told apart by what a renaming does not change.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use camino::Utf8Path;

use super::{FILES_MAX, rotated};

/// All files of the log, the oldest first. They are opened from the newest on, so that a rotation in between
/// can show one twice, which is seen by its inode, but can hide none.
pub(super) fn open_files(log: &Utf8Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut seen = Vec::new();
    for age in 0..FILES_MAX {
        let Some(file) = open_for_reading(&rotated(log, age))? else {
            // In the middle of a rotation there is no newest file for a moment.
            if age == 0 {
                continue;
            }
            break;
        };
        let identity = inode(&file)?;
        if !seen.contains(&identity) {
            seen.push(identity);
            files.push(file);
        }
    }
    files.reverse();
    Ok(files)
}

/// Opens a file of the log; `None` if there is none.
pub(super) fn open_for_reading(path: &Utf8Path) -> io::Result<Option<File>> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    match OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What stays the same when a file is renamed.
pub(super) fn inode(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The age at which this file lies now; `None` if it was rotated out.
pub(super) fn age_of(log: &Utf8Path, wanted: (u64, u64)) -> io::Result<Option<u32>> {
    for age in 0..FILES_MAX {
        match fs::symlink_metadata(rotated(log, age)) {
            Ok(metadata) if (metadata.dev(), metadata.ino()) == wanted => return Ok(Some(age)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if age > 0 {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
