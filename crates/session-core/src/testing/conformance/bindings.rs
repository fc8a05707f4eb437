//! What ties a session to a framework's own conversation: bound once, resumable later, replaced only by one that begins
//! from the session's log, and where a further run goes because of it.

use futures_util::future::join_all;

use super::Fixture;
use super::fixture::assert_refused;
use crate::affinity::{Affinity, Place, RunnerProfile};
use crate::error::{Conflict, StoreError};
use crate::event::NewEvent;
use crate::ids::{RunId, SessionId};
use crate::names::ExecutorType;
use crate::ports::{NewRun, RunOf, RunProgress};
use crate::record;
use crate::run::{EndKind, Ending, ReasonCode, Run, RunPhase, RunSpec, StopMode};
use crate::session::{Binding, NewSession};
use crate::turn::Turn;

/// A run that begins a conversation of its own from the session's log.
fn from_history(f: &Fixture, session: SessionId) -> NewRun {
    let turn = Some(Turn { from_history: true, ..Turn::new("go on") });
    NewRun { spec: RunSpec { turn, ..RunSpec::default() }, ..f.resume(session) }
}

/// The binding that the session has now.
async fn binding(f: &Fixture, session: SessionId) -> Option<Binding> {
    f.store.session(session).await.unwrap().unwrap().binding
}

/// A run of a new session that bound it to the conversation of this name, resumable, and completed.
async fn bound(f: &Fixture, runner: &RunnerProfile, conversation: &str) -> Run {
    let run = f.running(runner).await;
    f.store.bind(run.fence(), Fixture::binding(runner, conversation), f.now()).await.unwrap();
    f.store.resumable(run.fence(), f.now()).await.unwrap();
    f.complete(run.fence()).await
}

/// A run that is enqueued now, claimed by this runner and started.
async fn started(f: &Fixture, new: NewRun, runner: &RunnerProfile) -> Run {
    let [run] = f.enqueue([new]).await;
    let claimed = f.claim(runner).await.unwrap().run;
    assert_eq!(claimed.id, run.id, "another run was claimed");
    f.start(claimed.fence()).await
}

/// How often a run bound its session, by the log.
async fn times_bound(f: &Fixture, session: SessionId, run: RunId) -> usize {
    let bound = |event: &&NewEvent| event.kind.as_str() == "bound" && event.run == Some(run);
    f.records(session).await.iter().filter(bound).count()
}

/// What is bound is not resumable until somebody says so, whatever the binding said; then it stays so, also when it is
/// bound again. Nothing but the binding is recorded.
pub async fn a_binding_becomes_resumable_once(f: &Fixture) {
    let runner = f.new_runner();
    let run = f.running(&runner).await;
    let given = Binding { resumable: true, ..Fixture::binding(&runner, "one") };
    f.store.bind(run.fence(), given.clone(), f.now()).await.unwrap();
    assert_eq!(binding(f, run.session).await, Some(Binding { resumable: false, ..given.clone() }));
    let log = f.log(run.session).await;
    assert_eq!(log.last().unwrap().body, record::bound(run.id, &given));
    f.store.resumable(run.fence(), f.now()).await.unwrap();
    assert_eq!(binding(f, run.session).await, Some(given.clone()));
    let before = f.snapshot(run.session).await;
    assert_eq!(before.log, log);
    f.store.resumable(run.fence(), f.now()).await.unwrap();
    f.store.bind(run.fence(), Binding { resumable: false, ..given }, f.now()).await.unwrap();
    assert_eq!(f.snapshot(run.session).await, before);
    f.complete(run.fence()).await;
    let next = started(f, f.resume(run.session), &runner).await;
    let before = f.snapshot(run.session).await;
    f.store.resumable(next.fence(), f.now()).await.unwrap();
    assert_eq!(f.snapshot(run.session).await, before);
}

/// Of a conversation that the framework has nothing of, the next run makes another one, once.
pub async fn what_never_became_resumable_gives_way(f: &Fixture) {
    let runner = f.new_runner();
    let run = f.running(&runner).await;
    f.store.bind(run.fence(), Fixture::binding(&runner, "one"), f.now()).await.unwrap();
    f.complete(run.fence()).await;
    let next = started(f, f.resume(run.session), &runner).await;
    f.store.bind(next.fence(), Fixture::binding(&runner, "one"), f.now()).await.unwrap();
    assert_eq!(times_bound(f, run.session, next.id).await, 0, "it is the same");
    let two = Fixture::binding(&runner, "two");
    f.store.bind(next.fence(), two.clone(), f.now()).await.unwrap();
    assert_eq!(binding(f, run.session).await, Some(two));
    assert_refused!(
        f.store.bind(next.fence(), Fixture::binding(&runner, "three"), f.now()),
        StoreError::Conflict(Conflict::Bound(id)) if *id == run.session
    );
}

