//! Runs that are submitted together: how many at once, and which after which.

use std::collections::HashSet;

use futures_util::future::join_all;

use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::error::{Conflict, StoreError};
use crate::ids::RunId;
use crate::ports::NewRun;
use crate::record;
use crate::run::{EndKind, Ending, ReasonCode, Run, RunPhase, StopMode};
use crate::state::{TerminationReason, Trigger};

/// Enqueues one run for each list of indexes of the runs that it waits for.
async fn enqueue<const N: usize>(f: &Fixture, at_once: Option<u32>, after: [&[usize]; N]) -> [Run; N] {
    let batch = after.map(|after| NewRun { after: after.to_vec(), ..f.new_run() });
    let runs = f.store.enqueue(batch.into(), Some(f.new_crew(at_once)), f.now()).await.unwrap();
    runs.try_into().unwrap()
}

/// The runs that a new runner can claim now, in order.
async fn claimable(f: &Fixture) -> Vec<Run> {
    f.claim_all(&f.new_runner()).await
}

async fn claimable_ids(f: &Fixture) -> Vec<RunId> {
    claimable(f).await.into_iter().map(|run| run.id).collect()
}

/// Claims the run that is next, which must be this one, and completes it.
async fn complete_next(f: &Fixture, expected: &Run) {
    let run = f.claim(&f.new_runner()).await.unwrap().run;
    assert_eq!(run.id, expected.id);
    f.start(run.fence()).await;
    f.complete(run.fence()).await;
}

async fn assert_dependency_failed(f: &Fixture, run: &Run) {
    let over = f.run(run.id).await;
    let (at, ending) = over.ended().unwrap();
    assert_eq!((at, ending.kind, ending.exit), (f.now(), EndKind::Failed, None));
    assert_eq!(ending.reason, Some(ReasonCode::DependencyFailed));
    assert!(!ending.message.is_empty());
    let record = record::run_state(run.id, Some(RunPhase::Pending), RunPhase::Failed, Some(ending));
    // Created, enqueued, failed: nothing more, and nothing twice.
    assert_eq!(f.records(run.session).await[2..], [record]);
}

/// No more runs of a crew are in flight than it may have; as one ends, whichever way, the next can be claimed. Other
/// crews and runs of no crew are not held up.
pub async fn a_crew_has_so_many_in_flight_at_once(f: &Fixture) {
    let crew = enqueue(f, Some(2), [&[]; 6]).await;
    assert!(crew.iter().all(|run| run.crew.is_some() && run.crew == crew[0].crew));
    assert_eq!(f.run(crew[0].id).await, crew[0]);
    let others = enqueue(f, Some(1), [&[]; 2]).await;
    let [free] = f.enqueue([f.new_run()]).await;
    assert_eq!(claimable_ids(f).await, [crew[0].id, crew[1].id, others[0].id, free.id]);
    assert!(claimable_ids(f).await.is_empty());

    let first = f.run(crew[0].id).await;
    f.start(first.fence()).await;
    assert!(claimable_ids(f).await.is_empty(), "a running one takes a place as a claimed one does");
    f.complete(first.fence()).await;
    assert_eq!(claimable_ids(f).await, [crew[2].id]);
    let second = f.run(crew[1].id).await;
    let failed = Ending::because(EndKind::Failed, ReasonCode::SpawnFailed, None, "no such program");
    f.store.finish(second.fence(), failed, None, f.now()).await.unwrap();
    assert_eq!(claimable_ids(f).await, [crew[3].id]);

    let third = f.run(crew[2].id).await;
    f.start(third.fence()).await;
    f.advance(LEASE + TICK);
    f.store.reap(f.now(), 100).await.unwrap();
    assert_eq!(f.phase(third.id).await, RunPhase::Lost);
    let next: Vec<_> = claimable_ids(f).await;
    assert_eq!(
        next,
        [crew[3].id, crew[4].id, others[0].id, free.id],
        "lost ones and requeued ones free their places"
    );
}

/// A crew without a limit takes as many as the runner does.
pub async fn a_crew_without_a_limit_has_none(f: &Fixture) {
    let crew = enqueue(f, None, [&[]; 20]).await;
    assert_eq!(claimable_ids(f).await, crew.map(|run| run.id));
}

