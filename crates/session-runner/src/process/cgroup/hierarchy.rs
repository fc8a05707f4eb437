//! Where the caller's own groups lie, and below which of them a run can have one that holds its limits.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Access, access};

/// What of the kernel holds one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Pids,
}

impl Controller {
    pub(super) const ALL: [Self; 2] = [Self::Memory, Self::Pids];

    /// Its name in the kernel's files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// The caller's place in one hierarchy of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    /// The directory of its group.
    pub(super) own: Utf8PathBuf,
    /// The outermost directory that is shown.
    pub(super) top: Utf8PathBuf,
}

/// The caller's place in each hierarchy that is of use to us.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hierarchies {
    /// Version 2: one hierarchy for whatever version 1 has not taken.
    pub(super) unified: Option<Spot>,
    /// Version 1, the hierarchy of the controller `memory`.
    pub(super) memory: Option<Spot>,
    /// Version 1, the hierarchy of the controller `pids`.
    pub(super) pids: Option<Spot>,
}

impl Hierarchies {
    /// Looks them up; one that cannot be is not there.
    pub(super) fn look() -> Self {
        Self::look_up("/proc/self/cgroup")
    }

    /// The same for another process, as far as the caller's mounts show it.
    pub(super) fn of(pid: i32) -> Self {
        Self::look_up(&format!("/proc/{pid}/cgroup"))
    }

    fn look_up(groups: &str) -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        Self::locate(&read("/proc/self/mountinfo"), &read(groups))
    }

    /// All that there are.
    pub(super) fn spots(&self) -> impl Iterator<Item = &Spot> {
        [&self.unified, &self.memory, &self.pids].into_iter().flatten()
    }

    /// Finds the directories from `/proc/self/mountinfo` and `/proc/self/cgroup`.
    fn locate(mounts: &str, groups: &str) -> Self {
        let legacy = |controller: Controller| {
            let group = groups.lines().find_map(|line| {
                let (names, group) = line.split_once(':')?.1.split_once(':')?;
                names.split(',').any(|name| name == controller.name()).then_some(group)
            })?;
            spot(mounts, group, |kind, options| {
                kind == "cgroup" && options.split(',').any(|option| option == controller.name())
            })
        };
        let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
        Self {
            unified: unified.and_then(|group| spot(mounts, group, |kind, _| kind == "cgroup2")),
            memory: legacy(Controller::Memory),
            pids: legacy(Controller::Pids),
        }
    }

    /// Version 1's place for a controller.
    pub(super) fn legacy(&self, controller: Controller) -> Option<&Spot> {
        match controller {
            Controller::Memory => self.memory.as_ref(),
            Controller::Pids => self.pids.as_ref(),
        }
    }
}

/// The directory of a group, below the mount of the hierarchy that is meant.
fn spot(mounts: &str, group: &str, is_meant: impl Fn(&str, &str) -> bool) -> Option<Spot> {
    // A group outside of what this namespace shows.
    if group.split('/').any(|part| part == "..") {
        return None;
    }
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        let (kind, options) = (source.next()?, source.nth(1)?);
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // The mount may show only a part of the hierarchy.
        let below = Utf8Path::new(group).strip_prefix(root).ok()?;
        let escaped = point.contains('\\');
        (is_meant(kind, options) && !escaped).then(|| {
            let top = Utf8PathBuf::from(point);
            Spot { own: if below.as_str().is_empty() { top.clone() } else { top.join(below) }, top }
        })
    })
}

/// Whether the caller may make a group in there.
pub(super) fn may_make(directory: &Utf8Path) -> bool {
    access(directory.as_std_path(), Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && directory.join("cgroup.procs").exists()
}

/// A group of version 2 below which a run could have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) directory: Utf8PathBuf,
    /// What it would have to hand down and does not yet.
    pub(super) to_enable: Vec<Controller>,
}

/// The groups to be tried, one after the other, until one of them does. The nearest that can hand down everything that
/// is wanted comes first, then those for one controller alone, and at last the own group as it is. Only looks.
pub(super) fn parents(spot: &Spot, wanted: &[Controller]) -> Vec<Parent> {
    let outwards = spot.own.ancestors().take_while(|directory| directory.starts_with(&spot.top));
    let usable: Vec<&Utf8Path> = outwards.filter(|directory| may_make(directory)).collect();
    let alone = wanted.iter().map(std::slice::from_ref).filter(|_| wanted.len() > 1);
    let sets = std::iter::once(wanted).chain(alone).filter(|set| !set.is_empty());
    let mut found: Vec<Parent> = sets
        .flat_map(|set| usable.iter().filter_map(move |directory| handing_down(directory, set)))
        .collect();
    if usable.contains(&spot.own.as_path()) {
        found.push(Parent { directory: spot.own.clone(), to_enable: Vec::new() });
    }
    found
}

