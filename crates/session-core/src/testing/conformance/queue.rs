//! Enqueueing runs, and who may claim which in what order.

use std::collections::HashSet;

use futures_util::future::join_all;
use jiff::SignedDuration;

use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::affinity::{Affinity, Place, RunnerProfile};
use crate::error::{Conflict, StoreError};
use crate::ids::RunId;
use crate::names::ExecutorType;
use crate::ports::{NewCrew, NewRun, RunOf};
use crate::record;
use crate::run::{Epoch, Lease, Run, RunKind, RunPhase, RunSpec, RunState};
use crate::session::NewSession;
use crate::state::{SessionState, TerminationReason, Trigger};
use crate::turn::{Asking, PROMPT_MAX, Permissions, Turn};

const TTL: SignedDuration = SignedDuration::from_hours(24);

/// A run is in the store as it was given, to the byte; its session was made with it, and both are recorded.
pub async fn an_enqueued_run_is_there_as_it_was_given(f: &Fixture) {
    let places =
        [Place::Anywhere, Place::Runner(f.env.runner_id()), Place::Hostname("wörk station".parse().unwrap())];
    let full = Turn {
        prompt: "fix \"it\"\n\\ '--' \u{1f600} ü".into(),
        from_history: true,
        permissions: Permissions {
            allow: vec!["mcp__a__b".parse().unwrap(), "Bash (ü)".parse().unwrap()],
            asking: Asking::For(SignedDuration::from_millis(90_001)),
        },
        model: Some("large-2".into()),
    };
    let never = Permissions { asking: Asking::Never, ..Permissions::default() };
    let turns = [None, Some(full), Some(Turn { permissions: never, ..Turn::new("x".repeat(PROMPT_MAX)) })];
    for ((place, priority), turn) in places.into_iter().zip([i32::MIN, 0, i32::MAX]).zip(turns) {
        f.advance(TICK);
        let session = f.new_session();
        let new = NewRun {
            of: RunOf::New(Box::new(session.clone())),
            spec: RunSpec {
                argv: vec!["sh".into(), "-c".into(), "echo \"$(id)\" '\n' `x` \\ ü".into(), String::new()],
                env: vec![("EMPTY".into(), String::new()), ("A B".into(), "=\"'\n;".into())],
                timeout: Some(SignedDuration::from_millis(90_061_001)),
                turn,
            },
            priority,
            affinity: Affinity { place, executor: "acp".parse().unwrap(), project_dir: Some("/a b".into()) },
            ..f.new_run()
        };
        let [run] = f.enqueue([new.clone()]).await;
        let expected = Run {
            id: new.id,
            session: session.id,
            kind: RunKind::Start,
            spec: new.spec,
            priority,
            affinity: new.affinity,
            crew: None,
            waiting_for: 0,
            epoch: Epoch(0),
            state: RunState::Pending,
            stop: None,
            created_at: f.now(),
            claim_by: None,
            started_at: None,
            sandbox: None,
        };
        assert_eq!(run, expected);
        assert_eq!(f.run(run.id).await, expected);
        let made = f.store.session(session.id).await.unwrap().unwrap();
        assert_eq!((made.state, made.created_at), (SessionState::Active, f.now()));
        let records = [
            record::session_created(&session, None),
            record::run_state(run.id, None, RunPhase::Pending, None),
        ];
        assert_eq!(f.records(session.id).await, records);
    }
}

/// Runs come back in the order of the batch; an empty batch is none.
pub async fn a_batch_keeps_its_order(f: &Fixture) {
    let batch: Vec<_> = (0..7).map(|_| f.new_run()).collect();
    let ids: Vec<_> = batch.iter().map(|new| new.id).collect();
    let runs = f.store.enqueue(batch, Some(f.new_crew(None)), f.now()).await.unwrap();
    assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), ids);
    assert!(f.store.enqueue(Vec::new(), None, f.now()).await.unwrap().is_empty());
}

