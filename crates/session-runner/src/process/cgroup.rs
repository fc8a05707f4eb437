//! A cgroup for one run, where a cgroup v2 is writable. It finds processes that nothing else finds, and ends
//! them all at once. Everything works without it too.

use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Access, access};
use session_core::RunId;

/// How deep groups inside the run's group are followed.
const MAX_DEPTH: usize = 16;

/// The cgroup of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunCgroup {
    path: Utf8PathBuf,
}

impl RunCgroup {
    /// Makes the run's group below the caller's own and puts the caller into it, so that whatever it starts
    /// is born there. `None` where that cannot be done.
    pub(super) fn enter(run: RunId) -> Option<(Self, Home)> {
        let home = Home { path: own_group()? };
        // The way back is tried first: a keeper inside the group would be killed with it.
        home.take_in(0).ok()?;
        let group = Self { path: home.path.join(name(run)) };
        match fs::create_dir(&group.path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
        if !group.path.join("cgroup.kill").exists() || write(&group.path, "cgroup.procs", "0").is_err() {
            // Without a member it can be removed again; there is nobody to tell if not.
            let _kept = fs::remove_dir(&group.path);
            return None;
        }
        Some((group, home))
    }

    /// The group that a keeper recorded. `None` if the path does not name a group of this run.
    pub(super) fn recorded(path: &Utf8Path, run: RunId) -> Option<Self> {
        let is_of_run = path.file_name() == Some(name(run).as_str()) && path.join("cgroup.procs").is_file();
        is_of_run.then(|| Self { path: path.to_owned() })
    }

    /// Where it lies.
    pub(super) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Ends every process in it with SIGKILL, those that are just being forked included.
    pub(super) fn kill(&self) -> io::Result<()> {
        write(&self.path, "cgroup.kill", "1")
    }

    /// The pids in it and in the groups inside it.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for group in self.groups() {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            pids.extend(listed.lines().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        pids
    }

    /// Removes it, the groups inside it first. `false` if it is still in use.
    pub(super) fn remove(&self) -> bool {
        for group in self.groups().iter().rev() {
            let _in_use = fs::remove_dir(group);
        }
        !self.path.exists()
    }

    /// It and the groups inside it, outer ones first.
    fn groups(&self) -> Vec<Utf8PathBuf> {
        let mut all = vec![self.path.clone()];
        let mut level = all.clone();
        for _ in 0..MAX_DEPTH {
            level = level.iter().flat_map(|group| directories(group)).collect();
            if level.is_empty() {
                break;
            }
            all.extend_from_slice(&level);
        }
        all
    }
}

/// The group below which runs can have groups of their own; `None` where no cgroup v2 can be written.
#[must_use]
pub fn usable_cgroup() -> Option<Utf8PathBuf> {
    let home = Home { path: own_group()? };
    let may_make = access(home.path.as_std_path(), Access::WRITE_OK | Access::EXEC_OK).is_ok();
    (may_make && home.take_in(0).is_ok()).then_some(home.path)
}

/// The group that a keeper came from.
#[derive(Debug)]
pub(super) struct Home {
    path: Utf8PathBuf,
}

impl Home {
    /// Takes the caller back.
    pub(super) fn come_back(&self) -> io::Result<()> {
        self.take_in(0)
    }

    /// Pid 0 means the caller.
    fn take_in(&self, pid: i32) -> io::Result<()> {
        write(&self.path, "cgroup.procs", &pid.to_string())
    }
}

fn name(run: RunId) -> String {
    format!("roomette-{run}")
}

fn write(group: &Utf8Path, file: &str, value: &str) -> io::Result<()> {
    // The file is the kernel's: it must not be made or cut.
    let mut file = fs::OpenOptions::new().write(true).open(group.join(file))?;
    io::Write::write_all(&mut file, value.as_bytes())
}

fn directories(group: &Utf8Path) -> Vec<Utf8PathBuf> {
    let Ok(entries) = group.read_dir_utf8() else { return Vec::new() };
    let is_directory = |entry: &camino::Utf8DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.flatten().filter(is_directory).map(|entry| entry.path().to_owned()).collect()
}

/// The caller's own group in the v2 hierarchy.
/// The group below which runs get theirs; `None` where that cannot be done.
pub(crate) fn usable() -> Option<Utf8PathBuf> {
    let group = own_group()?;
    let writable = rustix::fs::access(group.as_std_path(), rustix::fs::Access::WRITE_OK).is_ok();
    (writable && group.join("cgroup.procs").exists()).then_some(group)
}

fn own_group() -> Option<Utf8PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    locate(&mounts, &groups)
}

/// Finds the directory of a group from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn locate(mounts: &str, groups: &str) -> Option<Utf8PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A group outside of what this namespace shows.
    if group.split('/').any(|part| part == "..") {
        return None;
    }
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        if source.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // The mount may show only a part of the hierarchy.
        let below = group.strip_prefix(root.trim_end_matches('/'))?;
        let escaped = point.contains('\\');
        (!escaped).then(|| Utf8Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_either_layout() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 30 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let part = "30 23 0:26 /user.slice /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let check = |mounts, groups, expect: Option<&str>| {
            assert_eq!(locate(mounts, groups).as_deref(), expect.map(Utf8Path::new), "{groups:?}");
        };
        check(unified, "0::/user.slice/a.scope\n", Some("/sys/fs/cgroup/user.slice/a.scope"));
        check(hybrid, "9:cpu:/x\n0::/\n", Some("/sys/fs/cgroup/unified/"));
        check(part, "0::/user.slice/a.scope\n", Some("/sys/fs/cgroup/a.scope"));
        check(part, "0::/system.slice\n", None);
        check(unified, "0::/../other\n", None);
        check(unified, "9:cpu:/x\n", None);
        check("", "0::/\n", None);
    }
}
