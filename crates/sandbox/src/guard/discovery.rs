//! Which repository a directory belongs to, found without git: what lies in the tree may have been put there to lead git
//! elsewhere.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

use super::config;
use super::look::COMMON_DIRECTORY;
use super::names::Found;
use super::nested;
use super::repository::{line, plain, worktree};
#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;

/// How many directories are looked at for the repositories of submodules, and how many names in each.
const MODULES_MAX: usize = 2048;
const ENTRIES_MAX: usize = 4096;

/// A repository, by the real paths of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovered {
    /// The directory that holds `.git`; the repository itself where that has no working tree.
    pub top: Utf8PathBuf,
    /// What belongs to this working tree alone, as its `HEAD` does: of a worktree `…/.git/worktrees/name`, else
    /// [`common`](Self::common).
    pub own: Utf8PathBuf,
    /// Objects, refs and configuration.
    pub common: Utf8PathBuf,
}

/// Something on the way to a repository leads elsewhere, and nothing says that it should.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Misleading {
    /// A `.git` that is a link, or a file that points somewhere.
    #[error("{path} leads to {target}, which does not lead back")]
    Pointer {
        /// The `.git`.
        path: Utf8PathBuf,
        /// Where it leads, as it says.
        target: Utf8PathBuf,
    },
    /// A `.git` that says nothing that could be understood.
    #[error("{path} is neither a directory nor a pointer to a repository")]
    Unclear {
        /// The `.git`.
        path: Utf8PathBuf,
    },
    /// A file that has git take objects, refs and configuration from somewhere else.
    #[error("{path} has git take objects and configuration from elsewhere")]
    CommonDirectory {
        /// The file.
        path: Utf8PathBuf,
    },
}

/// Finds the repository of a directory, there or above, as git does; `None` where there is none.
///
/// What is believed: a `.git` that is a directory; a worktree's pointer if the repository points back; the pointer of a
/// submodule if the configuration there names its working tree; a pointer to somewhere below it; and one to a place that
/// `is_meant`, by its real path. A repository that has a `commondir`, which git makes for worktrees alone, is not.
pub fn discover(
    directory: &Utf8Path,
    is_meant: impl Fn(&Utf8Path) -> bool,
) -> Result<Option<Discovered>, Misleading> {
    for top in directory.ancestors() {
        let Some(opened) = Directory::open(top) else { continue };
        let git = top.join(".git");
        match opened.find(".git".into()) {
            Found::Directory if is_repository(&git) => return main(top, git).map(Some),
            Found::Directory | Found::Nothing | Found::BehindLink => {}
            Found::File { .. } => return pointer(top, &opened, &is_meant).map(Some),
            Found::Link(target) => return elsewhere(top, &target.into(), &is_meant).map(Some),
            Found::Special | Found::Unreadable => return Err(Misleading::Unclear { path: git }),
        }
        if is_repository(top) {
            return main(top, top.to_owned()).map(Some);
        }
    }
    Ok(None)
}

/// The part of a repository that belongs to a worktree; `None` where it is not its own by what both say.
#[must_use]
pub fn own_part(work: &Utf8Path, common: &Utf8Path) -> Option<Utf8PathBuf> {
    let (own, found) = worktree(&Directory::open(work)?, work)?;
    (found == common).then_some(own)
}

/// Whether a repository's part is the one of this worktree, which may be gone. Nothing on the way is a link.
#[must_use]
pub fn is_own_part(own: &Utf8Path, work: &Utf8Path) -> bool {
    let back = Directory::open(own).and_then(|opened| line(&opened, "gitdir", ""));
    let Some((back, (above, name))) =
        back.and_then(|back| plain(own, &back)).zip(work.parent().zip(work.file_name()))
    else {
        return false;
    };
    fs::canonicalize(above).is_ok_and(|real| real.join(name).join(".git") == *back)
}

/// The repositories that would go with a worktree: those of its submodules, kept in the part that is its own, and those
/// that lie in it, as far as [`guarded`](super::guarded) finds them. `None` if there are more of the former than are looked at.
#[must_use]
pub fn repositories_inside(work: &Utf8Path, own: &Utf8Path) -> Option<Vec<Utf8PathBuf>> {
    let nested = nested::below(&[work.to_owned()].into());
    let mut found: Vec<_> = nested.places.iter().map(|place| place.join(".git")).collect();
    found.retain(|git| is_repository(git));
    found.extend(nested.bare);
    let opened = Directory::open(own)?;
    let mut waiting = vec![Utf8PathBuf::from("modules")];
    let mut left = MODULES_MAX;
    while let Some(name) = waiting.pop() {
        let path = own.join(&name);
        if is_repository(&path) {
            found.push(path);
            waiting.push(name.join("modules"));
            continue;
        }
        let inside = opened.inside(&name, ENTRIES_MAX);
        left = left.checked_sub(1 + inside.directories.len())?;
        if inside.is_cut {
            return None;
        }
        waiting.extend(inside.directories.iter().map(|inner| name.join(inner)));
    }
    Some(found)
}

