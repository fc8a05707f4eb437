//! Names in a workspace that later run code outside: which to protect, and which have appeared or changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;

mod look;
pub(crate) mod names;
mod repository;

use look::{COMMON_DIRECTORY, USUAL, look};
use names::Found;
use repository::Repository;

/// What of a repository decides which programs git starts.
const OF_GIT: &[&str] = &[COMMON_DIRECTORY, "config", OWN_SETTINGS, "hooks", "modules"];
/// Those that every repository has; where one is missing, the report says that it is not protected.
const ALWAYS_OF_GIT: &[&str] = &["config", "hooks"];
/// What of a worktree's own part of the repository does.
const OF_WORKTREE: &[&str] = &[COMMON_DIRECTORY, OWN_SETTINGS];
/// What leads from a worktree's own part to the repository and to the worktree.
const LEADING_BACK: &[&str] = &[COMMON_DIRECTORY, "gitdir"];
/// Settings of one worktree, which count where a repository says so.
const OWN_SETTINGS: &str = "config.worktree";
/// How many worktrees of a repository are guarded one by one.
const WORKTREES_MAX: usize = 200;
/// How many names are tried for what is set aside.
const ASIDE_MAX: usize = 16;

/// The paths of the repository of `workspace` by which a session could have git run something outside: hooks and
/// configuration, and more where it exists. In a worktree it is the pointer file `.git`, and such paths in the
/// repository that it points to: that one must be a read-write root too, see [`common_git_directory`].
///
/// A name that does not exist cannot be protected. One of them is worth a look after every session: with a file
/// `.git/commondir` git takes hooks and configuration from elsewhere. [`Watch`] tells of it and sets it aside.
#[must_use]
pub fn git_paths(workspace: &Utf8Path) -> Vec<Utf8PathBuf> {
    let git = workspace.join(".git");
    match repository::find(workspace) {
        Some(Repository::Main) => {
            let mut paths = paths_in(&git, OF_GIT);
            paths.extend(worktrees_in(&git));
            paths
        }
        Some(Repository::Worktree { own, common }) => {
            let mut paths = vec![git];
            paths.extend(paths_in(&own, OF_WORKTREE));
            paths.extend(paths_in(&common, OF_GIT));
            paths.extend(worktrees_in(&common));
            paths.sort_unstable();
            paths.dedup();
            paths
        }
        Some(Repository::Pointer) => vec![git],
        None => vec![],
    }
}

/// What leads from the worktrees of a repository to it: whoever changes that has git in a worktree take hooks and
/// configuration from elsewhere. Of very many it is the directory that holds them all, and then none can be made.
fn worktrees_in(git: &Utf8Path) -> Vec<Utf8PathBuf> {
    let all = git.join("worktrees");
    let Some(opened) = Directory::open(git) else { return vec![] };
    let listing = opened.list("worktrees".into(), WORKTREES_MAX);
    if listing.is_cut {
        return vec![all];
    }
    let inner = listing.names.iter().flat_map(|name| paths_in(&all.join(name), LEADING_BACK));
    inner.collect()
}

fn paths_in(directory: &Utf8Path, names: &[&str]) -> Vec<Utf8PathBuf> {
    let opened = Directory::open(directory);
    let is_there =
        |name: &str| opened.as_ref().is_some_and(|opened| opened.find(Utf8Path::new(name)) != Found::Nothing);
    let matters = |name: &&&str| ALWAYS_OF_GIT.contains(name) || is_there(name);
    names.iter().filter(matters).map(|name| directory.join(name)).collect()
}

/// The directory of the repository that a worktree's `.git` file points to, and which git must be able to write:
/// `…/.git` of `…/.git/worktrees/name`. `None` where `.git` is a directory or no pointer, and where the repository does
/// not point back: a session could have written the pointer.
#[must_use]
pub fn common_git_directory(workspace: &Utf8Path) -> Option<Utf8PathBuf> {
    match repository::find(workspace)? {
        Repository::Worktree { common, .. } => Some(common),
        Repository::Main | Repository::Pointer => None,
    }
}

/// How the watched names of some workspaces looked at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    workspaces: BTreeSet<Utf8PathBuf>,
    /// The repositories of worktrees. Found before a session: what it points to later is not followed.
    repositories: BTreeSet<Utf8PathBuf>,
    /// The parts of those that belong to these worktrees.
    own: BTreeSet<Utf8PathBuf>,
    seen: BTreeMap<Utf8PathBuf, String>,
}

/// A watched name that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Change {
    /// The path.
    pub path: Utf8PathBuf,
    /// What became of it.
    pub kind: ChangeKind,
}

