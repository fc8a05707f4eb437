//! What the holder of a claim may do, what a stale one may not, and what becomes of a run whose holder went silent.

use futures_util::future::join_all;
use jiff::SignedDuration;

use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::affinity::RunnerProfile;
use crate::approval::Withdrawal;
use crate::error::{Conflict, StoreError};
use crate::event::{EventKind, NewEvent, Payload};
use crate::ports::{Author, Directive, RunProgress};
use crate::record;
use crate::run::{
    EndKind, Ending, Epoch, Exit, Fence, Lease, ReasonCode, Run, RunPhase, RunState, RunStep, StopMode,
};

/// A run of a new session, brought to this phase by this runner.
async fn run_in(f: &Fixture, runner: &RunnerProfile, phase: RunPhase) -> Run {
    if phase == RunPhase::Pending {
        let [run] = f.enqueue([f.new_run()]).await;
        return run;
    }
    let claimed = f.claimed(runner).await;
    let starting = async || f.store.advance(claimed.fence(), RunProgress::Starting, f.now()).await.unwrap();
    let ended = async |ending| {
        let run = f.start(claimed.fence()).await;
        f.store.finish(run.fence(), ending, None, f.now()).await.unwrap()
    };
    let because = |kind, reason| Ending::because(kind, reason, None, "for a test");
    match phase {
        RunPhase::Pending | RunPhase::Claimed => claimed,
        RunPhase::Starting => starting().await,
        RunPhase::Running => f.start(claimed.fence()).await,
        RunPhase::Completed => ended(Ending::completed(None)).await,
        RunPhase::Failed => ended(because(EndKind::Failed, ReasonCode::ExecutorError)).await,
        RunPhase::Stopped => ended(because(EndKind::Stopped, ReasonCode::Timeout)).await,
        RunPhase::Lost => ended(because(EndKind::Lost, ReasonCode::HostLost)).await,
    }
}

/// Every write that carries a fence.
async fn every_write(f: &Fixture, fence: Fence) -> Vec<(&'static str, Result<(), StoreError>)> {
    let (store, now) = (&f.store, f.now());
    let binding = Fixture::binding(&f.new_runner(), "stale");
    let failed = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "stale");
    let result = Some(Payload::parse("{}").unwrap());
    let message = vec![Fixture::message("stale")];
    vec![
        ("starting", store.advance(fence, RunProgress::Starting, now).await.map(drop)),
        ("running", store.advance(fence, RunProgress::RUNNING, now).await.map(drop)),
        ("requeue", store.requeue(fence, now).await.map(drop)),
        ("bind", store.bind(fence, binding, now).await),
        ("resumable", store.resumable(fence, now).await),
        ("ask", store.ask(fence, f.new_approval(), now).await.map(drop)),
        ("withdraw", store.withdraw(fence, f.env.approval_id(), Withdrawal::Expired, now).await.map(drop)),
        ("renew", store.renew(fence, LEASE, now).await.map(drop)),
        ("complete", store.finish(fence, Ending::completed(None), None, now).await.map(drop)),
        ("fail", store.finish(fence, failed, result, now).await.map(drop)),
        ("append", store.append(Author::Run(fence), message, now).await.map(drop)),
        ("append nothing", store.append(Author::Run(fence), Vec::new(), now).await.map(drop)),
    ]
}

