//! Where the repository of a workspace lies, and which of its names decide what git runs.

use std::fs;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::names::Found;
#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;

/// A pointer file of a worktree is one short line.
const POINTER_BYTES_MAX: u64 = 8 << 10;

/// The repository behind a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Repository {
    /// `.git` is the repository.
    Main,
    /// `.git` is a file that points to the repository.
    Worktree {
        /// `…/.git/worktrees/name`
        own: Utf8PathBuf,
        /// `…/.git`
        common: Utf8PathBuf,
    },
    /// `.git` is a link, or a file that points elsewhere or to a repository that knows nothing of it.
    Pointer,
}

/// `None` where there is no `.git`.
///
/// A pointer is believed only if the repository points back: whoever may write into a workspace could otherwise have
/// any directory taken for its repository.
pub(super) fn find(workspace: &Utf8Path) -> Option<Repository> {
    let directory = Directory::open(workspace)?;
    match directory.find(".git".into()) {
        Found::Directory => Some(Repository::Main),
        Found::File { .. } => Some(match worktree(&directory, workspace) {
            Some((own, common)) => Repository::Worktree { own, common },
            None => Repository::Pointer,
        }),
        Found::Link(_) => Some(Repository::Pointer),
        Found::Nothing | Found::BehindLink | Found::Special | Found::Unreadable => None,
    }
}

/// The two parts of the repository that a worktree's pointer leads to, if it points back.
pub(super) fn worktree(directory: &Directory, workspace: &Utf8Path) -> Option<(Utf8PathBuf, Utf8PathBuf)> {
    let own = line(directory, ".git", "gitdir: ").and_then(|target| plain(workspace, &target))?;
    let worktrees = own.parent().filter(|path| path.file_name() == Some("worktrees"))?;
    let common = worktrees.parent()?.to_owned();
    let back = line(&Directory::open(&own)?, "gitdir", "").and_then(|target| plain(&own, &target))?;
    let is_here = fs::canonicalize(back).ok()? == fs::canonicalize(workspace.join(".git")).ok()?;
    is_here.then_some((own, common))
}

/// What follows `prefix` in a file of one line.
pub(super) fn line(directory: &Directory, name: &str, prefix: &str) -> Option<Utf8PathBuf> {
    let text = String::from_utf8(directory.read(name.into(), POINTER_BYTES_MAX)?).ok()?;
    Some(text.trim_end_matches(['\n', '\r']).strip_prefix(prefix)?.into())
}

/// The absolute path without `.` and `..`, by its letters alone.
pub(super) fn plain(base: &Utf8Path, path: &Utf8Path) -> Option<Utf8PathBuf> {
    let mut plain = Utf8PathBuf::new();
    for component in base.join(path).components() {
        match component {
            Utf8Component::CurDir => {}
            Utf8Component::ParentDir => {
                plain.pop();
            }
            Utf8Component::Prefix(_) | Utf8Component::RootDir | Utf8Component::Normal(_) => {
                plain.push(component);
            }
        }
    }
    plain.is_absolute().then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain() {
        for (path, expected) in [
            ("/a/b", Some("/a/b")),
            ("x/../../y", Some("/base/y")),
            ("../.git/./worktrees/x", Some("/base/.git/worktrees/x")),
            ("../../../../..", Some("/")),
        ] {
            assert_eq!(
                plain("/base/work".into(), path.into()).as_deref(),
                expected.map(Utf8Path::new),
                "{path}"
            );
        }
        assert_eq!(plain("relative".into(), "x".into()), None);
    }
}
