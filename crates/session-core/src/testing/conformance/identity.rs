//! Get-or-create by identity (SPEC section 3).

use std::collections::HashSet;

use futures_util::future::{join, join_all};
use jiff::SignedDuration;

use super::fixture::assert_refused;
use super::{Fixture, TICK};
use crate::error::StoreError;
use crate::family::Parent;
use crate::identity::{IdentityKey, Scope};
use crate::ids::SessionId;
use crate::ports::{STAMP_EVERY, SessionFilter};
use crate::record;
use crate::run::{EndKind, ReasonCode, RunPhase, StopMode};
use crate::session::{Generation, NewSession, OpenSession, Opened, Validity};
use crate::state::{SessionState, TerminationReason, Trigger};

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// The ordinary identity of these cases.
fn ordinary(f: &Fixture) -> OpenSession {
    f.open("/repo", "run-1", "one")
}

async fn open(f: &Fixture, request: OpenSession) -> Opened {
    f.store.open(request, f.now()).await.unwrap()
}

/// A session and the next generation after it, both of the ordinary identity.
async fn assert_next_generation(f: &Fixture, old: &Opened, new: &Opened) {
    let expected = Opened {
        session: new.session,
        generation: old.generation + 1,
        previous: Some(old.session),
        created: true,
        stamped: true,
        expires_at: f.now() + DAY,
    };
    assert_eq!(*new, expected);
    assert_ne!(new.session, old.session);
    let session = f.store.session(new.session).await.unwrap().unwrap();
    assert_eq!(session.generation, Some(generation(ordinary(f).identity.key(), new)));
    assert_eq!(session.state, SessionState::Active);
}

fn generation(key: IdentityKey, opened: &Opened) -> Generation {
    Generation { key, number: opened.generation, previous: opened.previous }
}

async fn assert_identity_expired(f: &Fixture, session: SessionId) {
    let reason = TerminationReason::IdentityExpired;
    assert_eq!(f.state(session).await, SessionState::Terminated { at: f.now(), reason });
}

/// Two agents, two executions, two repositories, two machines, two days: each its own session; the same again: the
/// same session. No choice of names makes two identities meet.
pub async fn the_truth_table_holds(f: &Fixture) {
    let rows = [
        ("/repo", "run-1", "one"),
        ("/repo", "run-1", "two"),
        ("/repo", "run-2", "one"),
        ("/other", "run-1", "one"),
        ("/repo", "run-1", "default"),
        ("/repo", "run-2", "default"),
        ("/repo", "a:b", "c"),
        ("/repo", "a", "b:c"),
        ("/repo", "' OR 1=1; --", "\\"),
        ("/Repo", "run-1", "one"),
        ("/repo", "run-1", "ONE"),
        ("/repo", "2026-11-21", "one"),
    ];
    let mut identities: Vec<_> = rows.map(|(repo, execution, agent)| f.open(repo, execution, agent)).into();
    for day in ["2026-11-21", "2026-11-22"] {
        let mut sentinel = ordinary(f);
        sentinel.identity.scope = Scope::Sentinel { day: day.parse().unwrap() };
        identities.push(sentinel);
    }
    let mut elsewhere = ordinary(f);
    elsewhere.identity.machine = "build-7".parse().unwrap();
    identities.push(elsewhere);

    let mut sessions = HashSet::new();
    for request in &identities {
        let opened = open(f, request.clone()).await;
        assert!(opened.created && sessions.insert(opened.session), "{:?} met another", request.identity);
        assert_eq!((opened.generation, opened.previous), (1, None));
    }
    for request in &identities {
        let again = OpenSession { new: f.new_session(), ..request.clone() };
        let opened = open(f, again).await;
        assert!(!opened.created && sessions.remove(&opened.session), "{:?} was not found", request.identity);
    }
}

