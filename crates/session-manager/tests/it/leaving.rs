//! The kill switch and the shutdown: everything at once, within a bound, and nothing new afterwards.

use std::collections::HashSet;
use std::time::Duration;

use jiff::SignedDuration;
use session_core::TerminationReason;
use session_core::names::Principal;
use session_manager::manager::Counts;
use session_manager::options::Limits;
use session_manager::{Keyed, ManagerOptions, OpenError, Parting, ResumeError, TrackError, UseError};
use tokio_util::sync::CancellationToken;

use crate::world::{Behaves, Point, World, key, minutes, request};

const SOON: Duration = Duration::from_secs(100);

fn roomy() -> World {
    World::limited(Limits { active_max: 100, active_per_principal_max: None, ..Limits::default() })
}

#[tokio::test(start_paused = true)]
async fn the_kill_switch_ends_one_principals_sessions_or_all() {
    let world = roomy();
    let mine = [world.open().await.id(), world.suspended().await];
    let yours = world.manager.create(request("you")).await.unwrap().id();
    let me = Principal::new("me").unwrap();
    let killed = world.manager.terminate_all(Some(&me), TerminationReason::Killed).await;
    assert_eq!(killed.sessions.iter().copied().collect::<HashSet<_>>(), HashSet::from(mine));
    assert!(killed.faults.is_empty());
    assert_eq!(world.state(yours), "active");
    world.manager.terminate_all(None, TerminationReason::Killed).await;
    assert_eq!(world.manager.counts(), Counts::default());
}

#[tokio::test(start_paused = true)]
async fn the_kill_switch_takes_all_at_once_whatever_their_engines_do() {
    let world = roomy();
    for _ in 0..50 {
        world.open().await;
    }
    world.behaves(Point::Shutdown, Behaves::Hangs);
    let before = tokio::time::Instant::now();
    let killed = world.manager.terminate_all(None, TerminationReason::Killed).await;
    assert_eq!(before.elapsed(), Duration::from_secs(30), "as long as one of them");
    assert_eq!((killed.sessions.len(), killed.faults.len()), (0, 50));
    assert_eq!(world.manager.counts(), Counts::default());
}

