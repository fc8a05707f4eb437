//! Wake-ups: whoever waits for a change is told of it, also when it came before the wait.
//!
//! That nobody is woken without need is not asked: a wake-up too many is always allowed.

use futures_util::future::{join, join_all};
use jiff::SignedDuration;

use super::deadline::in_time;
use super::{Fixture, LEASE, TICK};
use crate::approval::Withdrawal;
use crate::approvals::Verdict;
use crate::ports::{Author, NewRun, RunProgress};
use crate::run::{EndKind, Ending, ReasonCode, StopMode};
use crate::state::{TerminationReason, Trigger};
use crate::wake::Topic;

/// Makes a change while somebody listens who waits only afterwards, and asserts that they are woken.
async fn wakes<T>(f: &Fixture, topic: Topic, what: &str, change: impl Future<Output = T>) -> T {
    let mut listener = f.store.listen(topic);
    let outcome = change.await;
    in_time(what, listener.woken()).await;
    outcome
}

/// Who was waiting before the change is woken, everybody, and again by the next change.
pub async fn everybody_who_waits_is_woken_each_time(f: &Fixture) {
    let session = f.session().await.id;
    let mut listeners: Vec<_> = (0..5).map(|_| f.store.listen(Topic::Session(session))).collect();
    for _ in 0..3 {
        let waiting = join_all(listeners.iter_mut().map(|listener| in_time("an append", listener.woken())));
        join(waiting, f.append(session, vec![Fixture::message("news")])).await;
    }
}

/// The queue is announced when a run comes in.
pub async fn the_queue_wakes_for_a_new_run(f: &Fixture) {
    wakes(f, Topic::Queue, "a run was enqueued", f.enqueue([f.new_run()])).await;
}

/// The queue is announced when the run that another waits for has completed.
pub async fn the_queue_wakes_when_a_dependency_completes(f: &Fixture) {
    let (runner, first) = (f.new_runner(), f.new_run());
    let second = NewRun { after: vec![0], ..f.new_run() };
    f.enqueue([first, second]).await;
    let fence = f.claim(&runner).await.unwrap().run.fence();
    f.start(fence).await;
    wakes(f, Topic::Queue, "a dependency completed", f.complete(fence)).await;
    assert!(f.claim(&runner).await.is_some());
}

/// The queue is announced when a run goes back to it.
pub async fn the_queue_wakes_when_a_run_comes_back(f: &Fixture) {
    let runner = f.new_runner();
    f.claimed(&runner).await;
    f.advance(LEASE + TICK);
    wakes(f, Topic::Queue, "a run came back", f.store.reap(f.now(), 10)).await.unwrap();
    assert!(f.claim(&runner).await.is_some());
}

/// The queue is announced when a place in a crew becomes free, by an end or by a loss.
pub async fn the_queue_wakes_when_a_crew_has_a_place(f: &Fixture) {
    let runner = f.new_runner();
    let batch = (0..3).map(|_| f.new_run()).collect();
    f.store.enqueue(batch, Some(f.new_crew(Some(1))), f.now()).await.unwrap();
    let first = f.claim(&runner).await.unwrap().run.fence();
    let failed = Ending::because(EndKind::Failed, ReasonCode::SpawnFailed, None, "no such program");
    let finish = f.store.finish(first, failed, None, f.now());
    wakes(f, Topic::Queue, "a run of the crew ended", finish).await.unwrap();
    let second = f.claim(&runner).await.unwrap().run.fence();
    f.start(second).await;
    f.advance(LEASE + TICK);
    wakes(f, Topic::Queue, "a run of the crew was lost", f.store.reap(f.now(), 10)).await.unwrap();
    assert!(f.claim(&runner).await.is_some());
}

/// A runner is told that a run of its own is to stop, and again when the order hardens; by a stop and by the
/// termination of the session.
pub async fn a_runner_wakes_for_a_stop_order(f: &Fixture) {
    let runner = f.new_runner();
    let topic = Topic::Runner(runner.id);
    for &mode in StopMode::ALL {
        let run = f.running(&runner).await;
        let order = f.store.request_stop(run.id, mode, f.now());
        wakes(f, topic, "a stop was asked for", order).await.unwrap();
    }
    let run = f.running(&runner).await;
    f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
    let harder = f.store.request_stop(run.id, StopMode::Kill, f.now());
    wakes(f, topic, "the order hardened", harder).await.unwrap();
    let run = f.running(&runner).await;
    let terminate = f.transition(run.session, Trigger::Terminate(TerminationReason::Killed));
    wakes(f, topic, "its session was terminated", terminate).await;
}

