//! Who gives way when there is no room, and what whoever comes is told when nobody does.

use session_core::TerminationReason;
use session_manager::OpenError;
use session_manager::options::{EvictionStrategy, Limits};

use crate::world::{Behaves, MILLISECOND, Point, World, minutes, request};

fn limits(eviction: EvictionStrategy) -> Limits {
    Limits { active_max: 2, active_per_principal_max: None, eviction, ..Limits::default() }
}

#[tokio::test(start_paused = true)]
async fn the_oldest_idle_session_is_suspended() {
    let world = World::limited(limits(EvictionStrategy::SuspendOldestIdle));
    let idle = world.open().await.id();
    world.pass(minutes(15));
    world.manager.sweep().await;
    let fresh = world.open().await.id();
    assert_eq!(world.manager.vacancies(), 2);
    let third = world.open().await.id();
    let states = [idle, fresh, third].map(|session| world.state(session));
    assert_eq!(states, ["suspended", "active", "active"]);
    let journal = world.journal();
    let expected = ["1: flush", "1: record suspend", "1: shutdown Suspended", "3: record created", "3: make"];
    assert_eq!(journal[journal.len() - 5..], expected);
    // Without an idle one, the one that was used longest ago.
    world.pass(MILLISECOND);
    world.manager.touch(fresh).await.unwrap();
    world.open().await;
    assert_eq!((world.state(fresh), world.state(third)), ("active", "suspended"));
}

#[tokio::test(start_paused = true)]
async fn a_session_with_a_run_in_flight_never_gives_way() {
    for eviction in EvictionStrategy::ALL {
        let world = World::limited(limits(eviction));
        let sessions = [world.open().await.id(), world.open().await.id()];
        let run = world.manager.acquire(sessions[0]).await.unwrap();
        let other = world.manager.acquire(sessions[1]).await.unwrap();
        assert_eq!(world.manager.vacancies(), 0);
        let OpenError::Capacity(refused) = world.manager.create(request("me")).await.unwrap_err() else {
            panic!()
        };
        assert!(refused.retry_after.is_some());
        assert_eq!(sessions.map(|session| world.state(session)), ["active", "active"]);
        drop((run, other));
    }
}

#[tokio::test(start_paused = true)]
async fn who_rejects_rejects() {
    let world = World::limited(limits(EvictionStrategy::RejectNew));
    world.open().await;
    assert_eq!(world.manager.vacancies(), 1);
    world.open().await;
    let OpenError::Capacity(refused) = world.manager.create(request("me")).await.unwrap_err() else {
        panic!()
    };
    assert_eq!(refused.retry_after, Some(minutes(45)));
    assert_eq!((world.manager.counts().active, world.manager.vacancies()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn who_terminates_ends_the_oldest_of_ones_own() {
    let world = World::limited(limits(EvictionStrategy::TerminateOldest));
    let foreign = world.manager.create(request("you")).await.unwrap().id();
    world.pass(MILLISECOND);
    let own = world.open().await.id();
    world.open().await;
    assert_eq!((world.state(foreign), world.state(own)), ("active", "none"));
    let journal = world.journal();
    assert!(journal.contains(&"2: record terminate evicted".to_owned()), "{journal:?}");
    let stranger = world.manager.create(request("him")).await;
    assert!(matches!(stranger, Err(OpenError::Capacity(_))), "another's is never ended");
}

#[tokio::test(start_paused = true)]
async fn when_one_refuses_to_give_way_another_does() {
    let world = World::limited(limits(EvictionStrategy::SuspendOldestIdle));
    let (first, second) = (world.open().await.id(), world.open().await.id());
    world.behaves(Point::Flush, Behaves::Fails);
    let refused = world.manager.create(request("me")).await;
    assert!(matches!(refused, Err(OpenError::Capacity(_))), "both refuse");
    assert_eq!((world.state(first), world.state(second)), ("active", "active"));
    world.behaves(Point::Flush, Behaves::Well);
    world.pass(minutes(1));
    world.open().await;
    assert_eq!(world.manager.counts().suspended, 1);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_becoming_free_is_waited_for_and_not_for_ever() {
    let world = World::limited(Limits { active_max: 1, ..limits(EvictionStrategy::SuspendOldestIdle) });
    let session = world.open().await.id();
    let gate = world.gate(Point::Shutdown);
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await });
    gate.reached().await;
    let manager = world.manager.clone();
    let newcomer = tokio::spawn(async move { manager.create(request("me")).await });
    world.settle().await;
    assert!(!newcomer.is_finished());
    gate.open();
    end.await.unwrap().unwrap();
    let held = newcomer.await.unwrap().unwrap().id();

    let run = world.manager.acquire(held).await.unwrap();
    let manager = world.manager.clone();
    let end = tokio::spawn(async move { manager.terminate(held, TerminationReason::Killed).await });
    gate.reached().await;
    let OpenError::Capacity(refused) = world.manager.create(request("me")).await.unwrap_err() else {
        panic!()
    };
    assert!(!refused.own && refused.retry_after.is_some());
    drop((run, end));
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_principal_is_its_own() {
    let world = World::limited(Limits { eviction: EvictionStrategy::RejectNew, ..Limits::default() });
    for _ in 0..3 {
        world.open().await;
    }
    let OpenError::Capacity(refused) = world.manager.create(request("me")).await.unwrap_err() else {
        panic!()
    };
    assert!(refused.own && refused.limit == 3);
    world.manager.create(request("you")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_room_is_woken_by_whatever_may_have_made_some() {
    let world = World::limited(Limits { active_max: 1, ..limits(EvictionStrategy::SuspendOldestIdle) });
    let mut changes = world.manager.subscribe();
    let session = world.open().await.id();
    let run = world.manager.acquire(session).await.unwrap();
    assert_eq!(world.manager.vacancies(), 0);
    changes.mark_unchanged();
    world.settle().await;
    assert!(!changes.has_changed().unwrap(), "nothing happens");
    drop(run);
    assert!(changes.has_changed().unwrap(), "a run that ended makes its session give way");
    assert_eq!(world.manager.vacancies(), 1);
    changes.mark_unchanged();
    world.manager.terminate(session, TerminationReason::Stopped).await.unwrap();
    assert!(changes.has_changed().unwrap(), "an end leaves a place");
    assert_eq!(world.manager.vacancies(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_used_after_it_was_chosen_does_not_give_way() {
    for eviction in [EvictionStrategy::TerminateOldest, EvictionStrategy::SuspendOldestIdle] {
        let world = World::limited(Limits { active_max: 1, ..limits(eviction) });
        let session = world.open().await.id();
        // The run begins between the choice and what comes of it.
        let (new, run) = tokio::join!(world.manager.create(request("me")), world.manager.acquire(session));
        let run = run.unwrap();
        assert!(matches!(new, Err(OpenError::Capacity(_))), "{eviction:?}");
        assert!(!run.handle().is_ended(), "{eviction:?}");
        assert_eq!((world.state(session), world.journal().len()), ("active", 2), "{eviction:?}");
        drop(run);
        world.open().await;
        assert_ne!(world.state(session), "active", "{eviction:?}");
    }
}