#[tokio::test(start_paused = true)]
async fn the_kill_switch_reaches_sessions_that_are_being_opened() {
    for point in [Point::Report("created"), Point::Create] {
        let world = World::new();
        let gate = world.gate(point);
        let manager = world.manager.clone();
        let creation = tokio::spawn(async move { manager.create(request("me")).await });
        gate.reached().await;
        let manager = world.manager.clone();
        let kill = tokio::spawn(async move { manager.terminate_all(None, TerminationReason::Killed).await });
        world.settle().await;
        gate.open();
        let error = creation.await.unwrap().unwrap_err();
        assert!(matches!(error, OpenError::Ended { reason: TerminationReason::Killed, .. }), "{error}");
        assert_eq!(kill.await.unwrap().sessions.len(), 1);
        world.settle().await;
        assert_eq!(world.manager.counts(), Counts::default());
        let journal = world.journal();
        assert!(journal.contains(&"1: record terminate killed".to_owned()), "{journal:?}");
        let made = journal.iter().filter(|line| line.ends_with("make")).count();
        let released = journal.iter().filter(|line| line.ends_with("shutdown Abandoned")).count();
        assert_eq!(made, released, "{journal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_everything_and_refuses_what_comes() {
    let world = roomy();
    let (live, suspended) = (world.open().await.id(), world.suspended().await);
    let stop = CancellationToken::new();
    let (manager, stopped) = (world.manager.clone(), stop.clone());
    let sweeper = tokio::spawn(async move { manager.run_sweeper(stopped).await });
    world.settle().await;
    let report = world.manager.shutdown(Parting::Terminate(TerminationReason::Stopped), SOON).await;
    assert_eq!(report.ended.len(), 2);
    assert!(report.given_up.is_empty() && report.faults.is_empty() && report.joined);
    sweeper.await.unwrap();
    assert_eq!(world.manager.counts(), Counts::default());
    assert!(matches!(world.manager.create(request("me")).await, Err(OpenError::Leaving)));
    assert!(matches!(world.manager.acquire(live).await, Err(UseError::Leaving(_))));
    assert!(matches!(world.manager.begin_resume(suspended).await, Err(ResumeError::Leaving(_))));
    assert!(matches!(world.manager.track(world.record("me")), Err(TrackError::Leaving(_))));
    assert_eq!(world.manager.vacancies(), 0);
    world.pass(minutes(1_000));
    assert!(world.manager.sweep().await.expired.is_empty());
    let again = world.manager.shutdown(Parting::Leave, SOON).await;
    assert!(again.ended.is_empty() && again.joined);
    let journal = world.journal();
    assert!(journal.contains(&"1: record terminate stopped".to_owned()));
    assert!(journal.contains(&"2: record terminate stopped".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_lets_go_of_engines_and_leaves_the_records() {
    let world = roomy();
    let (live, suspended) = (world.open().await, world.suspended().await);
    let resumed = world.suspended().await;
    let resuming = world.manager.begin_resume(resumed).await.unwrap();
    let run = world.manager.acquire(live.id()).await.unwrap();
    world.journal();
    let manager = world.manager.clone();
    let leaving = tokio::spawn(async move { manager.shutdown(Parting::Leave, SOON).await });
    run.ended().await;
    drop(run);
    let report = leaving.await.unwrap();
    assert!(report.given_up.is_empty() && report.faults.is_empty() && report.joined, "{report:?}");
    assert_eq!(report.ended.len(), 3);
    assert!(resuming.complete().await.is_err());
    let mut journal = world.journal();
    journal.sort();
    assert_eq!(journal, ["1: shutdown HostLeaves", "3: record rolled_back", "3: shutdown Abandoned"]);
    assert!(live.is_ended());
    assert_eq!(world.manager.counts().active, 0);
    assert_ne!(world.state(suspended), "active");
}

#[tokio::test(start_paused = true)]
async fn what_is_being_suspended_when_the_manager_leaves_is_suspended() {
    let world = World::new();
    let session = world.open().await.id();
    let gate = world.gate(Point::Shutdown);
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let leaving = tokio::spawn(async move { manager.shutdown(Parting::Leave, SOON).await });
    world.settle().await;
    gate.open();
    suspension.await.unwrap().unwrap();
    assert!(leaving.await.unwrap().given_up.is_empty());
    assert_eq!(world.journal().last().unwrap(), "1: shutdown Suspended");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_by_the_deadline_is_named() {
    let world = roomy();
    let (stuck, well) = (world.open().await.id(), world.suspended().await);
    world.behaves(Point::Shutdown, Behaves::Hangs);
    let deadline = Duration::from_secs(5);
    let before = tokio::time::Instant::now();
    let report = world.manager.shutdown(Parting::Terminate(TerminationReason::Stopped), deadline).await;
    assert_eq!(before.elapsed(), deadline);
    assert_eq!((report.given_up, report.ended, report.joined), (vec![stuck], vec![well], false));
    let rest = world.manager.shutdown(Parting::Leave, SOON).await;
    assert!(rest.given_up.is_empty() && rest.joined, "it goes on, and ends within its own bound");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_calls_a_sweep_off_that_is_under_way() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(45));
    let gate = world.gate(Point::Flush);
    let manager = world.manager.clone();
    let sweep = tokio::spawn(async move { manager.sweep().await });
    gate.reached().await;
    let manager = world.manager.clone();
    let parting = Parting::Terminate(TerminationReason::Stopped);
    let leaving = tokio::spawn(async move { manager.shutdown(parting, SOON).await });
    // The engine still writes, and its gate is never opened.
    let report = leaving.await.unwrap();
    assert!(report.joined && report.ended == [session]);
    assert!(sweep.await.unwrap().suspended.is_empty());
    assert_eq!(world.journal().last().unwrap(), "1: shutdown Terminated(Stopped)");
}

#[tokio::test(start_paused = true)]
async fn a_factory_that_hangs_does_not_keep_the_manager() {
    let world = World::new();
    world.behaves(Point::Create, Behaves::Hangs);
    let manager = world.manager.clone();
    let creation = tokio::spawn(async move { manager.create(request("me")).await });
    world.settle().await;
    let report = world.manager.shutdown(Parting::Terminate(TerminationReason::Stopped), SOON).await;
    assert!(report.joined && report.given_up.is_empty(), "{report:?}");
    assert!(matches!(creation.await.unwrap(), Err(OpenError::Ended { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_longest_bounds_and_the_shortest_drain_are_bounds_like_any_other() {
    let options = ManagerOptions {
        limits: Limits {
            idle_timeout: Some(SignedDuration::MAX),
            suspended_ttl: Some(SignedDuration::MAX),
            ..Limits::default()
        },
        answer_within: Duration::MAX,
        shutdown_within: Duration::MAX,
        drain_within: Duration::ZERO,
        ..ManagerOptions::default()
    };
    let world = World::with(options);
    let (live, suspended) = (world.open().await.id(), world.suspended().await);
    let sweeper = world.manager.clone();
    let sweeper = tokio::spawn(async move { sweeper.run_sweeper(CancellationToken::new()).await });
    world.settle().await;
    world.pass(minutes(1_000_000));
    assert!(world.manager.sweep().await.idled.is_empty());
    world.manager.begin_resume(suspended).await.unwrap().complete().await.unwrap();
    let run = world.manager.acquire(live).await.unwrap();
    world.manager.terminate(live, TerminationReason::Stopped).await.unwrap();
    drop(run);
    let parting = Parting::Terminate(TerminationReason::Stopped);
    assert!(world.manager.shutdown(parting, Duration::MAX).await.joined);
    sweeper.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_is_free_when_the_end_of_its_session_is_recorded() {
    // However a suspended session ends.
    for by_time in [false, true] {
        let world = World::new();
        let get =
            async |world: &World| world.manager.get_or_create(key("chat"), request("me")).await.unwrap();
        let Keyed::Live { handle, .. } = get(&world).await else { panic!() };
        let session = handle.id();
        world.manager.suspend(session).await.unwrap();
        world.journal();
        let gate = world.gate(Point::Report(if by_time { "ttl expired" } else { "terminate" }));
        world.pass(minutes(24 * 60));
        let manager = world.manager.clone();
        let end = tokio::spawn(async move {
            if by_time {
                manager.sweep().await;
            } else {
                manager.terminate(session, TerminationReason::Killed).await.unwrap();
            }
        });
        gate.reached().await;
        assert_eq!((world.state(session), world.manager.counts()), ("terminated", Counts::default()));
        let (again, ()) = tokio::join!(get(&world), async {
            world.settle().await;
            assert!(world.journal().is_empty(), "nothing is made before the end is recorded");
            gate.open();
        });
        assert!(matches!(again, Keyed::Live { created: true, .. }));
        end.await.unwrap();
        let journal = world.journal();
        assert!(journal[0].starts_with("1: record t") && journal[1] == "2: record created", "{journal:?}");
    }
}
