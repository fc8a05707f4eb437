//! Names in a workspace that later run code outside: which to protect, and which have appeared or changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;
use crate::policy::is_inside;

mod config;
mod discovery;
mod look;
pub(crate) mod names;
pub(crate) mod nested;
mod protected;
mod repository;

pub use discovery::{Discovered, Misleading, discover, is_own_part, own_part, repositories_inside};
use look::{COMMON_DIRECTORY, CROWDED, Subject, USUAL, is_empty, is_usual, look};
use names::{Budget, mark};
pub use protected::{Guarded, git_paths, guarded, of_git};
use repository::Repository;

/// Settings of one worktree, which count where a repository says so.
const OWN_SETTINGS: &str = "config.worktree";
/// How many names are tried for what is set aside.
const ASIDE_MAX: usize = 16;

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

/// How the watched names of some workspaces looked at one moment, and those of git in the repositories inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    workspaces: BTreeSet<Utf8PathBuf>,
    /// The repositories of worktrees. Found before a session: what it points to later is not followed.
    repositories: BTreeSet<Utf8PathBuf>,
    /// The parts of those that belong to these worktrees.
    own: BTreeSet<Utf8PathBuf>,
    /// Where the repositories inside lie, the nearest first.
    nested: Vec<Utf8PathBuf>,
    /// What the configuration of repositories names as hooks and further configuration.
    #[serde(default)]
    named: BTreeSet<Utf8PathBuf>,
    /// Where not all of them were looked for.
    #[serde(default)]
    cut: BTreeSet<Utf8PathBuf>,
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
    /// As [`SetAside`](Self::SetAside), but it was a link, or every name beside it was taken, so it was removed.
    Removed,
    /// It holds more than is looked at, or cannot be read, which was not so before: repositories and links in it may be told
    /// in part, or not at all.
    Crowded,
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let became = match self.kind {
            ChangeKind::Appeared => "was not there before: look at it before anything acts on it",
            ChangeKind::Changed => "has changed: look at it before anything acts on it",
            ChangeKind::Vanished => "is gone",
            ChangeKind::SetAside => "was not there before and would have led git elsewhere: it was renamed",
            ChangeKind::Removed => "was not there before and would have led git elsewhere: it was removed",
            ChangeKind::Crowded => {
                "holds more than is looked at, or what cannot be: look for repositories and links in it"
            }
        };
        write!(formatter, "{} {became}", self.path)
    }
}

impl Watch {
    /// Looks at the workspaces before a session, at the repositories behind those that are worktrees, and at the
    /// repositories inside, which are looked for as [`guarded`] does. Follows no link, waits for nothing, and reads no more
    /// than 64 MiB in all.
    #[must_use]
    pub fn before(workspaces: &[Utf8PathBuf]) -> Self {
        let workspaces: BTreeSet<_> = workspaces.iter().cloned().collect();
        let inside = nested::below(&workspaces);
        let behind = |path: &Utf8PathBuf| match repository::find(path)? {
            Repository::Worktree { own, common } => Some((common, Some(own))),
            Repository::Pointer => Some((discovery::target(path)?, None)),
            Repository::Main => None,
        };
        let (mut repositories, own): (BTreeSet<_>, Vec<_>) = workspaces
            .iter()
            .filter_map(|path| {
                behind(path).filter(|(common, own)| own.is_some() || is_inside(common, &workspaces))
            })
            .unzip();
        let of_nested = inside.places.iter().filter_map(behind).map(|(common, _)| common);
        repositories.extend(of_nested.filter(|common| is_inside(common, &workspaces)));
        let places = || workspaces.iter().chain(&inside.places);
        let of_place = |place: &Utf8PathBuf| {
            let git = behind(place).map_or_else(|| place.join(".git"), |(common, _)| common);
            protected::named_by(place, &git, &workspaces)
        };
        let of_bare = inside.bare.iter().flat_map(|place| protected::named_by(place, place, &workspaces));
        let named = places().flat_map(of_place).chain(of_bare).collect();
        // Those that are looked at with the place they are the `.git` of, or that one's modules.
        let has_place = |path: &Utf8PathBuf| {
            path.ancestors().any(|above| {
                above.file_name() == Some(".git")
                    && above.parent().is_some_and(|above| places().any(|place| place == above))
            })
        };
        repositories.retain(|path| !has_place(path));
        repositories.extend(inside.bare.iter().cloned());
        let own = own.into_iter().flatten().collect();
        let (nested, cut) = (inside.places.clone(), inside.cut.clone());
        let mut watch = Self { workspaces, repositories, own, nested, named, cut, seen: BTreeMap::new() };
        watch.seen = look(&watch.subject(), &inside);
        watch
    }