/// A run goes from claimed over starting to running; both steps are recorded, as are the runner on whose machine the
/// workspace lies, once it is made, and when the executor was up.
pub async fn a_run_advances_step_by_step(f: &Fixture) {
    let runner = f.new_runner();
    let claimed = f.claimed(&runner).await;
    let held = Lease { runner: runner.id, until: f.now() + LEASE };
    let removed = f.now();
    f.store.workspace_removed(claimed.session, removed).await.unwrap();
    f.advance(TICK);
    let starting = f.store.advance(claimed.fence(), RunProgress::Starting, f.now()).await.unwrap();
    assert_eq!(starting, Run { state: RunState::Starting(held), ..claimed.clone() });
    let workspace = f.store.session(claimed.session).await.unwrap().unwrap().workspace;
    assert_eq!(
        (workspace.runner, workspace.removed_at),
        (Some(runner.id), Some(removed)),
        "it is not made yet"
    );
    f.advance(TICK);
    let report = Payload::parse("{ \"level\": \"full\", \"gaps\": [\"'ä'\"] }").unwrap();
    let to = RunProgress::Running { sandbox: Some(report.clone()) };
    let running = f.store.advance(claimed.fence(), to, f.now()).await.unwrap();
    let expected = Run {
        state: RunState::Running(held),
        started_at: Some(f.now()),
        sandbox: Some(report.clone()),
        ..claimed.clone()
    };
    assert_eq!(running, expected);
    assert_eq!(f.run(claimed.id).await, running);
    let workspace = f.store.session(claimed.session).await.unwrap().unwrap().workspace;
    assert_eq!((workspace.runner, workspace.removed_at), (Some(runner.id), None), "it is made anew");
    let step = |from, to| record::run_state(claimed.id, Some(from), to, None);
    let steps = [
        step(RunPhase::Claimed, RunPhase::Starting),
        record::run_sandbox(claimed.id, report),
        step(RunPhase::Starting, RunPhase::Running),
    ];
    assert_eq!(f.records(claimed.session).await[3..], steps);
}

/// From every phase, exactly the steps that the table has; what is refused changes nothing.
pub async fn every_step_of_a_run_is_by_the_table(f: &Fixture) {
    let runner = f.new_runner();
    for &phase in RunPhase::ALL {
        for (to, step) in [(RunProgress::Starting, RunStep::Start), (RunProgress::RUNNING, RunStep::Ready)] {
            let run = run_in(f, &runner, phase).await;
            let before = f.snapshot(run.session).await;
            let outcome = f.store.advance(run.fence(), to.clone(), f.now()).await;
            let allowed = phase.is_in_flight() && phase.on(step).is_ok();
            assert_eq!(outcome.is_ok(), allowed, "{phase} to {to:?}: {outcome:?}");
            tidy(f, &runner, &run, outcome.is_ok(), before).await;
        }
        for &kind in EndKind::ALL {
            let run = run_in(f, &runner, phase).await;
            let before = f.snapshot(run.session).await;
            let reason = (kind != EndKind::Completed).then_some(ReasonCode::ExecutorError);
            let ending = Ending { kind, reason, exit: None, message: String::new() };
            let outcome = f.store.finish(run.fence(), ending, None, f.now()).await;
            let allowed = phase.is_in_flight() && phase.on(RunStep::End(kind)).is_ok();
            assert_eq!(outcome.is_ok(), allowed, "{phase} to {kind}: {outcome:?}");
            tidy(f, &runner, &run, outcome.is_ok(), before).await;
        }
    }
}

/// What was refused has changed nothing; no run is left in the queue for the next one.
async fn tidy(f: &Fixture, runner: &RunnerProfile, run: &Run, changed: bool, before: super::Snapshot) {
    if !changed {
        assert_eq!(f.snapshot(run.session).await, before);
    }
    f.claim_all(runner).await;
}

/// A write for an earlier or later claim is told the current epoch, and changes nothing.
pub async fn a_stale_fence_changes_nothing(f: &Fixture) {
    let runner = f.new_runner();
    for phase in [RunPhase::Claimed, RunPhase::Starting, RunPhase::Running] {
        let run = run_in(f, &runner, phase).await;
        let run = f.store.take_over(run.id, runner.id, LEASE, f.now()).await.unwrap();
        let before = f.snapshot(run.session).await;
        for given in [Epoch(0), Epoch(1), Epoch(3), Epoch(u32::MAX >> 1)] {
            for (what, outcome) in every_write(f, Fence { run: run.id, epoch: given }).await {
                let told = matches!(
                    outcome,
                    Err(StoreError::Fenced { run: id, held, given: told })
                        if (id, held, told) == (run.id, Epoch(2), given)
                );
                assert!(told, "{what} under epoch {given} of a {phase} run: {outcome:?}");
            }
        }
        assert_eq!(f.snapshot(run.session).await, before);
    }
}

