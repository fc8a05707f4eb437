//! The registry of runners, and claims that are repeated.

use futures_util::future::{join, join_all};

use super::deadline::in_time;
use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::affinity::RunnerProfile;
use crate::error::{Conflict, StoreError};
use crate::run::{Epoch, RunPhase};
use crate::runner::{RunnerRecord, SEEN_EVERY};
use crate::state::{TerminationReason, Trigger};
use crate::wake::Topic;

async fn register(f: &Fixture, profile: &RunnerProfile) -> RunnerRecord {
    f.store.register(profile.clone(), "1.0.0".parse().unwrap(), f.now()).await.unwrap()
}

/// What registers is there as it said; when it registers again it is the next instance, as it says then.
pub async fn a_runner_is_there_as_it_registered(f: &Fixture) {
    let profile = RunnerProfile {
        executors: vec!["codex".parse().unwrap(), "claude-code".parse().unwrap()],
        project_dirs: Some(vec!["/a b".into(), "/c".into()]),
        ..f.new_runner()
    };
    assert_eq!(f.store.runner(profile.id).await.unwrap(), None);
    let first = register(f, &profile).await;
    let expected = RunnerRecord {
        profile: profile.clone(),
        version: "1.0.0".parse().unwrap(),
        instance: Epoch(1),
        draining: false,
        registered_at: f.now(),
        seen_at: f.now(),
    };
    assert_eq!(first, expected);
    assert_eq!(f.store.runner(profile.id).await.unwrap(), Some(first));
    f.advance(TICK);
    let profile = RunnerProfile { hostname: "other".parse().unwrap(), project_dirs: None, ..profile };
    let again = f.store.register(profile.clone(), "1.0.1".parse().unwrap(), f.now()).await.unwrap();
    let version = "1.0.1".parse().unwrap();
    let (instance, registered_at, seen_at) = (Epoch(2), f.now(), f.now());
    assert_eq!(again, RunnerRecord { profile, version, instance, registered_at, seen_at, ..expected });
    let other = register(f, &f.new_runner()).await;
    assert_eq!(f.store.runners().await.unwrap(), [again, other]);
}

/// A sign of life is written down at most every ten seconds, and only of the instance that counts.
pub async fn a_sign_of_life_is_written_now_and_then(f: &Fixture) {
    let runner = register(f, &f.new_runner()).await;
    let (id, first) = (runner.profile.id, runner.instance);
    f.advance(SEEN_EVERY - TICK);
    assert_eq!(f.store.seen(id, first, f.now()).await.unwrap(), runner, "not yet");
    f.advance(TICK);
    let seen = f.store.seen(id, first, f.now()).await.unwrap();
    assert_eq!(seen, RunnerRecord { seen_at: f.now(), ..runner.clone() });
    let newer = register(f, &runner.profile).await;
    f.advance(SEEN_EVERY);
    for given in [first, Epoch(9)] {
        assert_refused!(
            f.store.seen(id, given, f.now()),
            StoreError::Conflict(Conflict::Superseded { runner, held: Epoch(2), given: of }) if *runner == id && *of == given
        );
    }
    assert_eq!(f.store.runner(id).await.unwrap(), Some(newer));
    let unknown = f.env.runner_id();
    assert_refused!(f.store.seen(unknown, first, f.now()), StoreError::UnknownRunner(of) if *of == unknown);
}

/// Of several processes that register under one id at once each is another instance, and one counts in the end.
pub async fn concurrent_registrations_are_instances_of_their_own(f: &Fixture) {
    let profile = f.new_runner();
    let registered = join_all((0..12).map(|_| register(f, &profile))).await;
    let mut instances: Vec<_> = registered.iter().map(|runner| runner.instance.0).collect();
    instances.sort_unstable();
    assert_eq!(instances, (1..=12).collect::<Vec<_>>());
    for runner in registered {
        let seen = f.store.seen(profile.id, runner.instance, f.now()).await;
        assert_eq!(seen.is_ok(), runner.instance == Epoch(12), "{seen:?}");
    }
}

/// A runner that drains gets no runs, keeps what it has, and drains on when it registers again; told otherwise it
/// gets runs, and is woken for them.
pub async fn a_draining_runner_gets_nothing(f: &Fixture) {
    let (profile, other) = (f.new_runner(), f.new_runner());
    register(f, &profile).await;
    let held = f.claimed(&profile).await;
    let mut orders = f.store.listen(Topic::Runner(profile.id));
    assert!(f.store.drain(profile.id, true).await.unwrap().draining);
    in_time("a runner was told to drain", orders.woken()).await;
    f.enqueue([f.new_run(), f.new_run()]).await;
    assert_eq!(f.claim(&profile).await, None);
    assert!(register(f, &profile).await.draining);
    assert_eq!(f.claim(&profile).await, None);
    assert!(f.claim(&other).await.is_some(), "another one gets them");
    let held = f.start(held.fence()).await;
    assert_eq!(f.complete(held.fence()).await.state.phase(), RunPhase::Completed);
    let mut queue = f.store.listen(Topic::Queue);
    assert!(!f.store.drain(profile.id, false).await.unwrap().draining);
    in_time("a runner takes runs again", queue.woken()).await;
    assert!(f.claim(&profile).await.is_some());
    let unknown = f.env.runner_id();
    assert_refused!(f.store.drain(unknown, true), StoreError::UnknownRunner(of) if *of == unknown);
}

