//! Parents and children: who may have which, and that a parent hears once of every end.

use futures_util::future::{join, join_all};
use jiff::SignedDuration;

use super::deadline::in_time;
use super::fixture::assert_refused;
use super::{ALL, Fixture, LEASE, TICK};
use crate::affinity::RunnerProfile;
use crate::error::{Conflict, StoreError};
use crate::event::{EventKind, NewEvent, Payload};
use crate::family::{Callback, Parent};
use crate::ids::SessionId;
use crate::ports::{NewRun, RunOf, SessionFilter, Sweep};
use crate::record;
use crate::run::{EndKind, Ending, ReasonCode, Run, RunPhase, StopMode};
use crate::sandbox::{SandboxLevel, SandboxSpec};
use crate::session::NewSession;
use crate::state::{TerminationReason, Trigger};
use crate::wake::Topic;

fn child_of(f: &Fixture, parent: SessionId) -> NewSession {
    let parent = Parent { callback: true, ..Parent::new(parent) };
    NewSession { parent: Some(parent), ..f.new_session() }
}

fn run_of(f: &Fixture, session: NewSession) -> NewRun {
    NewRun { of: RunOf::New(Box::new(session)), ..f.new_run() }
}

/// A run of a new child, brought to `running`.
async fn running(f: &Fixture, runner: &RunnerProfile, parent: SessionId) -> Run {
    f.enqueue([run_of(f, child_of(f, parent))]).await;
    let claimed = f.claim(runner).await.unwrap().run;
    f.start(claimed.fence()).await
}

async fn callbacks(f: &Fixture, parent: SessionId) -> Vec<Callback> {
    f.store.callbacks(parent, ALL).await.unwrap()
}

async fn due(f: &Fixture) -> Vec<SessionId> {
    f.store.callbacks_due(ALL).await.unwrap()
}

/// What a parent's log says of its children.
async fn heard(f: &Fixture, parent: SessionId) -> Vec<NewEvent> {
    let records = f.records(parent).await;
    records.into_iter().filter(|event| event.kind == EventKind::ChildEnded).collect()
}

async fn refused(f: &Fixture, new: NewSession, expected: impl Fn(&StoreError) -> bool) {
    let before = f.list(&SessionFilter::default()).await;
    for outcome in [
        f.store.create(new.clone(), f.now()).await.map(drop),
        f.store.enqueue(vec![run_of(f, new.clone())], None, f.now()).await.map(drop),
    ] {
        assert!(outcome.as_ref().is_err_and(&expected), "{outcome:?}");
    }
    assert_eq!(f.list(&SessionFilter::default()).await, before);
}

/// A child lies one below its parent, also when both are made at once, and no deeper than it may.
pub async fn a_family_is_only_so_deep(f: &Fixture) {
    let root = f.session().await;
    assert_eq!((root.depth, root.callback), (0, false));
    let child = f.store.create(child_of(f, root.id), f.now()).await.unwrap();
    assert_eq!((child.parent, child.depth, child.callback), (Some(root.id), 1, true));
    assert_eq!(f.store.session(child.id).await.unwrap(), Some(child.clone()));
    let second = child_of(f, child.id);
    let third = child_of(f, second.id);
    let ids = [second.id, third.id];
    f.enqueue([run_of(f, second), run_of(f, third)]).await;
    for (id, depth) in ids.into_iter().zip(2..) {
        assert_eq!(f.store.session(id).await.unwrap().unwrap().depth, depth);
    }
    let deeper = Parent { depth_max: 3, ..Parent::new(ids[1]) };
    refused(f, NewSession { parent: Some(deeper), ..f.new_session() }, |error| {
        matches!(error, StoreError::Conflict(Conflict::TooDeep { parent, max: 3 }) if *parent == ids[1])
    })
    .await;
}

