//! Two that meet at one instant: whoever comes first, the outcome is one that an order of the two explains.
//!
//! Each case does the same many times, because only some meetings are close.

use futures_util::future::{join, join_all};
use jiff::SignedDuration;

use super::{Fixture, LEASE, TICK};
use crate::affinity::{Place, RunnerProfile};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::ids::SessionId;
use crate::ports::{Author, NewRun, Sweep};
use crate::run::{EndKind, Ending, ReasonCode, Run, RunPhase, StopMode};
use crate::state::{SessionState, TerminationReason, Trigger};

const MEETINGS: usize = 12;

/// Running runs of one runner, whose leases have just run out.
async fn expired(f: &Fixture, runner: &RunnerProfile) -> Vec<Run> {
    let mut runs = Vec::new();
    for _ in 0..MEETINGS {
        runs.push(f.running(runner).await);
    }
    f.advance(LEASE + TICK);
    runs
}

/// Runs in the queue that only their own runner may claim.
async fn pending(f: &Fixture) -> Vec<(Run, RunnerProfile)> {
    let mut runs = Vec::new();
    for _ in 0..MEETINGS {
        let runner = f.new_runner();
        let mut new = f.new_run();
        new.affinity.place = Place::Runner(runner.id);
        let [run] = f.enqueue([new]).await;
        runs.push((run, runner));
    }
    runs
}

fn is_transition<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Transition(_)))
}

/// A renewed run is not reaped, and a reaped one is not renewed.
pub async fn renewal_and_reaping_agree(f: &Fixture) {
    let runner = f.new_runner();
    let runs = expired(f, &runner).await;
    let renewals = join_all(runs.iter().map(|run| f.store.renew(run.fence(), LEASE, f.now())));
    let reaping = join_all((0..MEETINGS).map(|_| f.store.reap(f.now(), 1)));
    let (renewed, reaped) = join(renewals, reaping).await;
    let reaped: Vec<_> = reaped.into_iter().flat_map(Result::unwrap).map(|run| run.id).collect();
    for (run, renewed) in runs.iter().zip(renewed) {
        assert_eq!(renewed.is_err(), reaped.contains(&run.id), "{renewed:?}");
        assert!(renewed.is_ok() || is_transition(&renewed), "{renewed:?}");
        let expected = if renewed.is_ok() { RunPhase::Running } else { RunPhase::Lost };
        assert_eq!(f.phase(run.id).await, expected);
    }
}

/// A run ends once: by its runner or by the reaper.
pub async fn an_end_and_reaping_agree(f: &Fixture) {
    let runs = expired(f, &f.new_runner()).await;
    let finish = |run: &Run| f.store.finish(run.fence(), Ending::completed(None), None, f.now());
    let reaping = join_all((0..MEETINGS).map(|_| f.store.reap(f.now(), 1)));
    let (finished, reaped) = join(join_all(runs.iter().map(finish)), reaping).await;
    let reaped: Vec<_> = reaped.into_iter().flat_map(Result::unwrap).map(|run| run.id).collect();
    for (run, finished) in runs.iter().zip(finished) {
        assert_eq!(is_transition(&finished), reaped.contains(&run.id), "{finished:?}");
        let expected = if finished.is_ok() { RunPhase::Completed } else { RunPhase::Lost };
        assert_eq!(f.phase(run.id).await, expected);
        // Created, enqueued, claimed, starting, running, over.
        assert_eq!(f.log(run.session).await.len(), 6);
    }
}

/// A new host takes a run over while the old one ends it: the end counts, or the takeover does.
pub async fn a_takeover_and_an_end_agree(f: &Fixture) {
    let runner = f.new_runner();
    let runs = expired(f, &runner).await;
    let meet = async |run: &Run| {
        let take_over = f.store.take_over(run.id, runner.id, LEASE, f.now());
        let finish = f.store.finish(run.fence(), Ending::completed(None), None, f.now());
        join(take_over, finish).await
    };
    for (run, (taken, finished)) in runs.iter().zip(join_all(runs.iter().map(meet)).await) {
        assert_ne!(taken.is_ok(), finished.is_ok(), "{taken:?}, {finished:?}");
        assert!(taken.is_ok() || is_transition(&taken), "{taken:?}");
        let fenced = matches!(finished, Err(StoreError::Fenced { .. }));
        assert!(finished.is_ok() || fenced, "{finished:?}");
        let expected = if fenced { RunPhase::Running } else { RunPhase::Completed };
        assert_eq!(f.phase(run.id).await, expected);
    }
}

