//! How much a tree has written to disks, and when to look at it again.
//!
//! The kernel counts for each process, and adds the count of one that has ended to whoever has waited for it. The keeper
//! waits for every orphan, so the sum over the tree and the keeper's own children is all that was written.
//!
//! It holds programs that know no better, not those that mean to get around it: the count of a process is lost if its
//! parent has said beforehand that it will not wait (`SIGCHLD` ignored) and no look has come in time, and an ordinary
//! user does not see the count of a living process that has declared that nobody may look into it. So a budget closes
//! no gap of the sandbox's report.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::process::getpid;

use super::tree;

/// The fastest that a tree is taken to write, in bytes for each millisecond: 4 GiB/s.
const BYTES_PER_MS_MAX: u64 = (4 << 30) / 1000;
/// What it may write beyond its budget between two looks, in bytes.
const OVERSHOOT_BYTES_MAX: u64 = 64 << 20;
/// Between two looks, in milliseconds: at the least, so that looking costs little, and at the most.
const LOOK_AFTER_MS: (u64, u64) = (20, 5_000);
/// How often a look is repeated because a process has ended under it.
const LOOKS_MAX: usize = 3;
/// More than the kernel writes to `/proc/PID/io`.
const ACCOUNT_BYTES_MAX: usize = 1 << 10;

/// How long a tree may be left alone that has written so much of its budget, in milliseconds.
fn look_after_ms(written: u64, budget: u64) -> u64 {
    let left = budget.saturating_sub(written).saturating_add(OVERSHOOT_BYTES_MAX);
    (left / BYTES_PER_MS_MAX).clamp(LOOK_AFTER_MS.0, LOOK_AFTER_MS.1)
}

/// The keeper's own accounts, open. A process that nobody may look into cannot open even its own.
#[derive(Debug)]
pub(super) struct OwnAccounts {
    /// Of the process, with all that it has waited for.
    with_children: File,
    /// Of its only thread, without them.
    alone: File,
}

impl OwnAccounts {
    /// Opens them; fails on a kernel that does not count.
    pub(super) fn open() -> io::Result<Self> {
        let me = getpid().as_raw_pid();
        Ok(Self {
            with_children: File::open("/proc/self/io")?,
            alone: File::open(format!("/proc/self/task/{me}/io"))?,
        })
    }

    /// What those have written that the keeper has waited for.
    fn children(&self) -> io::Result<u64> {
        Ok(written(&self.with_children)?.saturating_sub(written(&self.alone)?))
    }
}

/// The accounts that are open from the start.
#[derive(Debug)]
pub(super) struct Accounts {
    /// The keeper's own.
    pub(super) own: OwnAccounts,
    /// That of the first process of a sandbox, which nobody can open.
    pub(super) first_inside: Option<File>,
}

/// The budget of a tree.
#[derive(Debug)]
pub(super) struct WriteBudget {
    accounts: Accounts,
    budget: u64,
    tally: Tally,
    look_at: u64,
}

impl WriteBudget {
    /// For a tree that starts now.
    pub(super) fn new(accounts: Accounts, budget: u64, now: u64) -> Self {
        Self { accounts, budget, tally: Tally::default(), look_at: now + look_after_ms(0, budget) }
    }

    /// When to look next, on the clock of the keeper.
    pub(super) fn look_at(&self) -> u64 {
        self.look_at
    }

    /// Looks, if it is time to; whether the budget is exceeded. `launcher` is the parent of the first process inside.
    pub(super) fn is_exceeded(&mut self, now: u64, launcher: Option<i32>) -> io::Result<bool> {
        if now < self.look_at {
            return Ok(false);
        }
        let mut exceeded = false;
        for _ in 0..LOOKS_MAX {
            let sight = look(&self.accounts, launcher)?;
            self.tally.add(sight);
            exceeded = self.tally.total() > self.budget;
            if sight.complete {
                break;
            }
        }
        self.look_at = now + look_after_ms(self.tally.total(), self.budget);
        Ok(exceeded)
    }

    /// Whether a tree of which nothing is left has written more than it was allowed.
    pub(super) fn was_exceeded(&self) -> bool {
        self.accounts.own.children().is_ok_and(|written| written > self.budget)
    }
}

/// What one look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sight {
    /// Bytes written by what was seen.
    written: u64,
    /// Nothing has ended under the look, and nothing was hidden.
    complete: bool,
}

