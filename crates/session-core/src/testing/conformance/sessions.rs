//! Making sessions, moving them through their states, and what is kept of them.

use futures_util::future::join_all;
use jiff::SignedDuration;

use super::fixture::assert_refused;
use super::{Fixture, TICK};
use crate::budget::{Budget, Usage};
use crate::error::{Conflict, StoreError};
use crate::event::{Event, NewEvent, Payload, Seq};
use crate::family::Parent;
use crate::names::Principal;
use crate::ports::{Author, SessionFilter};
use crate::record;
use crate::sandbox::{NetworkSpec, ProcessLimits, SandboxLevel, SandboxSpec};
use crate::session::{ManagedSession, NewSession, WorkspaceKind};
use crate::state::{SessionState, TerminationReason, Trigger};

const TTL: SignedDuration = SignedDuration::from_hours(24);

/// `create` keeps every part of what it is given, and records it.
pub async fn a_created_session_is_there_as_it_was_given(f: &Fixture) {
    let principal: Principal = "team \"ä\" 'x'; --".parse().unwrap();
    let free =
        SandboxSpec { level: SandboxLevel::Off, limits: ProcessLimits::NONE, ..SandboxSpec::default() };
    let parent = NewSession { principal: principal.clone(), sandbox: free, ..f.new_session() };
    let parent = f.store.create(parent, f.now()).await.unwrap();
    f.advance(TICK);
    let now = f.now();
    let new = NewSession {
        id: f.env.session_id(),
        principal,
        key: Some("telegram:dm:42 'ü'".parse().unwrap()),
        label: Some("$(rm -rf ~) “label”".parse().unwrap()),
        agent: Some("a:b/c".parse().unwrap()),
        kind: WorkspaceKind::Worktree,
        project: Some("/répo/with space".into()),
        sandbox: SandboxSpec {
            level: SandboxLevel::Floor,
            read: ["/opt/'tools'".into()].into(),
            network: NetworkSpec::Allow(["*.example.com:443".parse().unwrap()].into()),
            ..SandboxSpec::default()
        },
        metadata: Payload::parse("{ \"b\" : 1.0 , \"a\":\"\\u00e9 '\" }").unwrap(),
        budget: Budget {
            tokens_max: u64::from(u32::MAX) + 1,
            tool_calls_max: 0,
            turns_max: Some(3),
            cost_micros_max: Some(0),
        },
        parent: Some(Parent { callback: true, ..Parent::new(parent.id) }),
    };
    let created = f.store.create(new.clone(), now).await.unwrap();
    assert_eq!(f.store.session(new.id).await.unwrap().as_ref(), Some(&created));
    assert_eq!(created.state, SessionState::Active);
    let given = NewSession {
        id: created.id,
        principal: created.principal.clone(),
        key: created.key.clone(),
        label: created.label.clone(),
        agent: created.agent.clone(),
        kind: created.workspace.kind,
        project: created.workspace.project.clone(),
        sandbox: created.sandbox.clone(),
        metadata: created.metadata.clone(),
        budget: created.budget,
        parent: new.parent,
    };
    assert_eq!(given, new);
    assert_eq!((created.parent, created.depth, created.callback), (Some(parent.id), 1, true));
    assert_eq!((created.created_at, created.active_at), (now, now));
    assert_eq!((created.usage, created.reserved, created.forked_from), (Usage::NONE, Usage::NONE, None));
    assert_eq!((created.generation, created.binding.clone()), (None, None));
    assert_eq!((created.workspace.runner, created.workspace.removed_at), (None, None));
    assert_eq!(f.records(new.id).await, [record::session_created(&new, None)]);
}

/// Every kind of workspace is read back as it was written.
pub async fn every_kind_of_workspace_is_kept(f: &Fixture) {
    for kind in WorkspaceKind::ALL {
        let new = NewSession { kind, ..f.new_session() };
        let id = f.store.create(new, f.now()).await.unwrap().id;
        assert_eq!(f.store.session(id).await.unwrap().unwrap().workspace.kind, kind);
    }
}

/// An id that is taken and a parent that is not there are refused, and leave nothing.
pub async fn create_refuses_a_taken_id_and_an_unknown_parent(f: &Fixture) {
    let session = f.session().await;
    let before = f.snapshot(session.id).await;
    let again = NewSession { id: session.id, label: Some("other".parse().unwrap()), ..f.new_session() };
    assert_refused!(f.store.create(again, f.now()), StoreError::Conflict(Conflict::Exists(_)));
    assert_eq!(f.snapshot(session.id).await, before);
    let (unknown, orphan) = (f.env.session_id(), f.new_session());
    let id = orphan.id;
    let orphan = NewSession { parent: Some(Parent::new(unknown)), ..orphan };
    assert_refused!(f.store.create(orphan, f.now()), StoreError::UnknownSession(parent) if *parent == unknown);
    assert_eq!(f.store.session(id).await.unwrap(), None);
    assert!(f.log(id).await.is_empty());
}