/// A run that is claimed while it is asked to stop ends at once or has the order; it is never lost from sight.
pub async fn a_claim_and_a_stop_agree(f: &Fixture) {
    let runs = pending(f).await;
    let meet = async |(run, runner): &(Run, RunnerProfile)| {
        join(f.claim(runner), f.store.request_stop(run.id, StopMode::Graceful, f.now())).await
    };
    for ((run, _), (claimed, stopped)) in runs.iter().zip(join_all(runs.iter().map(meet)).await) {
        let (stopped, now) = (stopped.unwrap(), f.run(run.id).await);
        assert_eq!(stopped.state.phase().is_ended(), claimed.is_none(), "{stopped:?}");
        assert_eq!(now, stopped);
        assert_eq!(now.stop.is_some(), claimed.is_some());
    }
}

/// A run that is claimed while its session is terminated ends at once or is ordered to be killed.
pub async fn a_claim_and_a_termination_agree(f: &Fixture) {
    let runs = pending(f).await;
    let meet = async |(run, runner): &(Run, RunnerProfile)| {
        let trigger = Trigger::Terminate(TerminationReason::Killed);
        join(f.claim(runner), f.transition(run.session, trigger)).await
    };
    for ((run, _), (claimed, _)) in runs.iter().zip(join_all(runs.iter().map(meet)).await) {
        let now = f.run(run.id).await;
        let expected = if claimed.is_some() { RunPhase::Claimed } else { RunPhase::Stopped };
        assert_eq!(now.state.phase(), expected);
        assert_eq!(now.stop.map(|order| order.mode), claimed.map(|_| StopMode::Kill));
    }
}

/// A run that is enqueued while its session is terminated is refused or ended: a terminated session has no run in
/// the queue.
pub async fn enqueueing_and_a_termination_agree(f: &Fixture) {
    let mut sessions = Vec::new();
    for _ in 0..MEETINGS {
        sessions.push(f.session().await.id);
    }
    let meet = async |session| {
        let enqueue = f.store.enqueue(vec![f.resume(session)], None, f.now());
        join(enqueue, f.transition(session, Trigger::Terminate(TerminationReason::Killed))).await
    };
    for (session, (enqueued, _)) in sessions.iter().zip(join_all(sessions.iter().copied().map(meet)).await) {
        assert!(enqueued.is_ok() || is_transition(&enqueued), "{enqueued:?}");
        let phases: Vec<_> = f.store.runs(*session, 10).await.unwrap();
        let phases: Vec<_> = phases.iter().map(|run| run.state.phase()).collect();
        assert_eq!(phases, enqueued.map_or(vec![], |_| vec![RunPhase::Stopped]));
    }
}

/// A session that is suspended while a run is enqueued for it: the run is there, and the session is suspended only if
/// that came first.
pub async fn enqueueing_and_suspending_agree(f: &Fixture) {
    let mut sessions = Vec::new();
    for _ in 0..MEETINGS {
        sessions.push(f.session().await.id);
    }
    let meet = async |session| {
        let enqueue = f.store.enqueue(vec![f.resume(session)], None, f.now());
        let suspend = Trigger::Suspend { ttl: SignedDuration::from_hours(1) };
        join(enqueue, f.store.transition(session, suspend, f.now())).await
    };
    for (session, (enqueued, suspended)) in
        sessions.iter().zip(join_all(sessions.iter().copied().map(meet)).await)
    {
        enqueued.unwrap();
        let busy = matches!(suspended, Err(StoreError::Busy { .. }));
        assert!(suspended.is_ok() || busy, "{suspended:?}");
        let (state, expected) =
            if busy { ("active", vec!["pending"]) } else { ("suspended", vec!["suspended", "pending"]) };
        assert_eq!(steps(f, *session).await, expected);
        assert_eq!(f.state(*session).await.name(), state);
    }
}