/// The first call makes the session as it is asked to, and records it.
pub async fn a_new_identity_makes_its_session(f: &Fixture) {
    let request = ordinary(f);
    let opened = open(f, request.clone()).await;
    let expected = Opened {
        session: request.new.id,
        generation: 1,
        previous: None,
        created: true,
        stamped: true,
        expires_at: f.now() + DAY,
    };
    assert_eq!(opened, expected);
    let session = f.store.session(opened.session).await.unwrap().unwrap();
    let first = generation(request.identity.key(), &opened);
    assert_eq!((session.state, session.generation), (SessionState::Active, Some(first)));
    assert_eq!(
        (session.agent, session.principal),
        (request.new.agent.clone(), request.new.principal.clone())
    );
    assert_eq!(f.records(opened.session).await, [record::session_created(&request.new, Some(&first))]);
    assert_eq!(session.generation.unwrap().key.to_string().len(), 64);
}

/// A known identity leads to its session: nothing is made, recorded or changed of it, whatever its state.
pub async fn a_known_identity_is_found_and_nothing_is_made(f: &Fixture) {
    let first = open(f, ordinary(f)).await;
    for trigger in [Trigger::Activity, Trigger::IdleTimeout, Trigger::Suspend { ttl: DAY }] {
        f.transition(first.session, trigger).await;
        f.advance(STAMP_EVERY + TICK);
        let before = f.snapshot(first.session).await;
        let request = ordinary(f);
        let unused = request.new.id;
        let expected = Opened { created: false, expires_at: f.now() + DAY, ..first };
        assert_eq!(open(f, request).await, expected);
        assert_eq!(f.snapshot(first.session).await, before);
        assert_eq!(f.store.session(unused).await.unwrap(), None);
    }
    assert_eq!(f.list(&SessionFilter::default()).await, [first.session]);
}

/// Where an identity leads can be asked without making anything, and without using it.
pub async fn where_an_identity_leads_is_told_without_using_it(f: &Fixture) {
    let key = ordinary(f).identity.key();
    let ask = async || f.store.opened(key, None, f.now()).await.unwrap();
    assert_eq!(ask().await, None);
    assert!(f.list(&SessionFilter::default()).await.is_empty());
    let first = open(f, ordinary(f)).await;
    f.advance(STAMP_EVERY * 2);
    let found = Opened { created: false, stamped: false, ..first };
    assert_eq!(ask().await, Some(found), "it is not prolonged");
    f.clock.set(first.expires_at);
    assert_eq!(ask().await, None);
    let second = open(f, ordinary(f)).await;
    assert_eq!(ask().await, Some(Opened { created: false, stamped: false, ..second }));
    f.transition(second.session, Trigger::Terminate(TerminationReason::Killed)).await;
    assert_eq!(ask().await, None);
}

/// Who is led to a session without making one uses it: as long as it is used it is valid, at the most for its lifetime.
pub async fn to_be_led_to_a_session_prolongs_it(f: &Fixture) {
    let key = ordinary(f).identity.key();
    let validity = Validity { ttl: DAY, lifetime: Some(DAY * 3 / 2) };
    let ask = async || f.store.opened(key, Some(validity), f.now()).await.unwrap();
    assert_eq!(ask().await, None);
    assert!(f.list(&SessionFilter::default()).await.is_empty());
    let first = open(f, ordinary(f)).await;
    let born = f.now();
    let found = Opened { created: false, stamped: false, ..first };
    f.advance(STAMP_EVERY);
    assert_eq!(ask().await, Some(found), "its stamp is young");
    f.advance(TICK);
    assert_eq!(ask().await, Some(Opened { stamped: true, expires_at: f.now() + DAY, ..found }));
    f.advance(DAY - TICK);
    let capped = Opened { stamped: true, expires_at: born + DAY * 3 / 2, ..found };
    assert_eq!(ask().await, Some(capped));
    assert_eq!(ask().await, Some(Opened { stamped: false, ..capped }));
    f.clock.set(capped.expires_at);
    assert_eq!(ask().await, None);
    assert_eq!(f.list(&SessionFilter::default()).await, [first.session]);
}

