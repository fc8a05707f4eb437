//! A session hangs on its host: at full nothing of it is left when the host has ended, however it did.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::Timespec;
use sandbox::{Level, Policy};

use crate::room::{Guard, Room, Who, children_of, confine_program, processes_with, skipped};

/// How long an ended session may take to be gone.
const END_WAIT_MAX: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

#[expect(clippy::disallowed_methods, reason = "the tests are the host")]
fn launcher() -> Command {
    let mut command = Command::new(confine_program());
    command.arg("__launch").stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

#[test]
fn a_host_that_is_killed_leaves_nothing_at_full() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(Guard::Full, who);
        let mark = format!("{}-{who:?}", room.text("scope"));
        let script = format!(
            "trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 300 & wait' {mark} & echo there; wait"
        );
        let mut timeout = room.inside(&["/bin/sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(timeout.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "there");
        let host = children_of(timeout.id())[0];
        let outer = children_of(host)[0];
        let first = children_of(outer)[0];
        let handles = [outer, first].map(|number| pidfd_open(pid(number), PidfdFlags::empty()).unwrap());
        kill_process(pid(host), Signal::KILL).unwrap();
        for handle in &handles {
            let mut ended = [PollFd::new(handle, PollFlags::IN)];
            assert_eq!(poll(&mut ended, Some(&END_WAIT_MAX)).unwrap(), 1, "{who:?}: it outlives its host");
        }
        timeout.wait().unwrap();
        assert!(processes_with(&mark).is_empty(), "{who:?}: an orphan is left");
    }
}

#[test]
fn a_lifeline_that_is_let_go_ends_the_session_at_full() {
    if skipped() {
        return;
    }
    let room = Room::new(Guard::Full, Who::all()[0]);
    let sealed = Policy::new("/").with_variable("PATH", "/usr/bin:/bin").seal().unwrap();
    let argv = ["sh", "-c", "trap '' TERM HUP; echo there; sleep 300"].map(str::to_owned);
    let mut confined = sealed.launch(launcher(), Level::Full, &argv, None).unwrap();
    let mut output = confined.child.stdout.take().unwrap();
    output.read_exact(&mut [0; 6]).unwrap();
    drop(confined.lifeline);
    assert_eq!(confined.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    drop(room);
}

/// Neither end is inside: the session can neither keep its line nor cut another's.
#[test]
fn the_program_holds_none_of_it() {
    if skipped() {
        return;
    }
    let sealed = Policy::new("/").with_variable("PATH", "/usr/bin:/bin").seal().unwrap();
    for level in [Level::Floor, Level::Full] {
        let argv = ["sh", "-c", "readlink /proc/$$/fd/*"].map(str::to_owned);
        let mut confined = sealed.launch(launcher(), level, &argv, None).unwrap();
        let mut text = String::new();
        confined.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(confined.child.wait().is_ok());
        assert!(text.lines().count() >= 3 && !text.contains("socket:"), "{level}: {text}");
    }
}
