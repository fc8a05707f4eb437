//! Suspending and ending: uses that come meanwhile, engines that fail, hang and panic.

use std::time::Duration;

use session_core::TerminationReason;
use session_core::ports::EngineError;
use session_manager::{ManagerOptions, StateError, UseError};

use crate::world::{Behaves, Point, World, minutes};

#[tokio::test(start_paused = true)]
async fn what_comes_during_the_flush_calls_the_suspension_off() {
    let world = World::new();
    let session = world.open().await.id();
    let gate = world.gate(Point::Flush);
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    let run = world.manager.acquire(session).await.unwrap();
    run.engine().say("work");
    gate.open();
    assert!(matches!(suspension.await.unwrap(), Err(StateError::InUse(_))));
    assert_eq!(world.state(session), "active");
    drop(run);
    assert_eq!(world.journal(), ["1: record created", "1: make", "1: flush", "1: work"]);
    // A touch is use enough, and a sweep is called off like anybody else.
    world.pass(minutes(45));
    let manager = world.manager.clone();
    let sweep = tokio::spawn(async move { manager.sweep().await });
    gate.reached().await;
    world.manager.touch(session).await.unwrap();
    gate.open();
    let report = sweep.await.unwrap();
    assert_eq!((report.used, report.suspended.len(), report.faults.len()), (vec![session], 0, 0));
    assert_eq!(world.state(session), "active");
    assert_eq!(world.journal(), ["1: record idle timeout", "1: flush", "1: record activity"]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_during_the_close_waits_and_is_told_to_resume() {
    let world = World::new();
    let session = world.open().await.id();
    let gate = world.gate(Point::Shutdown);
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let message = tokio::spawn(async move { manager.acquire(session).await });
    world.settle().await;
    assert!(!message.is_finished(), "it waits for the suspension");
    gate.open();
    suspension.await.unwrap().unwrap();
    assert!(matches!(message.await.unwrap(), Err(UseError::Suspended(id)) if id == session));
    let resuming = world.manager.begin_resume(session).await.unwrap();
    resuming.complete().await.unwrap();
    world.manager.acquire(session).await.unwrap().engine().say("work");
    assert_eq!(world.journal().last().unwrap(), "1: work");
}

#[tokio::test(start_paused = true)]
async fn a_use_waits_for_a_close_only_so_long() {
    let world = World::new();
    let session = world.open().await.id();
    world.behaves(Point::Shutdown, Behaves::Hangs);
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await });
    world.settle().await;
    let error = world.manager.touch(session).await.unwrap_err();
    assert!(matches!(error, UseError::Unknown(_) | UseError::NotReady { .. }), "{error}");
    assert!(matches!(end.await.unwrap(), Err(StateError::Shutdown { .. })));
    assert!(matches!(world.manager.touch(session).await, Err(UseError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_write_out_keeps_its_session() {
    for (behaviour, expected) in [
        (Behaves::Fails, "it has had enough"),
        (Behaves::Panics, "it panicked: it fell over"),
        (Behaves::Hangs, "it did not answer within 30s"),
    ] {
        let world = World::new();
        let session = world.open().await.id();
        world.behaves(Point::Flush, behaviour);
        let Err(StateError::Flush { source, .. }) = world.manager.suspend(session).await else {
            panic!("{expected}")
        };
        assert_eq!(source.to_string(), expected);
        assert_eq!(world.state(session), "active");
        world.manager.acquire(session).await.unwrap().engine().say("work");
        // Left alone it is due again, a while later; then the engine has recovered.
        world.pass(minutes(45));
        assert_eq!(world.manager.sweep().await.faults.len(), 1);
        world.behaves(Point::Flush, Behaves::Well);
        assert!(world.manager.sweep().await.suspended.is_empty(), "it is left in peace for a minute");
        world.pass(minutes(1));
        assert_eq!(world.manager.sweep().await.suspended, [session]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_shut_down_is_given_up_and_said_to_be() {
    for behaviour in [Behaves::Panics, Behaves::Hangs] {
        let world = World::new();
        let (first, second) = (world.open().await.id(), world.open().await.id());
        world.behaves(Point::Shutdown, behaviour.clone());
        let Err(StateError::Shutdown { source, .. }) = world.manager.suspend(first).await else { panic!() };
        assert!(matches!(source, EngineError::Panicked(_) | EngineError::TimedOut(_)));
        assert_eq!(world.state(first), "suspended", "all the same");
        let end = world.manager.terminate(second, TerminationReason::Stopped).await;
        assert!(matches!(end, Err(StateError::Shutdown { .. })));
        assert_eq!(world.state(second), "none");
        let journal = world.journal();
        assert_eq!(journal.iter().filter(|line| line.contains("shutdown")).count(), 2, "each once");
        assert_eq!(journal.last().unwrap(), "2: shutdown Terminated(Stopped)");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_in_use_is_not_suspended_and_a_suspended_one_stays_so() {
    let world = World::new();
    let session = world.open().await.id();
    let run = world.manager.acquire(session).await.unwrap();
    assert!(matches!(world.manager.suspend(session).await, Err(StateError::InUse(_))));
    drop(run);
    world.manager.suspend(session).await.unwrap();
    world.manager.suspend(session).await.unwrap();
    let stranger = world.env.session_id();
    assert!(matches!(world.manager.suspend(stranger).await, Err(StateError::Unknown(_))));
    assert_eq!(world.journal().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_end_is_recorded_first_and_gives_a_run_time_to_end() {
    let world = World::new();
    let session = world.open().await.id();
    let run = world.manager.acquire(session).await.unwrap();
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Stopped).await });
    run.ended().await;
    run.engine().say("last words");
    assert!(run.handle().is_ended());
    assert!(!end.is_finished());
    drop(run);
    end.await.unwrap().unwrap();
    let expected = ["1: record terminate stopped", "1: last words", "1: shutdown Terminated(Stopped)"];
    assert_eq!(world.journal()[2..], expected);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_does_not_end_is_not_waited_for_longer_than_the_settings_say() {
    let options = ManagerOptions { drain_within: Duration::from_secs(10), ..ManagerOptions::default() };
    for (reason, seconds) in [
        (TerminationReason::Stopped, 10),
        (TerminationReason::Killed, 0),
        (TerminationReason::BudgetExhausted, 0),
        (TerminationReason::SandboxViolation, 0),
    ] {
        let world = World::with(options.clone());
        let session = world.open().await.id();
        let run = world.manager.acquire(session).await.unwrap();
        let before = tokio::time::Instant::now();
        world.manager.terminate(session, reason).await.unwrap();
        assert_eq!(before.elapsed().as_secs(), seconds, "{reason}");
        drop(run);
        assert_eq!(world.state(session), "none");
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_that_end_a_session_the_first_ones_reason_counts() {
    let world = World::new();
    let session = world.open().await.id();
    let gate = world.gate(Point::Shutdown);
    let manager = world.manager.clone();
    let first = tokio::spawn(async move { manager.terminate(session, TerminationReason::Stopped).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let second = tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await });
    world.settle().await;
    assert!(!second.is_finished(), "it returns when nothing is left");
    gate.open();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let expected = ["1: record terminate stopped", "1: shutdown Terminated(Stopped)"];
    assert_eq!(world.journal()[2..], expected);
    let third = world.manager.terminate(session, TerminationReason::Killed).await;
    assert!(matches!(third, Err(StateError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn an_end_during_a_suspension_wins() {
    // While it writes out.
    let world = World::new();
    let session = world.open().await.id();
    let gate = world.gate(Point::Flush);
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    world.manager.terminate(session, TerminationReason::Killed).await.unwrap();
    assert!(matches!(suspension.await.unwrap(), Err(StateError::Ended(_))));
    let expected = ["1: flush", "1: record terminate killed", "1: shutdown Terminated(Killed)"];
    assert_eq!(world.journal()[2..], expected);
    // While it is let go of.
    let session = world.open().await.id();
    world.behaves(Point::Flush, Behaves::Well);
    let gate = world.gate(Point::Shutdown);
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await });
    world.settle().await;
    gate.open();
    suspension.await.unwrap().unwrap();
    end.await.unwrap().unwrap();
    let expected = ["2: flush", "2: record suspend", "2: shutdown Suspended", "2: record terminate killed"];
    assert_eq!(world.journal()[2..], expected);
    assert_eq!(world.manager.counts(), session_manager::manager::Counts::default());
}