    fn subject(&self) -> Subject<'_> {
        let Self { workspaces, repositories, nested, named, .. } = self;
        Subject { workspaces, repositories, nested, named }
    }

    /// What is different now, by path: to be shown to whoever goes on working there. Of a directory that has appeared
    /// or vanished, what is in it is not listed as well. That there are more directories than are looked at is one change.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let now = nested::below(&self.workspaces);
        let all = self.all_changes(&now);
        let changed: BTreeSet<_> = all.iter().map(|change| change.path.clone()).collect();
        let is_told = |change: &Change| change.path.ancestors().skip(1).any(|above| changed.contains(above));
        let crowded = now.cut.difference(&self.cut).cloned();
        let crowded = crowded.map(|path| Change { path, kind: ChangeKind::Crowded });
        all.into_iter().filter(|change| !is_told(change)).chain(crowded).collect()
    }

    fn all_changes(&self, inside: &nested::Nested) -> Vec<Change> {
        let now = look(&self.subject(), inside);
        let paths: BTreeSet<_> = self.seen.keys().chain(now.keys()).collect();
        let became = |path: &Utf8PathBuf| match (self.seen.get(path), now.get(path)) {
            (before, after) if before == after => None,
            (_, Some(mark)) if mark == CROWDED => Some(ChangeKind::Crowded),
            // Worktrees come and go, each with such a file.
            (None, Some(mark)) | (Some(mark), None) if mark == USUAL => None,
            (None, Some(mark)) if self.copied(path) == Some(mark) => None,
            (None, _) => Some(ChangeKind::Appeared),
            (_, None) => Some(ChangeKind::Vanished),
            (Some(_), Some(_)) => Some(ChangeKind::Changed),
        };
        let change = |path: &Utf8PathBuf| became(path).map(|kind| Change { path: path.clone(), kind });
        paths.into_iter().filter_map(change).collect()
    }

    /// Removes each symbolic link that has appeared where git keeps what it writes, and renames each `commondir` that has
    /// appeared in a repository to `commondir.set-aside`, so that nothing outside takes hooks and configuration from where it
    /// points, or writes there; likewise a `config.worktree` of any worktree but these, and a `commondir` of any that leads
    /// elsewhere than git has it lead. Others may be making worktrees meanwhile: what git makes for those stays, filled or
    /// not. Returns those alone; [`changes`](Self::changes) tells of all others, and goes on to tell of one that could not
    /// be set aside. To be called when the session has ended.
    #[must_use]
    pub fn set_aside(&self) -> Vec<Change> {
        // In the own part of a worktree git makes one itself, which is no change then.
        let of_worktree = |path: &Utf8Path| {
            let above = path.parent().filter(|above| !self.repositories.contains(*above));
            above.and_then(Utf8Path::parent).and_then(Utf8Path::file_name) == Some("worktrees")
        };
        let planted =
            self.all_changes(&nested::Nested::default()).into_iter().filter(|Change { path, kind }| {
                self.is_planted_link(path, *kind)
                    || matches!(
                        (path.file_name(), kind, of_worktree(path)),
                        (Some(COMMON_DIRECTORY), ChangeKind::Appeared | ChangeKind::Changed, true)
                            | (Some(COMMON_DIRECTORY | OWN_SETTINGS), ChangeKind::Appeared, false)
                    )
                    || self.is_of_another(path, *kind)
            });
        let kind = |path: &Utf8Path| {
            let directory = Directory::open(path.parent()?)?;
            let name = Utf8Path::new(path.file_name()?);
            // Since the look the worktree may have gone, and git have made another of its name, or filled what it made.
            let is_of_git = of_worktree(path) && self.is_of_git(&directory, path, name);
            if is_of_git { None } else { set_aside(&directory, name) }
        };
        planted.filter_map(|Change { path, .. }| Some(Change { kind: kind(&path)?, path })).collect()
    }
}

impl Watch {
    /// Whether it is a link in a repository now, by which git would write where it leads. `HEAD` may be one, and is not
    /// written through; but where reflogs and refs are, every name is a file that is written.
    fn is_planted_link(&self, path: &Utf8Path, kind: ChangeKind) -> bool {
        let of_places = self.workspaces.iter().chain(&self.nested).map(|place| place.join(".git"));
        let mut repositories = of_places.chain(self.repositories.iter().cloned());
        let inside =
            repositories.find_map(|repository| path.strip_prefix(&repository).ok().map(Utf8Path::to_owned));
        let Some(inside) = inside.filter(|inside| inside != "") else { return false };
        let is_written = inside.components().any(|part| matches!(part.as_str(), "logs" | "refs"));
        let is_head = inside.file_name() == Some("HEAD") && !is_written;
        let is_link = || {
            let found = path.parent().and_then(Directory::open).zip(path.file_name());
            found
                .is_some_and(|(above, name)| matches!(above.find(Utf8Path::new(name)), names::Found::Link(_)))
        };
        matches!(kind, ChangeKind::Appeared | ChangeKind::Changed) && !is_head && is_link()
    }

    /// Whether settings have appeared for a worktree that is none of these.
    fn is_of_another(&self, path: &Utf8Path, kind: ChangeKind) -> bool {
        let is_own = path.parent().is_some_and(|above| self.own.contains(above));
        kind == ChangeKind::Appeared && path.file_name() == Some(OWN_SETTINGS) && !is_own
    }

    /// How the settings were that git copies to this name when it makes a worktree: those of the repository, where it has
    /// such a file.
    fn copied(&self, path: &Utf8Path) -> Option<&String> {
        let worktrees = path.parent()?.parent().filter(|above| above.file_name() == Some("worktrees"))?;
        let repository = worktrees.parent().filter(|_| path.file_name() == Some(OWN_SETTINGS))?;
        self.seen.get(&repository.join(OWN_SETTINGS))
    }

    /// Whether this name in the own part of a worktree is as git makes it.
    fn is_of_git(&self, directory: &Directory, path: &Utf8Path, name: &Utf8Path) -> bool {
        if name == COMMON_DIRECTORY {
            return is_usual(directory, name);
        }
        let now = mark(directory, name, &mut Budget::default());
        is_empty(directory, name) || now.is_some() && now.as_ref() == self.copied(path)
    }
}

fn set_aside(directory: &Directory, name: &Utf8Path) -> Option<ChangeKind> {
    // A link holds nothing but where it leads, and under another name would still be a ref among refs.
    if matches!(directory.find(name), names::Found::Link(_)) {
        return directory.remove(name).is_ok().then_some(ChangeKind::Removed);
    }
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
