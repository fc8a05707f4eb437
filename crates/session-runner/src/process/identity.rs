//! Who a process is: never a bare pid, since the kernel gives pids out again.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process of one boot of this machine. Two processes that had the same pid, one after the other, differ
/// in their start time; after a reboot every identity of the boot before is dead.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id, in the pid namespace of whoever recorded it.
    pub pid: i32,
    /// When it was started, in clock ticks since the boot (field 22 of `/proc/PID/stat`).
    pub start_time: u64,
    /// The boot in which it was started (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
}

impl ProcessIdentity {
    /// The identity of the process that has this pid now; `None` if there is none.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let Some(stat) = ProcessStat::read(pid)? else { return Ok(None) };
        Ok(Some(Self { pid, start_time: stat.start_time, boot_id: boot_id()? }))
    }

    /// The identity of the calling process.
    pub fn current() -> io::Result<Self> {
        Self::of(getpid().as_raw_pid())?.ok_or_else(|| io::Error::other("/proc does not show this process"))
    }

    /// Whether this very process still runs. A zombie has ended, even if nobody has reaped it yet.
    pub fn is_alive(&self) -> io::Result<bool> {
        if boot_id()? != self.boot_id {
            return Ok(false);
        }
        Ok(ProcessStat::read(self.pid)?
            .is_some_and(|stat| stat.start_time == self.start_time && !stat.has_ended()))
    }

    /// A descriptor that means this very process and becomes readable when it ends; `None` once it has ended.
    pub fn pidfd(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // `INVAL`: the pid belongs to a thread by now, so the process that we mean is gone.
            Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The descriptor is held before the identity is compared: from here on the pid cannot change owner
        // behind our back.
        Ok(self.is_alive()?.then_some(pidfd))
    }

    /// Sends a signal to this very process; `false` if it has ended already.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pidfd) = self.pidfd()? else { return Ok(false) };
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Longer than the longest line of `/proc/PID/stat`: 52 numbers and a name of at most 64 bytes.
const LINE_BYTES: usize = 2 << 10;

/// What is needed of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) pid: i32,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) start_time: u64,
}

impl ProcessStat {
    /// Reads it, in one call, as the kernel writes it in one; `None` if there is no such process.
    pub(crate) fn read(pid: i32) -> io::Result<Option<Self>> {
        let mut line = [0; LINE_BYTES];
        let length = match File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line)) {
            Ok(length) => length,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Self::parse(pid, line.get(..length).unwrap_or_default()).map(Some).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not as expected"))
        })
    }

    /// The name in parentheses may hold spaces, newlines and parentheses: the last `)` ends it.
    fn parse(pid: i32, bytes: &[u8]) -> Option<Self> {
        let after_name = bytes.iter().rposition(|byte| *byte == b')')? + 1;
        let text = std::str::from_utf8(bytes.get(after_name..)?).ok()?;
        let mut fields = text.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // The state is field 3 and the start time field 22; two of them are taken.
        let start_time = fields.nth(22 - 5)?.parse().ok()?;
        Some(Self { pid, state, parent, start_time })
    }

    /// A zombie, or one that is about to vanish.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// The identity, in the boot that the caller has looked up.
    pub(crate) fn identity(&self, boot_id: &str) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, start_time: self.start_time, boot_id: boot_id.into() }
    }
}

/// The boot that runs now.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().into())
}

/// A process may end between being listed and being looked at.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound)
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_the_other_fields() {
        let line = b"7 (a) S 1 (b) ) R 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1000 10 18446744073709551615\n";
        let stat = ProcessStat::parse(7, line).unwrap();
        assert_eq!(stat, ProcessStat { pid: 7, state: 'R', parent: 42, start_time: 987_654 });
        assert_eq!(ProcessStat::parse(7, b"7 (a"), None);
        assert_eq!(ProcessStat::parse(7, b"7 (a) S 1"), None);
    }

    #[test]
    fn this_process_is_alive_and_its_neighbours_in_time_are_not() {
        let me = ProcessIdentity::current().unwrap();
        assert!(me.is_alive().unwrap());
        assert!(me.pidfd().unwrap().is_some());
        let before = ProcessIdentity { start_time: me.start_time - 1, ..me.clone() };
        assert!(!before.is_alive().unwrap());
        assert!(before.pidfd().unwrap().is_none());
        assert!(!before.signal(Signal::KILL).unwrap(), "the pid lives, the process that was meant does not");
        let other_boot =
            ProcessIdentity { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..me.clone() };
        assert!(!other_boot.signal(Signal::KILL).unwrap());
        let json = serde_json::to_string(&me).unwrap();
        assert_eq!(serde_json::from_str::<ProcessIdentity>(&json).unwrap(), me);
    }

    #[test]
    fn no_process_has_an_impossible_pid() {
        for pid in [i32::MAX, 0, -1] {
            assert_eq!(ProcessIdentity::of(pid).unwrap(), None, "{pid}");
        }
    }
}
