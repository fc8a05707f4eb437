//! Time, to the millisecond: idle, suspended, over, and what a stepped wall clock does to that.

use std::time::Duration;

use jiff::SignedDuration;
use session_manager::options::Limits;
use tokio_util::sync::CancellationToken;

use crate::world::{MILLISECOND, Point, World, minutes};

#[tokio::test(start_paused = true)]
async fn a_session_left_alone_goes_through_its_states_on_the_millisecond() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(15) - MILLISECOND);
    assert!(world.manager.sweep().await.idled.is_empty());
    assert_eq!(world.state(session), "active");
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.idled, [session]);
    assert_eq!(world.state(session), "idle");

    world.pass(minutes(30) - MILLISECOND);
    assert!(world.manager.sweep().await.suspended.is_empty());
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.suspended, [session]);
    assert_eq!(world.state(session), "suspended");

    world.pass(SignedDuration::from_hours(24) - MILLISECOND);
    assert!(world.manager.sweep().await.expired.is_empty());
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.expired, [session]);
    assert_eq!(world.state(session), "none");
    let expected = [
        "1: record created",
        "1: make",
        "1: record idle timeout",
        "1: flush",
        "1: record grace elapsed",
        "1: shutdown Suspended",
        "1: record ttl expired",
    ];
    assert_eq!(world.journal(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_comes_late_does_both_steps_in_one_go() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(45) - MILLISECOND);
    let report = world.manager.sweep().await;
    assert_eq!((report.idled, report.suspended), (vec![session], vec![]));
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.suspended, [session], "the grace counts from the deadline");

    let late = world.open().await.id();
    world.journal();
    world.pass(minutes(45));
    let report = world.manager.sweep().await;
    assert_eq!((report.idled, report.suspended), (vec![late], vec![late]));
    assert_eq!(world.state(late), "suspended");
    let journal = world.journal();
    let [.., recorded, _] = &journal[..] else { panic!("{journal:?}") };
    assert_eq!(recorded, "2: record grace elapsed", "{journal:?}");
    assert_eq!(journal.iter().filter(|line| line.contains("idle timeout")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_use_at_the_last_millisecond_keeps_the_session() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(15));
    world.manager.sweep().await;
    world.pass(minutes(30) - MILLISECOND);
    world.manager.touch(session).await.unwrap();
    assert_eq!(world.state(session), "active");
    world.pass(MILLISECOND);
    let report = world.manager.sweep().await;
    assert!(report.suspended.is_empty() && report.faults.is_empty());
    assert_eq!(world.journal()[2..], ["1: record idle timeout", "1: record activity"]);
    world.pass(minutes(15) - MILLISECOND - MILLISECOND);
    assert!(world.manager.sweep().await.idled.is_empty());
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.idled, [session]);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_flight_keeps_the_session_however_long_it_takes() {
    let world = World::new();
    let session = world.open().await.id();
    let run = world.manager.acquire(session).await.unwrap();
    world.pass(SignedDuration::from_hours(100));
    let report = world.manager.sweep().await;
    assert!(report.idled.is_empty() && report.suspended.is_empty());
    assert_eq!(world.manager.view(session).unwrap().in_flight, 1);
    drop(run);
    world.pass(minutes(15) - MILLISECOND);
    assert!(world.manager.sweep().await.idled.is_empty(), "its idle time begins when the run ends");
    world.pass(MILLISECOND);
    assert_eq!(world.manager.sweep().await.idled, [session]);
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_is_stepped_by_a_day_moves_no_timer() {
    for hours in [24, -24] {
        let world = World::new();
        let session = world.open().await.id();
        world.clock.set(world.env.now() + SignedDuration::from_hours(hours));
        let report = world.manager.sweep().await;
        assert!(report.idled.is_empty() && report.suspended.is_empty(), "{hours}");
        world.pass(minutes(15) - MILLISECOND);
        assert!(world.manager.sweep().await.idled.is_empty(), "{hours}");
        world.pass(MILLISECOND);
        assert_eq!(world.manager.sweep().await.idled, [session], "{hours}");
        let view = world.manager.view(session).unwrap();
        assert_eq!(view.last_used, world.env.now() - minutes(15), "shown by the wall clock as it is now");
    }
}

#[tokio::test(start_paused = true)]
async fn without_timeouts_time_does_nothing() {
    let limits = Limits { idle_timeout: None, suspended_ttl: None, ..Limits::default() };
    let world = World::limited(limits);
    let live = world.open().await.id();
    let suspended = world.suspended().await;
    world.pass(SignedDuration::from_hours(24 * 365 * 100));
    let report = world.manager.sweep().await;
    assert!(report.idled.is_empty() && report.expired.is_empty());
    assert_eq!((world.state(live), world.state(suspended)), ("active", "suspended"));
}

#[tokio::test(start_paused = true)]
async fn one_slow_engine_delays_nobody() {
    let limits = Limits { active_max: 100, active_per_principal_max: None, ..Limits::default() };
    let world = World::limited(limits);
    let slow = world.open().await.id();
    world.pass(MILLISECOND);
    let rest = [world.open().await.id(), world.open().await.id()];
    world.pass(minutes(45));
    let gate = world.gate(Point::Flush);
    let manager = world.manager.clone();
    let sweep = tokio::spawn(async move { manager.sweep().await });
    for _ in 0..3 {
        gate.reached().await;
    }
    gate.open();
    gate.open();
    world.settle().await;
    let suspended = [slow, rest[0], rest[1]].into_iter().filter(|&one| world.state(one) == "suspended");
    assert_eq!(suspended.count(), 2, "two are through, though one still writes");
    gate.open();
    assert_eq!(sweep.await.unwrap().suspended.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_sweeper_wakes_up_for_what_is_due_and_stops_when_told_to() {
    let world = World::new();
    let stop = CancellationToken::new();
    let (manager, stopped) = (world.manager.clone(), stop.clone());
    let sweeper = tokio::spawn(async move { manager.run_sweeper(stopped).await });
    world.settle().await;
    let session = world.open().await.id();
    // The clock of the sessions and the timers of the runtime go on together.
    for _ in 0..16 {
        world.pass(minutes(1));
        tokio::time::advance(Duration::from_mins(1)).await;
        world.settle().await;
    }
    assert_eq!(world.state(session), "idle");
    for _ in 0..30 {
        world.pass(minutes(1));
        tokio::time::advance(Duration::from_mins(1)).await;
        world.settle().await;
    }
    assert_eq!(world.state(session), "suspended");
    stop.cancel();
    sweeper.await.unwrap();
}
