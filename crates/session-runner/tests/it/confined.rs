//! Runs in a sandbox: what was applied, what is refused, and how they end.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use sandbox::{Level, Network, Policy};
use session_runner::process::orphans::end_run;
use session_runner::process::{
    EndCause, Exit, KeeperSpec, KeeperState, OnHostLoss, RunOutcome, Setting, SpawnError, SpawnFailure,
    SpawnFailureKind, Supervised, TreeLimits, keeper_record, recover_keeper,
};

use crate::fixture::{
    KEEPER, Place, SLOW_LAUNCHER, block_on, confinement, end, keeper_program, living, other_host, program,
    run, settled, start, this_program, until_ended, until_line,
};

const LEVELS: [Level; 2] = [Level::Floor, Level::Full];

pub(crate) fn a_confined_program_ends_as_any_other() {
    for level in LEVELS {
        for (script, exit) in [
            ("echo out; echo err >&2; exit 7", Exit::Code(7)),
            ("kill -KILL $$", Exit::Signal(9)),
            ("kill -SEGV $$", Exit::Signal(11)),
        ] {
            let place = Place::new();
            let end = run(&place.confined(level, script));
            assert_eq!((end.exit, end.cause), (Some(exit), EndCause::Exited), "{level} {script}");
            assert_eq!((end.leftover_killed, end.survivors, end.log_errors), (0, 0, 0), "{level} {script}");
        }
    }
}

pub(crate) fn what_was_applied_is_recorded_before_anybody_hears_of_the_start() {
    for level in LEVELS {
        let place = Place::new();
        fs::write(place.path.join("secret"), "secret").unwrap();
        let spec = place.confined(level, "echo in > inside; cat ../secret; exit 3");
        block_on(async {
            let mut run = start(&spec).await;
            let applied = run.applied().unwrap().clone();
            let report = applied.report.unwrap();
            assert_eq!((report.level, Some(report.policy)), (level, applied.digest));
            assert_eq!(end(&mut run).await.exit, Some(Exit::Code(3)));
        });
        assert!(!place.stdout().contains("secret"));
        assert_eq!(fs::read_to_string(place.work().join("inside")).unwrap(), "in\n");
    }
    let place = Place::new();
    let applied = block_on(async {
        let mut run = start(&place.script("exit 0")).await;
        let applied = run.applied().cloned();
        end(&mut run).await;
        applied
    });
    assert_eq!(applied.unwrap().report, None, "without a sandbox there is nothing to report");
}

pub(crate) fn a_stop_reaches_the_program_once() {
    // Two signals that come at once are one to the program, so a second one would not be seen each time.
    for level in LEVELS.repeat(3) {
        let place = Place::new();
        let spec = place.confined(
            level,
            "exec 2>/dev/null; trap 'echo term' TERM; trap 'exit 5' USR1; echo ready; while :; do sleep 1000 & wait $!; done",
        );
        let end = block_on(async {
            let mut run = start(&spec).await;
            until_line(&mut run, "ready").await;
            assert!(run.control().stop(None).unwrap());
            until_line(&mut run, "term").await;
            // A launcher that had been told to stop as well would pass that on before this.
            assert!(run.child().signal(Signal::USR1).unwrap());
            end(&mut run).await
        });
        assert_eq!((end.exit, end.cause), (Some(Exit::Code(5)), EndCause::Stopped), "{level}");
        assert_eq!(place.stdout(), "ready\nterm\n", "{level}");
    }
}

pub(crate) fn a_deaf_tree_is_killed_after_the_grace() {
    for level in LEVELS {
        let place = Place::new();
        let spec = place.confined(
            level,
            "trap '' TERM; ( setsid sleep 1000 & ); sleep 1000 & echo ready; sleep 1000; sleep 1000",
        );
        let end = stopped(&spec, Some(Duration::from_millis(200)));
        assert_eq!((end.exit, end.cause), (Some(Exit::Signal(9)), EndCause::Stopped), "{level}");
        assert_eq!((end.survivors, living(spec.run)), (0, vec![]), "{level}");
    }
}

