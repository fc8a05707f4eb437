//! Allotments: a family spends from one purse, and what is left comes back however a child ends.

use futures_util::future::{join, join_all};
use jiff::{SignedDuration, Timestamp};

use super::fixture::assert_refused;
use super::{Fixture, LEASE, TICK};
use crate::affinity::RunnerProfile;
use crate::budget::{Account, Budget, BudgetChange, BudgetPatch, Exhausted, Resource, Usage};
use crate::error::StoreError;
use crate::event::{EventKind, NewEvent};
use crate::family::Parent;
use crate::ids::SessionId;
use crate::ports::{Directive, NewRun, RunOf, SessionFilter, Spent};
use crate::run::{EndKind, Ending, Epoch, Fence, ReasonCode, Run, StopMode};
use crate::session::NewSession;
use crate::state::{TerminationReason, Trigger};

fn tokens(tokens: u64) -> Usage {
    Usage { tokens, ..Usage::NONE }
}

fn budget(tokens_max: u64) -> Budget {
    Budget { tokens_max, tool_calls_max: 0, turns_max: None, cost_micros_max: None }
}

/// A session with so many tokens.
async fn parent(f: &Fixture, tokens_max: u64) -> SessionId {
    let budget = budget(tokens_max);
    f.store.create(NewSession { budget, ..f.new_session() }, f.now()).await.unwrap().id
}

/// A child with so many tokens of its parent's.
fn child_of(f: &Fixture, parent: SessionId, tokens_max: u64) -> NewSession {
    let parent = Parent { allotted: true, ..Parent::new(parent) };
    NewSession { parent: Some(parent), budget: budget(tokens_max), ..f.new_session() }
}

fn run_of(f: &Fixture, session: NewSession) -> NewRun {
    NewRun { of: RunOf::New(Box::new(session)), ..f.new_run() }
}

/// A run of a new child that runs.
async fn running(f: &Fixture, runner: &RunnerProfile, parent: SessionId, tokens_max: u64) -> Run {
    f.enqueue([run_of(f, child_of(f, parent, tokens_max))]).await;
    let claimed = f.claim(runner).await.unwrap().run;
    f.start(claimed.fence()).await
}

/// A further run of this session that runs.
async fn again(f: &Fixture, runner: &RunnerProfile, session: SessionId) -> Run {
    f.enqueue([f.resume(session)]).await;
    let claimed = f.claim(runner).await.unwrap().run;
    f.start(claimed.fence()).await
}

async fn account(f: &Fixture, id: SessionId) -> Account {
    f.store.session(id).await.unwrap().unwrap().account()
}

/// What is used and what is set aside for children, in tokens.
async fn purse(f: &Fixture, id: SessionId) -> (u64, u64) {
    let account = account(f, id).await;
    assert_eq!((account.used.turns, account.allotted.turns), (0, 0), "of nothing else");
    (account.used.tokens, account.allotted.tokens)
}

async fn uses(f: &Fixture, id: SessionId, actual: u64) {
    f.store.settle(id, Usage::NONE, tokens(actual), None, f.now()).await.unwrap();
}

async fn kill(f: &Fixture, id: SessionId) {
    f.transition(id, Trigger::Terminate(TerminationReason::Killed)).await;
}

async fn told(f: &Fixture, id: SessionId, kind: EventKind) -> Vec<String> {
    let records: Vec<NewEvent> = f.records(id).await;
    let of_kind = records.into_iter().filter(|event| event.kind == kind);
    of_kind.map(|event| event.payload.as_str().to_owned()).collect()
}