/// A conflict in the last item of a batch leaves nothing of the ones before it, nor of the crew.
pub async fn enqueue_is_all_or_nothing(f: &Fixture) {
    let idle = f.session().await.id;
    f.transition(idle, Trigger::IdleTimeout).await;
    let over = f.session().await.id;
    f.transition(over, Trigger::Terminate(TerminationReason::Stopped)).await;
    let [taken] = f.enqueue([f.new_run()]).await;
    let taken_session = NewSession { id: taken.session, ..f.new_session() };
    let bad: [(&str, NewRun); 7] = [
        ("unknown session", f.resume(f.env.session_id())),
        ("terminated session", f.resume(over)),
        ("busy session", f.resume(taken.session)),
        ("busy with the batch's own run", f.resume(idle)),
        ("taken run id", NewRun { id: taken.id, ..f.new_run() }),
        ("taken session id", NewRun { of: RunOf::New(Box::new(taken_session)), ..f.new_run() }),
        ("unknown dependency", NewRun { after: vec![9], ..f.new_run() }),
    ];
    let before = (f.snapshot(idle).await, f.snapshot(over).await, f.snapshot(taken.session).await);
    let crew = f.new_crew(Some(1));
    for (what, last) in bad {
        let (fresh, session) = (f.new_run(), f.new_session());
        let (fresh_id, session_id) = (fresh.id, session.id);
        let fresh = NewRun { of: RunOf::New(Box::new(session)), ..fresh };
        let outcome = f.store.enqueue(vec![fresh, f.resume(idle), last], Some(crew), f.now()).await;
        assert!(outcome.is_err(), "{what}: {outcome:?}");
        assert_eq!(f.store.run(fresh_id).await.unwrap(), None, "{what}");
        assert_eq!(f.snapshot(session_id).await, super::Snapshot::default(), "{what}");
        let after = (f.snapshot(idle).await, f.snapshot(over).await, f.snapshot(taken.session).await);
        assert_eq!(after, before, "{what}");
    }
    // The crew's id is still free.
    f.store.enqueue(vec![f.new_run()], Some(crew), f.now()).await.unwrap();
}

/// A session with a run that is not over takes no other, wherever that one stands; afterwards it does.
pub async fn a_session_does_one_run_at_a_time(f: &Fixture) {
    let (runner, session) = (f.new_runner(), f.session().await.id);
    let [run] = f.enqueue([f.resume(session)]).await;
    let refuse = async |phase: RunPhase| {
        assert_eq!(f.phase(run.id).await, phase);
        let before = f.snapshot(session).await;
        assert_refused!(
            f.store.enqueue(vec![f.resume(session)], None, f.now()),
            StoreError::Busy { session: named, run: other, phase: found }
                if (*named, *other, *found) == (session, run.id, phase)
        );
        assert_eq!(f.snapshot(session).await, before);
    };
    refuse(RunPhase::Pending).await;
    let fence = f.claim(&runner).await.unwrap().run.fence();
    refuse(RunPhase::Claimed).await;
    f.store.advance(fence, crate::ports::RunProgress::Starting, f.now()).await.unwrap();
    refuse(RunPhase::Starting).await;
    f.store.advance(fence, crate::ports::RunProgress::RUNNING, f.now()).await.unwrap();
    refuse(RunPhase::Running).await;
    f.complete(fence).await;
    f.enqueue([f.resume(session)]).await;
}

/// Many who enqueue a run of one session at once: one gets in.
pub async fn one_of_many_concurrent_runs_of_a_session_gets_in(f: &Fixture) {
    let session = f.session().await.id;
    let enqueue = |new| f.store.enqueue(vec![new], None, f.now());
    let news: Vec<_> = (0..16).map(|_| f.resume(session)).collect();
    let outcomes = join_all(news.into_iter().map(enqueue)).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let busy = |outcome: &&Result<_, _>| matches!(outcome, Err(StoreError::Busy { .. }));
    assert_eq!(outcomes.iter().filter(busy).count(), 15, "{outcomes:?}");
    assert_eq!(f.store.runs(session, 100).await.unwrap().len(), 1);
}

