//! Trees that sessions leave: taken down however deep they are, and descended into through no link.
//!
//! A session may nest directories deeper than any path is long and any stack is high. So nothing here recurses, and every
//! name is looked up in a directory that is held open.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, chmodat, mkdirat, openat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::error::WorkspaceError;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Removes a directory with all that is in it, if it is there. Links in it are removed, never followed. What a crash has
/// left of an earlier removal goes too.
pub(super) fn remove_tree(path: &Utf8Path) -> Result<(), WorkspaceError> {
    remove(path).map_err(|error| WorkspaceError::io("remove", path, error.into()))
}

fn remove(path: &Utf8Path) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    match openat(CWD, parent.as_std_path(), DIRECTORY, Mode::empty()) {
        Ok(beside) => remove_in(&beside, name),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The same for a tree in a place where others may be at work: the way to it leads through no link either.
pub(super) fn remove_tree_plainly(path: &Utf8Path) -> Result<(), WorkspaceError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(WorkspaceError::NotADirectory(path.to_owned()));
    };
    let removed = match open_plainly(parent) {
        Ok(beside) => remove_in(&beside, name),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(|error| WorkspaceError::io("remove", path, error.into()))
}

/// Opens a directory step by step.
fn open_plainly(path: &Utf8Path) -> rustix::io::Result<OwnedFd> {
    let mut place = openat(CWD, "/", DIRECTORY, Mode::empty())?;
    for component in path.components() {
        match component {
            Utf8Component::RootDir => {}
            Utf8Component::Normal(name) => {
                // No more is wanted of those on the way than to go through.
                place = openat(&place, name, DIRECTORY | OFlags::PATH, Mode::empty())?;
            }
            Utf8Component::Prefix(_) | Utf8Component::CurDir | Utf8Component::ParentDir => {
                return Err(Errno::INVAL);
            }
        }
    }
    openat(&place, ".", DIRECTORY, Mode::empty())
}