/// A hundred calls at once make one session, and exactly one of them made it.
pub async fn concurrent_calls_make_one_session(f: &Fixture) {
    let requests: Vec<_> = (0..100).map(|_| ordinary(f)).collect();
    let opened = join_all(requests.into_iter().map(|request| open(f, request))).await;
    let sessions: HashSet<_> = opened.iter().map(|opened| (opened.session, opened.generation)).collect();
    assert_eq!(sessions.len(), 1);
    assert_eq!(opened.iter().filter(|opened| opened.created).count(), 1);
    assert_eq!(f.list(&SessionFilter::default()).await, [opened[0].session]);
    assert_eq!(f.log(opened[0].session).await.len(), 1);
}

/// The same when the identity has expired: one new generation, and the old session is terminated once.
pub async fn concurrent_calls_on_an_expired_identity_make_one_generation(f: &Fixture) {
    let old = open(f, ordinary(f)).await;
    f.advance(DAY);
    let requests: Vec<_> = (0..50).map(|_| ordinary(f)).collect();
    let opened = join_all(requests.into_iter().map(|request| open(f, request))).await;
    let made: Vec<_> = opened.iter().filter(|opened| opened.created).collect();
    assert_eq!(made.len(), 1);
    assert_next_generation(f, &old, made[0]).await;
    let same = |opened: &Opened| Opened { created: true, stamped: true, ..*opened } == *made[0];
    assert!(opened.iter().all(same), "{opened:?}");
    assert_identity_expired(f, old.session).await;
    assert_eq!(f.log(old.session).await.len(), 2);
}

/// The expiry slides with use, in steps: a stamp is written again only when it is older than a minute.
pub async fn the_stamp_is_written_at_most_once_a_minute(f: &Fixture) {
    let start = f.now();
    let first = open(f, ordinary(f)).await;
    assert_eq!(first.expires_at, start + DAY);
    f.advance(STAMP_EVERY);
    assert_eq!(open(f, ordinary(f)).await.expires_at, start + DAY, "a minute is not older than a minute");
    f.advance(TICK);
    let moved = start + STAMP_EVERY + TICK + DAY;
    assert_eq!(open(f, ordinary(f)).await.expires_at, moved);
    f.advance(STAMP_EVERY);
    assert_eq!(open(f, ordinary(f)).await.expires_at, moved, "the minute is counted from the last stamp");
}

/// Until the last millisecond before its expiry an identity is valid; from that instant on it leads to a new
/// session, linked to the old one, which is terminated.
pub async fn an_expired_identity_makes_a_new_generation(f: &Fixture) {
    let first = open(f, ordinary(f)).await;
    f.advance(DAY - TICK);
    let found = open(f, ordinary(f)).await;
    assert_eq!((found.session, found.created), (first.session, false));
    f.advance(DAY);
    let request = ordinary(f);
    let second = open(f, request.clone()).await;
    assert_next_generation(f, &found, &second).await;
    assert_identity_expired(f, first.session).await;
    let (from, to) = (SessionState::Active, f.state(first.session).await);
    assert_eq!(f.records(first.session).await[1..], [record::session_state(from, to)]);
    let key = request.identity.key();
    assert_eq!(
        f.records(second.session).await,
        [record::session_created(&request.new, Some(&generation(key, &second)))]
    );
    // The chain goes on, and never back.
    f.advance(DAY);
    assert_next_generation(f, &second, &open(f, ordinary(f)).await).await;
}

/// An expired session stays what it is: no use of its identity and no step of its own revives it.
pub async fn an_expired_session_is_never_revived(f: &Fixture) {
    let old = open(f, ordinary(f)).await;
    f.append(old.session, vec![Fixture::message("kept")]).await;
    f.advance(DAY);
    let new = open(f, ordinary(f)).await;
    let before = f.snapshot(old.session).await;
    for trigger in [Trigger::Activity, Trigger::Resume, Trigger::Terminate(TerminationReason::Killed)] {
        assert_refused!(f.store.transition(old.session, trigger, f.now()), StoreError::Transition(_));
    }
    assert_refused!(f.store.enqueue(vec![f.resume(old.session)], None, f.now()), StoreError::Transition(_));
    assert_eq!(open(f, ordinary(f)).await.session, new.session);
    assert_eq!(f.snapshot(old.session).await, before);
}

