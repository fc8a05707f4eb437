//! Ending a start that came to nothing: the keeper, and whatever it may have started by then.

use std::collections::HashSet;
use std::io;

use camino::Utf8Path;
use session_core::RunId;
use tokio::process::Child;

use super::cgroup::RunCgroup;
use super::identity::ProcessIdentity;
use super::orphans::end_run;
use super::record::keeper_record;
use super::tree;

/// How often the end of what was killed is waited for before it is taken to hang in the kernel.
const ROUNDS: usize = 50;

/// Kills the keeper with everything below it, and then what else there is of the run. Returns when none of it is left,
/// or after a bound, with the number of processes that are still there. Blocks: on a runtime, call it from a thread that
/// may.
///
/// A launcher that has not begun yet carries no mark of its run. It is found below its keeper, while that lives, or in the
/// run's group.
pub(super) fn end_start(keeper: &mut Child, run: RunId, state_file: &Utf8Path) -> io::Result<usize> {
    let mut cgroups = Vec::new();
    let below = match keeper.id().and_then(|pid| i32::try_from(pid).ok()) {
        Some(pid) => end_keeper(pid, || cgroups.extend(RunCgroup::around(pid, run))),
        // It has gone and was buried.
        None => Ok(0),
    };
    // If nothing could be looked at, it ends all the same; and it may have gone by itself.
    let _gone_already = keeper.start_kill();
    // Whole or not there at all, now that nobody writes it any more.
    cgroups
        .extend(keeper_record(state_file, run).ok().flatten().into_iter().flat_map(|record| record.cgroups));
    cgroups.sort_unstable();
    cgroups.dedup();
    let others = end_run(run, &cgroups)?.survivors;
    Ok(below?.max(others))
}

/// Kills the keeper and its tree. `look` is called while it is held.
fn end_keeper(pid: i32, mut look: impl FnMut()) -> io::Result<usize> {
    // Nobody has waited for it, so the pid is still its own.
    let Some(keeper) = ProcessIdentity::of(pid)? else { return Ok(0) };
    let mut left: HashSet<ProcessIdentity> = tree::kill(|| {
        look();
        // It comes first: once it is stopped it starts nothing more.
        let mut found: Vec<_> = keeper.is_alive()?.then(|| keeper.clone()).into_iter().collect();
        found.extend(tree::descendants(pid)?);
        Ok(found)
    })?;
    for _ in 0..ROUNDS {
        left.retain(|process| process.is_alive().unwrap_or(true));
        if left.is_empty() {
            break;
        }
        tree::wait_for_ends(&left)?;
    }
    Ok(left.len())
}