/// A session has only so many live children; those that are over count no more.
pub async fn a_family_is_only_so_wide(f: &Fixture) {
    let root = f.session().await.id;
    let wish = Parent { children_max: 2, ..Parent::new(root) };
    let new = || NewSession { parent: Some(wish), ..f.new_session() };
    let over = f.store.create(new(), f.now()).await.unwrap().id;
    f.store.create(new(), f.now()).await.unwrap();
    let full = |error: &StoreError| matches!(error, StoreError::Conflict(Conflict::TooManyChildren { parent, max: 2 }) if *parent == root);
    refused(f, new(), full).await;
    f.transition(over, Trigger::Terminate(TerminationReason::Stopped)).await;
    let batch = vec![run_of(f, new()), run_of(f, new())];
    let outcome = f.store.enqueue(batch, None, f.now()).await;
    assert!(outcome.as_ref().is_err_and(full), "two at once are one too many: {outcome:?}");
    f.store.create(new(), f.now()).await.unwrap();
    refused(f, new(), full).await;
}

/// A child is its parent's owner's, of a parent that lives, and reaches nowhere that its parent does not.
pub async fn a_child_is_narrower_than_its_parent(f: &Fixture) {
    let root = f.session().await.id;
    let bob = NewSession { principal: "bob".parse().unwrap(), ..child_of(f, root) };
    refused(f, bob, |error| matches!(error, StoreError::UnknownSession(id) if *id == root)).await;
    let off = SandboxSpec { level: SandboxLevel::Off, ..SandboxSpec::default() };
    let wider = NewSession { sandbox: off, ..child_of(f, root) };
    refused(f, wider, |error| matches!(error, StoreError::Conflict(Conflict::Wider { .. }))).await;
    f.transition(root, Trigger::Terminate(TerminationReason::Stopped)).await;
    refused(f, child_of(f, root), |error| matches!(error, StoreError::Transition(_))).await;
}

/// Of any number of children that are made at once a parent gets as many as it may have.
pub async fn concurrent_children_keep_to_the_limit(f: &Fixture) {
    let root = f.session().await.id;
    let wish = Parent { children_max: 5, ..Parent::new(root) };
    let new = || NewSession { parent: Some(wish), ..f.new_session() };
    let made = join_all((0..16).map(|_| f.store.create(new(), f.now()))).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 5);
    let full = |error: &StoreError| matches!(error, StoreError::Conflict(Conflict::TooManyChildren { .. }));
    assert!(made.iter().all(|made| made.as_ref().err().is_none_or(full)), "{made:?}");
    assert_eq!(f.list(&SessionFilter { parent: Some(root), ..SessionFilter::default() }).await.len(), 5);
}

