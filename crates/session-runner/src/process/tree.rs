//! Finding the processes below one, and ending them, faster than they can fork.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::identity::{ProcessIdentity, ProcessStat, boot_id, is_gone};

/// How often the tree is looked at while it is being stopped, before SIGKILL is sent to what was found.
const STOP_ROUNDS: usize = 10;
/// The longest that the end of one process is waited for, in milliseconds.
const END_MS_MAX: u64 = 100;
/// The most processes whose end is waited for at once; whoever looks again sees to the others.
const WAIT_AT_ONCE: usize = 256;

/// Every process that this pid namespace shows.
pub(super) fn all() -> io::Result<Vec<ProcessStat>> {
    let mut stats = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        stats.extend(ProcessStat::read(pid)?);
    }
    Ok(stats)
}

/// Those below one of the roots, the roots themselves not included.
pub(super) fn below(stats: &[ProcessStat], roots: &[i32]) -> Vec<ProcessStat> {
    let mut children: HashMap<i32, Vec<ProcessStat>> = HashMap::new();
    for stat in stats {
        children.entry(stat.parent).or_default().push(*stat);
    }
    let mut seen: HashSet<i32> = roots.iter().copied().collect();
    let mut found: Vec<ProcessStat> = Vec::new();
    let mut next: Vec<i32> = roots.to_vec();
    while let Some(pid) = next.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            // The list is not of one moment: a pid that was given out again could close a circle.
            if seen.insert(child.pid) {
                found.push(*child);
                next.push(child.pid);
            }
        }
    }
    found
}

/// The living processes below this one.
pub(super) fn descendants(root: i32) -> io::Result<Vec<ProcessIdentity>> {
    let boot = boot_id()?;
    let found = below(&all()?, &[root]);
    Ok(found.iter().filter(|stat| !stat.has_ended()).map(|stat| stat.identity(&boot)).collect())
}

/// Asks them all to end. One that was stopped is woken, or it would never see the signal.
pub(super) fn terminate<'p>(processes: impl IntoIterator<Item = &'p ProcessIdentity>) {
    for process in processes {
        for signal in [Signal::TERM, Signal::CONT] {
            send(process, signal);
        }
    }
}

/// Ends everything that `find` finds: first it is stopped, until no more turn up, so that a forking tree cannot
/// outrun us; then it is killed. Gives those that were found.
pub(super) fn kill(
    mut find: impl FnMut() -> io::Result<Vec<ProcessIdentity>>,
) -> io::Result<HashSet<ProcessIdentity>> {
    let mut stopped = HashSet::new();
    for _ in 0..STOP_ROUNDS {
        let found = find()?;
        let mut grown = false;
        for process in found {
            if !stopped.contains(&process) {
                send(&process, Signal::STOP);
                grown |= stopped.insert(process);
            }
        }
        if !grown {
            break;
        }
    }
    for process in &stopped {
        send(process, Signal::KILL);
    }
    Ok(stopped)
}

/// Waits until these have ended, or for the longest wait of one of them.
pub(super) fn wait_for_ends(processes: &HashSet<ProcessIdentity>) -> io::Result<()> {
    let mut pidfds = Vec::new();
    for process in processes.iter().take(WAIT_AT_ONCE) {
        pidfds.extend(process.pidfd()?);
    }
    let bound = Timespec { tv_sec: 0, tv_nsec: i64::try_from(END_MS_MAX * 1_000_000).unwrap_or_default() };
    for pidfd in &pidfds {
        // One by one: all of them have to end, in any order.
        let mut waiting = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut waiting, Some(&bound)) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn send(process: &ProcessIdentity, signal: Signal) {
    // One that may not be signalled (it changed its user) shows up again as a survivor; there is nothing else
    // to be done about it here.
    if let Err(error) = process.signal(signal) {
        tracing::debug!(pid = process.pid, ?signal, %error, "a process could not be signalled");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_is_found_even_in_a_muddled_list() {
        let stat = |pid, parent| ProcessStat { pid, state: 'S', parent, start_time: 1 };
        let stats =
            [stat(1, 0), stat(10, 1), stat(11, 10), stat(12, 11), stat(20, 1), stat(30, 31), stat(31, 30)];
        let pids = |roots: &[i32]| {
            let mut pids: Vec<i32> = below(&stats, roots).iter().map(|stat| stat.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(&[10]), [11, 12]);
        assert_eq!(pids(&[10, 20]), [11, 12]);
        assert_eq!(pids(&[30]), [31], "a circle ends");
        assert_eq!(pids(&[99]), Vec::<i32>::new());
    }
}
