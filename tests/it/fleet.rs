//! Runners on other machines: a coordinator that executes nothing, and `roomette runner` processes that reach it over HTTP.

mod places;

use std::path::Path;
use std::time::Duration;

use camino::Utf8Path;
use jiff::SignedDuration;
use rustix::process::Signal;
use session_core::event::EventKind;
use session_core::run::{EndKind, ReasonCode, Run, RunPhase, StopMode};
use session_tests::fleet::{Headquarters, RunnerProcess, draft, task};
use session_tests::home::Home;

/// A claim holds so long in these tests.
const LEASE: SignedDuration = SignedDuration::from_secs(6);

fn kind(run: &Run) -> Option<EndKind> {
    run.ended().map(|(_, ending)| ending.kind)
}

fn reason(run: &Run) -> Option<ReasonCode> {
    run.ended().and_then(|(_, ending)| ending.reason)
}

fn running(run: &Run) -> bool {
    run.state.phase() == RunPhase::Running
}

/// Makes the agent of the tests a program of this name.
fn install(name: &str, programs: &Utf8Path) {
    std::fs::create_dir(programs).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_fake_agent"), programs.join(name))
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_fake_agent"), programs.join(name)).map(drop))
        .unwrap();
}

/// A `PATH` with these programs, and the system's.
fn with_programs(programs: &Utf8Path) -> String {
    format!("{programs}:/usr/local/bin:/usr/bin:/bin")
}

fn until_there(path: impl AsRef<Path>) {
    let path = path.as_ref();
    for _ in 0..1_200 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} does not come", path.display());
}

#[test]
fn runs_go_to_runners_and_a_session_goes_on_where_its_files_are() {
    let of = Headquarters::new(LEASE);
    let homes = [Home::new(), Home::new()];
    let runners = [RunnerProcess::start(&homes[0], &of, &[]), RunnerProcess::start(&homes[1], &of, &[])];
    let first = of.ended(of.run(&["sh", "-c", "echo here > file; echo said"]).id);
    assert_eq!(kind(&first), Some(EndKind::Completed), "{first:?}");
    let session = first.session;
    let place = of.does(async |coordinator| coordinator.store().session(session).await.unwrap().unwrap());
    let by = place.workspace.runner.unwrap();
    for _ in 0..2 {
        let again = of.ended(of.again(session, &["sh", "-c", "grep here file"]).id);
        assert_eq!(kind(&again), Some(EndKind::Completed), "{again:?}");
    }
    let [one, other] = runners;
    let (with_files, without) = if one.id == by { (one, other) } else { (other, one) };
    with_files.signal(Signal::TERM);
    assert_eq!(with_files.ended(), Some(0), "it drained, with nothing left to do");
    // Once it was not seen for a lease, nobody can take the run.
    let stranded = of.ended(of.again(session, &["true"]).id);
    assert_eq!(
        (kind(&stranded), reason(&stranded)),
        (Some(EndKind::Failed), Some(ReasonCode::NoMatchingRunner))
    );
    let message = stranded.ended().unwrap().1.message.clone();
    assert!(message.contains(&by.to_string()) && message.contains("which has its files"), "{message}");
    drop(without);
}

#[test]
fn a_coordinator_that_is_killed_loses_nothing_and_what_runs_goes_on() {
    let mut of = Headquarters::new(LEASE);
    let home = Home::new();
    let runner = RunnerProcess::start(&home, &of, &[]);
    let go = home.path().join("go");
    let script = format!("echo begun; while [ ! -e {go} ]; do sleep 0.1; done; echo over");
    let runs: Vec<_> = (0..3).map(|_| of.run(&["sh", "-c", &script])).collect();
    for run in &runs {
        of.until(run.id, running);
    }
    of.kill();
    std::fs::write(&go, "").unwrap();
    // Their ends wait on disk.
    for run in &runs {
        until_there(home.data().join("spool").join(format!("{}.1.jsonl", run.id)));
    }
    of.start();
    for run in &runs {
        let ended = of.ended(run.id);
        assert_eq!((kind(&ended), ended.epoch.0), (Some(EndKind::Completed), 1), "{ended:?}");
        let log = of.log(run.session);
        let ends = log.iter().filter(|event| event.body.kind.as_str() == "result").count();
        assert_eq!(ends, 1, "the end came once");
        assert!(log.iter().enumerate().all(|(place, event)| event.seq.0 == place as u64 + 1));
        let session = run.session;
        let record = of.settled(session);
        assert_eq!((record.usage.turns, record.reserved.turns), (1, 0), "booked once");
    }
    // It goes on working.
    assert_eq!(kind(&of.ended(of.run(&["true"]).id)), Some(EndKind::Completed));
    let left = home.data().join("spool").read_dir_utf8().unwrap().count();
    assert_eq!(left, 0, "nothing is left of what was delivered: {:?}", runner.said());
}

