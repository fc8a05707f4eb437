//! Asking for the end of a run, by itself or with its session.

use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::error::StoreError;
use crate::ports::Directive;
use crate::record;
use crate::run::{EndKind, Ending, ReasonCode, Run, RunPhase, RunState, StopMode, StopOrder};
use crate::state::{SessionState, TerminationReason, Trigger};

async fn request(f: &Fixture, run: &Run, mode: StopMode) -> Run {
    f.store.request_stop(run.id, mode, f.now()).await.unwrap()
}

/// A pending run ends at once, is recorded, and can be claimed by nobody; its session takes another.
pub async fn a_pending_run_is_stopped_at_once(f: &Fixture) {
    for &mode in StopMode::ALL {
        let [run] = f.enqueue([f.new_run()]).await;
        f.advance(TICK);
        let stopped = request(f, &run, mode).await;
        let (at, ending) = stopped.ended().unwrap();
        assert_eq!((at, ending.kind, ending.exit), (f.now(), EndKind::Stopped, None));
        assert_eq!(ending.reason, Some(ReasonCode::StoppedByUser));
        assert!(!ending.message.is_empty(), "a person is told what happened");
        assert_eq!(stopped, Run { state: stopped.state.clone(), ..run.clone() });
        assert_eq!(f.run(run.id).await, stopped);
        let record = record::run_state(run.id, Some(RunPhase::Pending), RunPhase::Stopped, Some(ending));
        assert_eq!(f.records(run.session).await.last(), Some(&record));
        assert_eq!(f.claim(&f.new_runner()).await, None);
        let [next] = f.enqueue([f.resume(run.session)]).await;
        request(f, &next, mode).await;
    }
}

/// For a run in flight the order is recorded and told at each renewal; the run goes on until its runner ends it, and
/// with its end the order is gone.
pub async fn a_run_in_flight_is_ordered_to_stop(f: &Fixture) {
    let runner = f.new_runner();
    for &mode in StopMode::ALL {
        let run = f.running(&runner).await;
        let before = f.snapshot(run.session).await;
        f.advance(TICK);
        let ordered = request(f, &run, mode).await;
        assert_eq!(ordered, Run { stop: Some(StopOrder { mode, at: f.now() }), ..run.clone() });
        assert_eq!(f.run(run.id).await, ordered);
        assert_eq!(f.log(run.session).await, before.log, "an order is no change of state");
        for _ in 0..2 {
            let told = f.store.renew(run.fence(), LEASE, f.now()).await.unwrap();
            assert_eq!(told, Directive::Stop(mode));
        }
        let ending = Ending::because(EndKind::Stopped, ReasonCode::StoppedByUser, None, "as asked");
        let over = f.store.finish(run.fence(), ending, None, f.now()).await.unwrap();
        assert_eq!((over.state.phase(), over.stop), (RunPhase::Stopped, None));
        assert_eq!(f.run(run.id).await, over);
    }
}

/// An order may become harder; the same one again, or a softer one, changes nothing.
pub async fn orders_only_harden(f: &Fixture) {
    let run = f.claimed(&f.new_runner()).await;
    let graceful = request(f, &run, StopMode::Graceful).await;
    f.advance(TICK);
    assert_eq!(request(f, &run, StopMode::Graceful).await, graceful);
    let kill = request(f, &run, StopMode::Kill).await;
    assert_eq!(kill.stop.map(|order| order.mode), Some(StopMode::Kill));
    for mode in [StopMode::Graceful, StopMode::Kill] {
        f.advance(TICK);
        assert_eq!(request(f, &run, mode).await, kill);
    }
    assert_eq!(f.run(run.id).await, kill);
    assert_eq!(f.store.renew(run.fence(), LEASE, f.now()).await.unwrap(), Directive::Stop(StopMode::Kill));
}

/// An order may come too late: the run completes all the same. And one for no run is an error.
pub async fn a_late_order_changes_no_outcome(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    request(f, &run, StopMode::Graceful).await;
    let over = f.complete(run.fence()).await;
    assert_eq!(over.state.phase(), RunPhase::Completed);
    assert_eq!(request(f, &run, StopMode::Kill).await, over);
    let unknown = f.env.run_id();
    assert_refused!(
        f.store.request_stop(unknown, StopMode::Kill, f.now()),
        StoreError::UnknownRun(id) if *id == unknown
    );
}

