//! The library as a host uses it: what it hears, and how a session ends.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use sandbox::{LaunchError, Level, Network, Policy, RefusalCode, SealedPolicy, Wanted};

use crate::escape::escapes;
use crate::room::{Guard, Room, Who, confine_program, skipped};

escapes! {
    t01_swapped_root: Leaks, Held, Held => swapped_root;
}

const BOTH: [Level; 2] = [Level::Floor, Level::Full];

#[expect(clippy::disallowed_methods, reason = "the tests are the host")]
pub(crate) fn launcher() -> Command {
    let mut command = Command::new(confine_program());
    command.arg("__launch").stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

pub(crate) fn policy(room: &Room) -> Policy {
    let scope = room.text("scope");
    Policy::new(scope.as_str()).allow_write(scope.as_str()).with_variable("PATH", "/usr/bin:/bin")
}

fn room() -> Room {
    Room::new(Guard::Full, Who::all()[0])
}

fn argv(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).into()
}

fn refused(sealed: &SealedPolicy, level: Level, argv: &[String]) -> RefusalCode {
    match sealed.launch(launcher(), level, argv, None) {
        Err(LaunchError::Refused { refusal, .. }) => refusal.code,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_report_says_what_was_applied() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).seal().unwrap();
    for level in BOTH {
        let mut confined = sealed.launch(launcher(), level, &argv("exit 3"), None).unwrap();
        let report = &confined.report;
        assert_eq!((report.level, report.policy.as_str()), (level, sealed.digest()));
        assert!(report.landlock_abi >= 6 && report.seccomp_instructions > 100, "{report:?}");
        assert_eq!(report.namespaces.len(), if level == Level::Full { 7 } else { 0 });
        assert!(report.verified.len() >= 14, "{report:?}");
        assert_eq!(confined.child.wait().unwrap().code(), Some(3));
    }
}

#[test]
fn a_program_ends_as_it_ended() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).seal().unwrap();
    for level in BOTH {
        for signal in [Signal::TERM, Signal::KILL, Signal::SEGV] {
            let script = argv(&format!("kill -{} $$", signal.as_raw()));
            let mut confined = sealed.launch(launcher(), level, &script, None).unwrap();
            assert_eq!(confined.child.wait().unwrap().signal(), Some(signal.as_raw()), "{level}");
        }
    }
}

#[test]
fn signals_to_the_launcher_reach_the_program() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).seal().unwrap();
    for level in BOTH {
        let script = argv("sleep 300 & trap \"kill $!; exit 42\" TERM; echo ready; wait");
        let mut confined = sealed.launch(launcher(), level, &script, None).unwrap();
        let mut output = confined.child.stdout.take().unwrap();
        output.read_exact(&mut [0; 6]).unwrap();
        let pid = Pid::from_raw(confined.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(confined.child.wait().unwrap().code(), Some(42), "{level}");
    }
}

#[test]
fn stdin_is_the_callers_and_output_ends_with_the_program() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).seal().unwrap();
    for level in BOTH {
        let (read, mut write) = std::io::pipe().unwrap();
        let script = argv("read -r line; echo \"heard $line\"; exec >&-; read -r line; exit 5");
        let mut confined = sealed.launch(launcher(), level, &script, Some(read.into())).unwrap();
        writeln!(write, "word").unwrap();
        let mut text = String::new();
        // The end is seen while the program still runs.
        confined.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "heard word\n", "{level}");
        drop(write);
        assert_eq!(confined.child.wait().unwrap().code(), Some(5), "{level}");
    }
}

#[test]
fn the_environment_is_the_policys_and_nothing_else() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).with_variable("A", "1 = 2").seal().unwrap();
    for level in BOTH {
        let mut command = launcher();
        command.env("SECRET", "x");
        let program = vec!["/usr/bin/env".to_owned()];
        let confined = sealed.launch(command, level, &program, None).unwrap();
        let output = confined.child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let found: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once('=')).collect();
        assert_eq!(found, BTreeMap::from([("A", "1 = 2"), ("PATH", "/usr/bin:/bin")]), "{level}");
    }
}

#[test]
fn what_cannot_be_started_is_told_before_anything_runs() {
    if skipped() {
        return;
    }
    let room = room();
    fs::write(room.path("scope/text"), "no program").unwrap();
    let sealed = policy(&room).seal().unwrap();
    let gone = Policy { directory: room.text("scope/gone").into(), ..policy(&room) }.seal().unwrap();
    for level in BOTH {
        for name in ["no-such-program", "/no/such/program", "./text", ""] {
            assert_eq!(
                refused(&sealed, level, &[name.to_owned()]),
                RefusalCode::ProgramNotFound,
                "{level} {name:?}"
            );
        }
        assert_eq!(refused(&gone, level, &argv("true")), RefusalCode::Directory, "{level}");
        let endless = vec!["x".repeat(200_000); 40];
        assert_eq!(
            refused(&sealed, level, &[argv("true"), endless].concat()),
            RefusalCode::Program,
            "{level}"
        );
        assert_eq!(refused(&sealed, level, &argv("nul\0")), RefusalCode::Program, "{level}");
    }
}

