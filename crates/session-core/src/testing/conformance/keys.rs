//! Get-or-create by a caller's own name for a session.

use std::collections::HashSet;

use futures_util::future::join_all;
use jiff::SignedDuration;

use super::fixture::assert_refused;
use super::{Fixture, TICK};
use crate::asked::Asked;
use crate::budget::{Budget, BudgetChange, BudgetPatch, Usage};
use crate::error::{Conflict, StoreError};
use crate::ports::{NewRun, RunOf, STAMP_EVERY};
use crate::record;
use crate::run::{RunKind, RunPhase, StopMode};
use crate::session::{Keyed, NewSession};
use crate::state::{SessionState, TerminationReason, Trigger};

const TTL: SignedDuration = SignedDuration::from_hours(24);

fn keyed(f: &Fixture, key: &str) -> NewSession {
    NewSession { key: Some(key.parse().unwrap()), ..f.new_session() }
}

async fn open(f: &Fixture, new: NewSession) -> Keyed {
    f.store.open_key(new, f.now()).await.unwrap()
}

fn run_of(f: &Fixture, session: NewSession) -> NewRun {
    NewRun { of: RunOf::Keyed(Box::new(session), Box::default()), ..f.new_run() }
}

/// A key that nobody has makes a session as it was given, with its first event.
pub async fn a_new_key_makes_its_session(f: &Fixture) {
    let new = NewSession { label: Some("label".parse().unwrap()), ..keyed(f, "telegram:dm:42 'ü'") };
    let Keyed { session, created } = open(f, new.clone()).await;
    assert_eq!((session.id, &session.key, &session.label, created), (new.id, &new.key, &new.label, true));
    assert_eq!((session.state, session.active_at), (SessionState::Active, f.now()));
    assert_eq!(f.store.session(new.id).await.unwrap(), Some(session));
    assert_eq!(f.records(new.id).await, [record::session_created(&new, None)]);
}

/// The same key leads to the same session, whatever else is asked for, and makes nothing.
pub async fn a_known_key_is_found_and_nothing_is_made(f: &Fixture) {
    let first = open(f, keyed(f, "one")).await.session;
    let before = f.snapshot(first.id).await;
    let again = NewSession { label: Some("other".parse().unwrap()), ..keyed(f, "one") };
    let again_id = again.id;
    assert_eq!(open(f, again).await, Keyed { session: first.clone(), created: false });
    assert_eq!(f.snapshot(first.id).await, before);
    assert_eq!(f.store.session(again_id).await.unwrap(), None);
    assert_ne!(open(f, keyed(f, "One")).await.session.id, first.id);
}

/// Two owners may use one key, and find each their own session.
pub async fn keys_are_per_owner(f: &Fixture) {
    let of = |owner: &str| NewSession { principal: owner.parse().unwrap(), ..keyed(f, "one") };
    let alice = open(f, of("alice")).await.session.id;
    let bob = open(f, of("bob")).await;
    assert!(bob.created);
    assert_ne!(alice, bob.session.id);
    assert_eq!(open(f, of("alice")).await.session.id, alice);
}

/// To be found makes an idle session active, leaves a suspended one suspended, and is written at most once a minute.
pub async fn to_be_found_is_use(f: &Fixture) {
    let id = open(f, keyed(f, "one")).await.session.id;
    let made = f.now();
    f.advance(STAMP_EVERY);
    assert_eq!(open(f, keyed(f, "one")).await.session.active_at, made);
    f.advance(TICK);
    let found = open(f, keyed(f, "one")).await.session;
    assert_eq!((found.state, found.active_at), (SessionState::Active, f.now()));
    assert_eq!(f.store.session(id).await.unwrap(), Some(found));

    f.advance(TICK);
    let idle = f.transition(id, Trigger::IdleTimeout).await.state;
    let found = open(f, keyed(f, "one")).await.session;
    assert_eq!((found.state, found.active_at), (SessionState::Active, f.now()));
    assert_eq!(f.store.session(id).await.unwrap(), Some(found));
    assert_eq!(f.records(id).await.last(), Some(&record::session_state(idle, SessionState::Active)));

    let suspended = f.transition(id, Trigger::Suspend { ttl: TTL }).await.state;
    let recorded = f.log(id).await;
    f.advance(STAMP_EVERY + TICK);
    let found = open(f, keyed(f, "one")).await.session;
    assert_eq!((found.state, found.active_at), (suspended, f.now()));
    assert_eq!(f.store.session(id).await.unwrap(), Some(found));
    assert_eq!(f.log(id).await, recorded);
}