/// What is not there is `None` where it is asked for, and an error where something was to be done to it.
pub async fn an_unknown_session_is_none_or_an_error(f: &Fixture) {
    let (id, now) = (f.env.session_id(), f.now());
    let store = &f.store;
    assert_eq!(store.session(id).await.unwrap(), None);
    assert!(store.runs(id, 10).await.unwrap().is_empty());
    assert!(store.read(id, Seq::START, 10).await.unwrap().is_empty());
    assert!(store.tail(id, 10).await.unwrap().is_empty());
    let unknown = |error: &StoreError| matches!(error, StoreError::UnknownSession(named) if *named == id);
    assert_refused!(store.transition(id, Trigger::Activity, now), error if unknown(error));
    assert_refused!(store.relabel(id, None, now), error if unknown(error));
    assert_refused!(store.workspace_removed(id, now), error if unknown(error));
    assert_refused!(store.enqueue(vec![f.resume(id)], None, now), error if unknown(error));
    let message = vec![Fixture::message("hello")];
    assert_refused!(store.append(Author::Session(id), message, now), error if unknown(error));
    assert_refused!(store.append(Author::Session(id), Vec::new(), now), error if unknown(error));
    assert!(f.log(id).await.is_empty());
}

/// For every pair of state and trigger the store does what the table says: the step, its times and its event, or
/// nothing at all.
pub async fn every_step_of_a_session_is_by_the_table(f: &Fixture) {
    let ways: [&[Trigger]; 4] = [
        &[],
        &[Trigger::IdleTimeout],
        &[Trigger::Suspend { ttl: TTL }],
        &[Trigger::Terminate(TerminationReason::Evicted)],
    ];
    let triggers = [
        Trigger::Activity,
        Trigger::IdleTimeout,
        Trigger::GraceElapsed { ttl: TTL },
        Trigger::Suspend { ttl: TTL },
        Trigger::Resume,
        Trigger::TtlExpired,
        Trigger::Terminate(TerminationReason::Killed),
    ];
    for way in ways {
        for trigger in triggers {
            let session = f.session().await;
            for step in way {
                f.advance(TICK);
                f.transition(session.id, *step).await;
            }
            f.advance(TICK);
            step_by_the_table(f, &session, trigger).await;
        }
    }
}

async fn step_by_the_table(f: &Fixture, session: &ManagedSession, trigger: Trigger) {
    let mut expected = f.snapshot(session.id).await;
    let (now, from) = (f.now(), expected.session.as_ref().unwrap().state);
    let outcome = f.store.transition(session.id, trigger, now).await;
    match from.on(trigger, now) {
        Ok(to) => {
            let session = expected.session.as_mut().unwrap();
            session.state = to;
            if to == SessionState::Active {
                session.active_at = now;
            }
            assert_eq!(outcome.unwrap(), *session, "{from} on {trigger:?}");
            if to != from {
                let (seq, body) = (expected.log.last().unwrap().seq.next(), record::session_state(from, to));
                expected.log.push(Event { session: session.id, seq, at: now, body });
            }
        }
        Err(refusal) => {
            assert!(
                matches!(outcome, Err(StoreError::Transition(error)) if error == refusal),
                "{from} on {trigger:?}"
            );
        }
    }
    assert_eq!(f.snapshot(session.id).await, expected, "{from} on {trigger:?}");
}

/// Every reason for a termination is read back as it was written.
pub async fn every_termination_reason_is_kept(f: &Fixture) {
    for &reason in TerminationReason::ALL {
        let id = f.session().await.id;
        f.transition(id, Trigger::Terminate(reason)).await;
        assert_eq!(f.state(id).await, SessionState::Terminated { at: f.now(), reason });
    }
}

/// Of many who make the same step at once, one does it and the others are told that it is done.
pub async fn one_of_many_concurrent_transitions_wins(f: &Fixture) {
    let id = f.session().await.id;
    let suspend = || f.store.transition(id, Trigger::Suspend { ttl: TTL }, f.now());
    let outcomes = join_all((0..16).map(|_| suspend())).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    let refused = |outcome: &&Result<_, _>| matches!(outcome, Err(StoreError::Transition(_)));
    assert_eq!(outcomes.iter().filter(refused).count(), 15, "{outcomes:?}");
    assert_eq!(f.log(id).await.len(), 2, "the creation and one step");
}

