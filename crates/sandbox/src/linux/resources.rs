//! What a session may use up: resource limits, and the size of its process table.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, prlimit, setrlimit};

use super::wire::refusal;
use crate::level::{Level, Refusal, RefusalCode};
use crate::policy::Limits;
use crate::report::Holder;

/// Memory that may be locked, in bytes.
const LOCKED_BYTES_MAX: u64 = 8 << 20;
/// The kernel keeps numbers up to here for itself, so a process table has room for no fewer.
const PID_MAX_MIN: u64 = 301;
/// Processes of the launcher's own that count towards the session's.
const OWN_PROCESSES: u64 = 2;
/// The first Linux that has a process table's size for each pid namespace. On an older one the same file is the
/// whole machine's.
const PID_MAX_OF_NAMESPACE: (u32, u32) = (6, 14);

/// Limits this process and whatever it starts, in all but open files.
pub(super) fn limit(level: Level, limits: &Limits, holder: Holder) -> Result<(), Refusal> {
    let processes = limits.processes.map(|count| match (level, holder) {
        (Level::Full, _) => count.saturating_add(OWN_PROCESSES),
        // Root is not held by it.
        (Level::Floor, Holder::Nobody) => count,
        (Level::Floor, _) => count.saturating_add(threads_of_user()),
    });
    // Where limits cannot be set at all, this says so; to ask for one would be a panic there.
    prlimit(None, Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|error| not_set(Resource::Core, error))?;
    for (resource, value) in [
        (Resource::Msgqueue, Some(0)),
        (Resource::Memlock, Some(LOCKED_BYTES_MAX)),
        (Resource::Fsize, limits.file_size_bytes),
        (Resource::Data, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Nproc, processes),
    ] {
        set(resource, value)?;
    }
    Ok(())
}

/// The last limit: the launcher itself holds more files than a program may be allowed.
pub(super) fn limit_open_files(limits: &Limits) -> Result<(), Refusal> {
    set(Resource::Nofile, limits.open_files)
}

fn set(resource: Resource, value: Option<u64>) -> Result<(), Refusal> {
    let Some(value) = value else { return Ok(()) };
    setrlimit(resource, lowered(&getrlimit(resource), value)).map_err(|error| not_set(resource, error))
}

fn not_set(resource: Resource, error: Errno) -> Refusal {
    refusal(RefusalCode::Limits, format!("the limit {resource:?} cannot be set"), io::Error::from(error))
}

/// Both limits at `value`, or at what the process may have at most.
fn lowered(now: &Rlimit, value: u64) -> Rlimit {
    let value = now.maximum.map_or(value, |most| most.min(value));
    Rlimit { current: Some(value), maximum: Some(value) }
}

/// Who can hold the number of processes at this level. At full this sets the size of the process table as well, so it
/// is called by the first process of the namespace, while `/proc` can still be written.
pub(super) fn hold_processes(level: Level, limits: &Limits) -> Holder {
    let held_by_table = match (level, limits.processes) {
        (Level::Full, Some(count)) => shrink_process_table(count),
        (Level::Full, None) | (Level::Floor, _) => false,
    };
    match level {
        _ if limits.processes.is_none() => Holder::Nobody,
        _ if held_by_table => Holder::ProcessTable,
        // The kernel never applies RLIMIT_NPROC to root.
        _ if getuid().is_root() => Holder::Nobody,
        Level::Full => Holder::SessionLimit,
        Level::Floor => Holder::UserLimit,
    }
}

fn shrink_process_table(count: u64) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if !getuid().is_root() || version_of(&release).is_none_or(|version| version < PID_MAX_OF_NAMESPACE) {
        return false;
    }
    let size = count.saturating_add(OWN_PROCESSES).max(PID_MAX_MIN);
    let file = "/proc/sys/kernel/pid_max";
    let largest = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    largest.is_some_and(|largest| size >= largest || fs::write(file, size.to_string()).is_ok())
}

/// Major and minor number of a kernel's release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The threads that the user runs already, as `/proc` shows them. A directory `task` has two links and one for each
/// thread. Those that hide from their own user are not counted, so the limit is too tight by them and never too wide.
fn threads_of_user() -> u64 {
    let user = getuid().as_raw();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let processes = entries.filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit));
    let own = processes.filter(|entry| entry.metadata().is_ok_and(|data| data.uid() == user));
    own.filter_map(|entry| fs::metadata(entry.path().join("task")).ok())
        .map(|task| task.nlink().saturating_sub(2))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_go_down_only() {
        let now = Rlimit { current: Some(10), maximum: Some(100) };
        assert_eq!(lowered(&now, 50), Rlimit { current: Some(50), maximum: Some(50) });
        assert_eq!(lowered(&now, 500), Rlimit { current: Some(100), maximum: Some(100) });
        let unlimited = Rlimit { current: None, maximum: None };
        assert_eq!(lowered(&unlimited, 0), Rlimit { current: Some(0), maximum: Some(0) });
    }

    #[test]
    fn releases_are_read() {
        for (release, expected) in [
            ("6.18.44-fc-v669", Some((6, 18))),
            ("7.0", Some((7, 0))),
            ("5.4.0-generic", Some((5, 4))),
            ("6", None),
            ("", None),
        ] {
            assert_eq!(version_of(release), expected, "{release}");
        }
    }
}