/// However often it is used, an identity with a lifetime expires when that is over.
pub async fn a_lifetime_caps_the_expiry(f: &Fixture) {
    let lifetime = SignedDuration::from_hours(36);
    let request = || OpenSession { lifetime: Some(lifetime), ..ordinary(f) };
    let born = f.now();
    let first = open(f, request()).await;
    assert_eq!(first.expires_at, born + DAY);
    f.advance(DAY - TICK);
    assert_eq!(open(f, request()).await.expires_at, born + lifetime);
    f.clock.set(born + lifetime - TICK);
    let last = open(f, request()).await;
    assert_eq!((last.session, last.expires_at), (first.session, born + lifetime));
    f.advance(TICK);
    assert_next_generation(f, &last, &open(f, request()).await).await;
    let short = OpenSession { lifetime: Some(TICK), ..f.open("/repo", "short", "one") };
    assert_eq!(open(f, short).await.expires_at, f.now() + TICK, "a lifetime below the ttl counts at once");
}

/// A time to live beyond the calendar is for ever, not an error.
pub async fn an_endless_ttl_lasts(f: &Fixture) {
    let request =
        || OpenSession { ttl: SignedDuration::MAX, lifetime: Some(SignedDuration::MAX), ..ordinary(f) };
    let first = open(f, request()).await;
    f.advance(DAY * 3_650);
    let found = open(f, request()).await;
    assert_eq!((found.session, found.created), (first.session, false));
}

/// A session that was terminated for another reason ends its generation; the reason stays.
pub async fn a_terminated_session_makes_its_identity_expire(f: &Fixture) {
    let old = open(f, ordinary(f)).await;
    f.transition(old.session, Trigger::Terminate(TerminationReason::Killed)).await;
    let before = f.snapshot(old.session).await;
    f.advance(TICK);
    assert_next_generation(f, &old, &open(f, ordinary(f)).await).await;
    assert_eq!(f.snapshot(old.session).await, before);
}

/// When a new generation terminates the old session, that is a termination like any other: its pending run ends, and
/// one in flight is ordered to be killed.
pub async fn a_new_generation_ends_the_runs_of_the_old_one(f: &Fixture) {
    let old = open(f, ordinary(f)).await;
    let [pending] = f.enqueue([f.resume(old.session)]).await;
    f.advance(DAY);
    let new = open(f, ordinary(f)).await;
    let (_, ending) = f.run(pending.id).await.ended().map(|(at, ending)| (at, ending.clone())).unwrap();
    assert_eq!((ending.kind, ending.reason), (EndKind::Stopped, Some(ReasonCode::SessionTerminated)));

    f.enqueue([f.resume(new.session)]).await;
    let claimed = f.claim(&f.new_runner()).await.unwrap().run;
    f.advance(DAY);
    open(f, ordinary(f)).await;
    let ordered = f.run(claimed.id).await;
    assert_eq!((ordered.state.phase(), ordered.stop.unwrap().mode), (RunPhase::Claimed, StopMode::Kill));
}

/// The cleanup forgets what has expired, the oldest first, in batches of the size that is asked for, and nothing
/// that is valid for one more millisecond.
pub async fn cleanup_takes_batches_of_expired_identities_only(f: &Fixture) {
    let mut sessions = Vec::new();
    for n in 0..5 {
        sessions.push(open(f, f.open("/repo", &format!("run-{n}"), "one")).await.session);
        f.advance(TICK);
    }
    // The first four expire at the latest now, the fifth in a millisecond.
    f.advance(DAY - TICK * 2);
    let expire = |limit| f.store.expire_identities(f.now(), limit);
    assert!(expire(0).await.unwrap().is_empty());
    assert_eq!(expire(3).await.unwrap(), sessions[..3]);
    assert_eq!(expire(3).await.unwrap(), sessions[3..4]);
    assert!(expire(3).await.unwrap().is_empty());
    for session in &sessions[..4] {
        assert_identity_expired(f, *session).await;
        assert_eq!(f.log(*session).await.len(), 2, "the log stays, with the termination");
    }
    assert_eq!(f.state(sessions[4]).await, SessionState::Active);
    let last = open(f, f.open("/repo", "run-4", "one")).await;
    assert_eq!((last.session, last.created), (sessions[4], false));
}

