//! Budgets: reserved before, settled after, and never overshot together.

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};

use super::fixture::assert_refused;
use super::{Fixture, TICK};
use crate::budget::{
    Account, Budget, BudgetChange, BudgetPatch, Exhausted, LimitChange, Resource, Settled, Usage,
};
use crate::error::StoreError;
use crate::event::{Event, NewEvent};
use crate::ids::SessionId;
use crate::record::{self, Booking};
use crate::session::NewSession;
use crate::state::{TerminationReason, Trigger};

fn tokens(tokens: u64) -> Usage {
    Usage { tokens, ..Usage::NONE }
}

/// A session with 100 tokens, 10 tool calls and 5 turns to use up.
async fn session(f: &Fixture) -> SessionId {
    let budget = Budget { tokens_max: 100, tool_calls_max: 10, turns_max: Some(5), cost_micros_max: None };
    f.store.create(NewSession { budget, ..f.new_session() }, f.now()).await.unwrap().id
}

async fn account(f: &Fixture, id: SessionId) -> Account {
    f.store.session(id).await.unwrap().unwrap().account()
}

async fn reserve(f: &Fixture, id: SessionId, worst: Usage) -> Account {
    f.store.reserve(id, worst, f.now()).await.unwrap()
}

async fn settle(f: &Fixture, id: SessionId, worst: Usage, actual: Usage) -> Account {
    f.store.settle(id, worst, actual, None, f.now()).await.unwrap()
}

async fn by_minute(f: &Fixture) -> Vec<(i64, u64)> {
    f.store.tokens_by_minute(Timestamp::UNIX_EPOCH).await.unwrap()
}

/// What is reserved is set aside in the store, added up, and recorded nowhere: nothing is used yet.
pub async fn a_reservation_is_set_aside(f: &Fixture) {
    let (id, other) = (session(f).await, session(f).await);
    let before = f.snapshot(id).await;
    assert_eq!(reserve(f, id, Usage::NONE).await, account(f, id).await);
    assert_eq!(f.snapshot(id).await, before);
    let worst = Usage { tool_calls: 2, turns: 1, cost_micros: 7, ..tokens(40) };
    let mut expected = account(f, id).await;
    for _ in 0..2 {
        expected.reserved = expected.reserved.plus(worst);
        assert_eq!(reserve(f, id, worst).await, expected);
        assert_eq!(account(f, id).await, expected);
    }
    assert_eq!((expected.used, expected.reserved.tokens), (Usage::NONE, 80));
    assert_eq!(f.log(id).await, before.log);
    assert_eq!(account(f, other).await.reserved, Usage::NONE);
    let unknown = f.env.session_id();
    assert_refused!(f.store.reserve(unknown, worst, f.now()), StoreError::UnknownSession(id) if *id == unknown);
}

/// What is left is told, and nothing is set aside, also not of what there would be enough of.
pub async fn a_reservation_beyond_the_limit_is_refused(f: &Fixture) {
    let id = session(f).await;
    reserve(f, id, tokens(50)).await;
    settle(f, id, tokens(50), tokens(30)).await;
    reserve(f, id, tokens(40)).await;
    let before = f.snapshot(id).await;
    let expected = Exhausted { resource: Resource::Tokens, limit: 100, used: 30, reserved: 40, asked: 31 };
    let asked = Usage { turns: 1, ..tokens(31) };
    assert_refused!(f.store.reserve(id, asked, f.now()), StoreError::Exhausted(left) if *left == expected);
    let calls = Usage { tool_calls: 11, ..Usage::NONE };
    assert_refused!(
        f.store.reserve(id, calls, f.now()),
        StoreError::Exhausted(Exhausted { resource: Resource::ToolCalls, asked: 11, .. })
    );
    assert_eq!(f.snapshot(id).await, before);
    reserve(f, id, Usage { turns: 5, cost_micros: u64::MAX, ..tokens(30) }).await;
}