/// A run uses its session, which gets a new time of use: an idle one becomes active, and a suspended one stays so until
/// whoever claims the run brings it back.
pub async fn a_run_uses_its_session(f: &Fixture) {
    let ways: [Option<Trigger>; 3] = [None, Some(Trigger::IdleTimeout), Some(Trigger::Suspend { ttl: TTL })];
    for way in ways {
        let id = f.session().await.id;
        if let Some(trigger) = way {
            f.transition(id, trigger).await;
        }
        let (from, recorded) = (f.state(id).await, f.log(id).await.len());
        f.advance(TICK);
        let [run] = f.enqueue([f.resume(id)]).await;
        let session = f.store.session(id).await.unwrap().unwrap();
        let to = if way == Some(Trigger::IdleTimeout) { SessionState::Active } else { from };
        assert_eq!((session.state, session.active_at), (to, f.now()), "from {from}");
        let mut expected = vec![record::run_state(run.id, None, RunPhase::Pending, None)];
        if from != to {
            expected.insert(0, record::session_state(from, to));
        }
        assert_eq!(f.records(id).await[recorded..], expected, "from {from}");
        let claimed = f.claim(&f.new_runner()).await.unwrap();
        assert_eq!((claimed.run.id, claimed.session), (run.id, session), "from {from}");
    }
}

/// A terminated session takes no run.
pub async fn a_terminated_session_takes_no_run(f: &Fixture) {
    let id = f.session().await.id;
    f.transition(id, Trigger::Terminate(TerminationReason::Killed)).await;
    let before = f.snapshot(id).await;
    assert_refused!(f.store.enqueue(vec![f.resume(id)], None, f.now()), StoreError::Transition(_));
    assert_eq!(f.snapshot(id).await, before);
}

/// The first run of a session is its start, however the session was made; each later one resumes it. The newest are
/// shown first.
pub async fn the_first_run_starts_and_the_others_resume(f: &Fixture) {
    let (runner, session) = (f.new_runner(), f.session().await.id);
    let mut expected = Vec::new();
    for kind in [RunKind::Start, RunKind::Resume, RunKind::Resume] {
        let [run] = f.enqueue([f.resume(session)]).await;
        assert_eq!(run.kind, kind);
        let fence = f.claim(&runner).await.unwrap().run.fence();
        f.start(fence).await;
        expected.insert(0, f.complete(fence).await);
    }
    assert_eq!(f.store.runs(session, 10).await.unwrap(), expected);
    assert_eq!(f.store.runs(session, 2).await.unwrap(), expected[..2]);
    assert!(f.store.runs(session, 0).await.unwrap().is_empty());
    let before = async |run, limit| f.store.runs_before(session, run, limit).await.unwrap();
    assert_eq!(before(expected[0].id, 10).await, expected[1..]);
    assert_eq!(before(expected[0].id, 1).await, expected[1..2]);
    assert!(before(expected[2].id, 10).await.is_empty());
    // One that is another's is none of this session's.
    let [other] = f.enqueue([f.new_run()]).await;
    assert!(before(other.id, 10).await.is_empty());
    assert_eq!(f.store.run(f.env.run_id()).await.unwrap(), None);
}

/// Ids of runs and crews are new, or nothing happens.
pub async fn taken_ids_of_runs_and_crews_are_refused(f: &Fixture) {
    let crew = f.new_crew(None);
    let run = f.store.enqueue(vec![f.new_run()], Some(crew), f.now()).await.unwrap().remove(0);
    let again = NewRun { id: run.id, ..f.new_run() };
    assert_refused!(f.store.enqueue(vec![again], None, f.now()), StoreError::Conflict(Conflict::Exists(_)));
    let other = NewCrew { at_once: Some(1), ..crew };
    assert_refused!(
        f.store.enqueue(vec![f.new_run()], Some(other), f.now()),
        StoreError::Conflict(Conflict::Exists(_))
    );
    let twice = f.new_run();
    let batch = vec![twice.clone(), NewRun { id: twice.id, ..f.new_run() }];
    assert_refused!(f.store.enqueue(batch, None, f.now()), StoreError::Conflict(Conflict::Exists(_)));
    assert_eq!(f.store.run(twice.id).await.unwrap(), None);
    assert_eq!(f.run(run.id).await, run);
}