/// The limit holds against many claimers at once.
pub async fn concurrent_claimers_keep_to_the_limit(f: &Fixture) {
    enqueue(f, Some(3), [&[]; 10]).await;
    let runners: Vec<_> = (0..16).map(|_| f.new_runner()).collect();
    for _ in 0..3 {
        let claimed = join_all(runners.iter().map(|runner| f.claim(runner))).await;
        let claimed: Vec<_> = claimed.into_iter().flatten().map(|claimed| claimed.run).collect();
        assert_eq!(claimed.len(), 3);
        join_all(claimed.iter().map(async |run| {
            f.start(run.fence()).await;
            f.complete(run.fence()).await
        }))
        .await;
    }
    assert_eq!(claimable_ids(f).await.len(), 1);
}

/// In a chain, each run can be claimed when the one before has completed, and not earlier.
pub async fn a_chain_goes_one_after_the_other(f: &Fixture) {
    let [first, second, third] = enqueue(f, None, [&[], &[0], &[1]]).await;
    assert_eq!([&first, &second, &third].map(|run| run.waiting_for), [0, 1, 1]);
    let held = f.claim(&f.new_runner()).await.unwrap().run;
    assert_eq!(held.id, first.id);
    f.start(held.fence()).await;
    assert!(claimable_ids(f).await.is_empty());
    f.complete(held.fence()).await;
    assert_eq!([f.run(second.id).await.waiting_for, f.run(third.id).await.waiting_for], [0, 1]);
    complete_next(f, &second).await;
    complete_next(f, &third).await;
    assert!(claimable_ids(f).await.is_empty());
}

/// A run that waits for two can be claimed when both have completed, in whatever order they do.
pub async fn a_diamond_waits_for_both_sides(f: &Fixture) {
    for reverse in [false, true] {
        let [top, left, right, bottom] = enqueue(f, None, [&[], &[0], &[0], &[1, 2]]).await;
        assert_eq!(bottom.waiting_for, 2);
        complete_next(f, &top).await;
        let mut sides = claimable(f).await;
        assert_eq!(sides.iter().map(|run| run.id).collect::<Vec<_>>(), [left.id, right.id]);
        if reverse {
            sides.reverse();
        }
        for (side, waiting) in sides.iter().zip([1, 0]) {
            assert!(claimable_ids(f).await.is_empty());
            f.start(side.fence()).await;
            f.complete(side.fence()).await;
            assert_eq!(f.run(bottom.id).await.waiting_for, waiting);
        }
        complete_next(f, &bottom).await;
    }
}

/// Two sides that complete at once free what waits for both, once.
pub async fn concurrent_ends_free_what_waits_for_all(f: &Fixture) {
    let runs = enqueue(f, None, [&[], &[], &[], &[], &[0, 1, 2, 3]]).await;
    let held = claimable(f).await;
    assert_eq!(held.len(), 4);
    for run in &held {
        f.start(run.fence()).await;
    }
    join_all(held.iter().map(|run| f.complete(run.fence()))).await;
    assert_eq!(f.run(runs[4].id).await.waiting_for, 0);
    complete_next(f, &runs[4]).await;
}

/// The order of waiting goes before priority.
pub async fn waiting_goes_before_priority(f: &Fixture) {
    let first = f.new_run();
    let urgent = NewRun { priority: 9, after: vec![0], ..f.new_run() };
    let [first, urgent] = f.enqueue([first, urgent]).await;
    let [other] = f.enqueue([f.new_run()]).await;
    complete_next(f, &first).await;
    assert_eq!(claimable_ids(f).await, [urgent.id, other.id]);
    assert_eq!((first.crew, urgent.crew), (None, None), "runs may wait for each other without a crew");
}

/// A dependency that is named twice counts once; one that is the run itself, comes later or is not there is refused,
/// and leaves nothing.
pub async fn bad_dependencies_are_refused(f: &Fixture) {
    let [first, second] = enqueue(f, None, [&[], &[0, 0, 0]]).await;
    assert_eq!(second.waiting_for, 1);
    complete_next(f, &first).await;
    complete_next(f, &second).await;
    for after in [vec![1], vec![2], vec![0, 1], vec![usize::MAX]] {
        let (one, three) = (f.new_run(), f.new_run());
        let ids = [one.id, three.id];
        let two = NewRun { after, ..f.new_run() };
        let outcome = f.store.enqueue(vec![one, two, three], Some(f.new_crew(None)), f.now());
        assert_refused!(outcome, StoreError::Conflict(Conflict::Dependencies));
        for id in ids {
            assert_eq!(f.store.run(id).await.unwrap(), None);
        }
    }
    assert!(claimable_ids(f).await.is_empty());
}

