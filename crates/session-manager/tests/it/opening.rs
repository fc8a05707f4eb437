//! Sessions come in: recorded first, made once for a key, and nothing is left behind where that fails.

use std::collections::HashSet;

use session_core::TerminationReason;
use session_core::ports::EngineError;
use session_core::state::TerminationReason as Reason;
use session_manager::manager::Counts;
use session_manager::options::Limits;
use session_manager::{Keyed, OpenError, SessionManager, SessionRequest, StartError};

use crate::world::{Behaves, Point, World, key, request};

#[tokio::test(start_paused = true)]
async fn a_session_is_recorded_before_anything_is_alive_behind_it() {
    let world = World::new();
    let handle = world.open().await;
    assert_eq!(world.journal(), ["1: record created", "1: make"]);
    assert_eq!(world.state(handle.id()), "active");
    assert_eq!(handle.session().created_at, world.env.now());
    assert!(!handle.is_ended());
    assert_eq!(world.manager.counts(), Counts { active: 1, suspended: 0 });
    assert_eq!(world.manager.get(handle.id()).unwrap().id(), handle.id());
    let views = world.manager.list();
    assert_eq!((views.len(), views[0].session, views[0].state.name()), (1, handle.id(), "active"));
}

#[tokio::test(start_paused = true)]
async fn without_an_engine_there_is_no_session_and_its_record_says_so() {
    for (behaviour, said) in [
        (Behaves::Fails, "it has had enough"),
        (Behaves::Panics, "it panicked: it fell over"),
        (Behaves::Hangs, "it did not answer within 30s"),
    ] {
        let world = World::new();
        world.behaves(Point::Create, behaviour);
        let error = world.manager.create(request("me")).await.unwrap_err();
        let OpenError::Engine { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.to_string(), said);
        let expected = ["1: record created", "1: make", "1: record terminate engine_failed"];
        assert_eq!(world.journal(), expected);
        assert_eq!(world.manager.counts(), Counts::default());
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_comes_too_late_is_let_go_of() {
    let world = World::new();
    let gate = world.gate(Point::Create);
    let error = world.manager.create(request("me")).await.unwrap_err();
    assert!(matches!(error, OpenError::Engine { source: EngineError::TimedOut(_), .. }));
    world.journal();
    gate.open();
    world.settle().await;
    assert_eq!(world.journal(), ["1: shutdown Abandoned"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_record_there_is_no_session() {
    for behaviour in [Behaves::Fails, Behaves::Objects] {
        let world = World::new();
        world.behaves(Point::Report("created"), behaviour);
        let error = world.manager.create(request("me")).await.unwrap_err();
        assert!(matches!(error, OpenError::Record { .. }), "{error}");
        assert_eq!(world.journal(), Vec::<String>::new(), "nothing was made");
        assert_eq!(world.manager.counts(), Counts::default());
    }
    // An answer that is lost may mean that it is recorded.
    for behaviour in [Behaves::Panics, Behaves::Hangs] {
        let world = World::new();
        world.behaves(Point::Report("created"), behaviour);
        let error = world.manager.create(request("me")).await.unwrap_err();
        assert!(matches!(error, OpenError::Record { .. }), "{error}");
        assert_eq!(world.journal(), ["1: record terminate engine_failed"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_of_one_key_get_one_session() {
    let world = World::new();
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let manager = world.manager.clone();
            tokio::spawn(async move { manager.get_or_create(key("chat:42"), request("me")).await })
        })
        .collect();
    let (mut sessions, mut made) = (HashSet::new(), 0);
    for caller in callers {
        let Keyed::Live { handle, created } = caller.await.unwrap().unwrap() else { panic!() };
        sessions.insert(handle.id());
        made += u32::from(created);
    }
    assert_eq!((sessions.len(), made), (1, 1));
    assert_eq!(world.journal(), ["1: record created", "1: make"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_leads_to_its_session_through_its_whole_life() {
    let world = World::new();
    let get = async || world.manager.get_or_create(key("ticket"), request("me")).await.unwrap();
    let Keyed::Live { handle, created: true } = get().await else { panic!() };
    let session = handle.id();
    assert!(matches!(get().await, Keyed::Live { handle, created: false } if handle.id() == session));
    let request_again = SessionRequest { key: Some(key("ticket")), ..request("me") };
    let taken = world.manager.create(request_again).await.unwrap_err();
    assert!(matches!(taken, OpenError::KeyTaken { session: bearer, .. } if bearer == session), "{taken}");
    let other = world.manager.get_or_create(key("ticket"), request("you")).await.unwrap();
    assert!(matches!(other, Keyed::Live { created: true, .. }), "another's key is another key");
    world.manager.suspend(session).await.unwrap();
    assert!(matches!(get().await, Keyed::Suspended(id) if id == session));
    let resuming = world.manager.begin_resume(session).await.unwrap();
    let manager = world.manager.clone();
    let waiting = tokio::spawn(async move { manager.get_or_create(key("ticket"), request("me")).await });
    world.settle().await;
    assert!(!waiting.is_finished());
    resuming.complete().await.unwrap();
    assert!(matches!(waiting.await.unwrap().unwrap(), Keyed::Live { created: false, .. }));
    world.manager.terminate(session, TerminationReason::Stopped).await.unwrap();
    let Keyed::Live { handle, created: true } = get().await else { panic!() };
    assert_ne!(handle.id(), session);
}

#[tokio::test(start_paused = true)]
async fn when_the_maker_of_a_keyed_session_fails_the_next_one_has_a_go() {
    let world = World::new();
    let gate = world.gate(Point::Create);
    let begin = || {
        let manager = world.manager.clone();
        tokio::spawn(async move { manager.get_or_create(key("k"), request("me")).await })
    };
    let first = begin();
    gate.reached().await;
    let second = begin();
    world.settle().await;
    world.manager.terminate_all(None, Reason::Killed).await;
    assert!(matches!(first.await.unwrap(), Err(OpenError::Ended { reason: Reason::Killed, .. })));
    gate.open();
    gate.open();
    assert!(matches!(second.await.unwrap(), Ok(Keyed::Live { created: true, .. })));
}

#[tokio::test(start_paused = true)]
async fn with_a_limit_of_nothing_nobody_comes_in_and_with_the_largest_everybody() {
    let none = World::limited(Limits { active_max: 0, ..Limits::default() });
    let error = none.manager.create(request("me")).await.unwrap_err();
    let OpenError::Capacity(refused) = error else { panic!("{error}") };
    assert_eq!((refused.limit, refused.retry_after), (0, None));
    assert_eq!(none.manager.vacancies(), 0);
    assert!(none.journal().is_empty());

    let limits = Limits {
        active_max: u64::MAX,
        active_per_principal_max: Some(u64::MAX),
        suspended_per_principal_max: Some(0),
        ..Limits::default()
    };
    let endless = World::limited(limits);
    for _ in 0..50 {
        endless.open().await;
    }
    assert_eq!(endless.manager.vacancies(), u64::MAX);
    let session = endless.suspended().await;
    assert_eq!(endless.state(session), "none", "none may stay suspended");
    endless.settle().await;
    assert_eq!(endless.journal().last().unwrap(), "51: record terminate evicted");
}

#[test]
fn without_a_runtime_the_manager_says_so() {
    let (env, _) = session_core::testing::env();
    let options = session_manager::ManagerOptions::default();
    let made = SessionManager::new(env, options, crate::world::factory(), std::sync::Arc::new(()));
    assert!(matches!(made, Err(StartError::NoRuntime(_))));
}