pub(crate) fn a_kill_takes_the_whole_tree() {
    for level in LEVELS {
        let place = Place::new();
        let spec = place.confined(level, "( setsid sleep 1000 & ); sleep 1000 & echo ready; wait");
        let end = block_on(async {
            let mut run = start(&spec).await;
            until_line(&mut run, "ready").await;
            settled(spec.run, 3);
            run.control().kill().unwrap();
            end(&mut run).await
        });
        assert_eq!((end.exit, end.cause), (Some(Exit::Signal(9)), EndCause::Killed), "{level}");
        assert_eq!((end.survivors, living(spec.run)), (0, vec![]), "{level}");
    }
}

pub(crate) fn daemons_end_with_a_confined_program() {
    for level in LEVELS {
        let place = Place::new();
        let spec = place.confined(
            level,
            "( setsid sh -c 'trap \"\" TERM; echo > up; sleep 1000' >/dev/null 2>&1 & ); \
             while [ ! -e up ]; do :; done; exit 4",
        );
        let end = run(&spec);
        assert_eq!((end.exit, end.cause), (Some(Exit::Code(4)), EndCause::Exited), "{level}");
        assert_eq!((end.survivors, living(spec.run)), (0, vec![]), "{level}");
    }
}

pub(crate) fn what_the_sandbox_refuses_says_why() {
    let place = Place::new();
    let good = place.confined(Level::Full, "touch started");
    let with = |level, change: &dyn Fn(Policy) -> Policy| {
        let policy = change(Policy::new(place.work()).allow_write(place.work()));
        KeeperSpec {
            setting: confinement(policy.with_variable("PATH", "/usr/bin:/bin"), level),
            ..good.clone()
        }
    };
    let replaced = {
        let other = Place::new();
        let spec = other.confined(Level::Full, "touch started");
        fs::rename(other.work(), other.path.join("before")).unwrap();
        fs::create_dir(other.path.join("work")).unwrap();
        (other, spec)
    };
    let missing = {
        let other = Place::new();
        let spec = other.confined(Level::Floor, "touch started");
        fs::remove_dir(other.work()).unwrap();
        (other, spec)
    };
    for level in LEVELS {
        let no_program = KeeperSpec { argv: vec!["no-such-program".into()], ..good.clone() };
        let no_directory = with(level, &|policy| Policy { directory: place.work().join("gone"), ..policy });
        for (spec, kind, words) in [
            (no_program, SpawnFailureKind::NotFound, "no-such-program"),
            (no_directory, SpawnFailureKind::WorkingDirectory, "work/gone"),
            (replaced.1.clone(), SpawnFailureKind::SandboxPolicy, "approved"),
            (missing.1.clone(), SpawnFailureKind::SandboxPolicy, "does not exist"),
        ] {
            refused(&spec, kind, words);
        }
    }
    let loopback = with(Level::Floor, &|policy| policy.with_network(Network::Loopback));
    refused(&loopback, SpawnFailureKind::Sandbox, "wants level full");
    assert!(!place.work().join("started").exists());
}

pub(crate) fn the_death_of_the_host_ends_a_confined_tree() {
    for level in LEVELS {
        let place = Place::new();
        let spec =
            place.confined(level, "echo ready; ( setsid sleep 1000 & ); while :; do sleep 1000 & wait; done");
        let (mut host, keeper) = other_host(this_program(), &place, &spec, "ready");
        host.kill();
        until_ended(&keeper);
        let KeeperState::Ended(RunOutcome::Ended(end)) = recover_keeper(&spec.state_file, spec.run).unwrap()
        else {
            panic!("no end was recorded at {level}");
        };
        assert_eq!((end.exit, end.cause, end.survivors), (Some(Exit::Signal(15)), EndCause::HostLost, 0));
        assert_eq!(living(spec.run), [], "{level}");
    }
}

