//! A cgroup for one run, where one is writable. It finds processes that nothing else finds, ends them all at once, and
//! holds what they use up together. Everything but the limits works without it too.

mod hierarchy;

use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use session_core::RunId;

use self::hierarchy::{Controller, Hierarchies, Parent, Spot};
use super::scope::{Held, Hold, TreeLimits};

/// How deep groups inside the run's group are followed.
const MAX_DEPTH: usize = 16;
/// The kernel accounts for memory in pieces, so a group that is full may lack this much, in bytes.
const NEAR_LIMIT_BYTES: u64 = 1 << 20;

/// The cgroup of one run: a directory in each hierarchy that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunCgroup {
    paths: Vec<Utf8PathBuf>,
}

/// The run's cgroup with the caller in it.
#[derive(Debug)]
pub(super) struct Entered {
    group: RunCgroup,
    homes: Vec<Utf8PathBuf>,
}

impl RunCgroup {
    /// Makes the run's group and puts the caller into it, so that whatever it starts is born there. `None` where that
    /// cannot be done. Says of each limit whether the group holds it.
    pub(super) fn enter(run: RunId, limits: &TreeLimits) -> (Option<Entered>, Held) {
        enter(&Hierarchies::look(), run, limits)
    }

    /// The directories of the run's group that this process is in, as its keeper is while it starts the program.
    pub(super) fn around(pid: i32, run: RunId) -> Vec<Utf8PathBuf> {
        let owns = Hierarchies::of(pid).spots().map(|spot| spot.own.clone()).collect::<Vec<_>>();
        Self::recorded(&owns, run).map(|group| group.paths).unwrap_or_default()
    }

    /// The group that a keeper recorded. `None` if no path names a group of this run.
    pub(super) fn recorded(paths: &[Utf8PathBuf], run: RunId) -> Option<Self> {
        let is_of_run = |path: &&Utf8PathBuf| {
            path.file_name() == Some(name(run).as_str()) && path.join("cgroup.procs").is_file()
        };
        let paths: Vec<_> = paths.iter().filter(is_of_run).cloned().collect();
        (!paths.is_empty()).then_some(Self { paths })
    }

    /// Where it lies.
    pub(super) fn paths(&self) -> &[Utf8PathBuf] {
        &self.paths
    }

    /// Ends every process in it with SIGKILL, those that are just being forked included. Does nothing where the kernel
    /// cannot do it.
    pub(super) fn kill(&self) -> io::Result<()> {
        for path in self.paths.iter().filter(|path| path.join("cgroup.kill").exists()) {
            write(path, "cgroup.kill", "1")?;
        }
        Ok(())
    }

    /// The pids in it and in the groups inside it.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for group in self.groups() {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            pids.extend(listed.lines().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether the kernel has killed one of its processes because it had reached its limit of memory.
    pub(super) fn was_short_of_memory(&self) -> bool {
        self.paths.iter().any(|path| {
            let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
            let number = |file: &str| read(file).trim().parse::<u64>().ok();
            let peak = number("memory.max_usage_in_bytes").zip(number("memory.limit_in_bytes"));
            short_of_memory(&read("memory.events"), &read("memory.oom_control"), peak)
        })
    }

    /// Removes it, the groups inside it first. `false` if it is still in use.
    pub(super) fn remove(&self) -> bool {
        for group in self.groups().iter().rev() {
            let _in_use = fs::remove_dir(group);
        }
        !self.paths.iter().any(|path| path.exists())
    }

