//! Sessions that begin as copies of another one's log.

use futures_util::future::{join, join_all};

use super::fixture::assert_refused;
use super::{Fixture, TICK};
use crate::budget::{Budget, Usage};
use crate::error::{Conflict, StoreError};
use crate::event::{Event, Payload, Seq};
use crate::family::Parent;
use crate::ids::SessionId;
use crate::record;
use crate::session::{ForkPoint, ManagedSession, NewSession};
use crate::state::{SessionState, TerminationReason, Trigger};

/// A session with a run, messages with origins and odd payloads, over several instants.
async fn source(f: &Fixture) -> SessionId {
    let run = f.running(&f.new_runner()).await;
    for n in 0..4 {
        f.advance(TICK);
        let odd = Payload::parse("{ \"odd\" : 1.0 }").unwrap();
        let message = Fixture::message_from("cli", n, &n.to_string());
        let batch = vec![message, crate::event::NewEvent { payload: odd, ..Fixture::message("") }];
        f.store.append(crate::ports::Author::Run(run.fence()), batch, f.now()).await.unwrap();
    }
    run.session
}

async fn fork(f: &Fixture, source: SessionId, upto: Option<Seq>) -> ManagedSession {
    f.store.fork(source, upto, f.new_session(), f.now()).await.unwrap()
}

/// The events up to the point are there to the byte, with the fork recorded behind them; the source is untouched, also
/// when it is terminated.
pub async fn a_fork_has_the_log_up_to_its_point(f: &Fixture) {
    let source = source(f).await;
    for terminated in [false, true] {
        if terminated {
            f.transition(source, Trigger::Terminate(TerminationReason::Killed)).await;
        }
        let before = f.snapshot(source).await;
        let last = before.log.last().unwrap().seq;
        for upto in [None, Some(last), Some(Seq(1)), Some(Seq(6))] {
            f.advance(TICK);
            let session = fork(f, source, upto).await;
            let point = ForkPoint { source, upto: upto.unwrap_or(last) };
            assert_eq!(session.forked_from, Some(point));
            assert_eq!((session.state, session.active_at), (SessionState::Active, f.now()));
            let copied = before.log.iter().filter(|event| event.seq <= point.upto);
            let mut expected: Vec<_> =
                copied.map(|event| Event { session: session.id, ..event.clone() }).collect();
            let body = record::session_forked(point);
            expected.push(Event { session: session.id, seq: point.upto.next(), at: f.now(), body });
            assert_eq!(f.log(session.id).await, expected);
            assert_eq!(f.store.session(session.id).await.unwrap(), Some(session));
            assert_eq!(f.snapshot(source).await, before);
        }
    }
}

/// Owner, key, label, budget and the rest come from the caller; usage, runs and binding begin anew.
pub async fn a_fork_has_nothing_else_of_its_source(f: &Fixture) {
    let source = source(f).await;
    f.store.settle(source, Usage::NONE, Usage { tokens: 9, ..Usage::NONE }, None, f.now()).await.unwrap();
    let budget = Budget { tokens_max: 7, ..Budget::default() };
    let principal = "bob".parse().unwrap();
    let key = Some("fork".parse().unwrap());
    let new = NewSession { principal, key, budget, ..f.new_session() };
    let session = f.store.fork(source, None, new.clone(), f.now()).await.unwrap();
    let made = (&session.principal, &session.key, session.budget);
    assert_eq!(made, (&new.principal, &new.key, new.budget));
    let child = NewSession { parent: Some(Parent::new(source)), ..f.new_session() };
    let child = f.store.fork(source, None, child, f.now()).await.unwrap();
    assert_eq!((child.parent, child.depth), (Some(source), 1));
    assert_eq!((session.usage, session.reserved, &session.binding), (Usage::NONE, Usage::NONE, &None));
    assert!(f.store.runs(session.id, 10).await.unwrap().is_empty());
    let found = f.store.open_key(new, f.now()).await.unwrap();
    assert_eq!((found.session, found.created), (session, false));
}