pub(crate) fn what_a_killed_keeper_leaves_ends() {
    for level in LEVELS {
        let place = Place::new();
        let mut spec = place.confined(
            level,
            "trap '' TERM; ( setsid sh -c 'trap \"\" TERM; echo > up; sleep 1000' & ); \
             while [ ! -e up ]; do :; done; echo ready; wait; sleep 1000; :",
        );
        // So it is in as many groups as there can be.
        spec.limits = TreeLimits { memory_bytes: Some(1 << 30), processes: Some(100), write_bytes: None };
        let (mut host, keeper) = other_host(this_program(), &place, &spec, "ready");
        let members = living(spec.run);
        assert!(members.len() >= 3, "{members:?}");
        let host_identity = session_runner::process::ProcessIdentity::of(i32::try_from(host.0.id()).unwrap())
            .unwrap()
            .unwrap();
        // The host is held first, so that it cannot clean up.
        host_identity.signal(Signal::STOP).unwrap();
        keeper.signal(Signal::KILL).unwrap();
        until_ended(&keeper);
        if level == Level::Full {
            // The launcher is the last to go.
            let record = keeper_record(&spec.state_file, spec.run).unwrap().unwrap();
            until_ended(&record.child.unwrap());
            assert_eq!(living(spec.run), [], "the lifeline alone ends it");
        }
        host.kill();
        let KeeperState::Gone(Some(record)) = recover_keeper(&spec.state_file, spec.run).unwrap() else {
            panic!("a killed keeper records no end");
        };
        assert_eq!(record.applied.unwrap().report.unwrap().level, level);
        assert_eq!(end_run(spec.run, &record.cgroups).unwrap().survivors, 0);
        assert_eq!(living(spec.run), [], "{level}");
        assert!(record.cgroups.iter().all(|group| !group.exists()), "{level}");
    }
}

/// Starts it, waits until it is ready, stops it.
fn stopped(spec: &KeeperSpec, grace: Option<Duration>) -> session_runner::process::RunEnd {
    block_on(async {
        let mut run = start(spec).await;
        until_line(&mut run, "ready").await;
        assert!(run.control().stop(grace).unwrap());
        end(&mut run).await
    })
}

#[track_caller]
fn refused(spec: &KeeperSpec, kind: SpawnFailureKind, words: &str) -> SpawnFailure {
    let failure = match block_on(Supervised::start(&keeper_program(), spec)) {
        Err(SpawnError::Program(failure)) => failure,
        other => panic!("expected a failure of the program, got {other:?}"),
    };
    assert_eq!(failure.kind, kind, "{failure:?}");
    assert!(failure.message.contains(words), "{failure:?}");
    let recorded = recover_keeper(&spec.state_file, spec.run).unwrap();
    assert_eq!(recorded, KeeperState::Ended(RunOutcome::SpawnFailed(failure.clone())));
    failure
}