    /// It and the groups inside it, outer ones first.
    fn groups(&self) -> Vec<Utf8PathBuf> {
        let mut all = self.paths.clone();
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

impl Entered {
    /// The group.
    pub(super) fn group(&self) -> &RunCgroup {
        &self.group
    }

    /// Takes the caller out again. If it cannot come back the group is of no use: its end would be ours. Then it holds
    /// nothing any more, as far as that can be had, and this says why.
    pub(super) fn leave(self) -> Result<RunCgroup, String> {
        let mut kept_in = None;
        for (home, group) in self.homes.iter().zip(&self.group.paths) {
            if let Err(error) = take_in(home) {
                kept_in = Some(format!("the keeper could not leave {group} for {home} ({error})"));
            }
        }
        let Some(why) = kept_in else { return Ok(self.group) };
        self.group.paths.iter().for_each(|group| lift(group));
        Err(why)
    }
}

/// The groups below which runs can have groups of their own: of version 2 first, then of version 1 those that hold
/// limits which version 2 does not. None where no cgroup can be written.
#[must_use]
pub fn usable_cgroups() -> Vec<Utf8PathBuf> {
    let hierarchies = Hierarchies::look();
    let unified = hierarchies.unified.iter().filter(|spot| take_in(&spot.own).is_ok());
    let legacy = Controller::ALL.iter().filter_map(|controller| hierarchies.legacy(*controller));
    let writable = unified.chain(legacy).filter(|spot| hierarchy::may_make(&spot.own));
    writable.map(|spot| spot.own.clone()).collect()
}

fn enter(hierarchies: &Hierarchies, run: RunId, limits: &TreeLimits) -> (Option<Entered>, Held) {
    let mut entered = Entered { group: RunCgroup { paths: Vec::new() }, homes: Vec::new() };
    let wanted: Vec<_> =
        Controller::ALL.into_iter().filter(|wanted| limit(limits, *wanted).is_some()).collect();
    let unified = match &hierarchies.unified {
        None => Err("there is no cgroup v2".into()),
        Some(spot) => {
            let parents = hierarchy::parents(spot, &wanted);
            let group = parents.iter().find_map(|parent| join_below(spot, parent, run).ok());
            entered.add(group.clone(), spot);
            group.ok_or_else(|| format!("no group of cgroup v2 can be made in {} or above it", spot.own))
        }
    };
    let mut hold = |controller| match limit(limits, controller) {
        Some(most) => entered.hold(&unified, hierarchies.legacy(controller), run, (controller, most)),
        None => Hold::NotAsked,
    };
    let (memory, processes) = (hold(Controller::Memory), hold(Controller::Pids));
    ((!entered.homes.is_empty()).then_some(entered), Held { memory, processes })
}

impl Entered {
    fn add(&mut self, path: Option<Utf8PathBuf>, spot: &Spot) {
        if let Some(path) = path {
            self.group.paths.push(path);
            self.homes.push(spot.own.clone());
        }
    }

    /// Has one limit held: by the group of version 2 if it can, else by one of version 1.
    fn hold(
        &mut self,
        unified: &Result<Utf8PathBuf, String>,
        legacy: Option<&Spot>,
        run: RunId,
        limit: (Controller, u64),
    ) -> Hold {
        let name = limit.0.name();
        let not_unified = match unified {
            Ok(group) => match limit_unified(group, limit) {
                Ok(()) => return Hold::Held { group: group.clone() },
                Err(error) => format!("the group {group} of cgroup v2 cannot limit {name} ({error})"),
            },
            Err(why) => why.clone(),
        };
        let not_legacy = match legacy {
            None => format!("there is no cgroup v1 for {name}"),
            Some(spot) => match join_limited(spot, run, limit) {
                Ok(group) => {
                    self.add(Some(group.clone()), spot);
                    return Hold::Held { group };
                }
                Err(error) => format!("no group of cgroup v1 can be made in {} ({error})", spot.own),
            },
        };
        Hold::Missing { why: format!("{not_unified}, and {not_legacy}") }
    }
}

fn limit(limits: &TreeLimits, controller: Controller) -> Option<u64> {
    match controller {
        Controller::Memory => limits.memory_bytes,
        Controller::Pids => limits.processes,
    }
}

/// Makes the run's group and puts the caller into it.
fn join(spot: &Spot, parent: &Utf8Path, run: RunId) -> io::Result<Utf8PathBuf> {
    // The way back is tried first: a keeper inside the group would be killed with it.
    take_in(&spot.own)?;
    let path = parent.join(name(run));
    match fs::create_dir(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    take_in(&path).inspect_err(|_| {
        // Without a member it can be removed again; there is nobody to tell if not.
        let _kept = fs::remove_dir(&path);
    })?;
    Ok(path)
}

/// The same in version 2, below a group that then hands down what is wanted.
fn join_below(spot: &Spot, parent: &Parent, run: RunId) -> io::Result<Utf8PathBuf> {
    let path = join(spot, &parent.directory, run)?;
    hand_down(spot, parent, &path).inspect_err(|_| {
        let _kept = take_in(&spot.own).and_then(|()| fs::remove_dir(&path));
    })?;
    Ok(path)
}

/// Has a group hand down what it does not yet. The group below it is known to be of use: no other is changed.
fn hand_down(spot: &Spot, parent: &Parent, path: &Utf8Path) -> io::Result<()> {
    if parent.to_enable.is_empty() {
        return Ok(());
    }
    // Asked from where the caller comes back to: of a group that has processes the kernel refuses it, and one that is
    // empty for this moment alone would let nobody in afterwards.
    take_in(&spot.own)?;
    // In one piece: all of it or nothing.
    let names: Vec<_> = parent.to_enable.iter().map(|one| format!("+{}", one.name())).collect();
    write(&parent.directory, "cgroup.subtree_control", &names.join(" "))?;
    take_in(path)
}

/// The same in a hierarchy of version 1, with its limit.
fn join_limited(spot: &Spot, run: RunId, limit: (Controller, u64)) -> io::Result<Utf8PathBuf> {
    let path = join(spot, &spot.own, run)?;
    limit_legacy(&path, limit).inspect_err(|_| {
        let _kept = take_in(&spot.own).and_then(|()| fs::remove_dir(&path));
    })?;
    Ok(path)
}

fn limit_unified(group: &Utf8Path, (controller, most): (Controller, u64)) -> io::Result<()> {
    let most = most.to_string();
    match controller {
        Controller::Memory => {
            write(group, "memory.max", &most)?;
            // Kernels without swap do not have the first, old ones not the second.
            optional(write(group, "memory.swap.max", "0"))?;
            optional(write(group, "memory.oom.group", "1"))
        }
        Controller::Pids => write(group, "pids.max", &most),
    }
}

fn limit_legacy(group: &Utf8Path, (controller, most): (Controller, u64)) -> io::Result<()> {
    let most = most.to_string();
    match controller {
        Controller::Memory => {
            write(group, "memory.limit_in_bytes", &most)?;
            // Memory and swap together, where the kernel counts swap.
            optional(write(group, "memory.memsw.limit_in_bytes", &most))
        }
        Controller::Pids => write(group, "pids.max", &most),
    }
}

/// Takes the limits of either version off a group, so that nothing is killed for them any more.
fn lift(group: &Utf8Path) {
    for (file, most) in [
        ("memory.oom.group", "0"),
        ("memory.max", "max"),
        ("memory.swap.max", "max"),
        ("memory.memsw.limit_in_bytes", "-1"),
        ("memory.limit_in_bytes", "-1"),
        ("pids.max", "max"),
    ] {
        // Most of these are of the other version, or of another controller.
        let _not_there = write(group, file, most);
    }
}

/// A file that this kernel does not have is not missed.
fn optional(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reads the counters of either version: something was killed, and the limit was reached. A kill alone may be for the
/// whole machine's lack of memory. `peak` is the most that was used, and the limit, of version 1; what it counts as
/// failures depends on which of its two limits comes first.
fn short_of_memory(events: &str, oom_control: &str, peak: Option<(u64, u64)>) -> bool {
    let count = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line.unwrap_or_default()
    };
    let unified = count(events, "oom ") > 0 && count(events, "oom_kill ") > 0;
    let at_limit = peak.is_some_and(|(most, limit)| most.saturating_add(NEAR_LIMIT_BYTES) >= limit);
    unified || count(oom_control, "oom_kill ") > 0 && at_limit
}

/// Puts the caller into the group.
fn take_in(group: &Utf8Path) -> io::Result<()> {
    write(group, "cgroup.procs", "0")
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

#[cfg(test)]
mod tests;