#[test]
fn a_runner_that_is_killed_delivers_what_waited_and_its_runs_are_lost() {
    let mut of = Headquarters::new(SignedDuration::from_secs(60));
    let home = Home::new();
    let runner = RunnerProcess::start(&home, &of, &[]);
    let go = home.path().join("go");
    let script = format!("while [ ! -e {go} ]; do sleep 0.1; done");
    let over = of.run(&["sh", "-c", &script]);
    let endless = of.run(&["sleep", "1000"]);
    of.until(over.id, running);
    of.until(endless.id, running);
    of.kill();
    std::fs::write(&go, "").unwrap();
    until_there(home.data().join("spool").join(format!("{}.1.jsonl", over.id)));
    let id = runner.id;
    runner.kill();
    of.start();
    let again = RunnerProcess::start(&home, &of, &[]);
    assert_eq!(again.id, id, "the same runner");
    assert_eq!(kind(&of.ended(over.id)), Some(EndKind::Completed));
    let lost = of.ended(endless.id);
    assert_eq!((kind(&lost), reason(&lost)), (Some(EndKind::Lost), Some(ReasonCode::HostLost)));
    let resumed = of.again(endless.session, &["true"]);
    assert_eq!(kind(&of.ended(resumed.id)), Some(EndKind::Completed));
}

#[test]
fn a_runner_that_never_comes_back_loses_its_claims_to_others() {
    let of = Headquarters::new(LEASE);
    let homes = [Home::new(), Home::new()];
    let gone = RunnerProcess::start(&homes[0], &of, &["--runs-at-once", "1"]);
    let begun = of.run(&["sleep", "1000"]);
    of.until(begun.id, running);
    gone.kill();
    let other = RunnerProcess::start(&homes[1], &of, &[]);
    let lost = of.ended(begun.id);
    assert_eq!((kind(&lost), reason(&lost)), (Some(EndKind::Lost), Some(ReasonCode::LeaseExpired)));
    assert_eq!(kind(&of.ended(of.run(&["true"]).id)), Some(EndKind::Completed));
    drop(other);
}

#[test]
fn an_order_to_stop_comes_at_once_and_a_drain_lets_runs_end() {
    let of = Headquarters::new(SignedDuration::from_secs(60));
    let home = Home::new();
    let runner = RunnerProcess::start(&home, &of, &[]);
    let endless = of.run(&["sleep", "1000"]);
    of.until(endless.id, running);
    let session = endless.session;
    of.does(async |coordinator| coordinator.stop(&[session], StopMode::Graceful).await.unwrap());
    assert_eq!(kind(&of.ended(endless.id)), Some(EndKind::Stopped));
    let go = home.path().join("go");
    let slow = of.run(&["sh", "-c", &format!("while [ ! -e {go} ]; do sleep 0.1; done")]);
    of.until(slow.id, running);
    runner.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    let late = of.submit(task(&["true"], session_manager::TaskSession::New(draft())));
    std::fs::write(&go, "").unwrap();
    assert_eq!(runner.ended(), Some(0));
    assert_eq!(kind(&of.look(slow.id)), Some(EndKind::Completed), "it was brought to its end");
    assert_ne!(of.look(late.id).state.phase(), RunPhase::Completed, "and nothing was begun");
}

#[test]
fn two_processes_are_not_one_runner() {
    let of = Headquarters::new(LEASE);
    let (home, copy) = (Home::new(), Home::new());
    let first = RunnerProcess::start(&home, &of, &[]);
    std::fs::create_dir_all(copy.data()).unwrap();
    for name in ["runner.id", "runner.json"] {
        std::fs::copy(home.data().join(name), copy.data().join(name)).unwrap();
    }
    let second = RunnerProcess::start(&copy, &of, &[]);
    assert_eq!(first.id, second.id);
    assert_eq!(first.ended(), Some(6), "the first one learnt that another took its place");
    assert_eq!(kind(&of.ended(of.run(&["true"]).id)), Some(EndKind::Completed));
}

#[test]
fn an_agent_asks_from_afar_and_what_it_says_while_nobody_listens_is_not_lost() {
    let mut of = Headquarters::new(LEASE);
    let home = Home::new();
    let programs = home.path().join("bin");
    install("claude", &programs);
    let home = home.with("PATH", &with_programs(&programs));
    let runner = RunnerProcess::start(&home, &of, &[]);
    let (began, go) = (home.path().join("began"), home.path().join("go"));
    let tool = format!("tool touch {began}; while [ ! -e {go} ]; do sleep 0.1; done");
    let run = of.ask("claude-code", &programs, &format!("say one\n{tool}\nsay two\nsay three\nusage 50"));
    of.allow(run.session);
    until_there(&began);
    of.kill();
    std::fs::write(&go, "").unwrap();
    let spooled = home.data().join("spool").join(format!("{}.1.jsonl", run.id));
    until_there(&spooled);
    while !std::fs::read_to_string(&spooled).unwrap().contains("\"ended\"") {
        std::thread::sleep(Duration::from_millis(50));
    }
    of.start();
    let ended = of.ended(run.id);
    assert_eq!(kind(&ended), Some(EndKind::Completed), "{ended:?}: {:?}", runner.said());
    let log = of.log(run.session);
    let said = log.iter().filter(|event| event.body.kind == EventKind::Message).filter_map(|event| {
        let payload = event.body.payload.value().ok()?;
        (payload["role"] == "assistant").then(|| payload["text"].as_str().unwrap_or_default().to_owned())
    });
    assert_eq!(said.collect::<Vec<_>>(), ["one", "two", "three"]);
    let session = run.session;
    let record = of.settled(session);
    assert_eq!((record.usage.tokens, record.reserved.tokens), (50, 0), "what it used was booked, once");
    assert!(record.binding.is_some_and(|binding| binding.runner == Some(runner.id) && binding.resumable));
}
