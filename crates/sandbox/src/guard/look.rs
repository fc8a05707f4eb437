//! One look at all watched names, bounded however much a session has put there.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};

use super::OWN_SETTINGS;
use super::names::{Budget, Found, mark};
use super::nested::Nested;
#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;

/// Names that editors, agents and shells act on when somebody opens the workspace or works in it.
const WATCHED: &[&str] = &[
    ".bash_profile",
    ".bashrc",
    ".cargo/config",
    ".cargo/config.toml",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".codex/config.toml",
    ".cursor/mcp.json",
    ".devcontainer/devcontainer.json",
    ".envrc",
    ".exrc",
    ".gemini/settings.json",
    ".gitmodules",
    ".idea/workspace.xml",
    ".mcp.json",
    ".mise.toml",
    ".npmrc",
    ".nvim.lua",
    ".pre-commit-config.yaml",
    ".profile",
    ".vscode/extensions.json",
    ".vscode/launch.json",
    ".vscode/settings.json",
    ".vscode/tasks.json",
    ".yarnrc.yml",
    ".zed/settings.json",
    ".zed/tasks.json",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    "mise.toml",
    "rust-toolchain.toml",
];
/// Directories of hooks that configuration outside of the repository may name.
const HOOKS: &[&str] = &[".githooks", ".husky", ".husky/_"];
/// The mark of what makes a directory a repository.
const BARE: &str = "a repository";
/// The mark of a directory that holds more than is looked at, or cannot be read.
pub(super) const CROWDED: &str = "more than is looked at";
/// Where git keeps what it writes, beside what lies in the repository itself.
const WRITTEN: &[&str] = &[
    "branches",
    "info",
    "lfs",
    "objects",
    "objects/info",
    "objects/pack",
    "rebase-apply",
    "rebase-merge",
    "reftable",
    "rr-cache",
    "sequencer",
];
/// The same with all that is below.
const WRITTEN_BELOW: &[&str] = &["logs", "refs", "worktrees"];
/// How many names are looked at in all to find links.
const NAMES_FOR_LINKS_MAX: usize = 1 << 17;
/// The file by which git takes hooks and configuration from another directory.
pub(super) const COMMON_DIRECTORY: &str = "commondir";
/// What git writes into it in the own part of a worktree: the repository around it.
const AROUND: &[u8] = b"../..\n";
/// The mark of such a file, also while git is making it.
pub(super) const USUAL: &str = "the repository around it";
/// How many names of one directory are looked at.
const NAMES_MAX: usize = 4096;
/// How many worktrees of a repository are looked at, and how many directories of its modules.
const DIRECTORIES_MAX: usize = 512;
/// How deep the repositories of modules may lie, as directories between.
const DEPTH_MAX: usize = 16;

/// How many names that are listed are looked at in all.
const LISTED_MAX: usize = 1 << 14;

/// What is looked at.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) workspaces: &'a BTreeSet<Utf8PathBuf>,
    /// Repositories that lie elsewhere.
    pub(super) repositories: &'a BTreeSet<Utf8PathBuf>,
    /// Directories with a repository inside workspaces: of those, what is git's.
    pub(super) nested: &'a [Utf8PathBuf],
    /// Hooks and configuration in other places.
    pub(super) named: &'a BTreeSet<Utf8PathBuf>,
}

/// What is there of the watched names, each with its mark. `inside` are the repositories as a walk has found them now: of
/// those that are no subject, it is told that they are there.
pub(super) fn look(subject: &Subject<'_>, inside: &Nested) -> BTreeMap<Utf8PathBuf, String> {
    let mut look = Look::default();
    for path in subject.workspaces {
        let Some(place) = look.place(path) else { continue };
        for name in WATCHED {
            look.at(&place, Utf8Path::new(name));
        }
        for name in HOOKS {
            look.listed(&place, Utf8Path::new(name));
        }
        look.git(&place);
    }
    for path in subject.repositories {
        if let Some(place) = look.place(path) {
            look.repository(&place, "".into());
        }
    }
    for path in subject.nested {
        if let Some(directory) = Directory::open(path) {
            look.git(&Place { path, directory });
        }
    }
    for (path, name) in subject.named.iter().filter_map(|path| Some((path.parent()?, path.file_name()?))) {
        if let Some(directory) = Directory::open(path) {
            look.listed(&Place { path, directory }, Utf8Path::new(name));
        }
    }
    for path in inside.places.iter().filter(|path| !subject.nested.contains(path)) {
        if let Some(directory) = Directory::open(path) {
            look.at(&Place { path, directory }, ".git".into());
        }
    }
    // Another name than `.git` makes it no less of a repository.
    let bare = inside.bare.iter().map(|path| (path.join("HEAD"), BARE.to_owned()));
    look.seen.extend(bare);
    look.seen
}

/// Whether a `commondir` in the own part of a worktree is as git makes it. git makes the file first and fills it then, so
/// an empty one is usual too: it leads nowhere, and git stops at it.
pub(super) fn is_usual(directory: &Directory, name: &Utf8Path) -> bool {
    // To the last byte: spaces and lines that follow can be part of a directory's name.
    let content = directory.read(name, 2 * AROUND.len() as u64);
    content.is_some_and(|content| content.is_empty() || content == AROUND)
}

pub(super) fn is_empty(directory: &Directory, name: &Utf8Path) -> bool {
    matches!(directory.find(name), Found::File { bytes: 0, .. })
}