/// A session is announced when something is appended to its log: by anybody, by a run, by a change of its own state
/// or label, and by every step of its runs.
pub async fn a_session_wakes_for_every_entry_of_its_log(f: &Fixture) {
    let (runner, session) = (f.new_runner(), f.session().await.id);
    let topic = Topic::Session(session);
    wakes(f, topic, "appended", f.append(session, vec![Fixture::message("hello")])).await;
    wakes(f, topic, "labelled", f.store.relabel(session, None, f.now())).await.unwrap();
    let [run] = wakes(f, topic, "enqueued", f.enqueue([f.resume(session)])).await;
    let fence = wakes(f, topic, "claimed", f.claim(&runner)).await.unwrap().run.fence();
    for to in [RunProgress::Starting, RunProgress::RUNNING] {
        wakes(f, topic, "advanced", f.store.advance(fence, to, f.now())).await.unwrap();
    }
    let message = vec![Fixture::message("by the run")];
    wakes(f, topic, "by the run", f.store.append(Author::Run(fence), message, f.now())).await.unwrap();
    let binding = Fixture::binding(&runner, "one");
    wakes(f, topic, "bound", f.store.bind(fence, binding, f.now())).await.unwrap();
    let [one, two] = [f.new_approval(), f.new_approval()];
    let (answered, withdrawn) = (one.id, two.id);
    wakes(f, topic, "asked", f.store.ask(fence, one, f.now())).await.unwrap();
    wakes(f, topic, "asked again", f.store.ask(fence, two, f.now())).await.unwrap();
    let answer = f.store.answer(answered, Fixture::reply(Verdict::Deny, false), f.now());
    wakes(f, topic, "answered", answer).await.unwrap();
    let withdraw = f.store.withdraw(fence, withdrawn, Withdrawal::Expired, f.now());
    wakes(f, topic, "withdrawn", withdraw).await.unwrap();
    wakes(f, topic, "completed", f.complete(fence)).await;
    wakes(f, topic, "idle", f.transition(session, Trigger::IdleTimeout)).await;
    wakes(f, topic, "enqueued again", f.enqueue([f.resume(session)])).await;
    f.claim(&runner).await.unwrap();
    f.advance(LEASE + TICK);
    wakes(f, topic, "back in the queue", f.store.reap(f.now(), 10)).await.unwrap();
    let trigger = Trigger::Terminate(TerminationReason::Stopped);
    wakes(f, topic, "terminated", f.transition(session, trigger)).await;
    assert_eq!(f.run(run.id).await.session, session);
}

/// A session is announced when a run of it fails because of another session's run, and when its identity expires.
pub async fn a_session_wakes_for_what_others_do_to_it(f: &Fixture) {
    let second = NewRun { after: vec![0], ..f.new_run() };
    let [first, second] = f.enqueue([f.new_run(), second]).await;
    let stop = f.store.request_stop(first.id, StopMode::Graceful, f.now());
    wakes(f, Topic::Session(second.session), "its dependency was stopped", stop).await.unwrap();

    for way in 0..2 {
        let request = f.open("/repo", &format!("run-{way}"), "one");
        let old = f.store.open(request.clone(), f.now()).await.unwrap().session;
        f.advance(SignedDuration::from_hours(24));
        let mut listener = f.store.listen(Topic::Session(old));
        if way == 0 {
            f.store.expire_identities(f.now(), 10).await.unwrap();
        } else {
            let new = crate::session::NewSession { id: f.env.session_id(), ..request.new.clone() };
            f.store.open(crate::session::OpenSession { new, ..request }, f.now()).await.unwrap();
        }
        in_time("its identity expired", listener.woken()).await;
    }
}

/// A revocation is known to whoever remembers tokens in this process before its caller hears of it.
pub async fn whoever_remembers_tokens_wakes_for_a_revocation(f: &Fixture) {
    let token = f.store.issue(f.new_token(), f.now()).await.unwrap();
    let mut listener = f.store.listen(Topic::Tokens);
    f.store.revoke(token.id, f.now()).await.unwrap();
    assert!(listener.changed());
}
