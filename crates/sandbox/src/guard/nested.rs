//! Repositories that lie inside a workspace, found by a walk that is bounded however the tree was made.

use std::collections::{BTreeSet, VecDeque};

use camino::{Utf8Path, Utf8PathBuf};

#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;

/// Directories full of what programs have made, which are not gone into. One that is a repository itself is found.
const PASSED_OVER: &[&str] = &[".venv", "__pycache__", "node_modules", "target"];
/// How deep below its workspace a repository may lie.
const DEPTH_MAX: usize = 4;
/// How many directories are looked at in all.
const DIRECTORIES_MAX: usize = 4096;
/// How many repositories are found in all.
const REPOSITORIES_MAX: usize = 100;
/// How many names are read in all.
const ENTRIES_MAX: usize = 1 << 18;

/// What is in a directory, as far as a walk wants to know.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// The directories, sorted. None whose name is not UTF-8 or holds control characters.
    pub(crate) directories: Vec<String>,
    /// Something is named `.git`. It is none of the directories.
    pub(crate) has_git: bool,
    /// How many names were read.
    pub(crate) entries: usize,
    /// There are more names, or directories that were left out for theirs.
    pub(crate) is_cut: bool,
}

impl Inside {
    /// One more directory, by the bytes of its name.
    pub(crate) fn add(&mut self, name: Option<&str>) {
        match name {
            Some(name) if !name.chars().any(char::is_control) && self.directories.len() < DIRECTORIES_MAX => {
                self.directories.push(name.to_owned());
            }
            Some(_) | None => self.is_cut = true,
        }
    }
}

/// What a walk has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Nested {
    /// The directories that hold something named `.git`, those nearest to their workspace first. None is a workspace.
    pub(super) places: Vec<Utf8PathBuf>,
    /// The nearest directory in which not everything was looked at, and where nothing further was.
    pub(super) cut: Option<Utf8PathBuf>,
}

/// A directory that is to be looked at, by its name below a workspace.
struct Waiting<'a> {
    workspace: (&'a Utf8Path, &'a Directory),
    name: Utf8PathBuf,
    depth: usize,
}

/// Walks below the workspaces, breadth first and all at once, through no symbolic link. What cannot be read is passed
/// over: nobody inside can either, and a repository that can be read later is new then.
pub(super) fn below(workspaces: &BTreeSet<Utf8PathBuf>) -> Nested {
    let opened = workspaces.iter().filter_map(|path| Some((path.as_path(), Directory::open(path)?)));
    let opened: Vec<_> = opened.collect();
    let start = |(path, directory)| Waiting { workspace: (path, directory), name: "".into(), depth: 0 };
    let mut waiting: VecDeque<_> = opened.iter().map(|(path, directory)| start((*path, directory))).collect();
    let mut found = Nested::default();
    let (mut directories, mut entries) = (DIRECTORIES_MAX, ENTRIES_MAX);
    while let Some(Waiting { workspace: (path, directory), name, depth }) = waiting.pop_front() {
        let here = if depth == 0 { path.to_owned() } else { path.join(&name) };
        if depth > 0 && workspaces.contains(&here) {
            continue;
        }
        directories = directories.saturating_sub(1);
        let is_passed_over = name.file_name().is_some_and(|name| PASSED_OVER.contains(&name));
        let inside = if depth == DEPTH_MAX || is_passed_over {
            Inside::default()
        } else {
            directory.inside(if depth == 0 { ".".into() } else { &name }, entries)
        };
        entries -= inside.entries;
        // The name can be asked for where not all of them, or none, could be read.
        let is_asked_for = inside.is_cut || inside.entries == 0;
        let has_git = inside.has_git || is_asked_for && directory.has(&name.join(".git"));
        if depth > 0 && has_git {
            if found.places.len() == REPOSITORIES_MAX {
                found.cut.get_or_insert_with(|| above(&here));
                break;
            }
            found.places.push(here.clone());
        }
        let inner = inside.directories.iter().map(|inner| name.join(inner));
        let room = directories.saturating_sub(waiting.len());
        if inside.is_cut || inner.clone().count() > room {
            found.cut.get_or_insert(here);
        }
        // More than can be looked at need not wait.
        waiting.extend(inner.take(room).map(|name| Waiting {
            workspace: (path, directory),
            name,
            depth: depth + 1,
        }));
    }
    found
}

fn above(path: &Utf8Path) -> Utf8PathBuf {
    path.parent().unwrap_or(path).to_owned()
}