fn main(top: &Utf8Path, common: Utf8PathBuf) -> Result<Discovered, Misleading> {
    let path = common.join(COMMON_DIRECTORY);
    let is_there = Directory::open(&common).is_some_and(|opened| opened.has(COMMON_DIRECTORY.into()));
    if is_there {
        return Err(Misleading::CommonDirectory { path });
    }
    Ok(Discovered { top: top.to_owned(), own: common.clone(), common })
}

fn pointer(
    top: &Utf8Path,
    opened: &Directory,
    is_meant: &impl Fn(&Utf8Path) -> bool,
) -> Result<Discovered, Misleading> {
    if let Some((own, common)) = worktree(opened, top) {
        let leads = Directory::open(&own).and_then(|opened| line(&opened, COMMON_DIRECTORY, ""));
        if leads.and_then(|leads| plain(&own, &leads)).as_ref() != Some(&common) {
            return Err(Misleading::CommonDirectory { path: own.join(COMMON_DIRECTORY) });
        }
        let Discovered { common, .. } = main(top, common)?;
        return Ok(Discovered { top: top.to_owned(), own, common });
    }
    let target = line(opened, ".git", "gitdir: ");
    let target = target.ok_or_else(|| Misleading::Unclear { path: top.join(".git") })?;
    elsewhere(top, &target, is_meant)
}

/// Where a `.git` that is a link or a file leads, by its real path; `None` where there is no repository.
pub(super) fn target(top: &Utf8Path) -> Option<Utf8PathBuf> {
    let opened = Directory::open(top)?;
    let target = match opened.find(".git".into()) {
        Found::Link(target) => target.into(),
        Found::File { .. } => line(&opened, ".git", "gitdir: ")?,
        Found::Nothing | Found::Directory | Found::BehindLink | Found::Special | Found::Unreadable => {
            return None;
        }
    };
    let real = Utf8PathBuf::from_path_buf(fs::canonicalize(top.join(target)).ok()?).ok()?;
    is_repository(&real).then_some(real)
}

/// A repository that is kept somewhere else.
fn elsewhere(
    top: &Utf8Path,
    target: &Utf8PathBuf,
    is_meant: &impl Fn(&Utf8Path) -> bool,
) -> Result<Discovered, Misleading> {
    let leads = || Misleading::Pointer { path: top.join(".git"), target: target.clone() };
    let real = fs::canonicalize(top.join(target)).ok().and_then(|real| Utf8PathBuf::from_path_buf(real).ok());
    let real = real.filter(|real| is_repository(real)).ok_or_else(leads)?;
    if real.starts_with(top) || names_working_tree(&real, top) || is_meant(&real) {
        main(top, real)
    } else {
        Err(leads())
    }
}

/// As git knows one: by these three names.
pub(super) fn is_repository(path: &Utf8Path) -> bool {
    let Some(opened) = Directory::open(path) else { return false };
    let is_head = matches!(opened.find("HEAD".into()), Found::File { .. } | Found::Link(_));
    let is_kept_elsewhere = || opened.has(COMMON_DIRECTORY.into());
    let holds = |name: &str| matches!(opened.find(name.into()), Found::Directory | Found::Link(_));
    is_head && (holds("objects") && holds("refs") || is_kept_elsewhere())
}

