//! What a machine offers to runs: looked at, not guessed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use session_core::names::ExecutorType;

use crate::agents::Framework;
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

/// Where this `PATH` leads for a program: the first file of that name that can be executed.
#[must_use]
pub fn program(path: &str, name: &str) -> Option<Utf8PathBuf> {
    let places = path.split(':').filter(|place| !place.is_empty());
    places.map(|place| Utf8Path::new(place).join(name)).find(|file| {
        fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    })
}

/// Whether runs of this executor find their program by this `PATH`. One for which the caller names the program is always
/// there.
#[must_use]
pub fn is_here(executor: &ExecutorType, path: &str) -> bool {
    let brought = Framework::of(executor).and_then(Framework::program);
    brought.is_none_or(|name| program(path, name).is_some())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_here_if_its_program_can_be_started() {
        let directory = tempfile::tempdir().unwrap();
        let place = Utf8Path::from_path(directory.path()).unwrap();
        for (name, mode) in [("claude", 0o755), ("codex", 0o644)] {
            fs::write(place.join(name), "").unwrap();
            fs::set_permissions(place.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(place.join("gemini")).unwrap();
        let path = format!("/no/such/place::{place}");
        let here: Vec<_> = ["command", "claude-code", "codex", "gemini", "acp"]
            .into_iter()
            .filter(|name| is_here(&name.parse().unwrap(), &path))
            .collect();
        assert_eq!(here, ["command", "claude-code", "acp"]);
        assert_eq!(program(&path, "claude"), Some(place.join("claude")));
    }
}