/// Forgotten does not mean unnumbered: the next generation counts on, and is linked to the last one.
pub async fn generations_count_on_after_a_cleanup(f: &Fixture) {
    let first = open(f, ordinary(f)).await;
    f.advance(DAY);
    let second = open(f, ordinary(f)).await;
    f.advance(DAY);
    assert_eq!(f.store.expire_identities(f.now(), 10).await.unwrap(), [second.session]);
    let before = (f.snapshot(first.session).await, f.snapshot(second.session).await);
    f.advance(TICK);
    assert_next_generation(f, &second, &open(f, ordinary(f)).await).await;
    assert_eq!((f.snapshot(first.session).await, f.snapshot(second.session).await), before);
}

/// The cleanup forgets the identity of a busy session but lets the session live; of a terminated one it keeps the
/// reason. The next generation terminates the one that was spared.
pub async fn cleanup_spares_sessions_with_a_run(f: &Fixture) {
    let busy = open(f, ordinary(f)).await;
    f.enqueue([f.resume(busy.session)]).await;
    f.advance(TICK);
    let killed = open(f, f.open("/repo", "run-2", "one")).await;
    f.transition(killed.session, Trigger::Terminate(TerminationReason::Killed)).await;
    let before = (f.snapshot(busy.session).await, f.snapshot(killed.session).await);
    f.advance(DAY);
    assert_eq!(f.store.expire_identities(f.now(), 10).await.unwrap(), [busy.session, killed.session]);
    assert_eq!((f.snapshot(busy.session).await, f.snapshot(killed.session).await), before);
    assert_next_generation(f, &busy, &open(f, ordinary(f)).await).await;
    assert_identity_expired(f, busy.session).await;
}

/// A cleanup and the next use at one instant: whichever comes first, one new generation is there afterwards.
pub async fn cleanup_and_use_at_once_agree(f: &Fixture) {
    let request = |n: u32| f.open("/repo", &format!("run-{n}"), "one");
    let old = join_all((0..8).map(|n| open(f, request(n)))).await;
    f.advance(DAY);
    let both = |n| join(open(f, request(n)), f.store.expire_identities(f.now(), 2));
    let outcomes = join_all((0..8).map(both)).await;
    for (n, (old, (new, swept))) in (0..).zip(old.iter().zip(outcomes)) {
        swept.unwrap();
        assert_eq!((new.generation, new.previous, new.created), (2, Some(old.session), true));
        assert_identity_expired(f, old.session).await;
        assert_eq!(f.state(new.session).await, SessionState::Active);
        assert_eq!(open(f, request(n)).await.session, new.session);
    }
}

/// An id that is taken and a parent that is not there are refused, and leave nothing: the identity is still free.
pub async fn a_refused_open_leaves_nothing(f: &Fixture) {
    let taken = f.session().await.id;
    let with = |new: NewSession| OpenSession { new, ..ordinary(f) };
    let request = with(NewSession { id: taken, ..f.new_session() });
    assert_refused!(f.store.open(request, f.now()), StoreError::Conflict(_));
    let request = with(NewSession { parent: Some(Parent::new(f.env.session_id())), ..f.new_session() });
    assert_refused!(f.store.open(request, f.now()), StoreError::UnknownSession(_));
    let opened = open(f, ordinary(f)).await;
    assert_eq!((opened.generation, opened.created), (1, true));
}