async fn claim_all(f: &Fixture, runner: &RunnerProfile) -> Vec<RunId> {
    f.claim_all(runner).await.into_iter().map(|run| run.id).collect()
}

/// Highest priority first; equal ones in the order of enqueueing, also within one batch and one instant, and whether
/// they are for this runner or for any.
pub async fn claims_go_by_priority_and_then_by_order(f: &Fixture) {
    let runner = f.new_runner();
    let place = |n: usize| match n % 3 {
        0 => Place::Anywhere,
        1 => Place::Runner(runner.id),
        _ => Place::Hostname(runner.hostname.clone()),
    };
    let mut enqueued = Vec::new();
    for (n, priority) in [0, 5, -3, 5, 0, i32::MAX, i32::MIN, 5, 0, -3, 0, 5].into_iter().enumerate() {
        let mut new = NewRun { priority, ..f.new_run() };
        new.affinity.place = place(n);
        enqueued.push((priority, new));
    }
    let (first, second) = (enqueued[..8].to_vec(), enqueued[8..].to_vec());
    for batch in [first, second] {
        let batch = batch.into_iter().map(|(_, new)| new).collect();
        f.store.enqueue(batch, None, f.now()).await.unwrap();
    }
    let mut expected: Vec<_> = enqueued.iter().map(|(priority, new)| (*priority, new.id)).collect();
    expected.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
    assert_eq!(claim_all(f, &runner).await, expected);
}

/// A claim is a lease under the next epoch; it is recorded, and returned together with the session.
pub async fn a_claim_is_a_lease_under_an_epoch(f: &Fixture) {
    let (runner, [run]) = (f.new_runner(), f.enqueue([f.new_run()]).await);
    f.advance(TICK);
    let claimed = f.claim(&runner).await.unwrap();
    let lease = Lease { runner: runner.id, until: f.now() + LEASE };
    let expected = Run { epoch: Epoch(1), state: RunState::Claimed(lease), ..run };
    assert_eq!(claimed.run, expected);
    assert_eq!(f.run(expected.id).await, expected);
    assert_eq!(f.store.session(expected.session).await.unwrap(), Some(claimed.session));
    let record = record::run_state(expected.id, Some(RunPhase::Pending), RunPhase::Claimed, None);
    assert_eq!(f.records(expected.session).await.last(), Some(&record));
    assert_eq!(f.claim(&runner).await, None, "an empty queue gives nothing");
    assert_eq!(f.run(expected.id).await, expected);
}

/// Many claimers at once get every run, each once.
pub async fn concurrent_claimers_get_each_run_once(f: &Fixture) {
    let batch: Vec<_> = (0..40).map(|_| f.new_run()).collect();
    let ids: HashSet<_> = batch.iter().map(|new| new.id).collect();
    f.store.enqueue(batch, None, f.now()).await.unwrap();
    let runners: Vec<_> = (0..8).map(|_| f.new_runner()).collect();
    let claimed = join_all(runners.iter().map(|runner| claim_all(f, runner))).await.concat();
    assert_eq!(claimed.len(), ids.len());
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>(), ids);
}

/// A run is never visible to a runner that does not match in place, executor or project directory; and one that is
/// not for this runner hides none behind it, however high its priority.
pub async fn a_run_is_seen_only_by_a_runner_that_matches(f: &Fixture) {
    let executors: [ExecutorType; 2] = [ExecutorType::command(), "codex".parse().unwrap()];
    let mut runners = Vec::new();
    for host in ["one", "two"] {
        for executors in [vec![executors[0].clone()], executors.to_vec()] {
            for dirs in [None, Some(vec!["/a".into(), "/b/c".into()]), Some(Vec::new())] {
                let hostname = host.parse().unwrap();
                let executors = executors.clone();
                runners.push(RunnerProfile { hostname, executors, project_dirs: dirs, ..f.new_runner() });
            }
        }
    }
    let places = [
        Place::Anywhere,
        Place::Runner(runners[0].id),
        Place::Runner(runners[5].id),
        Place::Hostname("two".parse().unwrap()),
        Place::Hostname("ONE".parse().unwrap()),
        Place::Runner(f.env.runner_id()),
    ];
    let mut demands = Vec::new();
    for place in places {
        for executor in &executors {
            for dir in [None, Some("/a"), Some("/b"), Some("/A")] {
                let (place, executor) = (place.clone(), executor.clone());
                demands.push(Affinity { place, executor, project_dir: dir.map(Into::into) });
            }
        }
    }
    each_runner_gets_what_it_admits(f, &runners, &demands).await;
}