/// A label is replaced and removed, each time with an event, and also on a terminated session.
pub async fn a_session_is_relabelled(f: &Fixture) {
    let id = f.session().await.id;
    f.transition(id, Trigger::Terminate(TerminationReason::Stopped)).await;
    let mut expected = f.snapshot(id).await;
    for label in [Some("first"), Some("sec%nd_"), None] {
        let label = label.map(|label| label.parse().unwrap());
        f.advance(TICK);
        f.store.relabel(id, label.clone(), f.now()).await.unwrap();
        let (seq, body) = (expected.log.last().unwrap().seq.next(), record::session_label(label.as_ref()));
        expected.log.push(Event { session: id, seq, at: f.now(), body });
        expected.session.as_mut().unwrap().label = label;
        assert_eq!(f.snapshot(id).await, expected);
    }
}

/// The removal of a workspace is recorded with the time of the first one, and takes the session out of the list of
/// those that have one.
pub async fn a_removed_workspace_is_recorded_once(f: &Fixture) {
    let id = f.session().await.id;
    let filter = SessionFilter { with_workspace: true, ..SessionFilter::default() };
    assert_eq!(f.list(&filter).await, [id]);
    let removed = f.now();
    f.store.workspace_removed(id, removed).await.unwrap();
    f.advance(TICK);
    f.store.workspace_removed(id, f.now()).await.unwrap();
    assert_eq!(f.store.session(id).await.unwrap().unwrap().workspace.removed_at, Some(removed));
    assert!(f.list(&filter).await.is_empty());
}

/// A log that a session was exported with.
fn foreign_log(f: &Fixture) -> Vec<Event> {
    let (session, run) = (f.env.session_id(), Some(f.env.run_id()));
    let bodies = [
        NewEvent { run, ..Fixture::message_from("cli", 1, "first") },
        NewEvent { run, payload: Payload::parse("{ \"odd\" : 1.0 }").unwrap(), ..Fixture::message("") },
        Fixture::message_from("cli", 2, "third"),
    ];
    let at = |n: usize| {
        "2025-02-03T04:05:06.789Z".parse::<jiff::Timestamp>().unwrap() + TICK * i32::try_from(n).unwrap()
    };
    let numbered = bodies.into_iter().enumerate();
    numbered.map(|(n, body)| Event { session, seq: Seq(n as u64 + 1), at: at(n), body }).collect()
}

/// An imported session keeps its log to the byte, starts idle, and goes on where the log ended.
pub async fn an_import_keeps_numbers_times_and_origins(f: &Fixture) {
    let (new, events, now) = (f.new_session(), foreign_log(f), f.now());
    let imported = Payload::parse("{\"from\": \"elsewhere\"}").unwrap();
    let session = f.store.import(new.clone(), events.clone(), imported.clone(), now).await.unwrap();
    assert_eq!((session.id, session.state), (new.id, SessionState::Idle { since: now }));
    assert_eq!(f.store.session(new.id).await.unwrap(), Some(session));

    let log = f.log(new.id).await;
    let (last, first) = log.split_last().unwrap();
    let expected: Vec<_> = events.into_iter().map(|event| Event { session: new.id, ..event }).collect();
    assert_eq!(first, expected);
    let kind = "session.imported".parse().unwrap();
    let body = NewEvent { run: None, kind, payload: imported, origin: None };
    assert_eq!(*last, Event { session: new.id, seq: Seq(4), at: now, body });

    let retry = vec![Fixture::message_from("cli", 2, "third"), Fixture::message("fresh")];
    assert_eq!(f.append(new.id, retry).await, [Seq(3), Seq(5)]);
}

/// An import under a taken id, of a parent that is not there or of a log with a gap leaves nothing.
pub async fn an_import_is_refused_as_a_whole(f: &Fixture) {
    let (taken, empty) = (f.session().await, Payload::parse("{}").unwrap());
    let before = f.snapshot(taken.id).await;
    let again = NewSession { id: taken.id, ..f.new_session() };
    let import = |new, events| f.store.import(new, events, empty.clone(), f.now());
    assert_refused!(import(again, foreign_log(f)), StoreError::Conflict(Conflict::Exists(_)));
    assert_eq!(f.snapshot(taken.id).await, before);

    let orphan = NewSession { parent: Some(Parent::new(f.env.session_id())), ..f.new_session() };
    let orphan_id = orphan.id;
    assert_refused!(import(orphan, foreign_log(f)), StoreError::UnknownSession(_));
    let (torn, mut gap) = (f.new_session(), foreign_log(f));
    let torn_id = torn.id;
    gap.remove(1);
    assert_refused!(import(torn, gap), StoreError::Backend(_));
    for id in [orphan_id, torn_id] {
        assert_eq!(f.store.session(id).await.unwrap(), None);
        assert!(f.log(id).await.is_empty());
    }
}