/// What a child may use is set aside with its parent in the transaction that makes it; what the parent has too little of is
/// refused, and nothing is made. What the parent has without limit nothing is set aside of.
pub async fn a_child_spends_from_its_parents_budget(f: &Fixture) {
    let id = parent(f, 100).await;
    let child = f.store.create(child_of(f, id, 60), f.now()).await.unwrap();
    assert_eq!((child.budget.tokens_max, child.allotted), (60, Usage::NONE));
    let held = account(f, id).await;
    assert_eq!((held.used, held.reserved, held.allotted), (Usage::NONE, Usage::NONE, tokens(60)));
    assert_eq!(f.records(id).await.len(), 1, "nothing is used yet");
    let before = f.snapshot(id).await;
    let expected = Exhausted { resource: Resource::Tokens, limit: 100, used: 0, reserved: 60, asked: 41 };
    let made = f.list(&SessionFilter::default()).await;
    assert_refused!(f.store.create(child_of(f, id, 41), f.now()), StoreError::Exhausted(left) if *left == expected);
    let batch = vec![run_of(f, child_of(f, id, 20)), run_of(f, child_of(f, id, 21))];
    assert_refused!(
        f.store.enqueue(batch, None, f.now()),
        StoreError::Exhausted(Exhausted { reserved: 80, .. })
    );
    assert_refused!(f.store.reserve(id, tokens(41), f.now()), StoreError::Exhausted(_));
    assert_eq!(f.snapshot(id).await, before);
    assert_eq!(f.list(&SessionFilter::default()).await, made);
    let batch = vec![run_of(f, child_of(f, id, 20)), run_of(f, child_of(f, id, 15))];
    f.store.enqueue(batch, None, f.now()).await.unwrap();
    f.store.reserve(id, tokens(5), f.now()).await.unwrap();
    assert_eq!(account(f, id).await.left(Resource::Tokens), 0);
    let owners = NewSession { parent: Some(Parent::new(id)), ..child_of(f, id, 1_000) };
    f.store.create(owners, f.now()).await.unwrap();
    assert_eq!(purse(f, id).await, (0, 95), "an owner's child spends the owner's");
}

/// A child in a child takes of what that one has, also when both are made at once.
pub async fn children_of_children_share_the_same_purse(f: &Fixture) {
    let id = parent(f, 100).await;
    let child = child_of(f, id, 60);
    let grandchild = child_of(f, child.id, 40);
    let below = child.id;
    let beyond = run_of(f, child_of(f, below, 21));
    let batch = vec![run_of(f, child.clone()), run_of(f, grandchild.clone()), beyond];
    assert_refused!(f.store.enqueue(batch, None, f.now()), StoreError::Exhausted(_));
    assert_eq!(purse(f, id).await, (0, 0));
    f.enqueue([run_of(f, child), run_of(f, grandchild)]).await;
    assert_eq!((purse(f, id).await, purse(f, below).await), ((0, 60), (0, 40)));
}