/// A write for a run that is not there says so.
pub async fn a_fence_of_no_run_is_refused(f: &Fixture) {
    let run = f.env.run_id();
    for (what, outcome) in every_write(f, Fence { run, epoch: Epoch(1) }).await {
        assert!(matches!(outcome, Err(StoreError::UnknownRun(id)) if id == run), "{what}: {outcome:?}");
    }
    assert_refused!(f.store.take_over(run, f.env.runner_id(), LEASE, f.now()), StoreError::UnknownRun(_));
}

/// A run that went back to the queue still bears the number of its last claim, but is nobody's: its former holder can
/// change nothing. Its next holder gets the next epoch.
pub async fn a_claim_that_was_lost_counts_no_more(f: &Fixture) {
    let runner = f.new_runner();
    let claimed = f.claimed(&runner).await;
    f.advance(LEASE + TICK);
    let [requeued] = f.store.reap(f.now(), 10).await.unwrap().try_into().unwrap();
    assert_eq!((requeued.epoch, requeued.state), (claimed.epoch, RunState::Pending));
    let before = f.snapshot(claimed.session).await;
    for (what, outcome) in every_write(f, claimed.fence()).await {
        assert!(matches!(outcome, Err(StoreError::Transition(_))), "{what}: {outcome:?}");
    }
    assert_eq!(f.snapshot(claimed.session).await, before);
    let again = f.claim(&f.new_runner()).await.unwrap().run;
    assert_eq!((again.id, again.epoch), (claimed.id, Epoch(2)));
    let before = f.snapshot(claimed.session).await;
    for (what, outcome) in every_write(f, claimed.fence()).await {
        assert!(matches!(outcome, Err(StoreError::Fenced { .. })), "{what}: {outcome:?}");
    }
    assert_eq!(f.snapshot(claimed.session).await, before);
}

/// Nothing changes a run that is over, whoever says so.
pub async fn a_run_that_is_over_never_changes(f: &Fixture) {
    let runner = f.new_runner();
    for phase in RunPhase::ALL.iter().copied().filter(|phase| phase.is_ended()) {
        let run = run_in(f, &runner, phase).await;
        let before = f.snapshot(run.session).await;
        f.advance(LEASE * 2);
        for (what, outcome) in every_write(f, run.fence()).await {
            assert!(
                matches!(outcome, Err(StoreError::Transition(_))),
                "{what} of a {phase} run: {outcome:?}"
            );
        }
        assert_refused!(f.store.take_over(run.id, runner.id, LEASE, f.now()), StoreError::Transition(_));
        assert_eq!(f.store.request_stop(run.id, StopMode::Kill, f.now()).await.unwrap(), run);
        assert!(f.store.reap(f.now(), 10).await.unwrap().is_empty());
        assert_eq!(f.snapshot(run.session).await, before);
    }
}

/// A session is bound once, also across its runs: the same binding again is no change, another one is refused.
pub async fn a_binding_is_written_once(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    let run = f.running(&runner).await;
    let binding = Fixture::binding(&runner, "conversation ü 1");
    f.store.bind(run.fence(), binding.clone(), f.now()).await.unwrap();
    assert_eq!(f.store.session(run.session).await.unwrap().unwrap().binding, Some(binding.clone()));
    assert_eq!(f.records(run.session).await.last(), Some(&record::bound(run.id, &binding)));
    let refuse = async |fence| {
        let before = f.snapshot(run.session).await;
        f.store.bind(fence, binding.clone(), f.now()).await.unwrap();
        let others = [
            Fixture::binding(&runner, "conversation 2"),
            Fixture::binding(&other, "conversation ü 1"),
            crate::session::Binding { project_dir: "/elsewhere".into(), ..binding.clone() },
        ];
        for another in others {
            assert_refused!(
                f.store.bind(fence, another, f.now()),
                StoreError::Conflict(Conflict::Bound(id)) if *id == run.session
            );
        }
        assert_eq!(f.snapshot(run.session).await, before);
    };
    refuse(run.fence()).await;
    f.store.resumable(run.fence(), f.now()).await.unwrap();
    f.complete(run.fence()).await;
    f.enqueue([f.resume(run.session)]).await;
    let next = f.claim(&runner).await.unwrap();
    assert_eq!(next.session.binding, Some(crate::session::Binding { resumable: true, ..binding.clone() }));
    refuse(next.run.fence()).await;
}

