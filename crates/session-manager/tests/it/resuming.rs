//! The three steps of a resume: recorded, raced for, given up, overtaken.

use session_core::budget::{Budget, Usage};
use session_core::context::Restored;
use session_core::names::Label;
use session_core::{ManagedSession, SessionState, TerminationReason};
use session_manager::options::{EvictionStrategy, Limits};
use session_manager::{ResumeError, StateError, TrackError, UseError};

use crate::world::{Behaves, MILLISECOND, Point, World, minutes};

#[tokio::test(start_paused = true)]
async fn the_three_steps_are_recorded_and_the_session_opens_after_the_third() {
    let world = World::new();
    let session = world.suspended().await;
    world.journal();
    let mut resuming = world.manager.begin_resume(session).await.unwrap();
    assert_eq!((resuming.handle().id(), resuming.session().id), (session, session));
    assert!(matches!(resuming.session().state, SessionState::Suspended { .. }), "the factory can tell");
    assert_eq!(world.state(session), "suspended");
    assert!(world.manager.get(session).is_none(), "not open yet");
    resuming.restore(Restored::default()).await.unwrap();
    resuming.engine().say("take over");
    let handle = resuming.complete().await.unwrap();
    assert_eq!((handle.id(), world.state(session)), (session, "active"));
    let expected = [
        "1: make",
        "1: record opened",
        "1: record reconstructed",
        "1: take over",
        "1: record restored",
        "1: record resume",
    ];
    assert_eq!(world.journal(), expected);
    assert!(matches!(world.manager.begin_resume(session).await, Err(ResumeError::AlreadyLive(_))));
    let stranger = world.env.session_id();
    assert!(matches!(world.manager.begin_resume(stranger).await, Err(ResumeError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_dropped_is_rolled_back_with_the_old_expiry() {
    let world = World::new();
    let session = world.suspended().await;
    let before = world.manager.view(session).unwrap().state;
    for steps in 0..2 {
        world.journal();
        world.pass(minutes(60));
        let mut resuming = world.manager.begin_resume(session).await.unwrap();
        if steps > 0 {
            resuming.restore(Restored::default()).await.unwrap();
        }
        drop(resuming);
        world.settle().await;
        assert_eq!(world.manager.view(session).unwrap().state, before);
        let journal = world.journal();
        assert_eq!(journal[journal.len() - 2..], ["1: shutdown Abandoned", "1: record rolled_back"]);
        assert_eq!(journal.iter().filter(|line| line.contains("shutdown")).count(), 1);
    }
    world.pass(minutes(22 * 60) - MILLISECOND);
    assert!(world.manager.sweep().await.expired.is_empty());
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.expired, [session]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_between_the_steps_is_a_drop_like_any_other() {
    let world = World::new();
    let session = world.suspended().await;
    let manager = world.manager.clone();
    let work = tokio::spawn(async move {
        let _resuming = manager.begin_resume(session).await.unwrap();
        panic!("the log cannot be read");
    });
    assert!(work.await.unwrap_err().is_panic());
    world.settle().await;
    assert_eq!(world.state(session), "suspended");
    assert_eq!(world.journal().last().unwrap(), "1: record rolled_back");
}

#[tokio::test(start_paused = true)]
async fn of_two_at_once_one_goes_ahead_and_the_other_learns_what_came_of_it() {
    let world = World::new();
    let session = world.suspended().await;
    let first = world.manager.begin_resume(session).await.unwrap();
    let manager = world.manager.clone();
    let second = tokio::spawn(async move { manager.begin_resume(session).await });
    world.settle().await;
    assert!(!second.is_finished());
    first.complete().await.unwrap();
    assert!(matches!(second.await.unwrap(), Err(ResumeError::AlreadyLive(_))));

    world.manager.suspend(session).await.unwrap();
    let first = world.manager.begin_resume(session).await.unwrap();
    let manager = world.manager.clone();
    let second = tokio::spawn(async move { manager.begin_resume(session).await });
    world.settle().await;
    drop(first);
    let second = second.await.unwrap().unwrap();
    second.complete().await.unwrap();
    assert_eq!(world.state(session), "active");
    // Whoever waits in vain is told so.
    world.manager.suspend(session).await.unwrap();
    let _held = world.manager.begin_resume(session).await.unwrap();
    assert!(matches!(world.manager.begin_resume(session).await, Err(ResumeError::NotReady { .. })));
    assert!(matches!(world.manager.acquire(session).await, Err(UseError::NotReady { .. })));
}

#[tokio::test(start_paused = true)]
async fn without_an_engine_it_stays_suspended() {
    for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
        let world = World::new();
        let session = world.suspended().await;
        let before = world.manager.view(session).unwrap();
        world.behaves(Point::Create, behaviour);
        let error = world.manager.begin_resume(session).await.unwrap_err();
        assert!(matches!(error, ResumeError::Engine { .. }), "{error}");
        assert_eq!(world.manager.view(session).unwrap(), before);
        world.behaves(Point::Create, Behaves::Well);
        world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
        assert_eq!(world.state(session), "active");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_is_rolled_back() {
    for point in ["opened", "reconstructed", "restored", "resume"] {
        for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
            let world = World::new();
            let session = world.suspended().await;
            world.behaves(Point::Report(point), behaviour);
            let error = match world.manager.begin_resume(session).await {
                Err(error) => error,
                Ok(mut resuming) => match resuming.restore(Restored::default()).await {
                    Err(error) => error,
                    Ok(()) => resuming.complete().await.unwrap_err(),
                },
            };
            assert!(matches!(error, ResumeError::Record { .. }), "{point}: {error}");
            world.settle().await;
            assert_eq!(world.state(session), "suspended", "{point}");
            let journal = world.journal();
            let released = journal.iter().filter(|line| line.contains("shutdown Abandoned"));
            assert_eq!(released.count(), 1, "{point}: {journal:?}");
            assert_eq!(journal.last().unwrap(), "1: record rolled_back", "{point}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_overtakes_a_resume_wherever_it_is() {
    // While the engine is made: nobody waits for it, and it is let go of when it comes.
    let world = World::new();
    let session = world.suspended().await;
    let gate = world.gate(Point::Create);
    let manager = world.manager.clone();
    let resume = tokio::spawn(async move { manager.begin_resume(session).await });
    gate.reached().await;
    world.manager.terminate(session, TerminationReason::Killed).await.unwrap();
    assert!(matches!(resume.await.unwrap(), Err(ResumeError::Ended { .. })));
    gate.open();
    world.settle().await;
    let journal = world.journal();
    assert_eq!(journal[journal.len() - 2..], ["1: record terminate killed", "1: shutdown Abandoned"]);
    // Between the steps: it does not wait for whoever resumes it.
    world.behaves(Point::Create, Behaves::Well);
    let session = world.suspended().await;
    world.journal();
    let mut resuming = world.manager.begin_resume(session).await.unwrap();
    world.manager.terminate(session, TerminationReason::Killed).await.unwrap();
    assert_eq!(world.state(session), "none");
    assert!(resuming.handle().is_ended());
    let error = resuming.restore(Restored::default()).await.unwrap_err();
    assert!(matches!(error, ResumeError::Ended { reason: TerminationReason::Killed, .. }));
    assert!(matches!(resuming.complete().await, Err(ResumeError::Ended { .. })));
    let expected = ["2: make", "2: record opened", "2: shutdown Abandoned", "2: record terminate killed"];
    assert_eq!(world.journal(), expected);
    // During the last step.
    let session = world.suspended().await;
    let resuming = world.manager.begin_resume(session).await.unwrap();
    let gate = world.gate(Point::Report("resume"));
    let completion = tokio::spawn(resuming.complete());
    gate.reached().await;
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await });
    world.settle().await;
    gate.open();
    assert!(matches!(completion.await.unwrap(), Err(ResumeError::Ended { .. })));
    end.await.unwrap().unwrap();
    let journal = world.journal();
    assert_eq!(journal[journal.len() - 2..], ["3: record terminate killed", "3: shutdown Abandoned"]);
}

#[tokio::test(start_paused = true)]
async fn a_resume_is_an_admission() {
    let limits = Limits { active_max: 1, eviction: EvictionStrategy::RejectNew, ..Limits::default() };
    let world = World::limited(limits);
    let session = world.suspended().await;
    world.open().await;
    let error = world.manager.begin_resume(session).await.unwrap_err();
    let ResumeError::Capacity { refused, .. } = error else { panic!("{error}") };
    assert_eq!(refused.retry_after, Some(minutes(45)));
    assert_eq!(world.state(session), "suspended");

    let limits = Limits { active_max: 1, ..Limits::default() };
    let world = World::limited(limits);
    let session = world.suspended().await;
    let other = world.open().await.id();
    world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    assert_eq!((world.state(session), world.state(other)), ("active", "suspended"));
}

/// The record of a session of another process.
fn recorded(world: &World, state: SessionState) -> ManagedSession {
    let usage = Usage { tokens: 150_000, turns: 3, ..Usage::default() };
    ManagedSession { state, usage, ..world.record("me") }
}

#[tokio::test(start_paused = true)]
async fn what_is_recorded_elsewhere_can_be_taken_in_and_resumed() {
    let world = World::new();
    let now = world.env.now();
    let since = now - minutes(60);
    let expires_at = now + minutes(10);
    for (state, report) in [
        (SessionState::Suspended { since, expires_at }, "record resume"),
        (SessionState::Idle { since }, "record activity"),
        (SessionState::Active, "record activity"),
    ] {
        let record = recorded(&world, state);
        let session = record.id;
        world.manager.track(record.clone()).unwrap();
        let view = world.manager.view(session).unwrap();
        assert_eq!((view.state.name(), view.usage), ("suspended", record.usage));
        let handle = world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
        assert_eq!(world.manager.track(record.clone()), Err(TrackError::Known(session)), "it is live");
        assert_eq!(handle.meter().used().tokens, 150_000, "usage survives");
        assert_eq!(handle.session().usage, record.usage);
        assert!(world.journal().last().unwrap().ends_with(report));
        world.manager.terminate(session, TerminationReason::Stopped).await.unwrap();
        world.journal();
    }
    let over = SessionState::Terminated { at: now, reason: TerminationReason::Stopped };
    assert!(matches!(world.manager.track(recorded(&world, over)), Err(TrackError::Over(_))));
}

#[tokio::test(start_paused = true)]
async fn an_expiry_in_the_record_counts_by_the_wall_clock_at_that_moment() {
    let world = World::new();
    world.clock.set(world.env.now() + minutes(24 * 60));
    let (since, expires_at) = (world.env.now(), world.env.now() + minutes(20));
    let record = recorded(&world, SessionState::Suspended { since, expires_at });
    world.manager.track(record.clone()).unwrap();
    world.clock.set(world.env.now() - minutes(5 * 24 * 60));
    world.pass(minutes(20) - MILLISECOND);
    assert!(world.manager.sweep().await.expired.is_empty());
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.expired, [record.id]);
    // One that should be over already can still be resumed, for as long as a session is not idle.
    let (since, expires_at) = (world.env.now() - minutes(9), world.env.now() - minutes(1));
    let record = recorded(&world, SessionState::Suspended { since, expires_at });
    world.manager.track(record.clone()).unwrap();
    world.pass(minutes(15) - MILLISECOND);
    assert!(world.manager.sweep().await.expired.is_empty());
    drop(world.manager.begin_resume(record.id).await.unwrap());
    world.settle().await;
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.expired, [record.id]);
}

#[tokio::test(start_paused = true)]
async fn the_next_engine_is_made_from_what_the_record_says_now() {
    let world = World::new();
    let session = world.suspended().await;
    let handle = world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    handle.with_context(|context| context.correlation.role = Some("reviewer".into()));
    let record = ManagedSession { state: SessionState::Active, ..handle.session().clone() };
    assert_eq!(world.manager.track(record.clone()), Err(TrackError::Known(session)), "it is live");
    world.manager.suspend(session).await.unwrap();
    // Another process let it work, raised its limits, and named it.
    let usage = Usage { tokens: 7, ..Usage::NONE };
    let budget = Budget { tokens_max: 9, ..Budget::default() };
    let label = Some(Label::new("renamed").unwrap());
    let state = SessionState::Idle { since: world.env.now() };
    let newer = ManagedSession { usage, budget, label: label.clone(), state, ..record };
    world.manager.track(newer).unwrap();
    assert_eq!(world.manager.view(session).unwrap().label, label);
    world.journal();
    let handle = world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    assert_eq!((handle.session().usage, handle.session().budget), (usage, budget));
    assert_eq!(handle.session().label, label);
    assert_eq!(handle.meter().account().used, usage);
    assert_eq!(handle.with_context(|context| context.correlation.role.clone()), Some("reviewer".into()));
    assert_eq!(world.journal(), ["1: make", "1: record activity"], "as the newer record has it");
}

#[tokio::test(start_paused = true)]
async fn a_run_of_an_engine_that_is_gone_ends_no_run_of_the_next() {
    let world = World::new();
    let handle = world.open().await;
    let session = handle.id();
    let old = world.manager.acquire(session).await.unwrap();
    world.behaves(Point::Report("reserved"), Behaves::Objects);
    old.reserve(Usage { turns: 1, ..Usage::NONE }, None).await.unwrap_err();
    world.settle().await;
    assert_eq!(world.state(session), "none", "its record is another's, and it is let go of");
    world.manager.track(handle.session().clone()).unwrap();
    world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    let run = world.manager.acquire(session).await.unwrap();
    drop(old);
    assert_eq!(world.manager.view(session).unwrap().in_flight, 1);
    assert!(matches!(world.manager.suspend(session).await, Err(StateError::InUse(_))));
    drop(run);
    world.manager.suspend(session).await.unwrap();
}
