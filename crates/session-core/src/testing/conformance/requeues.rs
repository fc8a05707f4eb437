//! What becomes of a run that its runner gives back before it has begun.

use futures_util::future::{join, join_all};

use super::deadline::in_time;
use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::error::StoreError;
use crate::ports::{NewRun, RunProgress};
use crate::record;
use crate::run::{EndKind, Ending, Epoch, ReasonCode, Run, RunPhase, RunState, StopMode};
use crate::state::{TerminationReason, Trigger};
use crate::wake::Topic;

/// A claimed run, or one that is starting, goes back to its place in the queue, before those that were enqueued later.
/// That is recorded and wakes who waits for work; the claim counts no more.
pub async fn a_run_goes_back_to_its_place(f: &Fixture) {
    for begun in [false, true] {
        let runner = f.new_runner();
        let mut run = f.claimed(&runner).await;
        if begun {
            run = f.store.advance(run.fence(), RunProgress::Starting, f.now()).await.unwrap();
        }
        let [later] = f.enqueue([f.new_run()]).await;
        f.advance(TICK);
        let mut queue = f.store.listen(Topic::Queue);
        let from = run.state.phase();
        let requeued = f.store.requeue(run.fence(), f.now()).await.unwrap();
        assert_eq!(requeued, Run { state: RunState::Pending, ..run.clone() });
        assert_eq!(f.run(run.id).await, requeued);
        in_time("a run was given back", queue.woken()).await;
        let record = record::run_state(run.id, Some(from), RunPhase::Pending, None);
        assert_eq!(f.records(run.session).await.last(), Some(&record));
        assert!(f.store.in_flight(runner.id).await.unwrap().is_empty());
        assert_refused!(f.store.requeue(run.fence(), f.now()), StoreError::Transition(_));
        let again = f.claim(&runner).await.unwrap().run;
        assert_eq!((again.id, again.epoch), (run.id, Epoch(2)));
        assert_refused!(f.store.requeue(run.fence(), f.now()), StoreError::Fenced { .. });
        assert_eq!(f.claim_all(&runner).await.iter().map(|run| run.id).collect::<Vec<_>>(), [later.id]);
    }
}

/// It is that one run alone: others whose claims ran out stay as they are, and its own may have run out as well.
pub async fn no_other_run_is_touched(f: &Fixture) {
    let runner = f.new_runner();
    let claimed = f.claimed(&runner).await;
    let others = [f.running(&runner).await, f.claimed(&runner).await, f.running(&f.new_runner()).await];
    f.advance(LEASE + TICK);
    f.store.requeue(claimed.fence(), f.now()).await.unwrap();
    for other in others {
        assert_eq!(f.run(other.id).await, other);
    }
    assert_eq!(f.phase(claimed.id).await, RunPhase::Pending);
}

/// What runs, waits or is over is not given back, and nothing has changed.
pub async fn only_what_has_not_begun_goes_back(f: &Fixture) {
    let runner = f.new_runner();
    let running = f.running(&runner).await;
    let over = f.running(&runner).await;
    let over = f.complete(over.fence()).await;
    let [pending] = f.enqueue([f.new_run()]).await;
    for run in [running.clone(), over, pending] {
        let before = f.snapshot(run.session).await;
        assert_refused!(f.store.requeue(run.fence(), f.now()), StoreError::Transition(_));
        assert_eq!(f.snapshot(run.session).await, before);
    }
    f.store.request_stop(running.id, StopMode::Kill, f.now()).await.unwrap();
    assert_refused!(f.store.requeue(running.fence(), f.now()), StoreError::Transition(_));
}

/// A run whose end was asked for does not go back: it is over, and what waits for it fails.
pub async fn a_run_that_is_to_end_ends(f: &Fixture) {
    let runner = f.new_runner();
    for killed in [false, true] {
        let waiting = NewRun { after: vec![0], ..f.new_run() };
        let [first, waiting] = f.enqueue([f.new_run(), waiting]).await;
        let run = f.claim(&runner).await.unwrap().run;
        assert_eq!(run.id, first.id);
        let reason = if killed {
            f.transition(run.session, Trigger::Terminate(TerminationReason::Killed)).await;
            ReasonCode::SessionTerminated
        } else {
            f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
            ReasonCode::StoppedByUser
        };
        f.advance(TICK);
        let stopped = f.store.requeue(run.fence(), f.now()).await.unwrap();
        let (at, ending) = stopped.ended().unwrap();
        assert_eq!((at, ending.kind, ending.reason), (f.now(), EndKind::Stopped, Some(reason)));
        assert!(!ending.message.is_empty());
        assert_eq!((stopped.stop, f.run(run.id).await), (None, stopped.clone()), "the order is done with");
        let record = record::run_state(run.id, Some(RunPhase::Claimed), RunPhase::Stopped, Some(ending));
        assert_eq!(f.records(run.session).await.last(), Some(&record));
        assert_eq!(f.phase(waiting.id).await, RunPhase::Failed);
    }
}

/// Of a return, an end and an order to stop at once none is lost.
pub async fn a_return_an_end_and_an_order_agree(f: &Fixture) {
    let runner = f.new_runner();
    for _ in 0..8 {
        let run = f.claimed(&runner).await;
        let failed = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "for a test");
        let returns = join_all((0..3).map(|_| f.store.requeue(run.fence(), f.now())));
        let end = f.store.finish(run.fence(), failed, None, f.now());
        let order = f.store.request_stop(run.id, StopMode::Graceful, f.now());
        let (returns, (end, order)) = join(returns, join(end, order)).await;
        order.unwrap();
        let done = returns.iter().filter(|outcome| outcome.is_ok()).count() + usize::from(end.is_ok());
        assert_eq!(done, 1, "{returns:?} {end:?}");
        let phase = f.phase(run.id).await;
        assert_eq!(phase, if end.is_ok() { RunPhase::Failed } else { RunPhase::Stopped });
        f.enqueue([f.resume(run.session)]).await;
        f.claim_all(&runner).await;
    }
}