/// One of the states in which a run is held.
type Held = fn(Lease) -> RunState;

/// A lease is prolonged from now on, also when it has run out and nobody noticed; nothing else changes.
pub async fn renewal_prolongs_the_lease(f: &Fixture) {
    let runner = f.new_runner();
    let phases: [(RunPhase, Held); 3] = [
        (RunPhase::Claimed, RunState::Claimed),
        (RunPhase::Starting, RunState::Starting),
        (RunPhase::Running, RunState::Running),
    ];
    for (phase, state) in phases {
        let run = run_in(f, &runner, phase).await;
        let mut expected = f.snapshot(run.session).await;
        for late in [SignedDuration::from_secs(20), LEASE, LEASE + TICK] {
            f.advance(late);
            let renewed = f.store.renew(run.fence(), LEASE * 2, f.now()).await.unwrap();
            let left = expected.session.as_ref().map(|session| session.account().in_hand());
            assert_eq!(renewed, Directive::Continue { left });
            let held = Lease { runner: runner.id, until: f.now() + LEASE * 2 };
            expected.runs[0].state = state(held);
            assert_eq!(f.snapshot(run.session).await, expected);
        }
    }
}

/// A result is written before the end that it belongs to; exit, reason and message are kept and recorded.
pub async fn an_end_is_recorded_after_its_result(f: &Fixture) {
    let runner = f.new_runner();
    let because = |kind, reason, exit| Ending::because(kind, reason, exit, "it said \"no\"\n'--");
    let endings = [
        Ending::completed(Some(Exit::Code(0))),
        Ending::completed(None),
        because(EndKind::Failed, ReasonCode::ExitNonzero, Some(Exit::Code(255))),
        because(EndKind::Failed, ReasonCode::Signalled, Some(Exit::Signal(9))),
        because(EndKind::Stopped, ReasonCode::Timeout, Some(Exit::Signal(15))),
        because(EndKind::Lost, ReasonCode::HostLost, None),
    ];
    for ending in endings {
        for result in [None, Some(Payload::parse("{ \"last_line\" : \"ü\" }").unwrap())] {
            let run = f.running(&runner).await;
            let recorded = f.log(run.session).await.len();
            f.advance(TICK);
            let over = f.store.finish(run.fence(), ending.clone(), result.clone(), f.now()).await.unwrap();
            let state = RunState::Ended { at: f.now(), ending: ending.clone() };
            assert_eq!(over, Run { state, ..run.clone() });
            assert_eq!(f.run(run.id).await, over);
            let result = result.map(|payload| NewEvent {
                run: Some(run.id),
                kind: EventKind::Result,
                payload,
                origin: None,
            });
            let end = record::run_state(run.id, Some(RunPhase::Running), over.state.phase(), Some(&ending));
            let expected: Vec<_> = result.into_iter().chain([end]).collect();
            assert_eq!(f.records(run.session).await[recorded..], expected);
        }
    }
}

/// Every reason is read back as it was written.
pub async fn every_reason_for_an_end_is_kept(f: &Fixture) {
    let runner = f.new_runner();
    for &reason in ReasonCode::ALL {
        let run = f.running(&runner).await;
        let ending = Ending::because(EndKind::Failed, reason, None, reason.code());
        let over = f.store.finish(run.fence(), ending.clone(), None, f.now()).await.unwrap();
        assert_eq!(over.ended(), Some((f.now(), &ending)));
        assert_eq!(f.run(run.id).await, over);
    }
}

/// Of many who end a run at once, one does.
pub async fn one_of_many_concurrent_ends_wins(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    let recorded = f.log(run.session).await.len();
    let finish = |code| {
        let ending = Ending::because(EndKind::Failed, ReasonCode::ExitNonzero, Some(Exit::Code(code)), "no");
        f.store.finish(run.fence(), ending, Some(Payload::parse("{}").unwrap()), f.now())
    };
    let outcomes = join_all((1..=16).map(finish)).await;
    let won: Vec<_> = outcomes.iter().flatten().collect();
    assert_eq!(won.len(), 1);
    assert_eq!(f.run(run.id).await, *won[0]);
    assert_eq!(f.log(run.session).await.len(), recorded + 2);
}