/// What was used is booked, more than was set aside too, and recorded without what is nothing; the rest is given back.
pub async fn a_settlement_books_what_was_used(f: &Fixture) {
    let (id, run) = (session(f).await, f.env.run_id());
    let cases = [
        (tokens(40), Usage { turns: 1, ..tokens(10) }, Some(run)),
        (tokens(10), Usage { tool_calls: 1, cost_micros: 3, ..tokens(20) }, None),
        (tokens(10), Usage::NONE, Some(run)),
    ];
    let mut expected = f.snapshot(id).await;
    for (worst, actual, run) in cases {
        reserve(f, id, worst).await;
        f.advance(TICK);
        let session = expected.session.as_mut().unwrap();
        session.usage = session.usage.plus(actual);
        let after = session.account();
        assert_eq!(f.store.settle(id, worst, actual, run, f.now()).await.unwrap(), after);
        let settled = Settled { used: after.used, warn: Vec::new() };
        for body in record::usage(&Booking { actual, run, unsettled: false }, &after, &settled) {
            let seq = expected.log.last().unwrap().seq.next();
            expected.log.push(Event { session: id, seq, at: f.now(), body });
        }
        assert_eq!(f.snapshot(id).await, expected);
    }
    let texts: Vec<_> = expected.log[1..].iter().map(|event| event.body.payload.as_str()).collect();
    assert_eq!(texts, [r#"{"tokens":10,"turns":1}"#, r#"{"cost_micros":3,"tokens":20,"tool_calls":1}"#]);
    let unknown = f.store.settle(f.env.session_id(), tokens(1), tokens(1), None, f.now());
    assert_refused!(unknown, StoreError::UnknownSession(_));
}

/// A warning for each resource that crosses eighty percent, behind the usage that crossed it; after a top-up again.
pub async fn each_crossing_warns_once(f: &Fixture) {
    let id = session(f).await;
    let warnings = async || -> Vec<String> {
        let warnings = f.records(id).await.into_iter().filter(|event| event.kind.as_str() == "warning");
        warnings.map(|event| event.payload.as_str().to_owned()).collect()
    };
    settle(f, id, Usage::NONE, Usage { turns: 3, ..tokens(79) }).await;
    assert!(warnings().await.is_empty());
    settle(f, id, Usage::NONE, Usage { turns: 1, ..tokens(2) }).await;
    let both = [
        r#"{"limit":100,"percent":80,"resource":"tokens","used":81}"#,
        r#"{"limit":5,"percent":80,"resource":"turns","used":4}"#,
    ];
    assert_eq!(warnings().await, both);
    settle(f, id, Usage::NONE, Usage { tool_calls: 7, turns: 1, ..tokens(30) }).await;
    assert_eq!(warnings().await.len(), 2);
    let more = BudgetChange::Add(tokens(100));
    f.store.set_budget(id, more, &"bob".parse().unwrap(), f.now()).await.unwrap();
    settle(f, id, Usage::NONE, Usage { tool_calls: 1, ..tokens(49) }).await;
    let third = [
        r#"{"limit":200,"percent":80,"resource":"tokens","used":160}"#,
        r#"{"limit":10,"percent":80,"resource":"tool_calls","used":8}"#,
    ];
    assert_eq!(warnings().await[2..], third);
}

/// What nobody settles any more is booked at its worst, once.
pub async fn what_is_forfeited_counts_as_used(f: &Fixture) {
    let id = session(f).await;
    let before = f.snapshot(id).await;
    assert_eq!(f.store.forfeit(id, f.now()).await.unwrap(), before.session.as_ref().unwrap().account());
    assert_eq!(f.snapshot(id).await, before);
    settle(f, id, Usage::NONE, tokens(10)).await;
    reserve(f, id, Usage { turns: 1, ..tokens(40) }).await;
    reserve(f, id, tokens(35)).await;
    for _ in 0..2 {
        let after = f.store.forfeit(id, f.now()).await.unwrap();
        assert_eq!((after.used, after.reserved), (Usage { turns: 1, ..tokens(85) }, Usage::NONE));
        assert_eq!(account(f, id).await, after);
        let records = f.records(id).await;
        let texts: Vec<_> = records[2..].iter().map(|event| event.payload.as_str()).collect();
        let warning = r#"{"limit":100,"percent":80,"resource":"tokens","used":85}"#;
        assert_eq!(texts, [r#"{"tokens":75,"turns":1,"unsettled":true}"#, warning]);
    }
    assert_eq!(by_minute(f).await.iter().map(|(_, tokens)| tokens).sum::<u64>(), 85);
    assert_refused!(f.store.forfeit(f.env.session_id(), f.now()), StoreError::UnknownSession(_));
}

/// A settlement behind the forfeit of its reservation books its work again, and gives back what others have set aside
/// since, as far as there is any.
pub async fn a_settlement_after_a_forfeit_books_again(f: &Fixture) {
    let id = session(f).await;
    reserve(f, id, tokens(40)).await;
    f.store.forfeit(id, f.now()).await.unwrap();
    reserve(f, id, tokens(30)).await;
    let late = settle(f, id, tokens(40), tokens(5)).await;
    assert_eq!((late.used, late.reserved), (tokens(45), Usage::NONE));
    let other = settle(f, id, tokens(30), tokens(10)).await;
    assert_eq!((other.used, other.reserved), (tokens(55), Usage::NONE));
    let texts: Vec<_> = f.records(id).await.iter().map(|event| event.payload.as_str().to_owned()).collect();
    assert_eq!(texts[1..], [r#"{"tokens":40,"unsettled":true}"#, r#"{"tokens":5}"#, r#"{"tokens":10}"#]);
}

/// Limits are replaced or raised, with who did it; the same limits again are no change. What was used and what is set
/// aside stays.
pub async fn limits_are_changed_and_recorded(f: &Fixture) {
    let (id, by) = (session(f).await, "bob \"ü\"".parse().unwrap());
    settle(f, id, Usage::NONE, tokens(60)).await;
    reserve(f, id, tokens(30)).await;
    let mut expected = f.snapshot(id).await;
    let raised = BudgetChange::Add(Usage { turns: 1, cost_micros: 1, ..tokens(u64::MAX) });
    let lowered = Budget { tokens_max: 0, tool_calls_max: 3, turns_max: None, cost_micros_max: Some(9) };
    let lowered = BudgetChange::Set(lowered.into());
    let (nothing, kept) = (BudgetChange::Add(Usage::NONE), BudgetChange::Set(BudgetPatch::default()));
    let changes = [raised, lowered, lowered, nothing, kept];
    for change in changes {
        f.advance(TICK);
        let session = expected.session.as_mut().unwrap();
        let from = session.budget;
        session.budget = change.applied_to(from);
        let to = session.budget;
        let after = f.store.set_budget(id, change, &by, f.now()).await.unwrap();
        assert_eq!(after, session.account());
        if from != to {
            let seq = expected.log.last().unwrap().seq.next();
            let body = record::session_budget(from, to, &by);
            expected.log.push(Event { session: id, seq, at: f.now(), body });
        }
        assert_eq!(f.snapshot(id).await, expected);
    }
    assert_eq!(expected.log.len(), 4, "created, used, and two changes");
    assert_refused!(f.store.reserve(id, tokens(1), f.now()), StoreError::Exhausted(_));
    let unknown = f.store.set_budget(f.env.session_id(), raised, &by, f.now());
    assert_refused!(unknown, StoreError::UnknownSession(_));
}

/// What was spent was spent: a terminated session settles and forfeits, and does nothing else.
pub async fn a_terminated_session_only_settles(f: &Fixture) {
    let id = session(f).await;
    reserve(f, id, tokens(50)).await;
    f.transition(id, Trigger::Terminate(TerminationReason::Killed)).await;
    let before = f.snapshot(id).await;
    assert_refused!(f.store.reserve(id, tokens(1), f.now()), StoreError::Transition(_));
    let (more, by) = (BudgetChange::Add(tokens(1)), "bob".parse().unwrap());
    assert_refused!(f.store.set_budget(id, more, &by, f.now()), StoreError::Transition(_));
    assert_eq!(f.snapshot(id).await, before);
    let after = settle(f, id, tokens(30), tokens(20)).await;
    assert_eq!((after.used, after.reserved), (tokens(20), tokens(20)));
    let after = f.store.forfeit(id, f.now()).await.unwrap();
    assert_eq!((after.used, after.reserved), (tokens(40), Usage::NONE));
    assert_eq!(f.state(id).await.name(), "terminated");
}

/// Every number of 64 bits is kept, and sums end at the largest.
pub async fn accounts_hold_every_number(f: &Fixture) {
    let most = u64::MAX;
    let budget =
        Budget { tokens_max: most, tool_calls_max: most, turns_max: None, cost_micros_max: Some(most) };
    let id = f.store.create(NewSession { budget, ..f.new_session() }, f.now()).await.unwrap().id;
    let all = Usage { tokens: most, tool_calls: most - 1, turns: most, cost_micros: most };
    for _ in 0..2 {
        assert_eq!(reserve(f, id, all).await, account(f, id).await);
        assert_eq!(account(f, id).await.reserved.tokens, most);
        let after = settle(f, id, Usage::NONE, all).await;
        assert_eq!((after, after.used.tokens), (account(f, id).await, most));
    }
    assert_eq!(by_minute(f).await.iter().map(|(_, tokens)| *tokens).collect::<Vec<_>>(), [most / 2]);
}

/// Tokens of all sessions are added up by the minute; what is older than two hours goes.
pub async fn tokens_are_counted_by_the_minute(f: &Fixture) {
    let (one, two) = (session(f).await, session(f).await);
    let start = f.now();
    let minute = start.as_second() / 60;
    settle(f, one, Usage::NONE, tokens(1)).await;
    f.advance(SignedDuration::from_millis(59_999));
    settle(f, two, Usage::NONE, tokens(2)).await;
    settle(f, two, Usage::NONE, Usage { turns: 1, ..Usage::NONE }).await;
    f.advance(TICK);
    settle(f, one, Usage::NONE, tokens(4)).await;
    f.advance(SignedDuration::from_mins(119));
    settle(f, one, Usage::NONE, tokens(8)).await;
    let all = [(minute, 3), (minute + 1, 4), (minute + 120, 8)];
    assert_eq!(by_minute(f).await, all);
    let since = |at| f.store.tokens_by_minute(at);
    assert_eq!(since(start + SignedDuration::from_secs(119)).await.unwrap(), all[1..]);
    assert_eq!(since(start + SignedDuration::from_mins(2)).await.unwrap(), all[2..]);
    f.advance(SignedDuration::from_mins(1));
    settle(f, two, Usage::NONE, tokens(16)).await;
    assert_eq!(by_minute(f).await, [all[1], all[2], (minute + 121, 16)]);
}

/// Many who reserve from one budget: together they get what there is, and no more.
pub async fn concurrent_reservations_never_overshoot(f: &Fixture) {
    let id = session(f).await;
    let work = async || {
        let mut got = 0;
        for _ in 0..4 {
            match f.store.reserve(id, tokens(3), f.now()).await {
                Ok(account) => {
                    assert!(account.used.tokens + account.reserved.tokens <= 100, "{account:?}");
                    got += 1;
                    settle(f, id, tokens(3), tokens(got)).await;
                }
                Err(error) => assert!(matches!(error, StoreError::Exhausted(_)), "{error:?}"),
            }
        }
        got
    };
    let got = join_all((0..16).map(|_| work())).await;
    let after = account(f, id).await;
    // Whoever got n reservations used 1, then 2, … of the three tokens of each.
    assert_eq!(after.used.tokens, got.iter().map(|got| got * (got + 1) / 2).sum::<u64>());
    assert!(after.reserved == Usage::NONE && after.used.tokens > 97, "{after:?}");
}

/// Many who settle at once, on two sessions and in one minute: everything is booked, each with its event.
pub async fn concurrent_settlements_are_all_booked(f: &Fixture) {
    let sessions = [session(f).await, session(f).await];
    join_all((0..16).map(|n| settle(f, sessions[n % 2], Usage::NONE, tokens(3)))).await;
    for id in sessions {
        assert_eq!(account(f, id).await.used, tokens(24));
        let used: Vec<NewEvent> = f.records(id).await.split_off(1);
        assert!(used.iter().all(|event| event.payload.as_str() == r#"{"tokens":3}"#));
        assert_eq!(used.len(), 8);
    }
    assert_eq!(by_minute(f).await.iter().map(|(_, tokens)| *tokens).collect::<Vec<_>>(), [48]);
}

/// Limits of different resources that are set at once all hold, with an event each: nobody's change undoes another's.
pub async fn concurrent_changes_of_different_limits_all_hold(f: &Fixture) {
    let (id, by) = (session(f).await, "bob".parse().unwrap());
    let keep = BudgetPatch::default();
    for round in 1..=8 {
        let patches = [
            BudgetPatch { tokens_max: Some(100 + round), ..keep },
            BudgetPatch { tool_calls_max: Some(200 + round), ..keep },
            BudgetPatch { turns_max: LimitChange::To(300 + round), ..keep },
            BudgetPatch { cost_micros_max: LimitChange::To(400 + round), ..keep },
        ];
        let set = |patch| f.store.set_budget(id, BudgetChange::Set(patch), &by, f.now());
        for outcome in join_all(patches.map(set)).await {
            outcome.unwrap();
        }
        let expected = Budget {
            tokens_max: 100 + round,
            tool_calls_max: 200 + round,
            turns_max: Some(300 + round),
            cost_micros_max: Some(400 + round),
        };
        assert_eq!(account(f, id).await.budget, expected);
    }
    assert_eq!(f.records(id).await.len(), 1 + 4 * 8);
}