/// A terminated session keeps its key for the record; the next call makes another session, as often as it happens.
pub async fn a_terminated_session_gives_its_key_up(f: &Fixture) {
    let mut seen = HashSet::new();
    for _ in 0..3 {
        let opened = open(f, keyed(f, "one")).await;
        assert!(opened.created && seen.insert(opened.session.id));
        f.transition(opened.session.id, Trigger::Terminate(TerminationReason::Killed)).await;
        let over = f.store.session(opened.session.id).await.unwrap().unwrap();
        assert_eq!(over.key, opened.session.key);
    }
    f.store.create(keyed(f, "one"), f.now()).await.unwrap();
}

/// Whoever makes a session under a key that is taken is refused; an id that is taken is told as such.
pub async fn a_taken_key_is_refused(f: &Fixture) {
    let first = open(f, keyed(f, "one")).await.session;
    let before = f.snapshot(first.id).await;
    let new = keyed(f, "one");
    let (id, expected) = (new.id, Conflict::key_taken(&first.principal, first.key.as_ref().unwrap()));
    let refused = f.store.create(new.clone(), f.now()).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(error)) if *error == expected), "{refused:?}");
    let run = NewRun { of: RunOf::New(Box::new(new)), ..f.new_run() };
    let refused = f.store.enqueue(vec![f.new_run(), run], None, f.now()).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(error)) if *error == expected), "{refused:?}");
    assert_eq!((f.store.session(id).await.unwrap(), f.snapshot(first.id).await), (None, before));
    let taken = NewSession { id: first.id, ..keyed(f, "two") };
    let expected = Conflict::Exists(first.id.to_string());
    let refused = f.store.open_key(taken, f.now()).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(error)) if *error == expected), "{refused:?}");
    assert!(open(f, keyed(f, "two")).await.created, "what was refused left nothing");
}

/// Without a key there is nothing to open.
pub async fn a_key_is_needed(f: &Fixture) {
    let new = f.new_session();
    assert_refused!(f.store.open_key(new.clone(), f.now()), StoreError::Backend(_));
    assert_refused!(f.store.enqueue(vec![run_of(f, new.clone())], None, f.now()), StoreError::Backend(_));
    assert_eq!(f.store.session(new.id).await.unwrap(), None);
}

/// A hundred callers at once get one session.
pub async fn concurrent_calls_make_one_session(f: &Fixture) {
    let opened = join_all((0..100).map(|_| open(f, keyed(f, "one")))).await;
    assert_eq!(opened.iter().filter(|opened| opened.created).count(), 1);
    let ids: HashSet<_> = opened.iter().map(|opened| opened.session.id).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(f.list(&crate::ports::SessionFilter::default()).await.len(), 1);
}

/// The same while the session that has the key is terminated: some get the old one, the others one new one.
pub async fn concurrent_calls_on_a_key_that_was_given_up_make_one_session(f: &Fixture) {
    let old = open(f, keyed(f, "one")).await.session.id;
    let terminate = async || {
        f.transition(old, Trigger::Terminate(TerminationReason::Killed)).await;
        None
    };
    let call = async |n: usize| if n == 4 { terminate().await } else { Some(open(f, keyed(f, "one")).await) };
    let opened: Vec<_> = join_all((0..24).map(call)).await.into_iter().flatten().collect();
    let new: HashSet<_> = opened.iter().map(|opened| opened.session.id).filter(|id| *id != old).collect();
    assert!(new.len() <= 1, "{new:?}");
    assert_eq!(opened.iter().filter(|opened| opened.created).count(), new.len());
    let now = open(f, keyed(f, "one")).await.session.id;
    assert!(now != old && new.iter().all(|id| *id == now));
}

/// A run by key makes the session at first, and later uses the one that is there; a suspended one stays so.
pub async fn a_run_finds_or_makes_its_session_by_key(f: &Fixture) {
    let (runner, new) = (f.new_runner(), keyed(f, "one"));
    let id = new.id;
    for (kind, trigger) in [
        (RunKind::Start, None),
        (RunKind::Resume, Some(Trigger::IdleTimeout)),
        (RunKind::Resume, Some(Trigger::Suspend { ttl: TTL })),
    ] {
        if let Some(trigger) = trigger {
            f.transition(id, trigger).await;
        }
        f.advance(TICK);
        let session = if kind == RunKind::Start { new.clone() } else { keyed(f, "one") };
        let [run] = f.enqueue([run_of(f, session)]).await;
        assert_eq!((run.session, run.kind), (id, kind));
        let session = f.store.session(id).await.unwrap().unwrap();
        let suspended = matches!(trigger, Some(Trigger::Suspend { .. }));
        assert_eq!(
            (session.state.name(), session.active_at),
            (if suspended { "suspended" } else { "active" }, f.now())
        );
        let fence = f.claim(&runner).await.unwrap().run.fence();
        f.start(fence).await;
        f.complete(fence).await;
    }
    let first = f.records(id).await;
    assert_eq!(first[0], record::session_created(&new, None));
    assert_eq!(first[1].kind.as_str(), "run.state");
}