/// Whether the configuration of a repository names this directory as its working tree.
fn names_working_tree(repository: &Utf8Path, top: &Utf8Path) -> bool {
    let named = config::working_tree(repository);
    named.is_some_and(|named| fs::canonicalize(named).is_ok_and(|real| real == *top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Utf8PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        (directory, path)
    }

    fn repository(path: &Utf8Path) {
        for name in ["objects", "refs"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    fn found(path: &Utf8Path) -> Result<Option<Discovered>, Misleading> {
        discover(path, |_| false)
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is compared with what is found")]
    fn kept_in(top: &Utf8Path, common: &Utf8Path) -> Result<Option<Discovered>, Misleading> {
        Ok(Some(Discovered { top: top.to_owned(), own: common.to_owned(), common: common.to_owned() }))
    }

    #[test]
    fn the_nearest_repository_counts() {
        let (_directory, path) = place();
        let inner = path.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(inner.join(".git")).unwrap();
        assert_eq!(found(&inner), Ok(None));
        repository(&path.join(".git"));
        assert_eq!(found(&inner), kept_in(&path, &path.join(".git")));
        repository(&inner.join(".git"));
        assert_eq!(found(&inner), kept_in(&inner, &inner.join(".git")));
        let bare = path.join("bare.git");
        repository(&bare);
        assert_eq!(found(&bare), kept_in(&bare, &bare));
    }

    #[test]
    fn a_common_directory_is_not_followed() {
        let (_directory, path) = place();
        let git = path.join(".git");
        repository(&git);
        fs::write(git.join("commondir"), "/elsewhere").unwrap();
        let refused = Err(Misleading::CommonDirectory { path: git.join("commondir") });
        assert_eq!(found(&path), refused);
        for name in ["objects", "refs"] {
            fs::remove_dir(git.join(name)).unwrap();
        }
        assert_eq!(found(&path), refused, "git finds both elsewhere then");
    }

    #[test]
    fn a_worktree_leads_to_its_repository() {
        let (_directory, path) = place();
        let (main, work) = (path.join("main"), path.join("work"));
        repository(&main.join(".git"));
        let own = main.join(".git/worktrees/work");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir(&work).unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        fs::write(own.join("gitdir"), format!("{work}/.git\n")).unwrap();
        fs::write(work.join(".git"), format!("gitdir: {own}\n")).unwrap();
        let expected = Discovered { top: work.clone(), own: own.clone(), common: main.join(".git") };
        assert_eq!(found(&work), Ok(Some(expected)));
        assert_eq!(own_part(&work, &main.join(".git")), Some(own.clone()));
        assert_eq!(own_part(&work, &path.join("other/.git")), None);
        assert!(is_own_part(&own, &work) && !is_own_part(&own, &path.join("other")));
        fs::write(own.join("commondir"), "/elsewhere\n").unwrap();
        assert_eq!(found(&work), Err(Misleading::CommonDirectory { path: own.join("commondir") }));
        fs::remove_dir_all(&work).unwrap();
        assert!(is_own_part(&own, &work));
    }

    #[test]
    fn a_pointer_is_believed_if_it_leads_back_or_is_meant() {
        let (_directory, path) = place();
        let (top, kept) = (path.join("top"), path.join("kept"));
        fs::create_dir(&top).unwrap();
        repository(&kept);
        for pointer in [format!("gitdir: {kept}\n"), "gitdir: ../kept".to_owned()] {
            fs::write(top.join(".git"), &pointer).unwrap();
            assert!(matches!(found(&top), Err(Misleading::Pointer { .. })), "{pointer}");
            assert_eq!(discover(&top, |target| target == kept), kept_in(&top, &kept));
        }
        for (config, expected) in [
            (format!("[core]\n\tworktree = {top}\n"), true),
            ("[remote \"x\"]\n[Core]\nbare=false\nWorkTree = \"../top\"\n".to_owned(), true),
            (format!("[other]\nworktree = {top}\n"), false),
            (format!("[core]\nworktree = {path}\n"), false),
        ] {
            fs::write(kept.join("config"), &config).unwrap();
            assert_eq!(found(&top).is_ok(), expected, "{config}");
        }
        fs::write(top.join(".git"), "gitdir: nowhere").unwrap();
        assert!(matches!(found(&top), Err(Misleading::Pointer { .. })));
        fs::write(top.join(".git"), "nonsense").unwrap();
        assert_eq!(found(&top), Err(Misleading::Unclear { path: top.join(".git") }));
        repository(&top.join(".repository"));
        fs::write(top.join(".git"), "gitdir: .repository").unwrap();
        assert_eq!(found(&top), kept_in(&top, &top.join(".repository")));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_a_pointer() {
        let (_directory, path) = place();
        let (top, kept) = (path.join("top"), path.join("kept"));
        fs::create_dir(&top).unwrap();
        repository(&kept);
        std::os::unix::fs::symlink(&kept, top.join(".git")).unwrap();
        assert!(matches!(found(&top), Err(Misleading::Pointer { .. })));
        assert_eq!(discover(&top, |target| target == kept), kept_in(&top, &kept));
    }
}