pub(crate) fn what_was_planted_in_a_workspace_is_told_and_set_aside() {
    let place = Place::new();
    let work = place.work();
    fs::create_dir_all(work.join(".git/hooks")).unwrap();
    fs::write(work.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(work.join(".envrc"), "export A=1\n").unwrap();
    let script =
        "echo evil > .git/commondir; mkdir .vscode; echo {} > .vscode/tasks.json; echo x >> .envrc; exit 2";
    let spec = KeeperSpec { watch: vec![work.clone()], ..place.confined(Level::Full, script) };
    let end = run(&spec);
    assert_eq!(end.exit, Some(Exit::Code(2)));
    let record = keeper_record(&spec.state_file, spec.run).unwrap().unwrap();
    let told: Vec<String> = record.changes.iter().map(ToString::to_string).collect();
    assert_eq!((told.len(), record.more_changes), (usize::try_from(end.changes).unwrap(), 0), "{told:?}");
    for name in [".git/commondir", ".vscode", ".envrc"] {
        assert!(
            record.changes.iter().any(|change| change.path.starts_with(work.join(name))),
            "{name}: {told:?}"
        );
    }
    assert!(!work.join(".git/commondir").exists(), "git would have followed it");
    let said: Vec<String> =
        place.records().iter().map(|record| String::from_utf8_lossy(&record.bytes).into()).collect();
    assert!(told.iter().all(|told| said.contains(told)), "{said:?}");
}

pub(crate) fn a_flood_of_planted_names_is_bounded() {
    let place = Place::new();
    let hooks = place.work().join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    fs::write(place.work().join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); : > work/.git/hooks/$i; done";
    let spec = KeeperSpec { watch: vec![place.work()], ..place.script(script) };
    let end = run(&spec);
    let record = keeper_record(&spec.state_file, spec.run).unwrap().unwrap();
    assert_eq!((end.changes, record.changes.len(), record.more_changes), (100, 64, 36));
}

pub(crate) fn what_comes_while_the_sandbox_is_made_is_heard_after_it() {
    for (order, expect) in [(Some("{\"kill\":{}}\n"), EndCause::Killed), (None, EndCause::HostLost)] {
        let place = Place::new();
        let go = place.path.join("go");
        assert!(program("mkfifo").arg(&go).status().unwrap().success());
        let mut spec = place.confined(Level::Full, "trap '' TERM; sleep 1000; sleep 1000");
        spec.grace_ms = 0;
        let Setting::Confined(confinement) = &mut spec.setting else { panic!("{:?}", spec.setting) };
        confinement.launcher = vec![SLOW_LAUNCHER.into(), go.to_string()];
        let mut keeper =
            this_program().arg(KEEPER).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut host = keeper.stdin.take().unwrap();
        let mut said = serde_json::to_string(&spec).unwrap() + "\n";
        said.push_str(order.unwrap_or_default());
        host.write_all(said.as_bytes()).unwrap();
        let host = order.map(|_| host);
        fs::write(&go, "go\n").unwrap();
        assert!(keeper.wait().unwrap().success());
        let KeeperState::Ended(RunOutcome::Ended(end)) = recover_keeper(&spec.state_file, spec.run).unwrap()
        else {
            panic!("it has started and ended");
        };
        assert_eq!((end.exit, end.cause, end.survivors), (Some(Exit::Signal(9)), expect, 0));
        drop(host);
    }
}

pub(crate) fn a_start_that_is_given_up_leaves_nothing() {
    for level in LEVELS {
        let place = Place::new();
        let go = place.path.join("go");
        assert!(program("mkfifo").arg(&go).status().unwrap().success());
        let mut spec = place.confined(level, "echo started > started; sleep 1000");
        spec.on_host_loss = OnHostLoss::Adopt;
        spec.limits = TreeLimits { processes: Some(50), ..TreeLimits::default() };
        let Setting::Confined(confinement) = &mut spec.setting else { panic!("{:?}", spec.setting) };
        confinement.launcher = vec![SLOW_LAUNCHER.into(), go.to_string()];
        // Time stands still while somebody blocks, and passes at once when all wait: the start has no time left as soon
        // as the launcher is there, which then is never told to begin.
        let paused =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (error, mut told) = paused.block_on(async {
            let (keeper, opened) = (keeper_program(), go.clone());
            let launcher =
                tokio::task::spawn_blocking(move || fs::OpenOptions::new().write(true).open(opened).unwrap());
            let error = Supervised::start(&keeper, &spec).await.unwrap_err();
            (error, launcher.await.unwrap())
        });
        let SpawnError::Lost { run, message } = error else { panic!("{level}: {error:?}") };
        assert_eq!((run, message.as_str()), (spec.run, "it did not start the program within 40s"));
        let unread = told.write_all(b"go\n").unwrap_err();
        assert_eq!(unread.kind(), std::io::ErrorKind::BrokenPipe, "{level}: the launcher is gone");
        let KeeperState::Gone(Some(record)) = recover_keeper(&spec.state_file, spec.run).unwrap() else {
            panic!("{level}: its keeper had begun, and is gone");
        };
        assert_eq!(living(spec.run), [], "{level}");
        assert!(record.cgroups.iter().all(|group| !group.exists()), "{level}: {:?}", record.cgroups);
        assert!(!place.work().join("started").exists(), "{level}");
    }
}