/// A session that is not bound has no conversation to resume.
pub async fn nothing_is_resumable_that_is_not_bound(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    let before = f.snapshot(run.session).await;
    assert_refused!(
        f.store.resumable(run.fence(), f.now()),
        StoreError::Conflict(Conflict::Unbound(id)) if *id == run.session
    );
    assert_eq!(f.snapshot(run.session).await, before);
}

/// A run that begins from the session's log binds it anew, also elsewhere, where its workspace is gone, and to another
/// executor, and only once; the runs after it are bound to that.
pub async fn a_conversation_from_history_replaces_an_earlier_one_once(f: &Fixture) {
    let (runner, codex) = (f.new_runner(), "codex".parse::<ExecutorType>().unwrap());
    let session = bound(f, &runner, "one").await.session;
    let other =
        RunnerProfile { executors: vec![codex.clone()], hostname: "two".parse().unwrap(), ..f.new_runner() };
    f.store.workspace_removed(session, f.now()).await.unwrap();
    let mut new = from_history(f, session);
    new.affinity.executor = codex.clone();
    let run = started(f, new, &other).await;
    let second = Binding { executor: codex.clone(), ..Fixture::binding(&other, "two") };
    for resumable in [false, true] {
        f.store.bind(run.fence(), second.clone(), f.now()).await.unwrap();
        assert_eq!(binding(f, session).await, Some(Binding { resumable, ..second.clone() }));
        assert_eq!(f.records(session).await.last(), Some(&record::bound(run.id, &second)));
        assert_eq!(times_bound(f, session, run.id).await, 1);
        f.store.resumable(run.fence(), f.now()).await.unwrap();
    }
    let refuse = async |run: &Run, names: &[&str]| {
        let before = f.snapshot(session).await;
        for name in names {
            let third = Binding { executor: codex.clone(), ..Fixture::binding(&other, name) };
            assert_refused!(
                f.store.bind(run.fence(), third, f.now()),
                StoreError::Conflict(Conflict::Bound(_))
            );
        }
        assert_eq!(f.snapshot(session).await, before);
    };
    refuse(&run, &["one", "three"]).await;
    f.complete(run.fence()).await;
    let mut further = f.resume(session);
    further.affinity.executor = codex.clone();
    let further = started(f, further, &other).await;
    refuse(&further, &["one", "three"]).await;
    f.complete(further.fence()).await;
    // And once more, by yet another run.
    f.store.workspace_removed(session, f.now()).await.unwrap();
    let last = started(f, from_history(f, session), &runner).await;
    f.store.bind(last.fence(), Fixture::binding(&runner, "one"), f.now()).await.unwrap();
    assert_eq!(binding(f, session).await, Some(Fixture::binding(&runner, "one")));
    refuse(&last, &["two"]).await;
}

/// Some frameworks give an id again once their files are gone: that is another conversation all the same, and not
/// resumable yet.
pub async fn a_conversation_that_begins_anew_under_the_same_id_is_another(f: &Fixture) {
    let runner = f.new_runner();
    let session = bound(f, &runner, "one").await.session;
    let run = started(f, from_history(f, session), &runner).await;
    let same = Fixture::binding(&runner, "one");
    for _ in 0..2 {
        f.store.bind(run.fence(), same.clone(), f.now()).await.unwrap();
        assert_eq!(binding(f, session).await, Some(same.clone()));
        assert_eq!(times_bound(f, session, run.id).await, 1);
    }
}

/// Of many who bind at once one wins, and is recorded once; likewise of many that replace.
pub async fn one_of_many_concurrent_bindings_wins(f: &Fixture) {
    let runner = f.new_runner();
    let first = f.running(&runner).await;
    let session = first.session;
    let race = async |run: &Run, prefix: &str| {
        let bindings: Vec<_> = (0..12).map(|n| Fixture::binding(&runner, &format!("{prefix} {n}"))).collect();
        let bind = |binding: &Binding| f.store.bind(run.fence(), binding.clone(), f.now());
        let outcomes = join_all(bindings.iter().map(bind)).await;
        let won: Vec<_> = bindings.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        assert_eq!(binding(f, session).await.as_ref(), Some(won[0].0));
        assert_eq!(times_bound(f, session, run.id).await, 1);
    };
    race(&first, "first").await;
    f.complete(first.fence()).await;
    race(&started(f, from_history(f, session), &runner).await, "second").await;
}