/// A directory that names are below of, with its own name.
struct Place<'a> {
    path: &'a Utf8Path,
    directory: Directory,
}

/// What a look tells those who go on from there.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    Other,
}

#[derive(Default)]
struct Look {
    seen: BTreeMap<Utf8PathBuf, String>,
    listed: usize,
    looked_for_links: usize,
    budget: Budget,
}

impl Look {
    fn place<'a>(&mut self, path: &'a Utf8Path) -> Option<Place<'a>> {
        let directory = Directory::open(path)?;
        self.seen.insert(path.to_owned(), "directory".to_owned());
        Some(Place { path, directory })
    }

    /// The repository of a place.
    fn git(&mut self, place: &Place<'_>) {
        if self.at(place, ".git".into()) == Some(Kind::Directory) {
            self.repository(place, ".git".into());
        }
    }

    fn at(&mut self, place: &Place<'_>, name: &Utf8Path) -> Option<Kind> {
        let mark = mark(&place.directory, name, &mut self.budget)?;
        let kind = if mark == "directory" { Kind::Directory } else { Kind::Other };
        self.seen.insert(place.path.join(name), mark);
        Some(kind)
    }

    /// A directory and what is in it.
    fn listed(&mut self, place: &Place<'_>, name: &Utf8Path) {
        if self.at(place, name) != Some(Kind::Directory) {
            return;
        }
        for inner in self.names(place, name, NAMES_MAX) {
            self.at(place, &name.join(inner));
        }
    }

    /// The names in a directory. That there are more than are looked at is its mark then.
    fn names(&mut self, place: &Place<'_>, name: &Utf8Path, names_max: usize) -> Vec<String> {
        let listing = place.directory.list(name, names_max.min(LISTED_MAX - self.listed));
        self.listed += listing.names.len();
        if listing.is_cut {
            self.seen.insert(place.path.join(name), "directory of more than is looked at".to_owned());
        }
        listing.names
    }

    /// What decides which programs git runs, in the repository of this name.
    fn repository(&mut self, place: &Place<'_>, name: &Utf8Path) {
        self.one_repository(place, name);
        let modules = name.join("modules");
        if self.at(place, &modules) == Some(Kind::Directory) {
            self.modules(place, &modules);
        }
    }

    fn one_repository(&mut self, place: &Place<'_>, name: &Utf8Path) {
        for inner in [COMMON_DIRECTORY, "config", OWN_SETTINGS] {
            self.at(place, &name.join(inner));
        }
        self.listed(place, &name.join("hooks"));
        self.links(place, name);
        let worktrees = name.join("worktrees");
        for worktree in self.names(place, &worktrees, DIRECTORIES_MAX) {
            let own = worktrees.join(worktree);
            let settings = own.join(OWN_SETTINGS);
            // An empty one sets nothing, and git may be about to fill it.
            if !is_empty(&place.directory, &settings) {
                self.at(place, &settings);
            }
            let pointer = own.join(COMMON_DIRECTORY);
            // Read after it was found: git may be making it at this moment.
            if self.at(place, &pointer).is_some() && is_usual(&place.directory, &pointer) {
                self.seen.insert(place.path.join(pointer), USUAL.to_owned());
            }
        }
    }

    /// The symbolic links where git keeps what it writes. git makes none there, and would write where they lead.
    fn links(&mut self, place: &Place<'_>, name: &Utf8Path) {
        let mut waiting: Vec<_> = WRITTEN.iter().map(|inner| (name.join(inner), false)).collect();
        waiting.push((name.to_owned(), false));
        waiting.extend(WRITTEN_BELOW.iter().map(|inner| (name.join(inner), true)));
        while let Some((name, goes_on)) = waiting.pop() {
            let left = NAMES_FOR_LINKS_MAX - self.looked_for_links;
            let here = if name == "" { Utf8Path::new(".") } else { &name };
            let inside = place.directory.inside(here, left);
            self.looked_for_links += inside.entries;
            for link in &inside.links {
                self.at(place, &name.join(link));
            }
            if inside.is_cut {
                let path = if name == "" { place.path.to_owned() } else { place.path.join(&name) };
                self.seen.insert(path, CROWDED.to_owned());
            }
            // The repositories of a worktree's modules are its own affair.
            let inner = inside.directories.iter().filter(|inner| goes_on && *inner != "modules");
            waiting.extend(inner.map(|inner| (name.join(inner), true)));
        }
    }

    /// The repositories of modules lie anywhere below `modules`, and those of their modules in them.
    fn modules(&mut self, place: &Place<'_>, modules: &Utf8Path) {
        let mut waiting = vec![(modules.to_owned(), 0)];
        let mut left = DIRECTORIES_MAX;
        while let Some((name, depth)) = waiting.pop() {
            let is_repository = matches!(place.directory.find(&name.join("HEAD")), Found::File { .. });
            let inside = if is_repository {
                self.at(place, &name);
                self.one_repository(place, &name);
                vec![name.join("modules")]
            } else {
                self.names(place, &name, NAMES_MAX).iter().map(|inner| name.join(inner)).collect()
            };
            for inner in inside {
                if place.directory.find(&inner) != Found::Directory {
                    continue;
                }
                if depth == DEPTH_MAX || left == 0 {
                    self.seen
                        .insert(place.path.join(modules), "directory of more than is looked at".to_owned());
                    return;
                }
                left -= 1;
                waiting.push((inner, depth + 1));
            }
        }
    }
}