/// However the run of a child ends: its parent has what the child used, once, and the rest back.
pub async fn an_allotment_is_settled_in_every_way_a_child_ends(f: &Fixture) {
    let (id, runner) = (parent(f, 1_000).await, f.new_runner());
    let completed = running(f, &runner, id, 50).await;
    let failed = running(f, &runner, id, 50).await;
    let lost = running(f, &runner, id, 50).await;
    let killed = running(f, &runner, id, 50).await;
    let child = |claim_by| NewRun { claim_by, ..run_of(f, child_of(f, id, 50)) };
    let waits = NewRun { after: vec![0], ..child(None) };
    let late = child(Some(f.now()));
    let [stopped, waits, over, late] = f.enqueue([child(None), waits, child(None), late]).await;
    let rests = f.store.create(child_of(f, id, 50), f.now()).await.unwrap().id;
    assert_eq!(purse(f, id).await, (0, 450));
    for (n, run) in [&completed, &failed, &lost, &killed].into_iter().enumerate() {
        uses(f, run.session, 1 << n).await;
    }
    uses(f, rests, 16).await;
    assert_eq!(purse(f, id).await, (0, 450));
    f.advance(LEASE + TICK);
    for held in [&completed, &failed, &killed] {
        f.store.renew(held.fence(), LEASE, f.now()).await.unwrap();
    }
    f.complete(completed.fence()).await;
    assert_eq!(purse(f, id).await, (1, 400));
    let ending = Ending::because(EndKind::Failed, ReasonCode::ExitNonzero, None, "");
    f.store.finish(failed.fence(), ending, None, f.now()).await.unwrap();
    assert_eq!(purse(f, id).await, (3, 350));
    assert_eq!(f.store.reap(f.now(), 10).await.unwrap().len(), 1);
    assert_eq!(purse(f, id).await, (7, 300));
    kill(f, killed.session).await;
    assert_eq!(purse(f, id).await, (7, 300), "it runs until it is dead");
    let ending = Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, "");
    f.store.finish(killed.fence(), ending, None, f.now()).await.unwrap();
    assert_eq!(purse(f, id).await, (15, 250));
    f.store.request_stop(stopped.id, StopMode::Graceful, f.now()).await.unwrap();
    assert!(f.run(waits.id).await.state.phase().is_ended());
    assert_eq!(purse(f, id).await, (15, 150), "and what waited for it");
    kill(f, over.session).await;
    assert_eq!(f.store.unclaimed(f.now(), LEASE, 10).await.unwrap()[0].id, late.id);
    assert_eq!(purse(f, id).await, (15, 50));
    kill(f, rests).await;
    assert_eq!(purse(f, id).await, (31, 0));
    for run in [&completed, &failed, &lost, &stopped, &waits, &late] {
        kill(f, run.session).await;
    }
    assert_eq!(purse(f, id).await, (31, 0), "once");
    let expected =
        [(completed, 1), (failed, 2), (lost, 4), (killed, 8)].map(|(run, used)| (run.session, used));
    let expected = expected.into_iter().chain([(rests, 16)]);
    let expected: Vec<_> =
        expected.map(|(child, used)| format!(r#"{{"child":"{child}","tokens":{used}}}"#)).collect();
    assert_eq!(told(f, id, EventKind::Usage).await, expected);
    let minutes = f.store.tokens_by_minute(Timestamp::UNIX_EPOCH).await.unwrap();
    assert_eq!(minutes.iter().map(|(_, tokens)| tokens).sum::<u64>(), 31, "where they were used");
}

/// What the work of a child had set aside and nobody settled is booked as used, and not again when it is forfeited.
pub async fn what_was_never_settled_counts_as_used(f: &Fixture) {
    let (id, runner) = (parent(f, 100).await, f.new_runner());
    let run = running(f, &runner, id, 50).await;
    f.store.reserve(run.session, tokens(20), f.now()).await.unwrap();
    f.advance(LEASE + TICK);
    f.store.reap(f.now(), 10).await.unwrap();
    assert_eq!(purse(f, id).await, (20, 0));
    f.store.forfeit(run.session, f.now()).await.unwrap();
    assert_eq!(purse(f, id).await, (20, 0));
    let next = again(f, &runner, run.session).await;
    assert_eq!(purse(f, id).await, (20, 30));
    f.complete(next.fence()).await;
    assert_eq!(purse(f, id).await, (20, 0));
}

/// What a host that is gone had set aside is lost; what its session's children have is not.
pub async fn a_forfeit_leaves_what_children_have(f: &Fixture) {
    let id = parent(f, 100).await;
    f.store.create(child_of(f, id, 60), f.now()).await.unwrap();
    f.store.reserve(id, tokens(30), f.now()).await.unwrap();
    let after = f.store.forfeit(id, f.now()).await.unwrap();
    assert_eq!((after.used, after.reserved, after.allotted), (tokens(30), Usage::NONE, tokens(60)));
    assert_eq!(account(f, id).await, after);
}

/// The end of a run and what it used are one.
pub async fn an_end_settles_what_its_run_used(f: &Fixture) {
    let (id, runner) = (parent(f, 100).await, f.new_runner());
    let run = running(f, &runner, id, 50).await;
    let worst = tokens(40);
    f.store.reserve(run.session, worst, f.now()).await.unwrap();
    let spent = Some(Spent { worst, actual: tokens(7) });
    let end = || f.store.finish_and_settle(run.fence(), Ending::completed(None), None, spent, f.now());
    end().await.unwrap();
    let child = account(f, run.session).await;
    assert_eq!((child.used, child.reserved), (tokens(7), Usage::NONE));
    assert_eq!(purse(f, id).await, (7, 0));
    let before = (f.snapshot(run.session).await, f.snapshot(id).await);
    assert_refused!(end(), StoreError::Transition(_));
    assert_eq!((f.snapshot(run.session).await, f.snapshot(id).await), before);
}

/// A child that is used again has what it had, as far as its parent still has it.
pub async fn a_child_that_is_used_again_takes_what_there_is(f: &Fixture) {
    let (id, runner) = (parent(f, 100).await, f.new_runner());
    let first = running(f, &runner, id, 60).await;
    let child = first.session;
    uses(f, child, 10).await;
    f.complete(first.fence()).await;
    assert_eq!(purse(f, id).await, (10, 0));
    let second = again(f, &runner, child).await;
    assert_eq!((purse(f, id).await, account(f, child).await.budget), ((10, 50), budget(60)));
    f.complete(second.fence()).await;
    uses(f, id, 70).await;
    f.enqueue([f.resume(child)]).await;
    assert_eq!((purse(f, id).await, account(f, child).await.budget), ((80, 20), budget(30)));
    let less = format!(
        r#"{{"from":{{"tokens":60,"tool_calls":0}},"parent":"{id}","to":{{"tokens":30,"tool_calls":0}}}}"#
    );
    assert_eq!(told(f, child, EventKind::SessionBudget).await, [less]);
    let third = f.claim(&runner).await.unwrap().run;
    kill(f, id).await;
    let ending = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "");
    uses(f, child, 3).await;
    f.store.finish(third.fence(), ending, None, f.now()).await.unwrap();
    assert_eq!(purse(f, id).await, (83, 0), "what was spent was spent");
    f.enqueue([f.resume(child)]).await;
    assert_eq!(purse(f, id).await, (83, 0), "who is over gives nothing");
}