/// Taken over by its own runner, a run keeps its phase and a stop order, and what the old host still sends counts no
/// more.
pub async fn a_takeover_fences_the_old_host(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    for phase in [RunPhase::Claimed, RunPhase::Starting, RunPhase::Running] {
        let run = run_in(f, &runner, phase).await;
        let ordered = f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
        f.advance(LEASE + TICK);
        let before = f.snapshot(run.session).await;
        assert_refused!(f.store.take_over(run.id, other.id, LEASE, f.now()), StoreError::Transition(_));
        assert_eq!(f.snapshot(run.session).await, before);
        let taken = f.store.take_over(run.id, runner.id, LEASE, f.now()).await.unwrap();
        assert_eq!((taken.epoch, taken.state.phase(), taken.stop), (Epoch(2), phase, ordered.stop));
        assert_eq!(taken.state.lease(), Some(Lease { runner: runner.id, until: f.now() + LEASE }));
        assert_eq!(f.run(run.id).await, taken);
        assert_refused!(f.store.renew(run.fence(), LEASE, f.now()), StoreError::Fenced { .. });
        let renewed = f.store.renew(taken.fence(), LEASE, f.now()).await.unwrap();
        assert_eq!(renewed, Directive::Stop(StopMode::Graceful));
        assert_eq!(f.log(run.session).await, before.log, "a takeover is no change of state");
    }
    let [pending] = f.enqueue([f.new_run()]).await;
    assert_refused!(f.store.take_over(pending.id, runner.id, LEASE, f.now()), StoreError::Transition(_));
}

/// A lease that ends at this instant has not run out; a millisecond later it has, unless it was renewed.
pub async fn a_lease_runs_out_after_its_last_instant(f: &Fixture) {
    let (runner, mut runs) = (f.new_runner(), Vec::new());
    for phase in [RunPhase::Claimed, RunPhase::Starting, RunPhase::Running] {
        runs.push(run_in(f, &runner, phase).await);
    }
    let renewed = f.running(&runner).await;
    let [pending] = f.enqueue([f.new_run()]).await;
    f.advance(LEASE);
    assert!(f.store.reap(f.now(), 10).await.unwrap().is_empty());
    f.advance(TICK);
    f.store.renew(renewed.fence(), TICK, f.now()).await.unwrap();
    assert!(f.store.reap(f.now(), 0).await.unwrap().is_empty());
    let reaped = f.store.reap(f.now(), 10).await.unwrap();
    let mut ids: Vec<_> = reaped.iter().map(|run| run.id).collect();
    ids.sort();
    assert_eq!(ids, runs.iter().map(|run| run.id).collect::<Vec<_>>());
    for run in &reaped {
        assert_eq!(f.run(run.id).await, *run, "it is returned as it is now");
    }
    assert_eq!(
        (f.phase(renewed.id).await, f.phase(pending.id).await),
        (RunPhase::Running, RunPhase::Pending)
    );
    assert!(f.store.reap(f.now(), 10).await.unwrap().is_empty(), "nothing is reaped twice");
}

/// A run that was only claimed goes back to its place in the queue; one that had begun is lost, and its session can
/// be resumed. Both are recorded.
pub async fn an_expired_run_is_queued_again_or_lost(f: &Fixture) {
    let runner = f.new_runner();
    let claimed = f.claimed(&runner).await;
    let begun = [run_in(f, &runner, RunPhase::Starting).await, run_in(f, &runner, RunPhase::Running).await];
    let [later] = f.enqueue([f.new_run()]).await;
    f.advance(LEASE + TICK);
    assert_eq!(f.store.reap(f.now(), 10).await.unwrap().len(), 3);
    let requeued = f.run(claimed.id).await;
    assert_eq!(requeued, Run { state: RunState::Pending, ..claimed });
    let record = record::run_state(requeued.id, Some(RunPhase::Claimed), RunPhase::Pending, None);
    assert_eq!(f.records(requeued.session).await.last(), Some(&record));
    for run in begun {
        let from = run.state.phase();
        let lost = f.run(run.id).await;
        let (at, ending) = lost.ended().unwrap();
        assert_eq!(
            (at, ending.kind, ending.reason),
            (f.now(), EndKind::Lost, Some(ReasonCode::LeaseExpired))
        );
        assert!(!ending.message.is_empty());
        let record = record::run_state(run.id, Some(from), RunPhase::Lost, Some(ending));
        assert_eq!(f.records(run.session).await.last(), Some(&record));
        f.enqueue([f.resume(run.session)]).await;
    }
    assert_eq!(f.claim(&runner).await.unwrap().run.id, requeued.id, "it stands before later ones");
    assert_eq!(f.claim(&runner).await.unwrap().run.id, later.id);
}