/// Looks at every process of the tree, each before those below it: a count goes to the parent or an ancestor when its
/// process has ended, so none is seen twice.
fn look(accounts: &Accounts, launcher: Option<i32>) -> io::Result<Sight> {
    let tree = tree::below(&tree::all()?, &[getpid().as_raw_pid()]);
    let mut sight = Sight { written: accounts.own.children()?, complete: true };
    for process in tree {
        let account = match &accounts.first_inside {
            Some(account) if launcher == Some(process.parent) => written(account),
            Some(_) | None => {
                File::open(format!("/proc/{}/io", process.pid)).and_then(|account| written(&account))
            }
        };
        match account {
            Ok(bytes) => sight.written = sight.written.saturating_add(bytes),
            // It has ended under the look, or hides.
            Err(_) => sight.complete = false,
        }
    }
    Ok(sight)
}

/// Sums up what was seen, so that what has vanished stays counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Tally {
    /// The most that was seen since something was last lost.
    seen: u64,
    /// What was seen once and is in no account any more: nobody has waited for its process.
    lost: u64,
}

impl Tally {
    fn add(&mut self, sight: Sight) {
        if sight.complete {
            self.lost = self.lost.saturating_add(self.seen.saturating_sub(sight.written));
            self.seen = sight.written;
        } else {
            self.seen = self.seen.max(sight.written);
        }
    }

    fn total(&self) -> u64 {
        self.seen.saturating_add(self.lost)
    }
}

/// `write_bytes` of an account.
fn written(account: &File) -> io::Result<u64> {
    let mut text = [0; ACCOUNT_BYTES_MAX];
    let length = account.read_at(&mut text, 0)?;
    parse(text.get(..length).unwrap_or_default())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/io is not as expected"))
}

fn parse(account: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(account).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tree_is_looked_at_more_often_the_less_it_may_still_write() {
        const MIB: u64 = 1 << 20;
        for (written, budget, expect) in [
            (0, u64::MAX, 5_000),
            (0, 100 << 30, 5_000),
            (0, 4 << 30, 1_015),
            (3 << 30, 4 << 30, 265),
            (0, 64 * MIB, 31),
            (64 * MIB, 64 * MIB, 20),
            (65 * MIB, 64 * MIB, 20),
            (0, 0, 20),
        ] {
            assert_eq!(look_after_ms(written, budget), expect, "{written} of {budget}");
        }
    }

    #[test]
    fn accounts_are_read() {
        let account = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n";
        assert_eq!(parse(account), Some(6));
        assert_eq!(parse(b"write_bytes: x\n"), None);
        assert_eq!(parse(b""), None);
        OwnAccounts::open().unwrap().children().unwrap();
    }

    /// What happens to the accounts of a tree of one process with children.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        /// A child writes.
        Write { bytes: u64 },
        /// All children end; their parent waits for them, or has said that it never will.
        End { waited_for: bool },
        /// The keeper looks, and the children end, waited for, before it comes to them.
        LookTooLate,
        /// The keeper looks.
        Look,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..1_000_u64).prop_map(|bytes| Event::Write { bytes }),
            any::<bool>().prop_map(|waited_for| Event::End { waited_for }),
            Just(Event::LookTooLate),
            Just(Event::Look),
        ]
    }

    proptest! {
        #[test]
        fn nothing_is_counted_twice_and_what_was_seen_stays_counted(events in prop::collection::vec(event(), 0..60)) {
            let (mut tally, mut truth, mut parent, mut children) = (Tally::default(), 0, 0, 0);
            for event in events {
                let before = tally.total();
                match event {
                    Event::Write { bytes } => {
                        truth += bytes;
                        children += bytes;
                    }
                    Event::End { waited_for } => {
                        parent += if waited_for { children } else { 0 };
                        children = 0;
                    }
                    Event::LookTooLate => {
                        tally.add(Sight { written: parent, complete: false });
                        parent += std::mem::take(&mut children);
                    }
                    Event::Look => {
                        tally.add(Sight { written: parent + children, complete: true });
                        prop_assert!(tally.total() >= parent + children);
                    }
                }
                prop_assert!(tally.total() <= truth, "{} of {truth}", tally.total());
                prop_assert!(tally.total() >= before);
            }
        }
    }
}