/// A limit that became lower because its parent's own work had something set aside is as it was made once that is over.
pub async fn a_child_gets_back_what_its_parent_has_again(f: &Fixture) {
    let (id, runner) = (parent(f, 100).await, f.new_runner());
    let first = running(f, &runner, id, 60).await;
    let child = first.session;
    uses(f, child, 10).await;
    f.complete(first.fence()).await;
    let used_again = async || {
        let run = again(f, &runner, child).await;
        let has = (purse(f, id).await, account(f, child).await.budget);
        f.complete(run.fence()).await;
        has
    };
    f.store.reserve(id, tokens(70), f.now()).await.unwrap();
    assert_eq!(used_again().await, ((10, 20), budget(30)));
    f.store.settle(id, tokens(70), tokens(5), None, f.now()).await.unwrap();
    assert_eq!(used_again().await, ((15, 50), budget(60)));
    assert_eq!(told(f, child, EventKind::SessionBudget).await.len(), 2, "each time its log says so");
    let (by, less) = ("bob".parse().unwrap(), BudgetPatch { tokens_max: Some(40), ..BudgetPatch::default() });
    f.store.set_budget(child, BudgetChange::Set(less), &by, f.now()).await.unwrap();
    assert_eq!(used_again().await.1, budget(40), "what its owner took is not given back");
}

/// A session is not settled with its parent while one below it works; then all of them are, from below. Used again, they
/// set aside anew, from above.
pub async fn families_settle_from_below(f: &Fixture) {
    let (id, runner) = (parent(f, 100).await, f.new_runner());
    let middle = running(f, &runner, id, 60).await;
    let lowest = running(f, &runner, middle.session, 40).await;
    uses(f, lowest.session, 5).await;
    uses(f, middle.session, 7).await;
    f.complete(middle.fence()).await;
    assert_eq!((purse(f, id).await, purse(f, middle.session).await), ((0, 60), (7, 40)));
    f.complete(lowest.fence()).await;
    assert_eq!((purse(f, id).await, purse(f, middle.session).await), ((12, 0), (12, 0)));
    let further = again(f, &runner, lowest.session).await;
    assert_eq!((purse(f, id).await, purse(f, middle.session).await), ((12, 48), (12, 35)));
    kill(f, middle.session).await;
    kill(f, lowest.session).await;
    assert_eq!((purse(f, id).await, purse(f, middle.session).await), ((12, 48), (12, 35)));
    uses(f, lowest.session, 1).await;
    f.complete(further.fence()).await;
    assert_eq!((purse(f, id).await, purse(f, middle.session).await), ((13, 0), (13, 0)));
}

/// What an owner gives a child is not its parent's, and changes nothing of what is set aside there.
pub async fn what_an_owner_gives_is_the_owners(f: &Fixture) {
    let (id, runner, by) = (parent(f, 100).await, f.new_runner(), "bob".parse().unwrap());
    let run = running(f, &runner, id, 30).await;
    f.store.set_budget(run.session, BudgetChange::Add(tokens(20)), &by, f.now()).await.unwrap();
    assert_eq!(purse(f, id).await, (0, 30));
    uses(f, run.session, 45).await;
    f.complete(run.fence()).await;
    assert_eq!(purse(f, id).await, (30, 0));
}

