//! Futures that are dropped half way: nothing is left half made, half suspended or half ended.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use session_core::TerminationReason;
use session_manager::manager::Counts;
use session_manager::{Keyed, Parting};

use crate::world::{Point, World, key, minutes, request};

/// Asks a future once, and leaves it before it is done.
fn poll_once<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_dropped_leaves_no_session() {
    for point in [Point::Report("created"), Point::Create] {
        let world = World::new();
        let gate = world.gate(point);
        {
            let mut creation = pin!(world.manager.create(request("me")));
            tokio::select! {
                biased;
                _ = &mut creation => panic!("it stands at the gate"),
                () = gate.reached() => {}
            }
        }
        gate.open();
        world.settle().await;
        assert_eq!(world.manager.counts(), Counts::default(), "{point:?}");
        let journal = world.journal();
        assert!(journal.contains(&"1: record terminate stopped".to_owned()), "{point:?}: {journal:?}");
        let made = journal.iter().filter(|line| line.ends_with("make")).count();
        let released = journal.iter().filter(|line| line.contains("shutdown")).count();
        assert_eq!(made, released, "{point:?}: {journal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_dropped_when_it_is_done_leaves_no_session() {
    let world = World::new();
    {
        let mut creation = pin!(world.manager.create(request("me")));
        assert!(creation.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        world.settle().await;
        assert_eq!(world.manager.counts().active, 1, "it is open, and nobody was told");
    }
    world.settle().await;
    assert_eq!(world.manager.counts(), Counts::default());
    let journal = world.journal();
    assert_eq!(journal.iter().filter(|line| line.contains("shutdown")).count(), 1, "{journal:?}");
    assert!(journal.contains(&"1: record terminate stopped".to_owned()), "{journal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_with_a_key_is_there_for_the_next_one_who_asks() {
    let world = World::new();
    poll_once(world.manager.get_or_create(key("k"), request("me")));
    world.settle().await;
    let again = world.manager.get_or_create(key("k"), request("me")).await.unwrap();
    assert!(matches!(again, Keyed::Live { created: false, .. }));
    assert_eq!(world.journal(), ["1: record created", "1: make"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_goes_on_though_nobody_waits() {
    let world = World::new();
    let (suspended, ended) = (world.open().await.id(), world.open().await.id());
    poll_once(world.manager.suspend(suspended));
    poll_once(world.manager.terminate(ended, TerminationReason::Stopped));
    world.settle().await;
    assert_eq!((world.state(suspended), world.state(ended)), ("suspended", "none"));

    let swept = world.open().await.id();
    world.pass(minutes(45));
    poll_once(world.manager.sweep());
    world.settle().await;
    assert_eq!(world.state(swept), "suspended");

    let killed = world.open().await.id();
    poll_once(world.manager.terminate_all(None, TerminationReason::Killed));
    world.settle().await;
    assert_eq!(world.state(killed), "none");
    assert_eq!(world.manager.counts(), Counts::default());
}

#[tokio::test(start_paused = true)]
async fn a_use_that_is_dropped_counts_no_run() {
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(15));
    world.manager.sweep().await;
    let gate = world.gate(Point::Report("activity"));
    poll_once(world.manager.acquire(session));
    assert_eq!(world.manager.view(session).unwrap().in_flight, 0);
    gate.reached().await;
    gate.open();
    world.settle().await;
    assert_eq!(
        (world.state(session), world.journal().last().unwrap().as_str()),
        ("active", "1: record activity")
    );
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_dropped_leaves_the_session_suspended() {
    for point in [Point::Create, Point::Report("opened")] {
        let world = World::new();
        let session = world.suspended().await;
        let gate = world.gate(point);
        poll_once(world.manager.begin_resume(session));
        gate.reached().await;
        gate.open();
        world.settle().await;
        assert_eq!(world.state(session), "suspended", "{point:?}");
        assert_eq!(world.journal().last().unwrap(), "1: record rolled_back");
    }
    // From the last step on it opens as a whole, though nobody waits.
    let world = World::new();
    let session = world.suspended().await;
    let resuming = world.manager.begin_resume(session).await.unwrap();
    poll_once(resuming.complete());
    world.settle().await;
    assert_eq!(world.state(session), "active");
    assert_eq!(world.journal().last().unwrap(), "1: record resume");
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_who_leaves_while_another_gives_way_takes_no_place() {
    let limits = session_manager::options::Limits { active_max: 1, ..Default::default() };
    let world = World::limited(limits);
    let victim = world.open().await.id();
    let gate = world.gate(Point::Flush);
    poll_once(world.manager.create(request("me")));
    gate.reached().await;
    gate.open();
    world.settle().await;
    assert_eq!(world.state(victim), "suspended");
    assert_eq!(world.manager.counts(), Counts { active: 0, suspended: 1 });
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_dropped_goes_on_and_can_be_waited_for_again() {
    let world = World::new();
    let session = world.open().await.id();
    let parting = Parting::Terminate(TerminationReason::Stopped);
    poll_once(world.manager.shutdown(parting, std::time::Duration::from_secs(5)));
    let report = world.manager.shutdown(Parting::Leave, std::time::Duration::from_secs(5)).await;
    assert!(report.given_up.is_empty() && report.joined);
    assert_eq!(world.state(session), "none");
    assert_eq!(world.journal().last().unwrap(), "1: shutdown Terminated(Stopped)", "the first call decides");
}
