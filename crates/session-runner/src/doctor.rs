//! What a machine offers to runs: looked at, not guessed.

use std::fs;

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::process::usable_cgroups;
use crate::workspace::Git;

/// What one look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What was looked for.
    pub check: &'static str,
    /// Whether it is there.
    pub works: bool,
    /// Whether runs need it.
    pub needed: bool,
    /// What was found.
    pub found: String,
    /// What to do when it is missing.
    pub hint: Option<&'static str>,
}

/// Looks for everything that runs use of this machine.
#[must_use]
pub fn probe(git: &Git) -> Vec<Probe> {
    vec![pidfd(), proc_files(), cgroups(), git_version(git)]
}

fn pidfd() -> Probe {
    let opened = pidfd_open(getpid(), PidfdFlags::empty());
    Probe {
        check: "pidfd",
        works: opened.is_ok(),
        needed: true,
        found: match &opened {
            Ok(_) => "processes are named so that another one can never be meant".into(),
            Err(error) => format!("the kernel refuses: {error}"),
        },
        hint: Some("Linux 5.3 or newer is needed, and a container that allows pidfd_open"),
    }
}

fn proc_files() -> Probe {
    let read =
        fs::read_to_string("/proc/sys/kernel/random/boot_id").and(fs::read_to_string("/proc/self/stat"));
    Probe {
        check: "proc",
        works: read.is_ok(),
        needed: true,
        found: match &read {
            Ok(_) => "/proc tells of processes and of this boot".into(),
            Err(error) => format!("/proc cannot be read: {error}"),
        },
        hint: Some("mount /proc"),
    }
}

fn cgroups() -> Probe {
    let found = usable_cgroups();
    let below: Vec<&str> = found.iter().map(|group| group.as_str()).collect();
    Probe {
        check: "cgroup",
        works: !found.is_empty(),
        needed: false,
        found: if found.is_empty() {
            "no writable cgroup: process trees are ended by walking them, and their memory has no common limit".into()
        } else {
            format!("each run gets one below {}", below.join(", "))
        },
        hint: None,
    }
}

fn git_version(git: &Git) -> Probe {
    let version = git.version();
    Probe {
        check: "git",
        works: version.is_ok(),
        needed: false,
        found: version.unwrap_or_else(|error| error.to_string()),
        hint: Some("install git for worktree workspaces"),
    }
}
