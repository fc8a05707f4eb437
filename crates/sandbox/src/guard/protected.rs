//! Which paths of the repositories in some workspaces decide what git runs.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::look::COMMON_DIRECTORY;
use super::names::Found;
use super::repository::{self, Repository};
use super::{OWN_SETTINGS, config, discovery, nested};
#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;
use crate::policy::{PROTECTED_MAX, form_of, is_inside};

/// What of a repository decides which programs git starts.
const OF_GIT: &[&str] = &[COMMON_DIRECTORY, "config", OWN_SETTINGS, "hooks", "modules"];
/// Those that every repository has; where one is missing, the report says that it is not protected.
const ALWAYS_OF_GIT: &[&str] = &["config", "hooks"];
/// What of a worktree's own part of the repository does.
const OF_WORKTREE: &[&str] = &[COMMON_DIRECTORY, OWN_SETTINGS];
/// What leads from a worktree's own part to the repository and to the worktree.
const LEADING_BACK: &[&str] = &[COMMON_DIRECTORY, "gitdir"];
/// How many worktrees of a repository are guarded one by one.
pub(super) const WORKTREES_MAX: usize = 200;
/// How many paths a repository has at most beside those of its worktrees.
const OTHERS_MAX: usize = 16;
/// How long all paths may be together, in bytes: reports name them.
const BYTES_MAX: usize = 256 << 10;

/// What of some workspaces is to be protected: for [`Policy::guard`](crate::Policy::guard).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarded {
    /// By what a session could have git run something outside. At most [`PROTECTED_MAX`]: of the workspaces first, then of
    /// the repositories inside, the nearest first.
    pub paths: Vec<Utf8PathBuf>,
    /// Repositories of which not everything is among the paths, and a directory where no more of them were looked for:
    /// there are more than can be protected, or their names cannot be written down.
    pub unguarded: BTreeSet<Utf8PathBuf>,
}

/// The paths of the repository of `workspace` by which a session could have git run something outside: hooks and
/// configuration, and more where it exists. In a worktree it is the pointer file `.git`, and such paths in the
/// repository that it points to: that one must be a read-write root too, see
/// [`common_git_directory`](super::common_git_directory). Then the same of the repositories inside: [`guarded`] tells
/// whether that is all.
///
/// A name that does not exist cannot be protected. One of them is worth a look after every session: with a file
/// `.git/commondir` git takes hooks and configuration from elsewhere. [`Watch`](super::Watch) tells of it and sets it
/// aside.
#[must_use]
pub fn git_paths(workspace: &Utf8Path) -> Vec<Utf8PathBuf> {
    guarded(&[workspace.to_owned()]).paths
}

/// The same of several workspaces at once, and what of them cannot be protected.
///
/// Repositories inside are looked for up to four levels below a workspace, in at most 4096 directories, and not in
/// `node_modules`, `target`, `.venv` and `__pycache__`; there are 100 of them at most. Of a submodule it is the pointer,
/// and of a worktree or another pointer whose repository lies in one of the workspaces that one as well. Of each it is
/// also what its configuration names in the workspaces: the directory of hooks, and files that it includes.
#[must_use]
pub fn guarded(workspaces: &[Utf8PathBuf]) -> Guarded {
    let workspaces: BTreeSet<_> = workspaces.iter().cloned().collect();
    let nested = nested::below(&workspaces);
    let mut known = BTreeSet::new();
    let mut bytes = 0;
    let mut guarded = Guarded { paths: vec![], unguarded: nested.cut.iter().map(|cut| plain(cut)).collect() };
    let places = workspaces.iter().chain(&nested.places).map(|place| (place, false));
    for (place, is_bare) in places.chain(nested.bare.iter().map(|place| (place, true))) {
        let left = PROTECTED_MAX - guarded.paths.len();
        let worktrees_max = left.saturating_sub(OTHERS_MAX) / 2;
        let mut paths = if is_bare {
            in_repository(place, place, &workspaces, worktrees_max)
        } else {
            of_repository(place, &workspaces, worktrees_max)
        };
        // What lies in a guarded directory is guarded with it.
        paths.retain(|path| !path.ancestors().any(|path| known.contains(path)));
        let count = paths.len();
        paths.retain(|path| form_of(path).is_none());
        let length: usize = paths.iter().map(|path| path.as_str().len()).sum();
        if paths.len() < count || paths.len() > left || bytes + length > BYTES_MAX {
            guarded.unguarded.insert(plain(place));
        }
        if paths.len() <= left && bytes + length <= BYTES_MAX {
            bytes += length;
            known.extend(paths.iter().cloned());
            guarded.paths.extend(paths);
        }
    }
    guarded
}

