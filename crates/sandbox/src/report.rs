//! What was really applied to a session, and what a keeper around it adds.

use serde::{Deserialize, Serialize};

use crate::gap::Gap;
use crate::level::Level;
use crate::policy::Network;

/// The layers that were really applied to a session, checked from inside before its program started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The level.
    pub level: Level,
    /// The scope: [`SealedPolicy::digest`](crate::SealedPolicy::digest).
    pub policy: String,
    /// The kernel's Landlock ABI.
    pub landlock_abi: i32,
    /// Instructions of the filter of system calls.
    pub seccomp_instructions: usize,
    /// Namespaces of its own.
    pub namespaces: Vec<String>,
    /// The network.
    pub network: Network,
    /// What holds the number of processes.
    pub processes_held_by: Holder,
    /// Attempts that were made from inside before the start, all of them refused by the kernel.
    pub verified: Vec<String>,
    /// Protected paths that are not protected, because they do not exist, are symbolic links, or the level cannot.
    pub unprotected: Vec<String>,
    /// What this level does not stop.
    pub gaps: Vec<Gap>,
}

/// What holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// `RLIMIT_NPROC`, counted in the session alone.
    SessionLimit,
    /// `RLIMIT_NPROC`, counted over everything that the user runs.
    UserLimit,
    /// The size of the session's process table.
    ProcessTable,
    /// A cgroup around the launcher, which whoever made it has added to the report.
    Cgroup,
    /// Nothing here: as root it wants a cgroup around the launcher.
    Nobody,
}

impl Report {
    /// With a cgroup around the whole session that holds the sum of its memory, the number of its processes, or both.
    #[must_use]
    pub fn with_cgroup(mut self, memory: bool, processes: bool) -> Self {
        if memory {
            self.close(Gap::MemorySum);
        }
        if processes {
            self.processes_held_by = Holder::Cgroup;
            self.close(Gap::Processes);
        }
        self
    }

    /// With a keeper that ends the session when it has written more than it may.
    #[must_use]
    pub fn with_write_budget(mut self) -> Self {
        self.close(Gap::DiskSum);
        self
    }

    /// With a keeper that ends what outlives the program, whatever becomes of the host.
    #[must_use]
    pub fn with_keeper(mut self) -> Self {
        self.close(Gap::Orphans);
        self
    }

    fn close(&mut self, gap: Gap) {
        self.gaps.retain(|open| *open != gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gap::gaps;

    fn floor_as_root() -> Report {
        Report {
            level: Level::Floor,
            policy: String::new(),
            landlock_abi: 7,
            seccomp_instructions: 1,
            namespaces: vec![],
            network: Network::None,
            processes_held_by: Holder::Nobody,
            verified: vec![],
            unprotected: vec![],
            gaps: gaps(Level::Floor, Holder::Nobody),
        }
    }

    #[test]
    fn what_a_keeper_adds_closes_its_gap_and_no_other() {
        let before = floor_as_root();
        let closed = |after: &Report| -> Vec<Gap> {
            before.gaps.iter().copied().filter(|gap| !after.gaps.contains(gap)).collect()
        };
        let memory = before.clone().with_cgroup(true, false);
        assert_eq!((closed(&memory), memory.processes_held_by), (vec![Gap::MemorySum], Holder::Nobody));
        let processes = before.clone().with_cgroup(false, true);
        assert_eq!((closed(&processes), processes.processes_held_by), (vec![Gap::Processes], Holder::Cgroup));
        assert_eq!(before.clone().with_cgroup(false, false), before);
        assert_eq!(closed(&before.clone().with_write_budget()), [Gap::DiskSum]);
        assert_eq!(closed(&before.clone().with_keeper()), [Gap::Orphans]);
    }
}