/// A renewal tells what the run may use by now: not what children have, and what an owner gave meanwhile too.
pub async fn a_renewal_tells_what_is_left(f: &Fixture) {
    let (runner, by) = (f.new_runner(), "bob".parse().unwrap());
    f.enqueue([run_of(f, NewSession { budget: budget(100), ..f.new_session() })]).await;
    let run = f.claim(&runner).await.unwrap().run;
    f.store.reserve(run.session, tokens(20), f.now()).await.unwrap();
    let left = async || match f.store.renew(run.fence(), LEASE, f.now()).await.unwrap() {
        Directive::Continue { left } => left.map(|left| (left.tokens, left.turns)).unwrap(),
        Directive::Stop(mode) => panic!("nobody asked for {mode:?}"),
    };
    assert_eq!(left().await, (100, u64::MAX));
    let child = f.store.create(child_of(f, run.session, 60), f.now()).await.unwrap().id;
    assert_eq!(left().await.0, 40);
    uses(f, child, 25).await;
    kill(f, child).await;
    assert_eq!(left().await.0, 75);
    f.store.set_budget(run.session, BudgetChange::Add(tokens(9)), &by, f.now()).await.unwrap();
    assert_eq!(left().await.0, 84);
}

/// A renewal that says what the run needs sets that aside, for all resources, also beyond the limits: no child is given it,
/// and the run may use what it has. It never becomes less, and the settlement gives all of it back.
pub async fn what_a_run_has_used_is_given_to_no_child(f: &Fixture) {
    let runner = f.new_runner();
    let limits =
        Budget { tokens_max: 100, tool_calls_max: 10, turns_max: Some(4), cost_micros_max: Some(50) };
    f.enqueue([run_of(f, NewSession { budget: limits, ..f.new_session() })]).await;
    let run = f.claim(&runner).await.unwrap().run;
    let run = f.start(run.fence()).await;
    let worst = Usage { turns: 1, ..tokens(20) };
    f.store.reserve(run.session, worst, f.now()).await.unwrap();
    let renew = async |spending| match f.store.renew_spending(run.fence(), spending, LEASE, f.now()).await {
        Ok(Directive::Continue { left }) => left.unwrap(),
        other => panic!("{other:?}"),
    };
    let needs = Usage { tokens: 75, tool_calls: 4, turns: 1, cost_micros: 49 };
    for spending in [needs, tokens(30), Usage::NONE] {
        assert_eq!(renew(spending).await, limits.limits(), "the run has all of it");
        assert_eq!(account(f, run.session).await.reserved, needs);
    }
    let refused = async |child: Budget| {
        let new = NewSession { budget: child, ..child_of(f, run.session, 0) };
        assert_refused!(f.store.create(new, f.now()), StoreError::Exhausted(_));
    };
    let small = Budget { tokens_max: 25, tool_calls_max: 6, turns_max: Some(3), cost_micros_max: Some(1) };
    for child in [
        Budget { tokens_max: 26, ..small },
        Budget { tool_calls_max: 7, ..small },
        Budget { turns_max: Some(4), ..small },
        Budget { cost_micros_max: Some(2), ..small },
    ] {
        refused(child).await;
    }
    let child = NewSession { budget: small, ..child_of(f, run.session, 0) };
    f.store.create(child, f.now()).await.unwrap();
    let beyond = Usage { tokens: 130, ..needs };
    assert_eq!(renew(beyond).await.tokens, 75);
    assert_eq!(account(f, run.session).await.left(Resource::Tokens), 0);
    f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
    let more = Usage { cost_micros: 60, ..beyond };
    let stopped = f.store.renew_spending(run.fence(), more, LEASE, f.now()).await.unwrap();
    assert_eq!(stopped, Directive::Stop(StopMode::Graceful));
    assert_eq!(account(f, run.session).await.reserved, more, "it is used all the same");
    let spent = Spent { worst: more, actual: tokens(90) };
    let ending = Ending::completed(None);
    f.store.finish_and_settle(run.fence(), ending, None, Some(spent), f.now()).await.unwrap();
    assert_refused!(f.store.renew_spending(run.fence(), more, LEASE, f.now()), StoreError::Transition(_));
    let after = account(f, run.session).await;
    assert_eq!((after.used, after.reserved), (tokens(90), Usage::NONE));
}