/// What is appended again under an origin that came with the copy is the same event; the log goes on behind the fork.
pub async fn origins_count_on_in_a_fork(f: &Fixture) {
    let source = source(f).await;
    let run = f.store.runs(source, 1).await.unwrap()[0].id;
    let fork = fork(f, source, None).await;
    let last = fork.forked_from.unwrap().upto;
    let again = crate::event::NewEvent { run: Some(run), ..Fixture::message_from("cli", 1, "1") };
    let first = f.log(source).await.into_iter().find(|event| event.body == again).unwrap().seq;
    let fresh = Fixture::message_from("cli", 9, "9");
    let behind = last.next().next();
    assert_eq!(f.append(fork.id, vec![again, fresh.clone()]).await, [first, behind]);
    assert_eq!(f.append(source, vec![fresh]).await, [last.next()]);
    let other = vec![Fixture::message_from("cli", 1, "other")];
    assert_refused!(
        f.store.append(crate::ports::Author::Session(fork.id), other, f.now()),
        StoreError::Conflict(Conflict::Origin { .. })
    );
    let second = f.store.fork(fork.id, None, f.new_session(), f.now()).await.unwrap();
    assert_eq!(second.forked_from, Some(ForkPoint { source: fork.id, upto: behind }));
}

/// Nothing before the first event and nothing behind the last one can be forked from.
pub async fn a_fork_beyond_the_log_is_refused(f: &Fixture) {
    let source = source(f).await;
    let before = f.snapshot(source).await;
    let last = before.log.last().unwrap().seq;
    for seq in [Seq(0), last.next(), Seq(u64::MAX)] {
        let new = f.new_session();
        let id = new.id;
        let expected = Conflict::NoEvent { session: source, seq, last };
        let refused = f.store.fork(source, Some(seq), new, f.now()).await;
        assert!(matches!(&refused, Err(StoreError::Conflict(error)) if *error == expected), "{refused:?}");
        assert_eq!(f.snapshot(id).await, super::Snapshot::default());
    }
    assert_eq!(f.snapshot(source).await, before);
}

/// A source or parent that is not there, an id and a key that are taken: nothing is made.
pub async fn a_fork_is_refused_as_a_whole(f: &Fixture) {
    let source = source(f).await;
    let key = Some("one".parse().unwrap());
    let keyed = NewSession { key, ..f.new_session() };
    f.store.create(keyed.clone(), f.now()).await.unwrap();
    let unknown = f.env.session_id();
    let (orphan, second) = (f.new_session(), NewSession { id: f.env.session_id(), ..keyed.clone() });
    let made = [orphan.id, second.id];
    let fork = |source, new| f.store.fork(source, None, new, f.now());
    assert_refused!(fork(unknown, orphan.clone()), StoreError::UnknownSession(id) if *id == unknown);
    let parent = NewSession { parent: Some(Parent::new(unknown)), ..orphan };
    assert_refused!(fork(source, parent), StoreError::UnknownSession(id) if *id == unknown);
    assert_refused!(fork(source, keyed), StoreError::Conflict(Conflict::Exists(_)));
    assert_refused!(fork(source, second), StoreError::Conflict(Conflict::Exists(_)));
    for id in made {
        assert_eq!(f.snapshot(id).await, super::Snapshot::default());
    }
}

/// While others append to the source, each fork has a beginning of its log without a gap.
pub async fn a_source_in_use_is_forked(f: &Fixture) {
    let source = f.session().await.id;
    let append = async |n: usize| f.append(source, vec![Fixture::message(&n.to_string()); 3]).await;
    let (_, forks) =
        join(join_all((0..16).map(append)), join_all((0..8).map(|_| fork(f, source, None)))).await;
    let whole = f.log(source).await;
    assert_eq!(whole.len(), 1 + 16 * 3);
    for fork in forks {
        let log = f.log(fork.id).await;
        let (_, copied) = log.split_last().unwrap();
        assert_eq!(copied.len() % 3, 1, "a batch is there as a whole or not at all");
        assert!(
            copied.iter().zip(&whole).all(|(copy, event)| copy.body == event.body && copy.seq == event.seq)
        );
        assert_eq!(copied.len() as u64, fork.forked_from.unwrap().upto.0);
    }
}