/// A session that is due while a run is enqueued for it: it goes idle first and is active again, or is left alone.
pub async fn enqueueing_and_sweeping_agree(f: &Fixture) {
    let mut sessions = Vec::new();
    for _ in 0..MEETINGS {
        sessions.push(f.session().await.id);
    }
    let timeout = SignedDuration::from_mins(15);
    f.advance(timeout);
    let sweep = |limit| Sweep {
        runner: f.env.runner_id(),
        idle_timeout: Some(timeout),
        suspended_ttl: None,
        except: Vec::new(),
        limit,
    };
    let enqueueing = join_all(sessions.iter().map(|id| f.store.enqueue(vec![f.resume(*id)], None, f.now())));
    let sweeps: Vec<_> = (0..4).map(|_| sweep(5)).collect();
    let sweeping = join_all(sweeps.iter().map(|sweep| f.store.sweep(sweep, f.now())));
    let (enqueued, swept) = join(enqueueing, sweeping).await;
    let swept: Vec<_> = swept.into_iter().flat_map(Result::unwrap).map(|swept| swept.session).collect();
    for (session, enqueued) in sessions.iter().zip(enqueued) {
        enqueued.unwrap();
        let times = swept.iter().filter(|id| *id == session).count();
        let expected = if times == 0 { vec!["pending"] } else { vec!["idle", "active", "pending"] };
        assert_eq!(
            (times.min(1), steps(f, *session).await),
            (times, expected.into_iter().map(Into::into).collect())
        );
        assert_eq!(f.state(*session).await, SessionState::Active);
    }
}

/// Where a session and its runs went, in order, by its log.
async fn steps(f: &Fixture, session: SessionId) -> Vec<String> {
    let to = |event: NewEvent| {
        let payload = event.payload.value().unwrap();
        payload["to"].as_str().map(str::to_owned)
    };
    f.records(session).await.into_iter().filter_map(to).collect()
}

/// What is appended for a run while it ends comes before its end or is refused.
pub async fn nothing_is_appended_after_the_end(f: &Fixture) {
    let (runner, mut runs) = (f.new_runner(), Vec::new());
    for _ in 0..MEETINGS {
        runs.push(f.running(&runner).await);
    }
    let meet = async |run: &Run| {
        let append = f.store.append(Author::Run(run.fence()), vec![Fixture::message("late")], f.now());
        join(append, f.complete(run.fence())).await
    };
    for (run, (appended, _)) in runs.iter().zip(join_all(runs.iter().map(meet)).await) {
        assert!(appended.is_ok() || is_transition(&appended), "{appended:?}");
        let log = f.log(run.session).await;
        assert_eq!(log.last().unwrap().body.kind.as_str(), "run.state");
        assert_eq!(log.len(), 6 + usize::from(appended.is_ok()));
    }
}

/// When a run completes while another one that the same third waits for fails, the third fails, once.
pub async fn an_end_and_a_failure_of_two_dependencies_agree(f: &Fixture) {
    let runner = f.new_runner();
    let mut crews = Vec::new();
    for _ in 0..MEETINGS {
        let third = NewRun { after: vec![0, 1], ..f.new_run() };
        let [first, second, third] = f.enqueue([f.new_run(), f.new_run(), third]).await;
        for _ in 0..2 {
            let fence = f.claim(&runner).await.unwrap().run.fence();
            f.start(fence).await;
        }
        crews.push((f.run(first.id).await, f.run(second.id).await, third));
    }
    let meet = async |(first, second, _): &(Run, Run, Run)| {
        let failed = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "no");
        join(f.complete(first.fence()), f.store.finish(second.fence(), failed, None, f.now())).await
    };
    for ((_, _, third), (_, failed)) in crews.iter().zip(join_all(crews.iter().map(meet)).await) {
        failed.unwrap();
        assert_eq!(f.phase(third.id).await, RunPhase::Failed);
        assert_eq!(f.log(third.session).await.len(), 3);
    }
    assert_eq!(f.claim(&runner).await, None);
}
