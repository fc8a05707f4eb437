//! Budgets, the limit of an hour and grants: reserve the worst, settle the truth, record it first.

use camino::Utf8Path;
use session_core::TerminationReason;
use session_core::approvals::{APPROVALS_MAX, Grant, Verdict};
use session_core::budget::{Account, Budget, BudgetChange, Resource, Usage};
use session_core::grants::{Access, GRANTS_MAX};
use session_core::names::{Principal, ToolName};
use session_manager::{ChangeError, ManagerOptions, SessionRequest, SpendError};

use crate::world::{Behaves, Gate, Handle, Point, World, minutes, request};

fn tokens(tokens: u64) -> Usage {
    Usage { tokens, ..Usage::NONE }
}

fn by() -> Principal {
    Principal::new("admin").unwrap()
}

/// A world with a limit of so many tokens an hour.
fn world(tokens_per_hour: u64) -> World {
    World::with(ManagerOptions { tokens_per_hour, ..ManagerOptions::default() })
}

/// A session with a budget of so many tokens.
async fn open(world: &World, tokens_max: u64) -> Handle {
    let budget = Budget { tokens_max, ..Budget::default() };
    world.manager.create(SessionRequest { budget, ..request("me") }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_worst_is_set_aside_and_the_truth_is_settled() {
    let world = world(1_000);
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    let first = run.reserve(tokens(60), None).await.unwrap();
    assert_eq!(first.worst(), tokens(60));
    let refused = run.reserve(tokens(60), None).await.unwrap_err();
    let SpendError::Exhausted(exhausted) = refused else { panic!("{refused}") };
    assert_eq!((exhausted.reserved, exhausted.asked), (60, 60), "together they would overshoot");
    let settled = first.settle(tokens(10)).await;
    assert_eq!((settled.used, settled.warn), (tokens(10), vec![]));
    let more = run.reserve(tokens(60), None).await.unwrap().settle(tokens(75)).await;
    assert_eq!((more.used, more.warn), (tokens(85), vec![Resource::Tokens]), "more than was set aside");
    let expected = ["1: record reserved", "1: record settled", "1: record reserved", "1: record settled"];
    assert_eq!(world.journal()[2..], expected);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_settled_is_paid_at_its_worst() {
    let world = world(1_000);
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    drop(run.reserve(tokens(60), None).await.unwrap());
    world.settle().await;
    assert_eq!(handle.meter().used(), tokens(60));
    assert_eq!(world.journal().last().unwrap(), "1: record settled");
    // It outlives the run and the session.
    let spending = run.reserve(tokens(40), None).await.unwrap();
    drop(run);
    world.manager.terminate(handle.id(), TerminationReason::Stopped).await.unwrap();
    spending.settle(tokens(40)).await;
    assert_eq!(handle.meter().used(), tokens(100));
    assert_eq!(world.journal().last().unwrap(), "1: record settled", "what was spent was spent");
}

#[tokio::test(start_paused = true)]
async fn the_hour_is_one_for_all_sessions_and_slides() {
    let world = world(100);
    let (one, two) = (open(&world, 1_000).await, open(&world, 1_000).await);
    let first = world.manager.acquire(one.id()).await.unwrap();
    let second = world.manager.acquire(two.id()).await.unwrap();
    let spending = first.reserve(tokens(80), None).await.unwrap();
    let refused = second.reserve(tokens(30), None).await.unwrap_err();
    let SpendError::Hourly(limit) = refused else { panic!("{refused}") };
    assert_eq!(limit.retry_after, Some(minutes(60)));
    assert_eq!(two.meter().account().reserved, Usage::NONE, "the refusal set nothing aside");
    world.pass(minutes(1));
    spending.settle(tokens(50)).await;
    second.reserve(tokens(30), None).await.unwrap().settle(tokens(60)).await;
    let refused = second.reserve(tokens(1), None).await.unwrap_err();
    assert!(matches!(refused, SpendError::Hourly(_)), "the excess is booked too: 110 of 100");
    world.pass(minutes(59));
    second.reserve(tokens(40), None).await.unwrap().settle(tokens(40)).await;
    // Nothing asked for is never refused.
    second.reserve(Usage { turns: 1, ..Usage::NONE }, None).await.unwrap().settle(Usage::NONE).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_undoes_what_was_set_aside_before_it() {
    let world = world(100);
    let handle = open(&world, 50).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    assert!(matches!(run.reserve(tokens(60), None).await, Err(SpendError::Exhausted(_))));
    for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
        world.behaves(Point::Report("reserved"), behaviour);
        let error = run.reserve(tokens(50), None).await.unwrap_err();
        assert!(matches!(error, SpendError::Record { .. }), "{error}");
        let account = handle.meter().account();
        assert_eq!((account.used, account.reserved), (Usage::NONE, Usage::NONE));
    }
    world.behaves(Point::Report("reserved"), Behaves::Well);
    world.manager.change_budget(handle.id(), BudgetChange::Add(tokens(50)), by()).await.unwrap();
    run.reserve(tokens(100), None).await.unwrap().settle(tokens(100)).await;
    // A record that is another's ends the session here.
    world.behaves(Point::Report("reserved"), Behaves::Objects);
    run.reserve(Usage::NONE, None).await.unwrap_err();
    run.ended().await;
    assert!(matches!(run.reserve(Usage::NONE, None).await, Err(SpendError::Ended(_))));
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_nobody_waits_for_costs_nothing() {
    let world = world(100);
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    let gate = world.gate(Point::Report("reserved"));
    tokio::select! {
        biased;
        _ = run.reserve(tokens(100), None) => panic!("it stands at the gate"),
        () = gate.reached() => {}
    }
    gate.open();
    world.settle().await;
    assert_eq!(handle.meter().used(), Usage::NONE);
    assert_eq!(world.journal()[2..], ["1: record reserved", "1: record settled"]);
    world.behaves(Point::Report("reserved"), Behaves::Well);
    run.reserve(tokens(100), None).await.unwrap().settle(tokens(100)).await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_cannot_be_recorded_counts_here_all_the_same() {
    let world = world(1_000);
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
        world.behaves(Point::Report("settled"), behaviour);
        run.reserve(tokens(10), None).await.unwrap().settle(tokens(10)).await;
    }
    assert_eq!(handle.meter().used(), tokens(30));
}

#[tokio::test(start_paused = true)]
async fn limits_and_usage_survive_a_resume_and_can_be_changed_meanwhile() {
    let world = world(1_000);
    let session = open(&world, 100).await.id();
    let run = world.manager.acquire(session).await.unwrap();
    run.reserve(tokens(90), None).await.unwrap().settle(tokens(90)).await;
    drop(run);
    world.manager.suspend(session).await.unwrap();
    world.manager.change_budget(session, BudgetChange::Add(tokens(5)), by()).await.unwrap();
    let handle = world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    assert_eq!((handle.session().usage, handle.session().budget.tokens_max), (tokens(90), 105));
    let run = world.manager.acquire(session).await.unwrap();
    run.reserve(tokens(16), None).await.unwrap_err();
    run.reserve(tokens(15), None).await.unwrap().settle(tokens(15)).await;
    let view = world.manager.view(session).unwrap();
    assert_eq!((view.usage, view.budget.tokens_max), (tokens(105), 105));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_changes_nothing() {
    let world = World::new();
    let handle = open(&world, 100).await;
    let session = handle.id();
    let tool = || ToolName::new("shell").unwrap();
    let grant = || Grant::Tool { name: tool(), verdict: Verdict::Allow };
    let verdict = || handle.with_context(|context| context.approvals.verdict(&tool(), None));
    for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
        world.behaves(Point::Report("budget"), behaviour.clone());
        world.behaves(Point::Report("grant"), behaviour);
        let change = BudgetChange::Set(Budget::default().into());
        let refused = world.manager.change_budget(session, change, by()).await.unwrap_err();
        assert!(matches!(refused, ChangeError::Record { .. }), "{refused}");
        assert_eq!(handle.meter().budget().tokens_max, 100);
        assert!(matches!(world.manager.grant(session, grant()).await, Err(ChangeError::Record { .. })));
        assert_eq!(verdict(), None);
    }
    world.behaves(Point::Report("grant"), Behaves::Well);
    world.manager.grant(session, grant()).await.unwrap();
    assert_eq!(verdict(), Some(Verdict::Allow));
    world.journal();
    let outside = Grant::Directory { path: "../etc".into(), access: Access::Read };
    let refused = world.manager.grant(session, outside).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Directory { .. }), "{refused}");
    assert!(world.journal().is_empty(), "what nobody can be granted is not recorded");
    let inside = Grant::Directory { path: "/srv".into(), access: Access::Read };
    world.manager.grant(session, inside).await.unwrap();
    assert!(handle.with_context(|context| context.grants.allows(Utf8Path::new("/srv/a"), Access::Read)));
    let stranger = world.env.session_id();
    assert!(matches!(world.manager.grant(stranger, grant()).await, Err(ChangeError::Unknown(_))));
    world.behaves(Point::Report("grant"), Behaves::Objects);
    world.manager.grant(session, grant()).await.unwrap_err();
    world.settle().await;
    assert_eq!(world.state(session), "none", "its record is another's");
}

#[tokio::test(start_paused = true)]
async fn an_answer_too_many_is_refused_before_it_is_recorded() {
    let world = World::new();
    let handle = world.open().await;
    let tool = |number: usize| Grant::Tool {
        name: ToolName::new(&format!("tool_{number}")).unwrap(),
        verdict: Verdict::Deny,
    };
    let directory =
        |number: usize| Grant::Directory { path: format!("/srv/{number}").into(), access: Access::Read };
    handle.with_context(|context| {
        assert!((0..APPROVALS_MAX).all(|number| context.answer(tool(number))));
        assert!((0..GRANTS_MAX).all(|number| context.answer(directory(number))));
    });
    world.journal();
    for too_many in [tool(APPROVALS_MAX), directory(GRANTS_MAX)] {
        let refused = world.manager.grant(handle.id(), too_many).await;
        assert!(matches!(refused, Err(ChangeError::Full(session)) if session == handle.id()));
    }
    assert!(world.journal().is_empty(), "the log does not say otherwise");
    world.manager.grant(handle.id(), tool(0)).await.unwrap();
    world.manager.grant(handle.id(), directory(0)).await.unwrap();
    assert_eq!(world.journal().len(), 2, "what is remembered already is no more");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_hour_goes_on() {
    let world = world(100);
    let minute = world.env.now().as_second() / 60;
    world.manager.seed_hourly([(minute - 60, 1_000), (minute - 30, 50), (minute, 20), (i64::MAX, 7)]);
    // Booked under a clock that ran ahead.
    world.manager.seed_hourly([(minute + 1, 1_000), (minute + 24 * 60, 1_000)]);
    let handle = open(&world, 1_000).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    let SpendError::Hourly(limit) = run.reserve(tokens(31), None).await.unwrap_err() else { panic!() };
    assert_eq!(limit.retry_after, Some(minutes(30)));
    run.reserve(tokens(30), None).await.unwrap().settle(tokens(30)).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_nothing_refuses_and_the_largest_never_does() {
    let none = world(0);
    let handle = open(&none, 1_000).await;
    let run = none.manager.acquire(handle.id()).await.unwrap();
    let SpendError::Hourly(limit) = run.reserve(tokens(1), None).await.unwrap_err() else { panic!() };
    assert_eq!(limit.retry_after, None);
    let endless = world(u64::MAX);
    let handle = open(&endless, u64::MAX).await;
    let run = endless.manager.acquire(handle.id()).await.unwrap();
    for _ in 0..3 {
        run.reserve(tokens(u64::MAX), None).await.unwrap().settle(tokens(u64::MAX)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_an_end_overtakes_leaves_the_end_as_it_is() {
    let world = World::new();
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    let gate = Gate::new();
    world.behaves(Point::Report("reserved"), Behaves::ObjectsLate(gate.clone()));
    let reserving = tokio::spawn(async move { (run.reserve(tokens(1), None).await.map(drop), run) });
    gate.reached().await;
    let (manager, session) = (world.manager.clone(), handle.id());
    let end = tokio::spawn(async move { manager.terminate(session, TerminationReason::Stopped).await });
    handle.ended().await;
    world.settle().await;
    gate.open();
    let (refused, run) = reserving.await.unwrap();
    assert!(matches!(refused, Err(SpendError::Ended(session)) if session == handle.id()));
    world.behaves(Point::Report("budget"), Behaves::Objects);
    let refused = world.manager.change_budget(handle.id(), BudgetChange::Add(tokens(1)), by()).await;
    assert!(matches!(refused, Err(ChangeError::Unknown(_))), "its record is over");
    drop(run);
    end.await.unwrap().unwrap();
    assert_eq!(world.journal()[2..], ["1: record terminate stopped", "1: shutdown Terminated(Stopped)"]);
}

#[tokio::test(start_paused = true)]
async fn before_a_budget_refuses_the_record_is_asked() {
    let world = World::new();
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    run.reserve(tokens(60), None).await.unwrap().settle(tokens(60)).await;
    let held = run.reserve(tokens(30), None).await.unwrap();
    // Another process used 10 and raised the limit.
    let budget = Budget { tokens_max: 120, ..Budget::default() };
    let account = Account { budget, used: tokens(70), reserved: tokens(500), ..Account::default() };
    world.accounts(account);
    let more = run.reserve(tokens(20), None).await.unwrap();
    assert_eq!(handle.meter().account(), Account { reserved: tokens(50), ..account });
    let SpendError::Exhausted(exhausted) = run.reserve(tokens(1), None).await.unwrap_err() else { panic!() };
    assert_eq!((exhausted.limit, exhausted.used, exhausted.reserved), (120, 70, 50));
    // What is not recorded yet is not forgotten.
    held.settle(tokens(30)).await;
    more.settle(tokens(20)).await;
    run.reserve(tokens(1), None).await.unwrap_err();
    assert_eq!(handle.meter().used(), tokens(120));
    // Who cannot be asked refuses nothing that was not refused before.
    for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
        world.behaves(Point::Account, behaviour);
        assert!(matches!(run.reserve(tokens(1), None).await, Err(SpendError::Exhausted(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn what_children_have_is_looked_up() {
    let world = World::new();
    let handle = open(&world, 100).await;
    let run = world.manager.acquire(handle.id()).await.unwrap();
    let held = run.reserve(tokens(5), None).await.unwrap();
    let budget = Budget { tokens_max: 90, ..Budget::default() };
    let account = Account { budget, used: tokens(10), reserved: tokens(500), allotted: tokens(60) };
    world.accounts(account);
    run.look_up_budget().await;
    let known = Account { reserved: tokens(5), ..account };
    assert_eq!((handle.meter().account(), known.in_hand().tokens), (known, 20));
    assert!(matches!(run.reserve(tokens(16), None).await, Err(SpendError::Exhausted(_))));
    world.accounts(Account { allotted: Usage::NONE, ..account });
    // Who cannot be asked changes nothing.
    for behaviour in [Behaves::Fails, Behaves::Panics, Behaves::Hangs] {
        world.behaves(Point::Account, behaviour);
        run.look_up_budget().await;
        assert_eq!(handle.meter().account(), known);
    }
    world.behaves(Point::Account, Behaves::Well);
    run.reserve(tokens(16), None).await.unwrap().settle(tokens(1)).await;
    held.settle(tokens(1)).await;
}