/// Whichever way a run ends but completed, those that wait for it fail, and those that wait for them; each once. What
/// waits for none of them is not touched.
pub async fn a_failure_takes_along_what_waits_for_it(f: &Fixture) {
    let endings = [
        Ending::because(EndKind::Failed, ReasonCode::ExitNonzero, None, "no"),
        Ending::because(EndKind::Stopped, ReasonCode::Timeout, None, "too long"),
        Ending::because(EndKind::Lost, ReasonCode::HostLost, None, "gone"),
    ];
    for ending in endings {
        let [top, left, right, bottom, tail, apart] =
            enqueue(f, None, [&[], &[0], &[0], &[1, 2], &[0, 3], &[]]).await;
        let before = f.snapshot(apart.session).await;
        let held = f.claim(&f.new_runner()).await.unwrap().run;
        assert_eq!(held.id, top.id);
        f.start(held.fence()).await;
        f.advance(TICK);
        f.store.finish(held.fence(), ending, None, f.now()).await.unwrap();
        for run in [&left, &right, &bottom, &tail] {
            assert_dependency_failed(f, run).await;
        }
        assert_eq!(f.snapshot(apart.session).await, before);
        complete_next(f, &apart).await;
        assert!(claimable_ids(f).await.is_empty());
    }
}

/// When one side of a diamond fails, what waits for both fails at once; the other side goes on, and its end changes
/// nothing about that.
pub async fn the_other_side_of_a_failed_diamond_goes_on(f: &Fixture) {
    let [left, right, bottom] = enqueue(f, None, [&[], &[], &[0, 1]]).await;
    let held = claimable(f).await;
    assert_eq!(held.iter().map(|run| run.id).collect::<Vec<_>>(), [left.id, right.id]);
    let failed = Ending::because(EndKind::Failed, ReasonCode::WorkspaceFailed, None, "no space");
    f.store.finish(held[0].fence(), failed, None, f.now()).await.unwrap();
    assert_dependency_failed(f, &bottom).await;
    let before = f.snapshot(bottom.session).await;
    f.start(held[1].fence()).await;
    assert_eq!(f.complete(held[1].fence()).await.state.phase(), RunPhase::Completed);
    assert_eq!(f.snapshot(bottom.session).await, before);
}

/// A stop of a pending run, the termination of its session and a lease that ran out are ends like others: what waits
/// for it fails.
pub async fn stops_terminations_and_losses_take_along_too(f: &Fixture) {
    for way in ["stop", "terminate", "reap"] {
        let [first, second, third] = enqueue(f, None, [&[], &[0], &[1]]).await;
        match way {
            "stop" => drop(f.store.request_stop(first.id, StopMode::Graceful, f.now()).await.unwrap()),
            "terminate" => {
                f.transition(first.session, Trigger::Terminate(TerminationReason::Evicted)).await;
            }
            _ => {
                let run = f.claim(&f.new_runner()).await.unwrap().run;
                f.start(run.fence()).await;
                f.advance(LEASE + TICK);
                let reaped = f.store.reap(f.now(), 10).await.unwrap();
                assert_eq!(reaped, [f.run(first.id).await], "only what was reaped is returned");
            }
        }
        for run in [&second, &third] {
            assert_dependency_failed(f, run).await;
        }
        assert!(claimable_ids(f).await.is_empty());
    }
}

/// A run that waits can be stopped by itself; the one that it waited for goes on undisturbed.
pub async fn a_waiting_run_is_stopped_by_itself(f: &Fixture) {
    let [first, second, third] = enqueue(f, None, [&[], &[0], &[1]]).await;
    let stopped = f.store.request_stop(second.id, StopMode::Graceful, f.now()).await.unwrap();
    assert_eq!(stopped.state.phase(), RunPhase::Stopped);
    assert_dependency_failed(f, &third).await;
    let before = f.snapshot(second.session).await;
    complete_next(f, &first).await;
    assert_eq!(f.snapshot(second.session).await, before);
    let sessions: HashSet<_> = [first.session, second.session, third.session].into();
    assert_eq!(sessions.len(), 3);
}

/// A run that is queued again after its lease ran out still holds back what waits for it.
pub async fn a_requeued_run_is_still_waited_for(f: &Fixture) {
    let [first, second] = enqueue(f, Some(1), [&[], &[0]]).await;
    f.claim(&f.new_runner()).await.unwrap();
    f.advance(LEASE + TICK);
    f.store.reap(f.now(), 10).await.unwrap();
    assert_eq!((f.phase(first.id).await, f.phase(second.id).await), (RunPhase::Pending, RunPhase::Pending));
    complete_next(f, &first).await;
    complete_next(f, &second).await;
}