/// A key whose session is busy is refused, within a batch too, and the batch with it.
pub async fn a_key_does_one_run_at_a_time(f: &Fixture) {
    let id = open(f, keyed(f, "one")).await.session.id;
    let [run] = f.enqueue([f.resume(id)]).await;
    let busy = |error: &StoreError| {
        matches!(error, StoreError::Busy { session, run: other, phase: RunPhase::Pending }
            if (*session, *other) == (id, run.id))
    };
    let before = f.snapshot(id).await;
    let other = f.new_run();
    let batch = vec![other.clone(), run_of(f, keyed(f, "one"))];
    assert_refused!(f.store.enqueue(batch, None, f.now()), error if busy(error));
    assert_eq!((f.snapshot(id).await, f.store.run(other.id).await.unwrap()), (before, None));

    let (first, second) = (run_of(f, keyed(f, "two")), run_of(f, keyed(f, "two")));
    let made = first.id;
    assert_refused!(
        f.store.enqueue(vec![first, second], None, f.now()),
        StoreError::Busy { run, phase: RunPhase::Pending, .. } if *run == made
    );
    assert!(open(f, keyed(f, "two")).await.created, "what was refused left nothing");

    let several = [run_of(f, keyed(f, "three")), f.new_run(), run_of(f, keyed(f, "four"))];
    let sessions: HashSet<_> = f.enqueue(several).await.iter().map(|run| run.session).collect();
    assert_eq!(sessions.len(), 3);
}

/// Whether a run's session is new is decided when the run is enqueued: one that is found and is not as was asked for is
/// refused with all of the batch, one that was asked for as it was made, or as it is by now, is found, and where there is none
/// any more one is made.
pub async fn a_run_gets_no_session_that_is_otherwise(f: &Fixture) {
    let asked = |tokens| {
        let budget = BudgetPatch { tokens_max: Some(tokens), ..BudgetPatch::default() };
        Box::new(Asked { budget, ..Asked::default() })
    };
    let start = |tokens: u64, asked: Box<Asked>| {
        let budget = Budget { tokens_max: tokens, ..Budget::default() };
        let new = NewSession { budget, ..keyed(f, "one") };
        NewRun { of: RunOf::Keyed(Box::new(new), asked), ..f.new_run() }
    };
    let stopped = async |run: NewRun| {
        let [run] = f.enqueue([run]).await;
        f.store.request_stop(run.id, StopMode::Kill, f.now()).await.unwrap();
        run.session
    };
    let first = stopped(start(100, asked(100))).await;
    f.store
        .set_budget(
            first,
            BudgetChange::Add(Usage { tokens: 50, ..Usage::NONE }),
            &"bob".parse().unwrap(),
            f.now(),
        )
        .await
        .unwrap();
    for tokens in [100, 150] {
        assert_eq!(stopped(start(tokens, asked(tokens))).await, first);
    }
    let before = f.snapshot(first).await;
    let batch = vec![f.new_run(), start(70, asked(70))];
    let ids = [batch[0].id, batch[1].id];
    assert_refused!(
        f.store.enqueue(batch, None, f.now()),
        StoreError::Conflict(Conflict::Otherwise { session, what }) if *session == first && what == "limits"
    );
    assert_eq!(f.snapshot(first).await, before);
    for id in ids {
        assert_eq!(f.store.run(id).await.unwrap(), None);
    }
    f.transition(first, Trigger::Terminate(TerminationReason::Killed)).await;
    assert_ne!(stopped(start(70, asked(70))).await, first);
    // Of many at once that ask for different things those get in that ask for what the first one made.
    let starts = (0..12).map(|n| f.store.enqueue(vec![in_race(f, 1 + n % 3)], None, f.now()));
    let outcomes = join_all(starts).await;
    let got_in: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
    assert_eq!(got_in.len(), 1, "a session does one run at a time: {outcomes:?}");
    let session = f.store.session(got_in[0][0].session).await.unwrap().unwrap();
    for (n, outcome) in (0..).zip(&outcomes) {
        let same = session.budget.tokens_max == 1 + n % 3;
        match outcome {
            Ok(_) => assert!(same),
            Err(StoreError::Busy { .. }) => {}
            Err(StoreError::Conflict(Conflict::Otherwise { .. })) => assert!(!same),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A run of the session of a key, which is to have so many tokens.
fn in_race(f: &Fixture, tokens_max: u64) -> NewRun {
    let budget = Budget { tokens_max, ..Budget::default() };
    let asked = BudgetPatch { tokens_max: Some(tokens_max), ..BudgetPatch::default() };
    let new = NewSession { budget, ..keyed(f, "race") };
    let asked = Asked { budget: asked, ..Asked::default() };
    NewRun { of: RunOf::Keyed(Box::new(new), Box::new(asked)), ..f.new_run() }
}
