//! A record that says that somebody waits to use the session: it stays where it is, with its engine.

use std::time::Duration;

use session_core::TerminationReason;
use session_core::ports::SinkError;
use session_manager::options::{EvictionStrategy, Limits};
use session_manager::{Parting, StateError};

use crate::world::{Behaves, Gate, Point, World, minutes, request};

#[tokio::test(start_paused = true)]
async fn a_session_that_somebody_waits_to_use_keeps_its_engine() {
    let world = World::new();
    let handle = world.open().await;
    let session = handle.id();
    world.behaves(Point::Report("suspend"), Behaves::Busy);
    let refused = world.manager.suspend(session).await.unwrap_err();
    assert!(matches!(refused, StateError::InUse(id) if id == session), "{refused}");
    assert_eq!(world.state(session), "active");
    assert!(!handle.is_ended());
    world.manager.acquire(session).await.unwrap().engine().say("work");
    assert_eq!(world.journal()[2..], ["1: flush", "1: work"], "nothing is let go of");
    world.behaves(Point::Report("suspend"), Behaves::Well);
    world.manager.suspend(session).await.unwrap();
    assert_eq!(world.journal(), ["1: flush", "1: record suspend", "1: shutdown Suspended"]);
}

#[tokio::test(start_paused = true)]
async fn by_time_it_is_tried_again_after_another_idle_timeout() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(15));
    world.manager.sweep().await;
    world.behaves(Point::Report("grace elapsed"), Behaves::Busy);
    world.pass(minutes(30));
    let report = world.manager.sweep().await;
    assert_eq!((report.used, report.faults.len(), world.state(session)), (vec![session], 0, "idle"));
    world.behaves(Point::Report("grace elapsed"), Behaves::Well);
    world.pass(minutes(14));
    assert!(world.manager.sweep().await.suspended.is_empty());
    world.pass(minutes(1));
    assert_eq!(world.manager.sweep().await.suspended, [session]);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_waits_to_use_is_not_idle() {
    let world = World::new();
    let handle = world.open().await;
    world.behaves(Point::Report("idle timeout"), Behaves::Busy);
    world.pass(minutes(15));
    let report = world.manager.sweep().await;
    assert_eq!((report.used, report.idled.len(), report.faults.len()), (vec![handle.id()], 0, 0));
    assert_eq!((world.state(handle.id()), handle.is_ended()), ("active", false));
    world.pass(minutes(14));
    assert!(world.manager.sweep().await.used.is_empty(), "its idle time began anew");
    world.behaves(Point::Report("idle timeout"), Behaves::Well);
    world.pass(minutes(1));
    assert_eq!(world.manager.sweep().await.idled, [handle.id()]);
    // A sweep that comes too late does not suspend it either.
    world.behaves(Point::Report("idle timeout"), Behaves::Busy);
    let late = world.open().await;
    world.pass(minutes(45));
    world.manager.sweep().await;
    assert_eq!((world.state(late.id()), late.is_ended()), ("active", false));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_meanwhile_is_not_undone() {
    let world = World::new();
    let session = world.open().await.id();
    let gate = Gate::new();
    world.behaves(Point::Report("suspend"), Behaves::BusyLate(gate.clone()));
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await });
    world.settle().await;
    gate.open();
    assert!(matches!(suspension.await.unwrap(), Err(StateError::Ended(_))));
    end.await.unwrap().unwrap();
    let expected = ["1: flush", "1: record terminate killed", "1: shutdown Terminated(Killed)"];
    assert_eq!((world.state(session), &world.journal()[2..]), ("none", &expected.map(String::from)[..]));
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_leaves_lets_go_of_it_all_the_same() {
    let world = World::new();
    let session = world.open().await.id();
    let gate = Gate::new();
    world.behaves(Point::Report("suspend"), Behaves::BusyLate(gate.clone()));
    let manager = world.manager.clone();
    let suspension = tokio::spawn(async move { manager.suspend(session).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let leaves =
        tokio::spawn(async move { manager.shutdown(Parting::Leave, Duration::from_secs(100)).await });
    world.settle().await;
    gate.open();
    assert!(matches!(suspension.await.unwrap(), Err(StateError::InUse(_))));
    let report = leaves.await.unwrap();
    assert!(report.joined && report.faults.is_empty() && report.given_up.is_empty(), "{report:?}");
    assert_eq!(world.journal()[2..], ["1: flush", "1: shutdown HostLeaves"]);
}

#[tokio::test(start_paused = true)]
async fn another_gives_way_instead() {
    let eviction = EvictionStrategy::SuspendOldestIdle;
    let limits = Limits { active_max: 1, active_per_principal_max: None, eviction, ..Limits::default() };
    let world = World::limited(limits);
    let session = world.open().await.id();
    world.behaves(Point::Report("suspend"), Behaves::Busy);
    world.manager.create(request("you")).await.unwrap_err();
    assert_eq!((world.state(session), world.manager.vacancies()), ("active", 0));
    world.behaves(Point::Report("suspend"), Behaves::Well);
    world.pass(minutes(1));
    world.manager.create(request("you")).await.unwrap();
    assert_eq!(world.state(session), "suspended");
}

#[tokio::test(start_paused = true)]
async fn a_use_is_not_hindered_by_it() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(15));
    world.manager.sweep().await;
    world.behaves(Point::Report("activity"), Behaves::Busy);
    drop(world.manager.acquire(session).await.unwrap());
    assert_eq!(world.state(session), "active");
    assert_eq!(SinkError::Busy("a run waits".into()).to_string(), "the session is busy: a run waits");
}
