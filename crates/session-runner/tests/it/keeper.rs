//! How runs end.

use std::time::Duration;

use rustix::process::Signal;
use session_runner::process::{CgroupPreference, EndCause, Exit, Supervised};

use crate::fixture::{Place, block_on, end, living, named_in, own, run, start, until_line};

pub(crate) fn exit_codes_and_signals_are_told_apart() {
    for (script, exit) in [
        ("exit 0", Exit::Code(0)),
        ("exit 7", Exit::Code(7)),
        ("kill -KILL $$", Exit::Signal(9)),
        ("kill -SEGV $$", Exit::Signal(11)),
    ] {
        let place = Place::new();
        let end = run(&place.script(script));
        assert_eq!((end.exit, end.cause, end.leftover_killed), (Some(exit), EndCause::Exited, 0), "{script}");
        assert_eq!((end.survivors, end.log_errors), (0, 0), "{script}");
    }
}

pub(crate) fn a_stop_lets_the_program_end_in_its_own_way() {
    let place = Place::new();
    let spec =
        place.script("trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 1000 & wait; done");
    let end = stop(&spec, None);
    assert_eq!((end.exit, end.cause), (Some(Exit::Code(3)), EndCause::Stopped));
    assert!(place.stdout().ends_with("saved\n"));
    assert_eq!(living(spec.run), []);
}

pub(crate) fn a_program_that_ignores_sigterm_is_killed_after_the_grace() {
    let place = Place::new();
    let spec = place.script("trap '' TERM; echo ready; sleep 1000; sleep 1000");
    let end = stop(&spec, Some(Duration::from_millis(200)));
    assert_eq!((end.exit, end.cause), (Some(Exit::Signal(9)), EndCause::Stopped));
    assert_eq!(living(spec.run), []);
}

pub(crate) fn a_kill_does_not_ask() {
    let place = Place::new();
    let spec = place.script("trap 'exit 3' TERM; echo ready; while :; do sleep 1000 & wait; done");
    let end = block_on(async {
        let mut run = start(&spec).await;
        until_line(&mut run, "ready").await;
        assert!(run.control().kill().unwrap());
        end(&mut run).await
    });
    assert_eq!((end.exit, end.cause), (Some(Exit::Signal(9)), EndCause::Killed));
    assert_eq!(living(spec.run), []);
}

/// A daemon in a session of its own, whose parents are gone, that ignores SIGTERM and has no environment.
const DAEMON: &str = "( setsid env -i PATH=/usr/bin:/bin sh -c \
    'trap \"\" TERM; echo $$ > daemon; mv daemon daemon.pid; while :; do sleep 1000; done' >/dev/null 2>&1 & ); \
    while [ ! -e daemon.pid ]; do :; done; ";

pub(crate) fn daemons_end_with_a_stop() {
    for cgroup in [CgroupPreference::Auto, CgroupPreference::Off] {
        let place = Place::new();
        let mut spec = place.script(&format!("{DAEMON} echo ready; while :; do sleep 1000 & wait; done"));
        spec.cgroup = cgroup;
        let (daemon, end) = block_on(async {
            let mut run = start(&spec).await;
            until_line(&mut run, "ready").await;
            let daemon = named_in(&place.path.join("daemon.pid")).remove(0);
            run.control().stop(None).unwrap();
            (daemon, end(&mut run).await)
        });
        assert_eq!((end.exit, end.cause), (Some(Exit::Signal(15)), EndCause::Stopped), "{cgroup:?}");
        assert!(end.leftover_killed >= 1, "{end:?}");
        assert!(!daemon.is_alive().unwrap(), "{cgroup:?}");
    }
}

pub(crate) fn daemons_end_with_the_program() {
    let place = Place::new();
    let spec = place.script(&format!("{DAEMON} echo ready; read wait < go; exit 5"));
    assert!(crate::fixture::program("mkfifo").arg(place.path.join("go")).status().unwrap().success());
    let (daemon, end) = block_on(async {
        let mut run = start(&spec).await;
        until_line(&mut run, "ready").await;
        let daemon = named_in(&place.path.join("daemon.pid")).remove(0);
        assert!(daemon.is_alive().unwrap());
        std::fs::write(place.path.join("go"), "\n").unwrap();
        (daemon, end(&mut run).await)
    });
    assert_eq!((end.exit, end.cause), (Some(Exit::Code(5)), EndCause::Exited));
    assert!(end.leftover_killed >= 1, "{end:?}");
    assert!(!daemon.is_alive().unwrap());
}

pub(crate) fn a_tree_that_forks_is_outrun() {
    for cgroup in [CgroupPreference::Auto, CgroupPreference::Off] {
        let place = Place::new();
        let script = "trap '' TERM; i=0; while [ $i -lt 190 ]; do i=$((i+1)); \
            if [ $((i % 3)) = 0 ]; then setsid sh -c 'sleep 1000; :' & else sleep 1000 & fi; done; \
            i=0; while [ $i -lt 10 ]; do i=$((i+1)); \"$0\" __program hop & done; echo ready; wait";
        let mut spec = place.spec(&["sh", "-c", script, &own(&[])[0]]);
        spec.cgroup = cgroup;
        let end = block_on(async {
            let mut run = start(&spec).await;
            until_line(&mut run, "ready").await;
            assert!(living(spec.run).len() > 190);
            run.control().kill().unwrap();
            end(&mut run).await
        });
        assert_eq!((end.cause, end.survivors), (EndCause::Killed, 0), "{cgroup:?}");
        assert_eq!(living(spec.run), [], "{cgroup:?}");
    }
}

pub(crate) fn a_timeout_ends_the_run() {
    let place = Place::new();
    let mut spec = place.script("trap '' TERM; sleep 1000; sleep 1000");
    spec.timeout_ms = Some(100);
    spec.grace_ms = 100;
    let end = run(&spec);
    assert_eq!((end.exit, end.cause), (Some(Exit::Signal(9)), EndCause::TimedOut));
    assert_eq!(living(spec.run), []);
}

pub(crate) fn a_stopped_program_can_be_stopped() {
    let place = Place::new();
    let spec =
        place.script("trap 'exit 4' TERM; echo ready; kill -STOP $$; while :; do sleep 1000 & wait; done");
    let end = stop(&spec, None);
    assert_eq!((end.exit, end.cause), (Some(Exit::Code(4)), EndCause::Stopped));
}

pub(crate) fn a_silent_program_sees_the_end_of_stdin() {
    let place = Place::new();
    assert_eq!(run(&place.script("cat")).exit, Some(Exit::Code(0)));
    let silent = place.script("exec sleep 1000");
    let end = block_on(async {
        let mut run: Supervised = start(&silent).await;
        assert!(run.child().is_alive().unwrap());
        assert!(run.child().signal(Signal::TERM).unwrap());
        end(&mut run).await
    });
    assert_eq!((end.exit, end.cause, end.output.last_line), (Some(Exit::Signal(15)), EndCause::Exited, None));
}

/// Starts it, waits until it is ready, stops it.
fn stop(
    spec: &session_runner::process::KeeperSpec,
    grace: Option<Duration>,
) -> session_runner::process::RunEnd {
    block_on(async {
        let mut run = start(spec).await;
        until_line(&mut run, "ready").await;
        assert!(run.control().stop(grace).unwrap());
        let control = run.control();
        let end = end(&mut run).await;
        assert!(!control.stop(None).unwrap(), "there is nothing left to stop");
        end
    })
}