/// However a run of a child ends, its parent hears of it once: in its log, and as a callback that is due.
pub async fn a_parent_hears_of_every_end(f: &Fixture) {
    let root = f.session().await.id;
    let runner = f.new_runner();
    let completed = running(f, &runner, root).await;
    let failed = running(f, &runner, root).await;
    let lost = running(f, &runner, root).await;
    f.advance(LEASE);
    f.store.renew(completed.fence(), LEASE, f.now()).await.unwrap();
    f.store.renew(failed.fence(), LEASE, f.now()).await.unwrap();
    f.advance(TICK);
    let waits = NewRun { after: vec![0], ..run_of(f, child_of(f, root)) };
    let late = NewRun { claim_by: Some(f.now()), ..run_of(f, child_of(f, root)) };
    let batch = [run_of(f, child_of(f, root)), waits, run_of(f, child_of(f, root)), late];
    let [stopped, waits, killed, late] = f.enqueue(batch).await;
    let mut log = f.store.listen(Topic::Session(root));
    let result = Some(Payload::parse(r#"{"text": "done: \"}{"}"#).unwrap());
    f.store.finish(completed.fence(), Ending::completed(None), result, f.now()).await.unwrap();
    in_time("a child ended", log.woken()).await;
    let why = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "no");
    f.store.finish(failed.fence(), why, None, f.now()).await.unwrap();
    f.store.reap(f.now(), 10).await.unwrap();
    f.store.request_stop(stopped.id, StopMode::Graceful, f.now()).await.unwrap();
    f.transition(killed.session, Trigger::Terminate(TerminationReason::Killed)).await;
    f.advance(TICK);
    f.store.unclaimed(f.now(), LEASE, 10).await.unwrap();
    let ends = [
        (&completed, RunPhase::Completed),
        (&failed, RunPhase::Failed),
        (&lost, RunPhase::Lost),
        (&stopped, RunPhase::Stopped),
        (&waits, RunPhase::Failed),
        (&killed, RunPhase::Stopped),
        (&late, RunPhase::Failed),
    ];
    let told = callbacks(f, root).await;
    let events = heard(f, root).await;
    assert_eq!((told.len(), events.len()), (ends.len(), ends.len()));
    for (run, phase) in ends {
        let run = f.run(run.id).await;
        assert_eq!(run.state.phase(), phase);
        let (at, ending) = run.ended().unwrap();
        let said =
            (run.id == completed.id).then(|| serde_json::json!({ "by": "child", "said": "done: \"}{" }));
        let event = record::child_ended(run.session, run.id, phase, ending, said);
        let payload = event.payload.clone();
        let callback = Callback { run: run.id, child: run.session, parent: root, at, payload };
        assert!(told.contains(&callback) && events.contains(&event), "{callback:?} is not among {told:?}");
    }
    assert_eq!(due(f).await, [root]);
}

/// Nobody hears of a session without a parent, or whose parent does not want to.
pub async fn only_who_wants_to_hear_is_told(f: &Fixture) {
    let root = f.session().await.id;
    let runner = f.new_runner();
    let silent = NewSession { parent: Some(Parent::new(root)), ..f.new_session() };
    f.enqueue([run_of(f, silent), f.new_run()]).await;
    for run in f.claim_all(&runner).await {
        f.start(run.fence()).await;
        f.complete(run.fence()).await;
    }
    assert_eq!((callbacks(f, root).await, heard(f, root).await, due(f).await), (vec![], vec![], vec![]));
}

/// A callback is due until a run of the parent delivers it, which one does; while the parent has a run it has to wait.
pub async fn a_callback_is_delivered_once(f: &Fixture) {
    let (root, other) = (f.session().await.id, f.session().await.id);
    let runner = f.new_runner();
    let mut ended = Vec::new();
    for parent in [root, root, other] {
        let run = running(f, &runner, parent).await;
        ended.push(f.complete(run.fence()).await.id);
    }
    assert_eq!(due(f).await, [root, other]);
    assert_eq!(f.store.callbacks_due(1).await.unwrap(), [root]);
    assert_eq!(f.store.callbacks(root, 1).await.unwrap(), callbacks(f, root).await[..1]);
    let not_due = |ends: Vec<_>| NewRun { delivers: ends, ..f.resume(root) };
    for ends in [vec![ended[2]], vec![ended[0], f.env.run_id()], vec![ended[0], ended[0]]] {
        let wrong = *ends.last().unwrap();
        assert_refused!(
            f.store.enqueue(vec![not_due(ends)], None, f.now()),
            StoreError::Conflict(Conflict::NotDue(run)) if *run == wrong
        );
    }
    let [telling] = f.enqueue([NewRun { delivers: vec![ended[0]], ..f.resume(root) }]).await;
    assert_eq!(due(f).await, [other], "it is busy");
    assert_eq!(callbacks(f, root).await.iter().map(|due| due.run).collect::<Vec<_>>(), [ended[1]]);
    let claimed = f.claim(&runner).await.unwrap().run;
    assert_eq!(claimed.id, telling.id);
    f.start(claimed.fence()).await;
    f.complete(claimed.fence()).await;
    assert_eq!(due(f).await, [root, other]);
    let again = NewRun { delivers: vec![ended[0]], ..f.resume(root) };
    assert_refused!(
        f.store.enqueue(vec![again], None, f.now()),
        StoreError::Conflict(Conflict::NotDue(run)) if *run == ended[0]
    );
    f.enqueue([NewRun { delivers: vec![ended[1]], ..f.resume(root) }]).await;
    assert_eq!(callbacks(f, root).await, []);
    assert_eq!(heard(f, root).await.len(), 2, "its log says so for ever");
}

/// A parent that is left in peace is told when it was used again, and not before; one without children is not left so.
pub async fn a_parent_in_peace_is_told_later(f: &Fixture) {
    let (root, other, alone) = (f.session().await.id, f.session().await.id, f.session().await.id);
    let runner = f.new_runner();
    let before = running(f, &runner, root).await;
    let after = running(f, &runner, root).await;
    let not_held = running(f, &runner, other).await;
    f.complete(before.fence()).await;
    f.complete(not_held.fence()).await;
    f.store.hold_callbacks(&[root, alone, f.env.session_id()]).await.unwrap();
    f.complete(after.fence()).await;
    assert_eq!(due(f).await, [other]);
    assert_eq!(callbacks(f, root).await.len(), 2, "they wait");
    // To be told of what it knows to ask for is no other use.
    f.enqueue([NewRun { delivers: vec![before.id], ..f.resume(root) }]).await;
    let told = f.claim(&runner).await.unwrap().run;
    f.start(told.fence()).await;
    f.complete(told.fence()).await;
    assert_eq!(due(f).await, [other]);
    f.enqueue([f.resume(root)]).await;
    let used = f.claim(&runner).await.unwrap().run;
    f.start(used.fence()).await;
    let mut family = f.store.listen(Topic::Family);
    f.complete(used.fence()).await;
    in_time("a parent with callbacks rests", family.woken()).await;
    assert_eq!(due(f).await, [other, root]);
    let late = running(f, &runner, alone).await;
    f.complete(late.fence()).await;
    assert_eq!(due(f).await, [other, root, alone], "it had no children when it was named");
}

/// What a parent was told by its log alone is due no more; what is due to another one stays.
pub async fn what_was_heard_is_due_no_more(f: &Fixture) {
    let (root, other) = (f.session().await.id, f.session().await.id);
    let runner = f.new_runner();
    let mut ends = Vec::new();
    for parent in [root, root, other] {
        let run = running(f, &runner, parent).await;
        let mut family = f.store.listen(Topic::Family);
        ends.push(f.complete(run.fence()).await.id);
        in_time("a callback came into being", family.woken()).await;
    }
    f.store.callbacks_heard(root, &[ends[0], ends[2], f.env.run_id()]).await.unwrap();
    assert_eq!(callbacks(f, root).await.iter().map(|due| due.run).collect::<Vec<_>>(), [ends[1]]);
    f.store.callbacks_heard(root, &ends).await.unwrap();
    assert_eq!(due(f).await, [other]);
    assert_eq!(heard(f, root).await.len(), 2, "its log says so for ever");
    let told = NewRun { delivers: vec![ends[0]], ..f.resume(root) };
    assert_refused!(
        f.store.enqueue(vec![told], None, f.now()),
        StoreError::Conflict(Conflict::NotDue(run)) if *run == ends[0]
    );
}

/// What is due to a session that is terminated is dropped, and so is what comes afterwards; its log says it all the same.
pub async fn a_parent_that_is_over_is_told_nothing(f: &Fixture) {
    let root = f.session().await.id;
    let runner = f.new_runner();
    let (first, second) = (running(f, &runner, root).await, running(f, &runner, root).await);
    f.complete(first.fence()).await;
    f.transition(root, Trigger::Terminate(TerminationReason::Stopped)).await;
    assert_eq!((due(f).await, callbacks(f, root).await), (vec![], vec![]));
    f.complete(second.fence()).await;
    assert_eq!((due(f).await, callbacks(f, root).await), (vec![], vec![]));
    assert_eq!(heard(f, root).await.len(), 2);
}

/// Live children of a parent that is over are found, and no others.
pub async fn children_that_are_left_are_found(f: &Fixture) {
    let (root, other) = (f.session().await.id, f.session().await.id);
    let mut children = Vec::new();
    for parent in [root, root, root, other] {
        children.push(f.store.create(child_of(f, parent), f.now()).await.unwrap().id);
    }
    assert!(f.store.orphaned(ALL).await.unwrap().is_empty());
    let mut family = f.store.listen(Topic::Family);
    f.transition(children[0], Trigger::Terminate(TerminationReason::Stopped)).await;
    f.transition(root, Trigger::Terminate(TerminationReason::Killed)).await;
    in_time("a parent is over", family.woken()).await;
    let mut left = f.store.orphaned(ALL).await.unwrap();
    left.sort();
    let mut expected = vec![children[1], children[2]];
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(f.store.orphaned(1).await.unwrap().len(), 1);
}

/// Time and cleanups end no session below which one works, however deep; whoever asks for its end gets it.
pub async fn a_session_does_not_expire_above_one_that_works(f: &Fixture) {
    let runner = f.new_runner();
    let root = f.session().await.id;
    let child = f.store.create(child_of(f, root), f.now()).await.unwrap().id;
    let below = running(f, &runner, child).await;
    let ttl = SignedDuration::from_mins(1);
    for session in [root, child] {
        f.transition(session, Trigger::Suspend { ttl }).await;
    }
    f.advance(ttl + TICK);
    let except = vec![below.session];
    let sweep = Sweep { runner: runner.id, idle_timeout: None, suspended_ttl: Some(ttl), except, limit: ALL };
    assert_eq!(f.store.sweep(&sweep, f.now()).await.unwrap(), []);
    for trigger in [Trigger::TtlExpired, Trigger::Terminate(TerminationReason::CleanedUp)] {
        assert_refused!(
            f.store.transition(root, trigger, f.now()),
            StoreError::Busy { session, run, .. } if (*session, *run) == (below.session, below.id)
        );
    }
    f.complete(below.fence()).await;
    let swept = f.store.sweep(&sweep, f.now()).await.unwrap();
    assert_eq!(swept.len(), 2, "{swept:?}");
    let other = f.session().await.id;
    running(f, &runner, other).await;
    f.transition(other, Trigger::Terminate(TerminationReason::Killed)).await;
}

/// Children that end at once, while their parent works, is told and starts more: it hears of each once.
pub async fn concurrent_ends_are_each_heard_once(f: &Fixture) {
    let root = f.session().await.id;
    let runner = f.new_runner();
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(running(f, &runner, root).await);
    }
    let end = async |run: &Run| {
        let failed = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "no");
        let twice = f.store.finish(run.fence(), failed, None, f.now());
        join(f.store.finish(run.fence(), Ending::completed(None), None, f.now()), twice).await
    };
    let parent = async |_| {
        let ends: Vec<_> = callbacks(f, root).await.iter().map(|callback| callback.run).collect();
        let delivers = NewRun { delivers: ends, ..f.resume(root) };
        let told = f.store.enqueue(vec![delivers], None, f.now()).await;
        let more = f.store.create(child_of(f, root), f.now()).await;
        more.unwrap();
        told.map(|runs| runs[0].id)
    };
    let (ended, told) = join(join_all(runs.iter().map(end)), join_all((0..3).map(parent))).await;
    assert!(ended.iter().all(|(one, other)| one.is_ok() != other.is_ok()), "{ended:?}");
    let busy = |error: &StoreError| {
        matches!(error, StoreError::Busy { .. } | StoreError::Conflict(Conflict::NotDue(_)))
    };
    assert!(told.iter().all(|told| told.as_ref().err().is_none_or(busy)), "{told:?}");
    let mut heard: Vec<_> =
        heard(f, root).await.iter().map(|event| event.payload.as_str().to_owned()).collect();
    assert_eq!(heard.len(), runs.len());
    heard.sort();
    heard.dedup();
    assert_eq!(heard.len(), runs.len());
}

/// A child that ends while its parent is terminated is heard of once, and nothing is due afterwards.
pub async fn an_end_and_the_end_of_the_parent_agree(f: &Fixture) {
    let runner = f.new_runner();
    for _ in 0..8 {
        let root = f.session().await.id;
        let run = running(f, &runner, root).await;
        let end = f.store.finish(run.fence(), Ending::completed(None), None, f.now());
        let trigger = Trigger::Terminate(TerminationReason::Killed);
        let (ended, _) = join(end, f.transition(root, trigger)).await;
        ended.unwrap();
        assert_eq!(heard(f, root).await.len(), 1);
        assert_eq!((due(f).await, callbacks(f, root).await), (vec![], vec![]));
    }
}
