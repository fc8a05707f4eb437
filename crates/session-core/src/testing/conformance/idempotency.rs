//! Calls that are repeated under a key, and make nothing the second time.

use futures_util::future::join_all;

use super::fixture::assert_refused;
use super::{ALL, Fixture, TICK};
use crate::digest::Digest;
use crate::error::{Conflict, StoreError, StoreResult};
use crate::ids::RunId;
use crate::ports::{IDEMPOTENCY_KEPT, Idempotency, NewRun, Page, SessionFilter};
use crate::run::Run;

fn once(principal: &str, key: &str, request: &str) -> Idempotency {
    Idempotency {
        principal: principal.parse().unwrap(),
        key: key.parse().unwrap(),
        digest: Digest::of(request),
    }
}

async fn call(f: &Fixture, batch: Vec<NewRun>, once: &Idempotency) -> StoreResult<Vec<Run>> {
    f.store.enqueue_once(batch, None, Some(once.clone()), f.now()).await
}

async fn sessions(f: &Fixture) -> usize {
    f.store.list(&SessionFilter::default(), &Page::first(ALL)).await.unwrap().items.len()
}

fn ids(runs: &[Run]) -> Vec<RunId> {
    runs.iter().map(|run| run.id).collect()
}

/// The same call again returns the runs of the first one, as they are now and in the order of its batch, and makes
/// nothing.
pub async fn a_repeated_call_makes_nothing(f: &Fixture) {
    let first = once("alice", "one", "request");
    let recalled = async |once| f.store.recall(once, f.now()).await;
    assert_eq!(recalled(&first).await.unwrap(), None);
    let made = call(f, vec![f.new_run(), f.new_run(), f.new_run()], &first).await.unwrap();
    assert_eq!(recalled(&first).await.unwrap().as_ref(), Some(&made));
    assert_eq!(recalled(&once("bob", "one", "request")).await.unwrap(), None);
    assert_eq!(call(f, vec![f.new_run()], &first).await.unwrap(), made);
    let runner = f.new_runner();
    let claimed = f.claim(&runner).await.unwrap().run;
    f.start(claimed.fence()).await;
    let ended = f.complete(claimed.fence()).await;
    let again = call(f, vec![f.new_run(), f.new_run(), f.new_run()], &first).await.unwrap();
    assert_eq!((ids(&again), &again[0]), (ids(&made), &ended));
    assert_eq!(sessions(f).await, 3);
    assert_eq!(f.claim_all(&runner).await.len(), 2);
}

/// Another request under the same key is refused; other keys, other principals and calls without a key are others.
pub async fn another_request_under_a_key_is_refused(f: &Fixture) {
    let first = once("alice", "one", "request");
    call(f, vec![f.new_run()], &first).await.unwrap();
    let other = once("alice", "one", "another");
    assert_refused!(
        call(f, vec![f.new_run()], &other),
        StoreError::Conflict(Conflict::Reused(key)) if *key == first.key
    );
    assert_refused!(f.store.recall(&other, f.now()), StoreError::Conflict(Conflict::Reused(_)));
    assert_eq!(sessions(f).await, 1);
    for next in [once("alice", "two", "request"), once("bob", "one", "request")] {
        call(f, vec![f.new_run()], &next).await.unwrap();
    }
    f.enqueue([f.new_run()]).await;
    assert_eq!(sessions(f).await, 4);
}

/// A call that was refused may be repeated, and succeeds when its reason is gone.
pub async fn a_refused_call_is_not_remembered(f: &Fixture) {
    let [busy] = f.enqueue([f.new_run()]).await;
    let first = once("alice", "one", "request");
    let batch = || vec![f.new_run(), f.resume(busy.session)];
    assert_refused!(call(f, batch(), &first), StoreError::Busy { .. });
    let runner = f.new_runner();
    let claimed = f.claim(&runner).await.unwrap().run;
    f.start(claimed.fence()).await;
    f.complete(claimed.fence()).await;
    let made = call(f, batch(), &first).await.unwrap();
    assert_eq!((made.len(), made[1].session), (2, busy.session));
    assert_eq!(ids(&call(f, batch(), &first).await.unwrap()), ids(&made));
}

/// After a day a key is free, whether the call was forgotten by then or not.
pub async fn a_key_is_free_after_a_day(f: &Fixture) {
    let first = once("alice", "one", "request");
    let made = call(f, vec![f.new_run()], &first).await.unwrap();
    f.advance(IDEMPOTENCY_KEPT - TICK);
    assert_eq!(ids(&call(f, vec![f.new_run()], &first).await.unwrap()), ids(&made));
    f.advance(TICK);
    let other = once("alice", "one", "another");
    let next = call(f, vec![f.new_run()], &other).await.unwrap();
    assert_ne!(ids(&next), ids(&made));
    f.advance(IDEMPOTENCY_KEPT - TICK);
    assert_eq!(ids(&call(f, vec![f.new_run()], &other).await.unwrap()), ids(&next), "its day began anew");
}

/// Calls are forgotten in batches, the oldest first, and none before its time.
pub async fn calls_are_forgotten_in_batches(f: &Fixture) {
    for key in ["one", "two", "three", "four"] {
        call(f, vec![f.new_run()], &once("alice", key, "request")).await.unwrap();
        f.advance(TICK);
    }
    assert_eq!(f.store.forget_idempotency(f.now(), ALL).await.unwrap(), 0);
    f.advance(IDEMPOTENCY_KEPT - TICK - TICK);
    assert_eq!(f.store.forget_idempotency(f.now(), 2).await.unwrap(), 2);
    assert_eq!(f.store.forget_idempotency(f.now(), 2).await.unwrap(), 1);
    assert_eq!(f.store.forget_idempotency(f.now(), 2).await.unwrap(), 0);
    call(f, vec![f.new_run()], &once("alice", "four", "request")).await.unwrap();
    assert_eq!(sessions(f).await, 4, "the last one is known still");
}

/// Of any number of callers at once one makes the runs, and all get them.
pub async fn concurrent_calls_make_one_batch(f: &Fixture) {
    for round in ["one", "two", "three"] {
        let before = sessions(f).await;
        let first = once("alice", round, "request");
        let calls = (0..24).map(|_| call(f, vec![f.new_run(), f.new_run()], &first));
        let made: Vec<_> = join_all(calls).await.into_iter().map(|runs| ids(&runs.unwrap())).collect();
        assert!(made.iter().all(|runs| *runs == made[0]), "{made:?}");
        assert_eq!(sessions(f).await, before + 2);
    }
}