fn remove_in(beside: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let holding_name = format!("{name}.taken-down");
    match mkdirat(beside, holding_name.as_str(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let holding = open(beside, &holding_name)?;
    let mut down = TakingDown { holding, moved: 0 };
    let taken = down.take(beside, name).and_then(|()| down.finish());
    // What is left in it is found there by the next removal.
    let _not_empty = unlinkat(beside, holding_name.as_str(), AtFlags::REMOVEDIR);
    taken
}

/// Directories are moved into one beside the tree before they are emptied, so that no path gets long.
struct TakingDown {
    holding: OwnedFd,
    moved: u64,
}

impl TakingDown {
    /// Removes what has this name, or moves it to the others that wait, if it is a directory.
    fn take(&mut self, parent: impl AsFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<()> {
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        loop {
            let new = format!("{}", self.moved);
            self.moved += 1;
            match renameat_with(&parent, name, &self.holding, new.as_str(), RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(Errno::ACCESS) => {
                    let_in(&parent, name)?;
                    renameat_with(&parent, name, &self.holding, new.as_str(), RenameFlags::NOREPLACE)?;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Empties and removes what waits, until nothing does.
    fn finish(&mut self) -> rustix::io::Result<()> {
        loop {
            let waiting = names(&self.holding)?;
            if waiting.is_empty() {
                return Ok(());
            }
            for name in waiting {
                self.empty(&name)?;
            }
        }
    }

    /// Empties one that waits, and removes it.
    fn empty(&mut self, name: &std::ffi::CStr) -> rustix::io::Result<()> {
        let directory = match openat(&self.holding, name, DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let_in(&self.holding, name)?;
                openat(&self.holding, name, DIRECTORY, Mode::empty())?
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return unlinkat(&self.holding, name, AtFlags::empty());
            }
            opened => opened?,
        };
        loop {
            let inner = match names(&directory) {
                Err(Errno::ACCESS) => {
                    let_in(&self.holding, name)?;
                    names(&directory)?
                }
                names => names?,
            };
            if inner.is_empty() {
                return unlinkat(&self.holding, name, AtFlags::REMOVEDIR);
            }
            for entry in &inner {
                match self.take(&directory, entry.as_c_str()) {
                    Err(Errno::ACCESS) => {
                        let_in(&self.holding, name)?;
                        self.take(&directory, entry.as_c_str())?;
                    }
                    taken => taken?,
                }
            }
        }
    }
}

/// How many names are held at once.
const NAMES_MAX: usize = 4096;

/// Some of the names in a directory; none when it is empty.
fn names(directory: impl AsFd) -> rustix::io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
            if names.len() == NAMES_MAX {
                break;
            }
        }
    }
    Ok(names)
}

fn open(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, DIRECTORY, Mode::empty())
}

/// Lets the owner into a directory: some tools make theirs read-only. Through no link: it is held first.
fn let_in(parent: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<()> {
    let place = openat(parent, name, DIRECTORY | OFlags::PATH, Mode::empty())?;
    let held = format!("/proc/self/fd/{}", place.as_raw_fd());
    chmodat(CWD, held.as_str(), Mode::RWXU, AtFlags::empty())
}

/// Makes what is missing of `below` in `base`, step by step and through no link: a session may have put one there.
pub(super) fn make_beneath(base: &Utf8Path, below: &Utf8Path) -> Result<(), WorkspaceError> {
    let failed = |path: &Utf8Path, error: Errno| match error {
        Errno::LOOP | Errno::NOTDIR => WorkspaceError::NotADirectory(path.to_owned()),
        other => WorkspaceError::io("create the directory", path, io::Error::from(other)),
    };
    let mut path: Utf8PathBuf = base.to_owned();
    let mut place =
        openat(CWD, base.as_std_path(), DIRECTORY, Mode::empty()).map_err(|error| failed(base, error))?;
    for component in below.components() {
        let Utf8Component::Normal(name) = component else {
            return Err(WorkspaceError::NotADirectory(base.join(below)));
        };
        path.push(name);
        match mkdirat(&place, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(&path, error)),
        }
        // A link is no directory here.
        let is_link = statat(&place, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
        if is_link {
            return Err(WorkspaceError::NotADirectory(path));
        }
        place = open(&place, name).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Makes a link that says `target`.
pub(super) fn make_link(target: &str, link: &Utf8Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn place() -> (tempfile::TempDir, Utf8PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap().canonicalize_utf8().unwrap();
        (directory, path)
    }

    /// As deep as nobody can walk by paths or by a stack.
    fn dig(root: &Utf8Path, depth: usize) {
        let mut place = openat(CWD, root.as_std_path(), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&place, "d", Mode::RWXU).unwrap();
            place = open(&place, "d").unwrap();
        }
    }

    #[test]
    fn a_tree_is_taken_down_however_deep_it_is() {
        let (_directory, path) = place();
        let tree = path.join("tree");
        fs::create_dir(&tree).unwrap();
        dig(&tree, 20_000);
        remove_tree(&tree).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let (_directory, path) = place();
        let (tree, outside) = (path.join("tree"), path.join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        for name in ["link", "a/link", "a/b/0", "0"] {
            symlink(&outside, tree.join(name)).unwrap();
        }
        fs::create_dir(tree.join("1")).unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        remove_tree(&tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("kept").exists());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("kept").exists() && !tree.exists());
    }

    #[test]
    fn the_way_to_a_tree_leads_through_no_link() {
        let (_directory, path) = place();
        fs::create_dir_all(path.join("outside/tree")).unwrap();
        symlink(path.join("outside"), path.join("way")).unwrap();
        assert!(remove_tree_plainly(&path.join("way/tree")).is_err());
        assert!(path.join("outside/tree").exists());
        remove_tree_plainly(&path.join("outside/tree")).unwrap();
        remove_tree_plainly(&path.join("outside/nowhere/tree")).unwrap();
        assert_eq!(fs::read_dir(path.join("outside")).unwrap().count(), 0);
    }

    #[test]
    fn what_an_interrupted_removal_left_goes_too() {
        let (_directory, path) = place();
        let tree = path.join("tree");
        fs::create_dir_all(path.join("tree.taken-down/0/x")).unwrap();
        fs::create_dir_all(tree.join("y/z")).unwrap();
        fs::write(tree.join("f"), "").unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        remove_tree(&path.join("nowhere/tree")).unwrap();
    }

    #[test]
    fn directories_are_made_through_no_link() {
        let (_directory, path) = place();
        let outside = path.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::create_dir(path.join("work")).unwrap();
        make_beneath(&path.join("work"), "a/b/c".into()).unwrap();
        make_beneath(&path.join("work"), "a/b/c".into()).unwrap();
        assert!(path.join("work/a/b/c").is_dir());
        fs::remove_dir_all(path.join("work/a")).unwrap();
        symlink(&outside, path.join("work/a")).unwrap();
        for below in ["a/b", "a", "../x"] {
            assert!(make_beneath(&path.join("work"), below.into()).is_err(), "{below}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