/// Nothing lets go of a session's worker while it has a run that is not over, whether it waits or runs.
pub async fn a_session_rests_only_when_nobody_works_in_it(f: &Fixture) {
    let [run] = f.enqueue([f.new_run()]).await;
    let trigger = Trigger::Terminate(TerminationReason::CleanedUp);
    let ttl = LEASE;
    let resting = [
        trigger,
        Trigger::IdleTimeout,
        Trigger::GraceElapsed { ttl },
        Trigger::Suspend { ttl },
        Trigger::TtlExpired,
    ];
    for claim in [false, true] {
        if claim {
            f.claim(&f.new_runner()).await.unwrap();
        }
        let before = f.snapshot(run.session).await;
        for trigger in resting {
            let refused = f.store.transition(run.session, trigger, f.now()).await.unwrap_err();
            assert!(
                matches!(refused, StoreError::Busy { run: in_the_way, .. } if in_the_way == run.id),
                "{refused:?}"
            );
            assert_eq!(f.snapshot(run.session).await, before);
        }
    }
    f.store.request_stop(run.id, StopMode::Kill, f.now()).await.unwrap();
    let fence = f.run(run.id).await.fence();
    let stopped = Ending::because(EndKind::Stopped, ReasonCode::StoppedByUser, None, "stopped");
    f.store.finish(fence, stopped, None, f.now()).await.unwrap();
    assert!(f.transition(run.session, trigger).await.state.is_terminated());
}

/// However a run ends, its session was in use until then, unless it is terminated.
pub async fn the_end_of_a_run_is_use_of_its_session(f: &Fixture) {
    let used = async |session| f.store.session(session).await.unwrap().unwrap().active_at;
    let runner = f.new_runner();
    let completed = f.running(&runner).await;
    f.advance(TICK);
    f.complete(completed.fence()).await;
    assert_eq!(used(completed.session).await, f.now());

    let lost = f.running(&runner).await;
    f.advance(LEASE + TICK);
    f.store.reap(f.now(), 1).await.unwrap();
    assert_eq!(used(lost.session).await, f.now());

    let after = crate::ports::NewRun { after: vec![0], ..f.new_run() };
    let [stopped, failed] = f.enqueue([f.new_run(), after]).await;
    f.advance(TICK);
    request(f, &stopped, StopMode::Graceful).await;
    assert_eq!((used(stopped.session).await, used(failed.session).await), (f.now(), f.now()));

    let [ended] = f.enqueue([f.new_run()]).await;
    let before = f.now();
    f.advance(TICK);
    f.transition(ended.session, Trigger::Terminate(TerminationReason::Stopped)).await;
    assert_eq!(used(ended.session).await, before, "it was not used any more");
}

/// The termination of a session ends its run in the queue, and records first the one and then the other.
pub async fn termination_ends_the_pending_run(f: &Fixture) {
    let [run] = f.enqueue([f.new_run()]).await;
    f.advance(TICK);
    let trigger = Trigger::Terminate(TerminationReason::Stopped);
    let session = f.transition(run.session, trigger).await;
    let over = f.run(run.id).await;
    let (at, ending) = over.ended().unwrap();
    assert_eq!((at, ending.kind), (f.now(), EndKind::Stopped));
    assert_eq!(ending.reason, Some(ReasonCode::SessionTerminated));
    let expected = [
        record::session_state(SessionState::Active, session.state),
        record::run_state(run.id, Some(RunPhase::Pending), RunPhase::Stopped, Some(ending)),
    ];
    assert_eq!(f.records(run.session).await[2..], expected);
    assert_eq!(f.claim(&f.new_runner()).await, None);
}

/// A run in flight is ordered to be killed, harder than any order before, and ends by its runner's word.
pub async fn termination_orders_the_run_in_flight_to_be_killed(f: &Fixture) {
    let runner = f.new_runner();
    for before in [None, Some(StopMode::Graceful), Some(StopMode::Kill)] {
        let run = f.running(&runner).await;
        if let Some(mode) = before {
            request(f, &run, mode).await;
        }
        let trigger = Trigger::Terminate(TerminationReason::Killed);
        let session = f.transition(run.session, trigger).await;
        let ordered = f.run(run.id).await;
        assert_eq!(ordered.stop.map(|order| order.mode), Some(StopMode::Kill), "after {before:?}");
        assert_eq!((&ordered.state, ordered.epoch), (&run.state, run.epoch));
        let told = f.store.renew(run.fence(), LEASE, f.now()).await.unwrap();
        assert_eq!(told, Directive::Stop(StopMode::Kill));
        let message = vec![Fixture::message("last words")];
        f.store.append(crate::ports::Author::Run(run.fence()), message, f.now()).await.unwrap();
        let ending = Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, "killed");
        let over = f.store.finish(run.fence(), ending, None, f.now()).await.unwrap();
        assert!(matches!(over.state, RunState::Ended { .. }));
        assert_eq!(f.state(run.session).await, session.state);
    }
}