async fn each_runner_gets_what_it_admits(f: &Fixture, runners: &[RunnerProfile], demands: &[Affinity]) {
    let demanded = |(n, affinity): (usize, &Affinity)| {
        // What nobody admits stands in front.
        let admitted = runners.iter().filter(|runner| affinity.admits(runner)).count();
        let priority = i32::try_from(n % 3).unwrap() - i32::try_from(admitted).unwrap();
        NewRun { priority, affinity: affinity.clone(), ..f.new_run() }
    };
    let batch: Vec<_> = demands.iter().enumerate().map(demanded).collect();
    f.store.enqueue(batch.clone(), None, f.now()).await.unwrap();
    let mut left: Vec<_> = batch.iter().collect();
    // Stable: equal ones stay in the order of enqueueing.
    left.sort_by_key(|new| std::cmp::Reverse(new.priority));
    for runner in runners {
        let (mine, others): (Vec<&NewRun>, Vec<&NewRun>) =
            left.iter().partition(|new| new.affinity.admits(runner));
        let mine: Vec<_> = mine.into_iter().map(|new| new.id).collect();
        assert_eq!(claim_all(f, runner).await, mine, "{runner:?}");
        left = others;
    }
    assert!(!left.is_empty(), "some runs are for nobody here");
    for new in left {
        assert_eq!(f.phase(new.id).await, RunPhase::Pending);
    }
}

/// What a host still has to do: the runs that it holds, and those in the queue that only it may take.
pub async fn a_runner_knows_what_is_left_to_do(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    let has_work = async |runner: &RunnerProfile| f.store.has_work(runner.id).await.unwrap();
    assert!(!has_work(&runner).await);
    f.enqueue([f.new_run()]).await;
    assert!(!has_work(&runner).await, "a run for anybody is nobody's duty");
    let mut mine = f.new_run();
    mine.affinity.place = Place::Runner(runner.id);
    let [mine] = f.enqueue([mine]).await;
    assert_eq!((has_work(&runner).await, has_work(&other).await), (true, false));
    let free = f.claim(&other).await.unwrap().run;
    assert!(has_work(&other).await);
    assert_ne!(free.id, mine.id);
    f.claim(&runner).await.unwrap();
    assert!(has_work(&runner).await);
    for fence in [f.run(mine.id).await.fence(), free.fence()] {
        f.start(fence).await;
        assert!(has_work(&runner).await || has_work(&other).await);
        f.complete(fence).await;
    }
    assert_eq!((has_work(&runner).await, has_work(&other).await), (false, false));
}

/// The runs that a runner holds, the oldest first, in every phase in flight, and no other's.
pub async fn in_flight_shows_what_a_runner_holds(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    f.running(&other).await;
    let mut expected = Vec::new();
    for advance in 0..3 {
        f.advance(TICK);
        let mut run = f.claimed(&runner).await;
        for to in [crate::ports::RunProgress::Starting, crate::ports::RunProgress::RUNNING]
            .into_iter()
            .take(advance)
        {
            run = f.store.advance(run.fence(), to, f.now()).await.unwrap();
        }
        expected.push(run);
    }
    f.enqueue([f.new_run()]).await;
    assert_eq!(f.store.in_flight(runner.id).await.unwrap(), expected);
    f.complete(expected.pop().unwrap().fence()).await;
    assert_eq!(f.store.in_flight(runner.id).await.unwrap(), expected);
    assert!(f.store.in_flight(f.env.runner_id()).await.unwrap().is_empty());
}
