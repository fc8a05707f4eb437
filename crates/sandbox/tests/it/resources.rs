//! What a session may use up, and what is left of it at the end.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::Timespec;

use crate::escape::escapes;
use crate::room::{Guard, Room, Who, children_of, processes_with, said, skipped};

escapes! {
    r01_fork_bomb: Leaks, LeaksForRoot, Held => fork_bomb;
    r02_memory_bomb: Leaks, Held, Held => memory_bomb;
    r02_shared_memory_bomb: Leaks, Leaks, Leaks => shared_memory_bomb;
    r03_one_large_file: Leaks, Held, Held => one_large_file;
    r04_many_files: Leaks, Leaks, Leaks => many_files;
    r04_many_files_in_tmp: Unjudged, Held, Held => many_files_in_tmp;
    r05_daemon_after_the_launcher_is_killed: Leaks, Leaks, Held => daemon_after_the_launcher_is_killed;
    r06_daemon_after_the_end: Leaks, Leaks, Held => daemon_after_the_end;
}

/// How long a killed process may take to be gone.
const END_WAIT_MAX: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// More processes at once than the limit: at full and as root the kernel counts no fewer than 301, and at floor all
/// that run on the machine besides.
fn fork_bomb(room: &Room) -> bool {
    room.with(&["--limit", "processes=320"]).attempt(&["forks", "3000"])
}

fn memory_bomb(room: &Room) -> bool {
    room.with(&["--limit", &format!("memory_bytes={}", 256 << 20)]).attempt(&["use-memory", "1024"])
}

/// What processes could share is counted by a cgroup alone: part of the gap that the report names.
fn shared_memory_bomb(room: &Room) -> bool {
    room.with(&["--limit", &format!("memory_bytes={}", 16 << 20)]).attempt(&["use-shared-memory", "64"])
}

fn one_large_file(room: &Room) -> bool {
    let limit = format!("file_size_bytes={}", 1 << 20);
    let room = room.with(&["--limit", &limit]);
    room.shell("head -c 8388608 /dev/zero > large; true");
    fs::metadata(room.path("scope/large")).unwrap().len() > 1 << 20
}

/// The sum is the keeper's to watch: a gap that the report names.
fn many_files(room: &Room) -> bool {
    let limit = format!("file_size_bytes={}", 1 << 20);
    let room = room.with(&["--limit", &limit]);
    room.shell("for n in 1 2 3 4; do head -c 1048576 /dev/zero > large$n; done; true");
    fs::read_dir(room.path("scope"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum::<u64>()
        > 1 << 20
}

fn many_files_in_tmp(room: &Room) -> bool {
    let limit = format!("tmp_bytes={}", 1 << 20);
    let room = room.with(&["--limit", &limit]);
    room.shell("for n in 1 2 3 4; do head -c 1048576 /dev/zero > /tmp/$n || exit 1; done").status.success()
}

/// A script that starts a process which leaves its group and its session, and goes on when that one runs with its mark.
fn daemon(mark: &str) -> String {
    let daemon = "echo there > there; exec </dev/null >/dev/null 2>&1; sleep 300 & wait";
    format!("mkfifo there; setsid sh -c '{daemon}' {mark} & read -r word < there; echo $word;")
}

fn end_all(mark: &str) {
    for pid in processes_with(mark) {
        for pid in children_of(pid).into_iter().chain([pid]) {
            // It may have ended by itself.
            let _ended = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL);
        }
    }
}

fn daemon_after_the_end(room: &Room) -> bool {
    let mark = room.mark();
    assert_eq!(room.shell(&daemon(&mark)).stdout, b"there\n");
    let left = !processes_with(&mark).is_empty();
    end_all(&mark);
    left
}

/// At full the death of any of its processes is the end of all, with nobody left to see to it. Elsewhere the launcher
/// has become the program, and what it started goes on until a keeper ends it.
fn daemon_after_the_launcher_is_killed(room: &Room) -> bool {
    let mark = room.mark();
    let script = format!("{} wait", daemon(&mark));
    let mut host = room.inside(&["/bin/sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "there");
    // The host's child is `confine`, unless that has become the program; and its child the launcher.
    let confine = children_of(host.id())[0];
    let launcher = if room.guard == Guard::Off { confine } else { children_of(confine)[0] };
    // At full the session's first process goes last.
    let last = if room.guard == Guard::Full { children_of(launcher)[0] } else { launcher };
    let handle = pidfd_open(Pid::from_raw(last.try_into().unwrap()).unwrap(), PidfdFlags::empty()).unwrap();
    kill_process(Pid::from_raw(launcher.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    let mut ready = [PollFd::new(&handle, PollFlags::IN)];
    assert_eq!(poll(&mut ready, Some(&END_WAIT_MAX)).unwrap(), 1, "the session outlives its launcher");
    let output = host.wait_with_output().unwrap();
    // The signal, or nothing at all if it came before the host had heard that the program runs.
    let ended = output.status.signal() == Some(9) || matches!(output.status.code(), Some(137 | 125));
    assert!(ended, "{}", said(&output));
    let left = !processes_with(&mark).is_empty();
    end_all(&mark);
    left
}

#[test]
fn the_limit_is_about_what_was_asked_for() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(Guard::Full, who).with(&["--limit", "processes=400"]);
        let program = room.text("readable/attempt");
        let output = room.inside(&[&program, "forks", "3000"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let made: u32 = text.trim().strip_prefix("made ").unwrap().parse().unwrap();
        assert!((380..=400).contains(&made), "{who:?}: {made}");
    }
}
