//! A sink that is out of reach, hangs, panics or says that the session is another's.

use session_core::TerminationReason;
use session_core::ports::SinkError;
use session_manager::{Keyed, StateError, UseError};

use crate::world::{Behaves, Point, World, key, minutes, request};

const BROKEN: [Behaves; 3] = [Behaves::Fails, Behaves::Panics, Behaves::Hangs];

#[tokio::test(start_paused = true)]
async fn a_suspension_that_cannot_be_recorded_happens_and_is_made_up_for() {
    // When the sink refuses, the record is active still; when its answer is lost, nobody knows, and a resume is right
    // either way.
    for (behaviour, made_up) in BROKEN.into_iter().zip(["activity", "resume", "resume"]) {
        let world = World::new();
        let session = world.open().await.id();
        world.behaves(Point::Report("suspend"), behaviour);
        let error = world.manager.suspend(session).await.unwrap_err();
        assert!(matches!(error, StateError::Record { source: SinkError::Unavailable(_), .. }), "{error}");
        assert_eq!(world.state(session), "suspended");
        world.journal();
        world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
        assert_eq!(world.journal().last(), Some(&format!("1: record {made_up}")));
        world.behaves(Point::Report("suspend"), Behaves::Well);
        world.manager.suspend(session).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_recorded_happens_all_the_same() {
    for behaviour in BROKEN {
        let world = World::new();
        let live = world.open().await.id();
        let suspended = world.suspended().await;
        world.behaves(Point::Report("terminate"), behaviour);
        for session in [live, suspended] {
            let error = world.manager.terminate(session, TerminationReason::Stopped).await.unwrap_err();
            assert!(matches!(error, StateError::Record { .. }), "{error}");
            assert_eq!(world.state(session), "none");
        }
        assert_eq!(world.journal().last().unwrap(), "1: shutdown Terminated(Stopped)");
    }
}

#[tokio::test(start_paused = true)]
async fn a_use_does_not_wait_for_a_record_that_is_out_of_reach() {
    for behaviour in BROKEN {
        let world = World::new();
        let session = world.open().await.id();
        world.pass(minutes(15));
        world.manager.sweep().await;
        world.behaves(Point::Report("activity"), behaviour);
        let run = world.manager.acquire(session).await.unwrap();
        assert_eq!(world.state(session), "active");
        world.behaves(Point::Report("activity"), Behaves::Well);
        world.journal();
        drop(run);
        drop(world.manager.acquire(session).await.unwrap());
        assert_eq!(world.journal(), ["1: record activity"], "made up for by the next run");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_time_that_cannot_be_recorded_is_made_up_for_by_the_suspension() {
    let world = World::new();
    let session = world.open().await.id();
    world.behaves(Point::Report("idle timeout"), Behaves::Fails);
    world.pass(minutes(15));
    let report = world.manager.sweep().await;
    assert!(matches!(report.faults[..], [(_, StateError::Record { .. })]));
    world.pass(minutes(30));
    assert_eq!(world.manager.sweep().await.suspended, [session]);
    let journal = world.journal();
    let expected = ["1: record suspend", "1: shutdown Suspended"];
    assert_eq!(journal[journal.len() - 2..], expected, "from active, as the record has it");
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_record_is_anothers_is_let_go_of_and_reported_no_more() {
    // Found out when it is used.
    let world = World::new();
    let session = world.open().await.id();
    world.pass(minutes(15));
    world.manager.sweep().await;
    world.journal();
    world.behaves(Point::Report("activity"), Behaves::Objects);
    let error = world.manager.acquire(session).await.unwrap_err();
    assert!(matches!(error, UseError::Elsewhere { .. }), "{error}");
    world.settle().await;
    assert_eq!((world.state(session), world.journal()), ("none", vec!["1: shutdown HostLeaves".to_owned()]));
    // When it is idle.
    let session = world.open().await.id();
    world.behaves(Point::Report("idle timeout"), Behaves::Objects);
    world.pass(minutes(15));
    world.manager.sweep().await;
    world.settle().await;
    assert_eq!(world.state(session), "none");
    assert_eq!(world.journal().last().unwrap(), "2: shutdown HostLeaves");
    // When it is suspended.
    let session = world.open().await.id();
    world.behaves(Point::Report("suspend"), Behaves::Objects);
    let error = world.manager.suspend(session).await.unwrap_err();
    assert!(matches!(error, StateError::Record { source: SinkError::Superseded(_), .. }));
    assert_eq!(world.state(session), "none");
    assert_eq!(world.journal().last().unwrap(), "3: shutdown HostLeaves");
    // When it is ended.
    let session = world.open().await.id();
    world.behaves(Point::Report("terminate"), Behaves::Objects);
    let error = world.manager.terminate(session, TerminationReason::Stopped).await.unwrap_err();
    assert!(matches!(error, StateError::Record { source: SinkError::Superseded(_), .. }));
    assert_eq!(world.state(session), "none");
    assert_eq!(world.journal().last().unwrap(), "4: shutdown HostLeaves");
    // When it is resumed.
    world.behaves(Point::Report("suspend"), Behaves::Well);
    let session = world.suspended().await;
    world.behaves(Point::Report("resume"), Behaves::Objects);
    let resuming = world.manager.begin_resume(session).await.unwrap();
    resuming.complete().await.unwrap_err();
    assert_eq!(world.state(session), "none");
    assert_eq!(world.journal().last().unwrap(), "5: shutdown Abandoned");
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_session_is_anothers_leads_to_a_new_one() {
    let world = World::new();
    let get = async || world.manager.get_or_create(key("chat"), request("me")).await.unwrap();
    let Keyed::Live { handle: first, .. } = get().await else { panic!() };
    world.pass(minutes(15));
    world.manager.sweep().await;
    world.behaves(Point::Report("activity"), Behaves::Objects);
    let Keyed::Live { handle: second, created: true } = get().await else { panic!() };
    assert_ne!(first.id(), second.id());
    assert!(first.is_ended() && !second.is_ended());
}
