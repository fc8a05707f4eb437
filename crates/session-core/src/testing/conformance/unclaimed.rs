//! What becomes of a run that nobody takes in time.

use futures_util::future::{join, join_all};
use jiff::SignedDuration;

use super::{Fixture, LEASE, TICK};
use crate::affinity::{Affinity, Place, RunnerProfile};
use crate::ports::NewRun;
use crate::record;
use crate::run::{EndKind, ReasonCode, Run, RunPhase};

/// Within which time a runner must have been seen.
const LIVE: SignedDuration = SignedDuration::from_secs(60);

/// For how long the runs of these tests wait.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

fn impatient(f: &Fixture) -> NewRun {
    NewRun { claim_by: Some(f.now() + PATIENCE), ..f.new_run() }
}

async fn unclaimed(f: &Fixture) -> Vec<Run> {
    f.store.unclaimed(f.now(), LIVE, 100).await.unwrap()
}

async fn register(f: &Fixture, profile: &RunnerProfile) {
    f.store.register(profile.clone(), "1.0.0".parse().unwrap(), f.now()).await.unwrap();
}

/// A run that no runner admits fails after its time, not before, and says what it needs and what there is. So do those
/// that wait for it.
pub async fn a_run_that_nobody_takes_fails(f: &Fixture) {
    let profile = f.new_runner();
    register(f, &profile).await;
    let executor = "codex".parse().unwrap();
    let affinity = Affinity { place: Place::Anywhere, executor, project_dir: Some("/repo".into()) };
    let waiting = NewRun { after: vec![0], ..f.new_run() };
    let [run, waiting] = f.enqueue([NewRun { affinity, ..impatient(f) }, waiting]).await;
    assert_eq!(run.claim_by, Some(f.now() + PATIENCE));
    f.advance(PATIENCE);
    assert_eq!(unclaimed(f).await, []);
    f.advance(TICK);
    let failed = unclaimed(f).await;
    assert_eq!(failed, [f.run(run.id).await]);
    let (at, ending) = failed[0].ended().unwrap();
    assert_eq!(
        (at, ending.kind, ending.reason),
        (f.now(), EndKind::Failed, Some(ReasonCode::NoMatchingRunner))
    );
    for part in ["codex", "/repo", profile.hostname.as_str(), "command"] {
        assert!(ending.message.contains(part), "{part} is missing: {}", ending.message);
    }
    let record = record::run_state(run.id, Some(RunPhase::Pending), RunPhase::Failed, Some(ending));
    assert_eq!(f.records(run.session).await.last(), Some(&record));
    assert_eq!(f.phase(waiting.id).await, RunPhase::Failed);
    assert_eq!(unclaimed(f).await, [], "once");
}

/// A run that a live runner admits only waits its turn: its time moves on, and ends when that runner is gone, drains or
/// is forgotten.
pub async fn a_run_that_waits_its_turn_waits_on(f: &Fixture) {
    for ends in ["silent", "draining", "forgotten"] {
        let profile = f.new_runner();
        register(f, &profile).await;
        let [run] = f.enqueue([impatient(f)]).await;
        f.advance(PATIENCE + TICK);
        assert_eq!(unclaimed(f).await, []);
        let moved = Run { claim_by: Some(f.now() + LIVE), ..run };
        assert_eq!(f.run(run.id).await, moved);
        f.advance(LIVE);
        f.store.seen(profile.id, crate::run::Epoch(1), f.now()).await.unwrap();
        f.advance(TICK);
        match ends {
            "draining" => drop(f.store.drain(profile.id, true).await.unwrap()),
            "forgotten" => drop(f.store.forget(profile.id).await.unwrap()),
            _ => f.advance(LIVE),
        }
        let failed = unclaimed(f).await;
        assert_eq!(failed.iter().map(|run| run.id).collect::<Vec<_>>(), [run.id], "{ends}");
    }
}

/// A run without such a time, one that waits for others, one that was taken and one that is over are left alone.
pub async fn no_other_run_is_touched(f: &Fixture) {
    let runner = f.new_runner();
    let waiting = NewRun { after: vec![0], ..impatient(f) };
    let [patient, waiting, taken] = f.enqueue([f.new_run(), waiting, impatient(f)]).await;
    let first = f.claim(&runner).await.unwrap().run;
    let second = f.claim(&runner).await.unwrap().run;
    assert_eq!((first.id, second.id), (patient.id, taken.id));
    let [endless] = f.enqueue([f.new_run()]).await;
    f.advance(PATIENCE + LEASE);
    assert_eq!(unclaimed(f).await, []);
    for (id, phase) in [
        (patient.id, RunPhase::Claimed),
        (taken.id, RunPhase::Claimed),
        (waiting.id, RunPhase::Pending),
        (endless.id, RunPhase::Pending),
    ] {
        assert_eq!(f.phase(id).await, phase);
    }
    let first = f.start(first.fence()).await;
    f.complete(first.fence()).await;
    assert_eq!(unclaimed(f).await.iter().map(|run| run.id).collect::<Vec<_>>(), [waiting.id], "now it waits");
}

/// At most so many at once, those first that waited for longest.
pub async fn they_are_dealt_with_in_batches(f: &Fixture) {
    let mut runs = Vec::new();
    for _ in 0..5 {
        let [run] = f.enqueue([impatient(f)]).await;
        runs.push(run.id);
        f.advance(TICK);
    }
    f.advance(PATIENCE);
    let mut failed = Vec::new();
    for expected in [2, 2, 1, 0] {
        let batch = f.store.unclaimed(f.now(), LIVE, 2).await.unwrap();
        assert_eq!(batch.len(), expected);
        failed.extend(batch.iter().map(|run| run.id));
    }
    assert_eq!(failed, runs);
}

/// A run that is taken at the last moment is taken or failed, and several that look after them fail each once.
pub async fn a_claim_and_a_deadline_agree(f: &Fixture) {
    let runner = f.new_runner();
    let batch: Vec<_> = (0..24).map(|_| impatient(f)).collect();
    let runs = f.store.enqueue(batch, None, f.now()).await.unwrap();
    f.advance(PATIENCE + TICK);
    let claiming = join_all((0..12).map(|_| f.claim(&runner)));
    let failing = join_all((0..3).map(|_| f.store.unclaimed(f.now(), LIVE, 8)));
    let (claimed, failed) = join(claiming, failing).await;
    let claimed: Vec<_> = claimed.into_iter().flatten().map(|claimed| claimed.run.id).collect();
    let failed: Vec<_> = failed.into_iter().flat_map(Result::unwrap).map(|run| run.id).collect();
    for run in runs {
        let times = claimed.iter().chain(&failed).filter(|id| **id == run.id).count();
        let expected = usize::from(f.phase(run.id).await != RunPhase::Pending);
        assert_eq!(times, expected);
        assert_eq!(f.log(run.session).await.len(), 2 + expected);
    }
}