/// A further run of a session that is bound demands the runner, the executor and the directory of its conversation,
/// whatever was asked for; when it begins from the log, the runner alone.
pub async fn a_further_run_goes_where_its_conversation_is(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    let wanted =
        |place| Affinity { place, executor: ExecutorType::command(), project_dir: Some("/b".into()) };
    let [unbound] =
        f.enqueue([NewRun { affinity: wanted(Place::Anywhere), ..f.resume(f.session().await.id) }]).await;
    assert_eq!(unbound.affinity, wanted(Place::Anywhere));
    f.claim(&other).await.unwrap();

    let session = bound(f, &runner, "one").await.session;
    let expected = Affinity {
        place: Place::Runner(runner.id),
        executor: ExecutorType::command(),
        project_dir: Some("/repo".into()),
    };
    for place in [Place::Anywhere, Place::Runner(other.id), Place::Hostname("elsewhere".parse().unwrap())] {
        let [run] = f.enqueue([NewRun { affinity: wanted(place), ..f.resume(session) }]).await;
        assert_eq!(run.affinity, expected);
        assert_eq!(f.run(run.id).await, run);
        assert_eq!(f.claim(&other).await, None, "it holds none of the conversation's files");
        let elsewhere = RunnerProfile { project_dirs: Some(vec!["/b".into()]), ..runner.clone() };
        assert_eq!(f.claim(&elsewhere).await, None, "it serves another directory");
        let fence = f.claim(&runner).await.unwrap().run.fence();
        f.start(fence).await;
        f.complete(fence).await;
    }
    let anywhere = NewRun { affinity: wanted(Place::Anywhere), ..from_history(f, session) };
    let [run] = f.enqueue([anywhere]).await;
    assert_eq!(run.affinity, wanted(Place::Runner(runner.id)));
    assert_eq!(f.claim(&other).await, None, "it has none of the session's files");
    assert_eq!(f.claim(&runner).await.unwrap().run.id, run.id);
}

/// A further run of a session that is not bound goes where its workspace is, whatever was asked for, also by its key and
/// beside others; before there is one, and once it is removed, what was asked for counts.
pub async fn a_further_run_goes_where_its_workspace_is(f: &Fixture) {
    let (runner, other) = (f.new_runner(), f.new_runner());
    let to = |place, run: NewRun| NewRun { affinity: Affinity { place, ..run.affinity.clone() }, ..run };
    let keyed = |key: &str| {
        let new = NewSession { key: Some(key.parse().unwrap()), ..f.new_session() };
        NewRun { of: RunOf::Keyed(Box::new(new), Box::default()), ..f.new_run() }
    };
    let first = started(f, keyed("ticket 7"), &runner).await;
    f.complete(first.fence()).await;
    let second = started(f, f.new_run(), &other).await;
    f.complete(second.fence()).await;
    for place in [Place::Anywhere, Place::Runner(other.id), Place::Hostname("elsewhere".parse().unwrap())] {
        let batch = [keyed("ticket 7"), f.resume(second.session), f.new_run()];
        let runs = f.enqueue(batch.map(|run| to(place.clone(), run))).await;
        let places = runs.each_ref().map(|run| run.affinity.place.clone());
        assert_eq!(places, [Place::Runner(runner.id), Place::Runner(other.id), place]);
        assert_eq!(runs[0].session, first.session);
        for run in runs {
            f.store.request_stop(run.id, StopMode::Kill, f.now()).await.unwrap();
        }
    }
    f.store.workspace_removed(first.session, f.now()).await.unwrap();
    let anew = started(f, to(Place::Runner(other.id), keyed("ticket 7")), &other).await;
    assert_eq!((anew.session, anew.affinity.place), (first.session, Place::Runner(other.id)));
}

/// What a runner has that is forgotten holds nobody: what is not bound to it goes where it was to go, and so does what begins
/// from the log. When it registers again it has those files again that nobody made elsewhere meanwhile.
pub async fn what_a_forgotten_runner_has_holds_nobody(f: &Fixture) {
    let (gone, other) = (f.new_runner(), f.new_runner());
    let register = async || f.store.register(gone.clone(), "1.0.0".parse().unwrap(), f.now()).await.unwrap();
    register().await;
    let conversation = bound(f, &gone, "one").await.session;
    let [moved, kept] = [f.running(&gone).await, f.running(&gone).await];
    f.complete(moved.fence()).await;
    f.complete(kept.fence()).await;
    let place = async |run: NewRun| {
        let [run] = f.enqueue([run]).await;
        let place = run.affinity.place;
        f.store.request_stop(run.id, StopMode::Kill, f.now()).await.unwrap();
        place
    };
    let here = Place::Runner(gone.id);
    assert_eq!(place(from_history(f, conversation)).await, here, "silence is not enough");
    let mut left = f.store.forget(gone.id).await.unwrap();
    left.sort_unstable();
    let mut expected = [conversation, moved.session, kept.session];
    expected.sort_unstable();
    assert_eq!(left, expected);
    assert_eq!(place(f.resume(conversation)).await, here, "a conversation is where its files are");
    for run in [from_history(f, conversation), f.resume(moved.session), f.resume(kept.session)] {
        assert_eq!(place(run).await, Place::Anywhere);
    }
    for run in [from_history(f, conversation), f.resume(moved.session)] {
        let run = started(f, run, &other).await;
        f.complete(run.fence()).await;
    }
    register().await;
    assert_eq!(place(from_history(f, conversation)).await, Place::Runner(other.id));
    assert_eq!(place(f.resume(moved.session)).await, Place::Runner(other.id));
    assert_eq!(place(f.resume(kept.session)).await, here);
}

