//! Ending a tree whose keeper is dead. Its processes are known by what they were born with: the run's id in
//! their environment, and the run's cgroup.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};

use camino::Utf8PathBuf;
use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::getpid;
use session_core::RunId;

use super::cgroup::RunCgroup;
use super::identity::{ProcessIdentity, boot_id};
use super::tree;
use crate::workspace::environment::RUN_ID_VARIABLE;

/// How often the whole tree is looked for and killed before what is left is taken to hang in the kernel.
const ROUNDS: usize = 300;
/// So often nothing must be found in a row: a process can be forked just behind our back, and one that is just becoming
/// another program shows no environment.
const EMPTY_ROUNDS: usize = 3;
/// Between two of these looks, in milliseconds.
const EMPTY_PAUSE_MS: u64 = 5;

/// The most bytes that Linux gives a program as arguments and environment: three quarters of 8 MiB.
const ENVIRONMENT_BYTES: u64 = 6 << 20;

/// What came of ending a tree without its keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphansEnded {
    /// How many processes were found and killed.
    pub killed: usize,
    /// How many of them are still there, hanging in the kernel.
    pub survivors: usize,
}

/// Kills every process of the run, and returns when none is left, or after a bound. Blocks: on a runtime, call
/// it from a thread that may.
///
/// It finds processes with `ROOMETTE_RUN_ID=<run>` in their environment, those in the run's cgroup (if a
/// keeper recorded one), and everything below either. One that cleared its environment and left its parents,
/// on a machine without a writable cgroup, is not found. The caller itself is never killed.
pub fn end_run(run: RunId, cgroups: &[Utf8PathBuf]) -> io::Result<OrphansEnded> {
    let group = RunCgroup::recorded(cgroups, run);
    let mut killed = HashSet::new();
    let mut empty = 0;
    let mut left = Vec::new();
    for _ in 0..ROUNDS {
        left = find(run, group.as_ref())?;
        if left.is_empty() {
            empty += 1;
            if empty == EMPTY_ROUNDS {
                break;
            }
            pause()?;
            continue;
        }
        empty = 0;
        killed.extend(left.iter().cloned());
        if let Some(group) = &group
            && !group.members().contains(&getpid().as_raw_pid())
        {
            // What follows works without it.
            let _not_possible = group.kill();
        }
        let found = tree::kill(|| find(run, group.as_ref()))?;
        tree::wait_for_ends(&found)?;
        killed.extend(found);
    }
    if let Some(group) = &group {
        group.remove();
    }
    Ok(OrphansEnded { killed: killed.len(), survivors: left.len() })
}

/// Lets what is just becoming another program become it.
fn pause() -> io::Result<()> {
    let span = Timespec { tv_sec: 0, tv_nsec: i64::try_from(EMPTY_PAUSE_MS * 1_000_000).unwrap_or_default() };
    match poll(&mut [], Some(&span)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The living processes of the run, without the caller.
fn find(run: RunId, group: Option<&RunCgroup>) -> io::Result<Vec<ProcessIdentity>> {
    let marker = format!("{RUN_ID_VARIABLE}={run}");
    let me = getpid().as_raw_pid();
    let boot = boot_id()?;
    let stats = tree::all()?;
    let members: HashSet<i32> = group.map(RunCgroup::members).unwrap_or_default().into_iter().collect();
    let is_of_run =
        |pid: i32| pid != me && (members.contains(&pid) || has_in_environment(pid, marker.as_bytes()));
    let mut found: Vec<_> = stats.iter().filter(|stat| is_of_run(stat.pid)).copied().collect();
    let roots: Vec<i32> = found.iter().map(|stat| stat.pid).collect();
    found.extend(tree::below(&stats, &roots));
    found.retain(|stat| stat.pid != me && !stat.has_ended());
    Ok(found.iter().map(|stat| stat.identity(&boot)).collect())
}

/// One whose environment we may not read is not ours, or is found as a descendant.
fn has_in_environment(pid: i32, marker: &[u8]) -> bool {
    let file = fs::File::open(format!("/proc/{pid}/environ"));
    let environment = file.and_then(bounded).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|pair| pair == marker)
}

/// As much of an environment as there can be: how long it says that its own is, a process decides.
fn bounded(file: impl Read) -> io::Result<Vec<u8>> {
    let mut environment = Vec::new();
    file.take(ENVIRONMENT_BYTES).read_to_end(&mut environment)?;
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_without_an_end_is_read_up_to_what_there_can_be() {
        assert_eq!(bounded(io::repeat(b'x')).unwrap().len() as u64, ENVIRONMENT_BYTES);
    }
}