/// What became of a watched name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there before.
    Appeared,
    /// It has other content, can be run now, or is another kind of file.
    Changed,
    /// It is gone.
    Vanished,
    /// It appeared, is never made by git, and has been renamed so that nothing acts on it.
    SetAside,
    /// As [`SetAside`](Self::SetAside), but every name beside it was taken, so it was removed.
    Removed,
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let became = match self.kind {
            ChangeKind::Appeared => "was not there before: look at it before anything acts on it",
            ChangeKind::Changed => "has changed: look at it before anything acts on it",
            ChangeKind::Vanished => "is gone",
            ChangeKind::SetAside => {
                "was not there before and would have had git run programs from elsewhere: it was renamed"
            }
            ChangeKind::Removed => {
                "was not there before and would have had git run programs from elsewhere: it was removed"
            }
        };
        write!(formatter, "{} {became}", self.path)
    }
}

impl Watch {
    /// Looks at the workspaces before a session, and at the repositories behind those that are worktrees. Follows no
    /// link, waits for nothing, and reads no more than 64 MiB in all.
    #[must_use]
    pub fn before(workspaces: &[Utf8PathBuf]) -> Self {
        let found = workspaces.iter().filter_map(|path| match repository::find(path)? {
            Repository::Worktree { own, common } => Some((common, own)),
            Repository::Main | Repository::Pointer => None,
        });
        let (repositories, own) = found.unzip();
        let workspaces = workspaces.iter().cloned().collect();
        let seen = look(&workspaces, &repositories);
        Self { workspaces, repositories, own, seen }
    }

    /// What is different now, by path: to be shown to whoever goes on working there. Of a directory that has appeared
    /// or vanished, what is in it is not listed as well.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let all = self.all_changes();
        let changed: BTreeSet<_> = all.iter().map(|change| change.path.clone()).collect();
        let is_told = |change: &Change| change.path.ancestors().skip(1).any(|above| changed.contains(above));
        all.into_iter().filter(|change| !is_told(change)).collect()
    }

    fn all_changes(&self) -> Vec<Change> {
        let now = look(&self.workspaces, &self.repositories);
        let paths: BTreeSet<_> = self.seen.keys().chain(now.keys()).collect();
        let became = |path: &Utf8PathBuf| match (self.seen.get(path), now.get(path)) {
            (before, after) if before == after => None,
            // Worktrees come and go, each with such a file.
            (None, Some(mark)) | (Some(mark), None) if mark == USUAL => None,
            (None, _) => Some(ChangeKind::Appeared),
            (_, None) => Some(ChangeKind::Vanished),
            (Some(_), Some(_)) => Some(ChangeKind::Changed),
        };
        let change = |path: &Utf8PathBuf| became(path).map(|kind| Change { path: path.clone(), kind });
        paths.into_iter().filter_map(change).collect()
    }

    /// Renames each `commondir` that has appeared in a repository to `commondir.set-aside`, so that nothing outside
    /// takes hooks and configuration from where it points; likewise a `config.worktree` of any worktree but
    /// these, and a `commondir` of any that leads elsewhere than git has it lead. Returns those alone; [`changes`](Self::changes) tells of
    /// all others, and goes on to tell of one that could not be set aside. To be called when the session has ended.
    #[must_use]
    pub fn set_aside(&self) -> Vec<Change> {
        // In the own part of a worktree git makes one itself, which is no change then.
        let of_worktree = |path: &Utf8Path| {
            let above = path.parent().filter(|above| !self.repositories.contains(*above));
            above.and_then(Utf8Path::parent).and_then(Utf8Path::file_name) == Some("worktrees")
        };
        let planted = self.all_changes().into_iter().filter(|Change { path, kind }| {
            matches!(
                (path.file_name(), kind, of_worktree(path)),
                (Some(COMMON_DIRECTORY), ChangeKind::Appeared | ChangeKind::Changed, true)
                    | (Some(COMMON_DIRECTORY | OWN_SETTINGS), ChangeKind::Appeared, false)
            ) || self.is_of_another(path, *kind)
        });
        planted.filter_map(|Change { path, .. }| Some(Change { kind: set_aside(&path)?, path })).collect()
    }
}

impl Watch {
    /// Whether settings have appeared for a worktree that is none of these.
    fn is_of_another(&self, path: &Utf8Path, kind: ChangeKind) -> bool {
        let is_own = path.parent().is_some_and(|above| self.own.contains(above));
        kind == ChangeKind::Appeared && path.file_name() == Some(OWN_SETTINGS) && !is_own
    }
}

fn set_aside(path: &Utf8Path) -> Option<ChangeKind> {
    let directory = Directory::open(path.parent()?)?;
    let name = Utf8Path::new(path.file_name()?);
    for number in 0..ASIDE_MAX {
        let new = match number {
            0 => format!("{name}.set-aside"),
            _ => format!("{name}.set-aside.{number}"),
        };
        if directory.rename(name, &new).is_ok() {
            return Some(ChangeKind::SetAside);
        }
    }
    directory.remove(name).is_ok().then_some(ChangeKind::Removed)
}

#[cfg(test)]
mod tests;