/// A runner is forgotten unless it holds a run; that says which live sessions have something there.
pub async fn a_runner_is_forgotten_with_a_word_on_what_it_leaves(f: &Fixture) {
    let profile = f.new_runner();
    let first = register(f, &profile).await;
    let mut bound = Vec::new();
    for name in ["one", "two", "three"] {
        let run = f.running(&profile).await;
        f.store.bind(run.fence(), Fixture::binding(&profile, name), f.now()).await.unwrap();
        f.complete(run.fence()).await;
        bound.insert(0, run.session);
        f.advance(TICK);
    }
    f.transition(bound[1], Trigger::Terminate(TerminationReason::Stopped)).await;
    let held = f.claimed(&profile).await;
    assert_refused!(
        f.store.forget(profile.id),
        StoreError::Conflict(Conflict::RunnerBusy { runner, run }) if *runner == profile.id && *run == held.id
    );
    assert_eq!(f.store.runner(profile.id).await.unwrap(), Some(first.clone()));
    let held = f.start(held.fence()).await;
    f.complete(held.fence()).await;
    f.store.drain(profile.id, true).await.unwrap();
    assert_eq!(f.store.forget(profile.id).await.unwrap(), [held.session, bound[0], bound[2]]);
    assert_eq!((f.store.runner(profile.id).await.unwrap(), f.store.runners().await.unwrap()), (None, vec![]));
    f.enqueue([f.new_run()]).await;
    assert_eq!(f.claim(&profile).await, None);
    assert_refused!(f.store.forget(profile.id), StoreError::UnknownRunner(_));
    assert_refused!(f.store.seen(profile.id, first.instance, f.now()), StoreError::UnknownRunner(_));
    let back = register(f, &profile).await;
    assert_eq!((back.instance, back.draining), (Epoch(2), false), "no instance ever counts twice");
    assert!(f.claim(&profile).await.is_some());
}

/// A claim that is repeated gets its run again, with the lease that it has, also when the runner drains by now.
pub async fn a_repeated_claim_gets_its_run_again(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    register(f, &runner).await;
    f.enqueue([f.new_run(), f.new_run(), f.new_run()]).await;
    let (name, next) = (f.env.claim_id(), f.env.claim_id());
    let claim = async |runner: &RunnerProfile, name| {
        f.store.claim_once(runner, Some(name), LEASE, f.now()).await.unwrap()
    };
    let first = claim(&runner, name).await.unwrap();
    f.advance(TICK);
    f.store.drain(runner.id, true).await.unwrap();
    assert_eq!(claim(&runner, name).await.unwrap(), first);
    assert_eq!(claim(&runner, next).await, None);
    f.store.drain(runner.id, false).await.unwrap();
    let second = claim(&runner, next).await.unwrap();
    assert_ne!(second.run.id, first.run.id);
    let third = claim(&other, name).await.unwrap();
    assert_ne!(third.run.id, first.run.id, "the name is the runner's own");
    assert_eq!(claim(&runner, name).await.unwrap(), first);
}

/// What is not under that claim any more is not given for it again: a run that began, went back, was taken over or is
/// over.
pub async fn a_claim_that_is_over_is_not_repeated(f: &Fixture) {
    let runner = f.new_runner();
    let name = f.env.claim_id();
    let claim = async || f.store.claim_once(&runner, Some(name), LEASE, f.now()).await.unwrap();
    f.enqueue([f.new_run()]).await;
    let begun = claim().await.unwrap().run;
    f.start(begun.fence()).await;
    assert_eq!(claim().await, None);
    f.enqueue([f.new_run()]).await;
    let returned = claim().await.unwrap().run;
    f.store.requeue(returned.fence(), f.now()).await.unwrap();
    let again = claim().await.unwrap().run;
    assert_eq!((again.id, again.epoch), (returned.id, Epoch(2)), "it is the next in the queue");
    let taken = f.store.take_over(again.id, runner.id, LEASE, f.now()).await.unwrap();
    assert_eq!(claim().await, None, "{taken:?}");
    f.advance(LEASE + TICK);
    f.store.reap(f.now(), 10).await.unwrap();
    assert_eq!(f.claim(&runner).await.unwrap().run.id, again.id);
    assert_eq!(claim().await, None, "the claim that holds it has no name");
}

/// A claim that is repeated while it is under way gets one run.
pub async fn concurrent_claims_of_one_name_get_one_run(f: &Fixture) {
    for _ in 0..8 {
        let (runner, name) = (f.new_runner(), f.env.claim_id());
        f.enqueue([f.new_run(), f.new_run(), f.new_run()]).await;
        let claim = || f.store.claim_once(&runner, Some(name), LEASE, f.now());
        let (first, rest) = join(claim(), join_all((0..5).map(|_| claim()))).await;
        let first = first.unwrap().unwrap();
        for claimed in rest {
            assert_eq!(claimed.unwrap().unwrap(), first);
        }
        assert_eq!(f.store.in_flight(runner.id).await.unwrap(), [first.run]);
        f.claim_all(&f.new_runner()).await;
    }
}
