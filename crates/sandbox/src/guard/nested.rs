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
/// How many links of one directory are noted.
const LINKS_MAX: usize = 4096;
/// How many directories are named in which not everything was looked at.
const CUT_MAX: usize = 32;
/// How many names are read in all.
const ENTRIES_MAX: usize = 1 << 18;

/// What is in a directory, as far as a walk wants to know.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// The directories, sorted. None whose name is not UTF-8 or holds control characters.
    pub(crate) directories: Vec<String>,
    /// The symbolic links, in any order.
    pub(crate) links: Vec<String>,
    /// Something is named `.git`. It is none of the directories.
    pub(crate) has_git: bool,
    /// Which names of a repository are there.
    pub(crate) layout: Layout,
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

impl Inside {
    /// One more link, by the bytes of its name.
    pub(crate) fn add_link(&mut self, name: Option<&str>) {
        match name {
            Some(name) if !name.chars().any(char::is_control) && self.links.len() < LINKS_MAX => {
                self.links.push(name.to_owned());
            }
            Some(_) | None => self.is_cut = true,
        }
    }
}

/// The names by which git takes a directory for a repository, whatever it is called itself: `HEAD`, and both of the next,
/// which lie elsewhere where the last one is.
const LAYOUT: [&[u8]; 4] = [b"HEAD", b"objects", b"refs", b"commondir"];

/// Which of these are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Layout([bool; LAYOUT.len()]);

impl Layout {
    /// One more name.
    pub(crate) fn see(&mut self, name: &[u8]) {
        for (there, known) in self.0.iter_mut().zip(LAYOUT) {
            *there |= name == known;
        }
    }

    fn is_repository(self) -> bool {
        let [head, objects, refs, common] = self.0;
        head && (objects && refs || common)
    }
}

/// What a walk has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Nested {
    /// The directories that hold something named `.git`, those nearest to their workspace first. None is a workspace.
    pub(super) places: Vec<Utf8PathBuf>,
    /// The directories that are repositories themselves, likewise; a workspace may be among them.
    pub(super) bare: Vec<Utf8PathBuf>,
    /// The directories that could not be read, and the nearest one in which not everything was looked at.
    pub(super) cut: BTreeSet<Utf8PathBuf>,
}

/// A directory that is to be looked at, by its name below a workspace.
struct Waiting<'a> {
    workspace: (&'a Utf8Path, &'a Directory),
    name: Utf8PathBuf,
    depth: usize,
}

/// Walks below the workspaces, breadth first and all at once, through no symbolic link. What cannot be read is named: a
/// program inside may own it, and open it later.
pub(super) fn below(workspaces: &BTreeSet<Utf8PathBuf>) -> Nested {
    let opened = workspaces.iter().filter_map(|path| Some((path.as_path(), Directory::open(path)?)));
    let opened: Vec<_> = opened.collect();
    let start = |(path, directory)| Waiting { workspace: (path, directory), name: "".into(), depth: 0 };
    let mut waiting: VecDeque<_> = opened.iter().map(|(path, directory)| start((*path, directory))).collect();
    let mut found = Nested::default();
    let (mut directories, mut entries) = (DIRECTORIES_MAX, ENTRIES_MAX);
    let mut is_crowded = false;
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
        let is_unreadable = inside.is_cut && inside.entries == 0 && entries > 0 && found.cut.len() < CUT_MAX;
        entries -= inside.entries;
        // The names can be asked for where not all of them, or none, could be read.
        let is_asked_for = inside.is_cut || inside.entries == 0;
        let has_git = inside.has_git || is_asked_for && directory.has(&name.join(".git"));
        let is_bare = inside.layout.is_repository() || is_asked_for && has_layout(directory, &name);
        if found.places.len() + found.bare.len() == REPOSITORIES_MAX && (is_bare || has_git && depth > 0) {
            found.cut.insert(above(&here));
            break;
        }
        if has_git && depth > 0 {
            found.places.push(here.clone());
        }
        if is_bare {
            found.bare.push(here.clone());
        }
        // Of a repository git's own part is none of the places where others lie.
        let mut inner = inside.directories;
        inner.retain(|inner| !is_bare || inner != "objects");
        let room = directories.saturating_sub(waiting.len());
        if is_unreadable || (inside.is_cut || inner.len() > room) && !is_crowded {
            is_crowded |= !is_unreadable;
            found.cut.insert(here);
        }
        // More than can be looked at need not wait.
        let inner = inner.iter().map(|inner| name.join(inner)).take(room);
        let inner = inner.map(|name| Waiting { workspace: (path, directory), name, depth: depth + 1 });
        waiting.extend(inner.collect::<Vec<_>>());
    }
    found
}

/// The same as [`Layout`] says, name by name.
fn has_layout(directory: &Directory, name: &Utf8Path) -> bool {
    let has = |inner: &str| directory.has(&name.join(inner));
    has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

fn above(path: &Utf8Path) -> Utf8PathBuf {
    path.parent().unwrap_or(path).to_owned()
}