/// A runner that never got so far as to run anything of a session has nothing of it: the next may be another one, and it
/// is the one that ran it that has its files.
pub async fn a_runner_that_could_not_start_a_session_has_nothing_of_it(f: &Fixture) {
    let (first, second) = (f.new_runner(), f.new_runner());
    let tried = async |run: NewRun, runner: &RunnerProfile| {
        let [run] = f.enqueue([run]).await;
        let fence = f.claim(runner).await.unwrap().run.fence();
        assert_eq!(fence.run, run.id);
        f.store.advance(fence, RunProgress::Starting, f.now()).await.unwrap();
        let ending = Ending::because(EndKind::Failed, ReasonCode::WorkspaceFailed, None, "no such directory");
        f.store.finish(fence, ending, None, f.now()).await.unwrap();
        let place = run.affinity.place;
        (run.session, place, f.store.session(run.session).await.unwrap().unwrap().workspace.runner)
    };
    let (session, _, on) = tried(f.new_run(), &first).await;
    assert_eq!(on, Some(first.id), "it is the one that knows of it");
    assert_eq!(tried(f.resume(session), &second).await, (session, Place::Anywhere, Some(second.id)));
    let ran = started(f, f.resume(session), &first).await;
    assert_eq!(ran.affinity.place, Place::Anywhere);
    f.complete(ran.fence()).await;
    let here = Place::Runner(first.id);
    assert_eq!(tried(f.resume(session), &first).await, (session, here.clone(), Some(first.id)));
    f.store.register(first.clone(), "1.0.0".parse().unwrap(), f.now()).await.unwrap();
    f.store.forget(first.id).await.unwrap();
    assert_eq!(tried(f.resume(session), &second).await, (session, Place::Anywhere, Some(first.id)));
    f.store.register(first.clone(), "1.0.0".parse().unwrap(), f.now()).await.unwrap();
    assert_eq!(tried(f.resume(session), &first).await, (session, here, Some(first.id)), "it still has them");
}

/// The same for a session that is found by its key; one that is made gets what was asked for.
pub async fn a_session_that_is_found_by_its_key_is_no_exception(f: &Fixture) {
    let (runner, key) = (f.new_runner(), Some("ticket 7".parse().unwrap()));
    let keyed = || {
        let new = NewSession { key: key.clone(), ..f.new_session() };
        NewRun { of: RunOf::Keyed(Box::new(new), Box::default()), ..f.new_run() }
    };
    let first = started(f, keyed(), &runner).await;
    assert_eq!(first.affinity.place, Place::Anywhere);
    f.store.bind(first.fence(), Fixture::binding(&runner, "one"), f.now()).await.unwrap();
    f.complete(first.fence()).await;
    let [second] = f.enqueue([keyed()]).await;
    assert_eq!((second.session, second.affinity.place), (first.session, Place::Runner(runner.id)));
}

/// Another executor cannot carry a conversation on: nothing is enqueued. From the log it begins one of its own.
pub async fn another_executor_is_refused_unless_it_begins_from_history(f: &Fixture) {
    let runner = f.new_runner();
    let session = bound(f, &runner, "one").await.session;
    let codex: ExecutorType = "codex".parse().unwrap();
    let before = f.snapshot(session).await;
    let mut other = f.resume(session);
    other.affinity.executor = codex.clone();
    let (fresh, other_id) = (f.new_run(), other.id);
    let fresh_id = fresh.id;
    assert_refused!(
        f.store.enqueue(vec![fresh, other], None, f.now()),
        StoreError::Conflict(Conflict::Executor { session: of, bound, wanted })
            if (*of, bound, wanted) == (session, &ExecutorType::command(), &codex)
    );
    for id in [fresh_id, other_id] {
        assert_eq!(f.store.run(id).await.unwrap(), None);
    }
    assert_eq!(f.snapshot(session).await, before);
    let mut anew = from_history(f, session);
    anew.affinity.executor = codex.clone();
    let [run] = f.enqueue([anew]).await;
    assert_eq!((run.state.phase(), run.affinity.executor), (RunPhase::Pending, codex));
}
