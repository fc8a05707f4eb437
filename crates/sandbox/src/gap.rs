//! What is left open: at each level, and where there is no sandbox at all.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::level::Level;
use crate::report::Holder;

/// Something that a level does not stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// Names, sizes, times and extended attributes of files outside can be asked for.
    MetadataRead,
    /// Mode, group, times, flags and extended attributes of the user's own files outside and in read-only roots can be
    /// changed.
    MetadataChange,
    /// Activity in directories outside can be watched.
    Watch,
    /// Protected paths in the workspace can be changed.
    ProtectedPaths,
    /// Files with a protected name can be created where none was.
    NewProtectedPaths,
    /// Processes can outlive the program.
    Orphans,
    /// The number of processes is not limited.
    Processes,
    /// The sum of memory is not limited, nor what is shared; the private memory of each process can be.
    MemorySum,
    /// The sum of what is written to disk is not limited; a single file can be.
    DiskSum,
}

/// What a session at this level can still do. `processes` says who holds their number.
#[must_use]
pub fn gaps(level: Level, processes: Holder) -> Vec<Gap> {
    let mut gaps = match level {
        Level::Full => vec![],
        Level::Floor => {
            vec![Gap::MetadataRead, Gap::MetadataChange, Gap::Watch, Gap::ProtectedPaths, Gap::Orphans]
        }
    };
    gaps.extend([Gap::NewProtectedPaths, Gap::MemorySum, Gap::DiskSum]);
    if processes == Holder::Nobody {
        gaps.push(Gap::Processes);
    }
    gaps.sort_unstable();
    gaps
}

impl Gap {
    /// All of them, in the order in which reports list them.
    pub const ALL: [Self; 9] = [
        Self::MetadataRead,
        Self::MetadataChange,
        Self::Watch,
        Self::ProtectedPaths,
        Self::NewProtectedPaths,
        Self::Orphans,
        Self::Processes,
        Self::MemorySum,
        Self::DiskSum,
    ];

    /// Its name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MetadataRead => "metadata_read",
            Self::MetadataChange => "metadata_change",
            Self::Watch => "watch",
            Self::ProtectedPaths => "protected_paths",
            Self::NewProtectedPaths => "new_protected_paths",
            Self::Orphans => "orphans",
            Self::Processes => "processes",
            Self::MemorySum => "memory_sum",
            Self::DiskSum => "disk_sum",
        }
    }

    /// What it means, for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::MetadataRead => "names, sizes, times and attributes of files outside can be asked for",
            Self::MetadataChange => {
                "mode, group, times, flags and attributes of the user's own files outside and in read-only roots can be \
                 changed"
            }
            Self::Watch => "activity in directories outside can be watched",
            Self::ProtectedPaths => "protected paths in the workspace, such as git hooks, can be changed",
            Self::NewProtectedPaths => {
                "files with names that editors and shells act on can be created where there were none"
            }
            Self::Orphans => "processes can outlive the program",
            Self::Processes => "the number of processes is not limited",
            Self::MemorySum => "the memory of all processes together is not limited",
            Self::DiskSum => "the sum of what is written to disk is not limited",
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What is open without any sandbox, for people: to be said each time one is left out. It is about files, network,
/// processes and the kernel; a keeper can still limit and end what it started.
#[must_use]
pub const fn unconfined() -> &'static [&'static str] {
    &[
        "every file that the user can read can be read, keys and other projects included",
        "every file that the user can change can be changed or removed, git hooks and shell profiles included",
        "whatever the host reaches over a network can be reached, services on this machine included",
        "Unix sockets of agents and daemons, such as those for keys and containers, can be used",
        "the user's other processes can be signalled, and looked into as far as the system lets the user do so",
        "/tmp, /dev/shm, shared memory and the user's keys are those that everything else uses",
        "set-user-id programs and the user's capabilities work",
        "no system call is refused",
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_gap_is_its_name_in_json() {
        for gap in Gap::ALL {
            assert_eq!(serde_json::to_value(gap).unwrap(), gap.to_string());
            assert!(!gap.sentence().ends_with('.'), "{gap}");
        }
        assert!(Gap::ALL.is_sorted());
    }

    #[test]
    fn full_leaves_less_open_than_floor() {
        let (full, floor) = (gaps(Level::Full, Holder::ProcessTable), gaps(Level::Floor, Holder::Nobody));
        assert_eq!(full, [Gap::NewProtectedPaths, Gap::MemorySum, Gap::DiskSum]);
        assert_eq!(floor, Gap::ALL);
    }
}