/// Hooks, configuration and modules of a repository, for whoever changes the rest of it.
#[must_use]
pub fn of_git(repository: &Utf8Path) -> Guarded {
    Guarded { paths: paths_in(repository, OF_GIT), unguarded: BTreeSet::new() }
}

fn of_repository(
    place: &Utf8Path,
    workspaces: &BTreeSet<Utf8PathBuf>,
    worktrees_max: usize,
) -> Vec<Utf8PathBuf> {
    let git = place.join(".git");
    match repository::find(place) {
        Some(Repository::Main) => in_repository(place, &git, workspaces, worktrees_max),
        Some(Repository::Worktree { own, common })
            if workspaces.contains(place) || is_inside(&common, workspaces) =>
        {
            let mut paths = vec![git];
            paths.extend(paths_in(&own, OF_WORKTREE));
            paths.extend(in_repository(place, &common, workspaces, worktrees_max));
            paths.sort_unstable();
            paths.dedup();
            paths
        }
        Some(Repository::Worktree { .. }) => vec![git],
        Some(Repository::Pointer) => {
            let mut paths = vec![git];
            if let Some(target) = discovery::target(place).filter(|target| is_inside(target, workspaces)) {
                paths.extend(in_repository(place, &target, workspaces, worktrees_max));
            }
            paths
        }
        None => vec![],
    }
}

/// What of a repository is guarded, and of its working tree what its configuration names.
fn in_repository(
    top: &Utf8Path,
    git: &Utf8Path,
    workspaces: &BTreeSet<Utf8PathBuf>,
    worktrees_max: usize,
) -> Vec<Utf8PathBuf> {
    let mut paths = paths_in(git, OF_GIT);
    paths.extend(worktrees_in(git, worktrees_max.min(WORKTREES_MAX)));
    paths.extend(named_by(top, git, workspaces));
    paths
}

/// How many paths that a repository's configuration names are guarded.
const NAMED_MAX: usize = 8;
/// The directory that one manager of hooks keeps below another one of theirs, which holds what they start.
const OF_HUSKY: &str = ".husky";

/// The directories of hooks and the files of configuration in the workspaces that a repository's configuration names.
pub(super) fn named_by(
    top: &Utf8Path,
    git: &Utf8Path,
    workspaces: &BTreeSet<Utf8PathBuf>,
) -> Vec<Utf8PathBuf> {
    let config::Named { hooks, included } = config::named(top, &[git.join("config"), git.join(OWN_SETTINGS)]);
    let whole = |hooks: Utf8PathBuf| match hooks.parent() {
        Some(above) if above.file_name() == Some(OF_HUSKY) => above.to_owned(),
        Some(_) | None => hooks,
    };
    let mut paths: Vec<_> = hooks.into_iter().map(whole).chain(included).collect();
    // A workspace as a whole is no place that could be kept from changes.
    paths.retain(|path| {
        is_inside(path, workspaces) && !workspaces.iter().any(|workspace| workspace.starts_with(path))
    });
    paths.sort_unstable();
    paths.dedup();
    paths.truncate(NAMED_MAX);
    paths
}

/// What leads from the worktrees of a repository to it: whoever changes that has git in a worktree take hooks and
/// configuration from elsewhere. Of very many it is the directory that holds them all, and then none can be made.
fn worktrees_in(git: &Utf8Path, worktrees_max: usize) -> Vec<Utf8PathBuf> {
    let all = git.join("worktrees");
    let Some(opened) = Directory::open(git) else { return vec![] };
    let listing = opened.list("worktrees".into(), worktrees_max);
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

/// The path, or the nearest above it that a policy takes.
fn plain(path: &Utf8Path) -> Utf8PathBuf {
    let taken = path.ancestors().find(|above| form_of(above).is_none());
    taken.map_or_else(|| "/".into(), Utf8Path::to_owned)
}
