//! Directory grants: which directories beside its workspace a session was let into.
//!
//! The decision is lexical, over absolute paths without `.` and `..`. Whoever acts on it resolves links first; the
//! kernel's sandbox holds whoever does not.

use std::collections::BTreeMap;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use thiserror::Error;

crate::state::code_enum! {
    /// What may be done in a directory.
    Access ("access") {
        /// Read.
        Read = "read",
        /// Read and write.
        Write = "write",
    }
}

/// The most directories that one session can be granted.
pub const GRANTS_MAX: usize = 256;

/// The directories that one session was let into. Belongs to that session alone: it is never cloned into another's.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DirectoryGrants {
    directories: BTreeMap<Utf8PathBuf, Access>,
}

impl DirectoryGrants {
    /// Lets the session into a directory and all that lies below it. A wider access stays.
    pub fn grant(&mut self, directory: &Utf8Path, access: Access) -> Result<(), GrantError> {
        check(directory)?;
        if directory.parent().is_none() {
            return Err(GrantError::Root);
        }
        if !self.has_room_for(directory) {
            return Err(GrantError::Full);
        }
        // Through its components: a slash at the end makes no other directory.
        let held = self.directories.entry(directory.components().collect()).or_insert(access);
        *held = (*held).max(access);
        Ok(())
    }

    /// Whether one more directory would be remembered, or this one is already.
    #[must_use]
    pub fn has_room_for(&self, directory: &Utf8Path) -> bool {
        self.directories.len() < GRANTS_MAX || self.directories.contains_key(directory)
    }

    /// Whether the session may do this at this path. Never for a path that is relative or leads upwards.
    #[must_use]
    pub fn allows(&self, path: &Utf8Path, access: Access) -> bool {
        check(path).is_ok()
            && path
                .ancestors()
                .any(|directory| self.directories.get(directory).is_some_and(|&held| held >= access))
    }

    /// The directories, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Utf8Path, Access)> {
        self.directories.iter().map(|(path, &access)| (path.as_path(), access))
    }

    /// How many directories were granted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.directories.len()
    }

    /// No directory was granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }
}

fn check(path: &Utf8Path) -> Result<(), GrantError> {
    if !path.is_absolute() {
        return Err(GrantError::Relative(path.into()));
    }
    let leads_astray = |part: &str| part == "." || part == "..";
    // By the text as well: `components` swallows a `.` in the middle.
    let upwards = path.components().any(|part| part == Utf8Component::ParentDir);
    if upwards || path.as_str().split('/').any(leads_astray) {
        return Err(GrantError::Dots(path.into()));
    }
    Ok(())
}

/// Why a directory cannot be granted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrantError {
    /// It is not absolute.
    #[error("{0} is not absolute: name the directory from the root")]
    Relative(Utf8PathBuf),
    /// It contains `.` or `..`.
    #[error("{0} contains `.` or `..`: name the directory itself")]
    Dots(Utf8PathBuf),
    /// It is `/`.
    #[error("the whole file system cannot be granted: name a directory below it")]
    Root,
    /// The session has as many as it may.
    #[error("the session was let into {GRANTS_MAX} directories already")]
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> &Utf8Path {
        Utf8Path::new(text)
    }

    #[test]
    fn a_grant_holds_for_the_directory_and_below_and_nowhere_else() {
        let mut grants = DirectoryGrants::default();
        grants.grant(path("/srv/data/"), Access::Read).unwrap();
        for inside in ["/srv/data", "/srv/data/a", "/srv/data/a/b"] {
            assert!(grants.allows(path(inside), Access::Read), "{inside}");
            assert!(!grants.allows(path(inside), Access::Write), "{inside}");
        }
        for outside in [
            "/srv",
            "/srv/database",
            "/",
            "srv/data",
            "/srv/data/../x",
            "/srv/data/./a",
            "",
            "/srv//../srv/data",
        ] {
            assert!(!grants.allows(path(outside), Access::Read), "{outside}");
        }
        grants.grant(path("/srv/data"), Access::Write).unwrap();
        grants.grant(path("/srv/data"), Access::Read).unwrap();
        assert!(grants.allows(path("/srv/data/a"), Access::Write), "a wider access stays");
        assert_eq!(grants.len(), 1);
    }

    #[test]
    fn what_cannot_be_granted_is_refused_with_a_reason() {
        let mut grants = DirectoryGrants::default();
        for (bad, error) in [
            ("data", GrantError::Relative("data".into())),
            ("", GrantError::Relative("".into())),
            ("/a/../b", GrantError::Dots("/a/../b".into())),
            ("/", GrantError::Root),
        ] {
            assert_eq!(grants.grant(path(bad), Access::Read), Err(error));
        }
        for number in 0..GRANTS_MAX {
            grants.grant(path(&format!("/d/{number}")), Access::Read).unwrap();
        }
        assert_eq!(grants.grant(path("/e"), Access::Read), Err(GrantError::Full));
        assert_eq!(grants.grant(path("/d/0"), Access::Write), Ok(()));
    }
}