/// `None` if the group cannot hand all of them down.
fn handing_down(directory: &Utf8Path, wanted: &[Controller]) -> Option<Parent> {
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
    let (handed, offered) = (read("cgroup.subtree_control"), read("cgroup.controllers"));
    let lists = |names: &str, one: Controller| names.split_ascii_whitespace().any(|name| name == one.name());
    let to_enable: Vec<_> = wanted.iter().copied().filter(|one| !lists(&handed, *one)).collect();
    let can = to_enable.iter().all(|one| lists(&offered, *one));
    can.then(|| Parent { directory: directory.to_owned(), to_enable })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(own: &str, top: &str) -> Spot {
        Spot { own: own.into(), top: top.into() }
    }

    #[test]
    fn the_own_groups_are_found_in_every_layout() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      33 30 0:29 / /sys/fs/cgroup/misc,pids rw - cgroup cgroup rw,misc,pids\n\
                      41 30 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let part = "30 23 0:26 /user.slice /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let check = |mounts, groups, expect: Option<Spot>| {
            let found = Hierarchies::locate(mounts, groups);
            assert_eq!(found, Hierarchies { unified: expect, ..Hierarchies::default() }, "{groups:?}");
        };
        let top = "/sys/fs/cgroup";
        check(unified, "0::/user.slice/a.scope\n", Some(at("/sys/fs/cgroup/user.slice/a.scope", top)));
        check(hybrid, "9:cpu:/x\n0::/\n", Some(at("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified")));
        check(part, "0::/user.slice/a.scope\n", Some(at("/sys/fs/cgroup/a.scope", top)));
        check(part, "0::/user.slice.other/a.scope\n", None);
        check(part, "0::/system.slice\n", None);
        check(unified, "0::/../other\n", None);
        check(unified, "9:cpu:/x\n", None);
        check("", "0::/\n", None);
        let found = Hierarchies::locate(hybrid, "8:misc,pids:/\n4:memory:/a/b\n9:cpu:/x\n0::/\n");
        assert_eq!(found.memory, Some(at("/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory")));
        assert_eq!(found.pids, Some(at("/sys/fs/cgroup/misc,pids", "/sys/fs/cgroup/misc,pids")));
    }

    #[test]
    fn the_nearest_group_that_can_hand_all_down_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let top = Utf8PathBuf::from_path_buf(directory.path().to_owned()).unwrap();
        let group = |path: &str, controllers: &str, handed: &str| {
            let path = if path.is_empty() { top.clone() } else { top.join(path) };
            fs::create_dir_all(&path).unwrap();
            for (file, text) in [
                ("cgroup.procs", ""),
                ("cgroup.controllers", controllers),
                ("cgroup.subtree_control", handed),
            ] {
                fs::write(path.join(file), text).unwrap();
            }
            path
        };
        let root = group("", "cpu memory pids", "cpu memory pids");
        let user = group("user", "cpu memory pids", "memory pids");
        let app = group("user/app", "memory pids", "pids");
        let own = group("user/app/own", "pids", "");
        let spot = Spot { own: own.clone(), top: top.clone() };
        let [memory, pids] = Controller::ALL;
        let parent = |directory: &Utf8PathBuf, to_enable: &[Controller]| Parent {
            directory: directory.clone(),
            to_enable: to_enable.to_vec(),
        };
        let both = [parent(&app, &[memory]), parent(&user, &[]), parent(&root, &[])];
        let only_pids = [parent(&own, &[pids]), parent(&app, &[]), parent(&user, &[]), parent(&root, &[])];
        let as_it_is = [parent(&own, &[])];
        // For memory alone the same groups are left as for both.
        assert_eq!(
            parents(&spot, &[memory, pids]),
            [&both[..], &both[..], &only_pids[..], &as_it_is[..]].concat()
        );
        assert_eq!(parents(&spot, &[]), as_it_is);
        assert_eq!(fs::read_to_string(app.join("cgroup.subtree_control")).unwrap(), "pids", "it only looks");
        fs::remove_file(app.join("cgroup.procs")).unwrap();
        assert_eq!(parents(&spot, &[memory]).first(), Some(&both[1]), "what is no group is none");
    }
}