#[test]
fn less_than_the_policy_wants_is_not_applied() {
    if skipped() {
        return;
    }
    let room = room();
    let full = policy(&room).with_level(Wanted::Full).seal().unwrap();
    assert_eq!(refused(&full, Level::Floor, &argv("true")), RefusalCode::Request);
    let network = policy(&room).with_network(Network::Loopback).seal().unwrap();
    assert_eq!(refused(&network, Level::Floor, &argv("true")), RefusalCode::Request);
}

#[test]
fn a_readable_root_inside_a_writable_one_is_kept_at_full() {
    if skipped() {
        return;
    }
    let room = room();
    fs::create_dir(room.path("scope/vendor")).unwrap();
    let vendor = room.text("scope/vendor");
    let sealed = policy(&room).allow_read(vendor.as_str()).seal().unwrap();
    for level in BOTH {
        let mut confined = sealed
            .launch(launcher(), level, &argv("echo x > vendor/new; mv vendor away; echo x > new"), None)
            .unwrap();
        let unprotected = confined.report.unprotected.clone();
        assert!(confined.child.wait().unwrap().success());
        let changed = !room.path("scope/vendor").exists();
        let expected = if level == Level::Full { (false, vec![]) } else { (true, vec![vendor.clone()]) };
        assert_eq!((changed, unprotected), expected, "{level}");
        fs::remove_file(room.path("scope/new")).unwrap();
        if changed {
            fs::rename(room.path("scope/away"), room.path("scope/vendor")).unwrap();
        }
    }
}

#[test]
fn a_launcher_that_is_none_is_an_error() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).seal().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the tests are the host")]
    let command = |name: &str| Command::new(name);
    let silent = sealed.launch(command("true"), Level::Full, &argv("true"), None);
    assert!(matches!(silent, Err(LaunchError::Silent(_))), "{silent:?}");
    let missing = sealed.launch(command("/no/such/launcher"), Level::Full, &argv("true"), None);
    assert!(matches!(missing, Err(LaunchError::Start { .. })), "{missing:?}");
}

/// The name of a root is given to another directory after the policy was sealed: to a link, or to the directory itself.
fn swapped_root(room: &Room) -> bool {
    [true, false].into_iter().any(|linked| {
        let place = Room::new(room.guard, room.who);
        let sealed = Policy { directory: "/".into(), ..policy(&place) }.seal().unwrap();
        fs::rename(place.path("scope"), place.path("moved")).unwrap();
        if linked {
            symlink("outside", place.path("scope")).unwrap();
        } else {
            fs::rename(place.path("outside"), place.path("scope")).unwrap();
        }
        let script = format!("cat {0}/secret; echo x > {0}/new", place.text("scope"));
        let level = match place.guard {
            Guard::Off => {
                place.outside("sh").args(["-c", &script]).output().unwrap();
                return place.path("scope/new").exists();
            }
            Guard::Floor => Level::Floor,
            Guard::Full => Level::Full,
        };
        match (level, sealed.launch(place.as_user(launcher()), level, &argv(&script), None)) {
            (Level::Full, result) => {
                let refused = matches!(&result, Err(LaunchError::Refused { refusal, .. })
                    if refusal.code == RefusalCode::RootChanged);
                assert!(refused, "{result:?}");
            }
            // The open root is the moved directory, wherever its name leads now.
            (Level::Floor, result) => {
                let output = result.unwrap().child.wait_with_output().unwrap();
                assert_eq!(String::from_utf8_lossy(&output.stdout), "");
            }
        }
        place.path("scope/new").exists()
    })
}

#[test]
fn many_at_once_from_many_threads() {
    if skipped() {
        return;
    }
    let room = room();
    let sealed = policy(&room).with_level(Wanted::Best).seal().unwrap();
    let secret = room.text("outside/secret");
    thread::scope(|scope| {
        let start = |level, number: usize| {
            let script = argv(&format!("cat {secret} 2>/dev/null; echo {number}"));
            let confined = sealed.launch(launcher(), level, &script, None).unwrap();
            let output = confined.child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{number}\n"));
        };
        for number in 0..32 {
            scope.spawn(move || start(BOTH[number % 2], number));
        }
    });
}
