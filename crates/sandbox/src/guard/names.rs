//! What can be found under a name, and how that is remembered.

use camino::Utf8Path;

#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;
use crate::seal::digest;

/// How much of a file is read to tell whether it changed, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How much is read in all. What comes after it, and what is larger, is told by the time of its last change.
const BYTES_MAX: u64 = 64 << 20;

/// What is there under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    File {
        bytes: u64,
        is_program: bool,
        /// When it or its attributes were changed last: seconds and nanoseconds. No program can set it.
        changed: (i128, i128),
    },
    Directory,
    Link(String),
    /// A directory on the way is a symbolic link.
    BehindLink,
    /// A fifo, a socket or a device.
    Special,
    Unreadable,
}

/// The names in a directory, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) names: Vec<String>,
    /// There are more.
    pub(crate) is_cut: bool,
}

/// What one look may still read.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: BYTES_MAX }
    }
}

/// What a name is, in a form that can be compared and kept; `None` if there is nothing.
pub(super) fn mark(directory: &Directory, name: &Utf8Path, budget: &mut Budget) -> Option<String> {
    Some(match directory.find(name) {
        Found::Nothing => return None,
        Found::File { bytes, is_program, changed } => {
            let kind = if is_program { "program" } else { "file" };
            let content = (bytes <= FILE_BYTES_MAX && bytes <= budget.bytes)
                .then(|| directory.read(name, FILE_BYTES_MAX))
                .flatten();
            match content {
                Some(content) => {
                    budget.bytes -= bytes;
                    format!("{kind} of {bytes} bytes, {}", digest(&content))
                }
                None => format!("{kind} of {bytes} bytes, changed at {}.{:09}", changed.0, changed.1),
            }
        }
        Found::Directory => "directory".to_owned(),
        Found::Link(target) => format!("link to {target:?}"),
        Found::BehindLink => "behind a link".to_owned(),
        Found::Special => "special file".to_owned(),
        Found::Unreadable => "unreadable".to_owned(),
    })
}
