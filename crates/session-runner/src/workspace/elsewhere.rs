//! Trees of sessions on a system that runs none: nobody changes them while they are walked, and none is deeper than a path.

use std::fs;
use std::io;

use camino::{Utf8Component, Utf8Path};

use super::error::WorkspaceError;

/// Removes a directory with all that is in it, if it is there. Links in it are removed, never followed.
pub(super) fn remove_tree(path: &Utf8Path) -> Result<(), WorkspaceError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(WorkspaceError::io("remove", path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The same in a place where others may be at work.
pub(super) fn remove_tree_plainly(path: &Utf8Path) -> Result<(), WorkspaceError> {
    remove_tree(path)
}

/// Makes what is missing of `below` in `base`, step by step and through no link.
pub(super) fn make_beneath(base: &Utf8Path, below: &Utf8Path) -> Result<(), WorkspaceError> {
    let mut path = base.to_owned();
    for component in below.components() {
        let Utf8Component::Normal(name) = component else {
            return Err(WorkspaceError::NotADirectory(base.join(below)));
        };
        path.push(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(WorkspaceError::io("create the directory", &path, error));
            }
            Ok(()) | Err(_) => {}
        }
        // A link is no directory here.
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Err(WorkspaceError::NotADirectory(path));
        }
    }
    Ok(())
}

/// Refuses: a link stands for what a session makes, and none is made here.
pub(super) fn make_link(_: &str, _: &Utf8Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