/// A run starts children of its own session as long as its claim holds, and no longer: what its session had is its parent's
/// again once it is over.
pub async fn a_run_that_is_over_starts_no_child(f: &Fixture) {
    let (id, runner) = (parent(f, 100).await, f.new_runner());
    let run = running(f, &runner, id, 60).await;
    let other = running(f, &runner, id, 10).await;
    let by = |fence, tokens_max| {
        let new = child_of(f, run.session, tokens_max);
        NewSession { parent: new.parent.map(|parent| Parent { by: Some(fence), ..parent }), ..new }
    };
    let child = f.store.create(by(run.fence(), 20), f.now()).await.unwrap().id;
    let refused = async |fence| {
        let made = f.list(&SessionFilter::default()).await;
        let (one, batch) = (by(fence, 5), vec![f.new_run(), run_of(f, by(fence, 5))]);
        let created = f.store.create(one, f.now()).await.unwrap_err();
        let enqueued = f.store.enqueue(batch, None, f.now()).await.unwrap_err();
        assert_eq!(created.to_string(), enqueued.to_string());
        assert_eq!(f.list(&SessionFilter::default()).await, made);
        created
    };
    let stale = Fence { epoch: Epoch(9), ..run.fence() };
    assert!(matches!(refused(stale).await, StoreError::Fenced { .. }));
    assert!(matches!(refused(other.fence()).await, StoreError::UnknownRun(id) if id == other.id));
    kill(f, child).await;
    f.complete(run.fence()).await;
    assert_eq!(purse(f, id).await, (0, 10));
    assert!(matches!(refused(run.fence()).await, StoreError::Transition(_)));
    assert_eq!(account(f, run.session).await.allotted, Usage::NONE);
    for _ in 0..8 {
        let run = running(f, &runner, id, 30).await;
        let new = child_of(f, run.session, 30);
        let new =
            NewSession { parent: new.parent.map(|parent| Parent { by: Some(run.fence()), ..parent }), ..new };
        let end = f.store.finish(run.fence(), Ending::completed(None), None, f.now());
        let (ended, made) = join(end, f.store.create(new, f.now())).await;
        ended.unwrap();
        let below = account(f, run.session).await.allotted.tokens;
        assert_eq!((below, purse(f, id).await), if made.is_ok() { (30, (0, 40)) } else { (0, (0, 10)) });
        kill(f, run.session).await;
        if let Ok(made) = made {
            kill(f, made.id).await;
        }
    }
}

/// Of any number of children that are made at once there are as many as their parent can pay for.
pub async fn concurrent_children_take_no_more_than_there_is(f: &Fixture) {
    let id = parent(f, 100).await;
    let made = join_all((0..16).map(|_| f.store.create(child_of(f, id, 22), f.now()))).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 4);
    let spent = |error: &StoreError| matches!(error, StoreError::Exhausted(Exhausted { limit: 100, .. }));
    assert!(made.iter().all(|made| made.as_ref().err().is_none_or(spent)), "{made:?}");
    assert_eq!(purse(f, id).await, (0, 88));
    assert_eq!(f.list(&SessionFilter { parent: Some(id), ..SessionFilter::default() }).await.len(), 4);
}

/// Ends, kills and further runs of children, all at once: nothing is lost, and nothing is booked twice.
pub async fn concurrent_ends_are_all_settled(f: &Fixture) {
    let (id, runner) = (parent(f, 1_000).await, f.new_runner());
    for _ in 0..4 {
        let mut runs = Vec::new();
        for _ in 0..6 {
            runs.push(running(f, &runner, id, 40).await);
        }
        let before = account(f, id).await.used.tokens;
        let end = |run: Run| async move {
            uses(f, run.session, 3).await;
            let end = f.store.finish(run.fence(), Ending::completed(None), None, f.now());
            let terminated = Trigger::Terminate(TerminationReason::Killed);
            let (ended, killed) = join(end, f.store.transition(run.session, terminated, f.now())).await;
            killed.unwrap();
            ended.unwrap();
        };
        join_all(runs.into_iter().map(end)).await;
        assert_eq!(purse(f, id).await, (before + 18, 0));
        f.advance(SignedDuration::from_secs(1));
    }
    let child = running(f, &runner, id, 40).await;
    f.complete(child.fence()).await;
    let terminated = Trigger::Terminate(TerminationReason::Killed);
    let kill = f.store.transition(child.session, terminated, f.now());
    let further = f.store.enqueue(vec![f.resume(child.session)], None, f.now());
    let (killed, _) = join(kill, further).await;
    killed.unwrap();
    assert_eq!(purse(f, id).await.1, 0);
}