/// A run whose end was asked for is stopped when its runner goes silent, wherever it stood: it never goes back to
/// the queue.
pub async fn an_expired_run_with_a_stop_order_is_stopped(f: &Fixture) {
    let runner = f.new_runner();
    for phase in [RunPhase::Claimed, RunPhase::Starting, RunPhase::Running] {
        let run = run_in(f, &runner, phase).await;
        f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
        f.advance(LEASE + TICK);
        let [reaped] = f.store.reap(f.now(), 10).await.unwrap().try_into().unwrap();
        let (_, ending) = reaped.ended().unwrap();
        assert_eq!(
            (ending.kind, ending.reason),
            (EndKind::Stopped, Some(ReasonCode::StoppedByUser)),
            "{phase}"
        );
        assert_eq!(reaped.stop, None, "the order is done with");
        let record = record::run_state(run.id, Some(phase), RunPhase::Stopped, Some(ending));
        assert_eq!(f.records(run.session).await.last(), Some(&record));
    }
}

/// Expired runs are dealt with in portions, by many at once, each of them once.
pub async fn concurrent_reapers_take_each_run_once(f: &Fixture) {
    let runner = f.new_runner();
    for _ in 0..12 {
        f.running(&runner).await;
    }
    f.advance(LEASE + TICK);
    assert_eq!(f.store.reap(f.now(), 2).await.unwrap().len(), 2);
    let reaped = join_all((0..8).map(|_| f.store.reap(f.now(), 3))).await;
    let mut reaped: Vec<_> = reaped.into_iter().flat_map(Result::unwrap).map(|run| run.id).collect();
    let count = reaped.len();
    reaped.sort();
    reaped.dedup();
    assert_eq!((reaped.len(), count), (10, 10));
    assert!(f.store.in_flight(runner.id).await.unwrap().is_empty());
}

/// The whole life of a run leaves exactly these events, in this order.
pub async fn a_life_leaves_exactly_its_events(f: &Fixture) {
    let (runner, new) = (f.new_runner(), f.new_session());
    let run = crate::ports::NewRun { of: crate::ports::RunOf::New(Box::new(new.clone())), ..f.new_run() };
    let [run] = f.enqueue([run]).await;
    f.claim(&runner).await.unwrap();
    f.advance(LEASE + TICK);
    f.store.reap(f.now(), 1).await.unwrap();
    let fence = f.claim(&runner).await.unwrap().run.fence();
    f.store.renew(fence, LEASE, f.now()).await.unwrap();
    f.start(fence).await;
    let binding = Fixture::binding(&runner, "one");
    f.store.bind(fence, binding.clone(), f.now()).await.unwrap();
    f.store.append(Author::Run(fence), vec![Fixture::message("hello")], f.now()).await.unwrap();
    f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
    f.complete(fence).await;
    let step = |from, to| record::run_state(run.id, from, to, None);
    let completed = Ending::completed(Some(Exit::Code(0)));
    let expected = [
        record::session_created(&new, None),
        step(None, RunPhase::Pending),
        step(Some(RunPhase::Pending), RunPhase::Claimed),
        step(Some(RunPhase::Claimed), RunPhase::Pending),
        step(Some(RunPhase::Pending), RunPhase::Claimed),
        step(Some(RunPhase::Claimed), RunPhase::Starting),
        step(Some(RunPhase::Starting), RunPhase::Running),
        record::bound(run.id, &binding),
        NewEvent { run: Some(run.id), ..Fixture::message("hello") },
        record::run_state(run.id, Some(RunPhase::Running), RunPhase::Completed, Some(&completed)),
    ];
    assert_eq!(f.records(new.id).await, expected);
}
