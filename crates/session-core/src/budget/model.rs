//! Budgets beside naive models: every booking kept in a list, every sum taken anew, in numbers that cannot overflow.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// What was asked of an account, and what became of it.
#[derive(Debug, Clone, Copy)]
enum Work {
    Open(Usage),
    Over(Usage),
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Reserve(Usage),
    /// Of the open ones, counted round; what was really used.
    Settle(usize, Usage),
    Forfeit,
    Change(BudgetChange),
}

fn sum(works: &[Work], resource: Resource, open: bool) -> u128 {
    let part = |work: &Work| match work {
        Work::Open(worst) if open => u128::from(worst.of(resource)),
        Work::Over(actual) if !open => u128::from(actual.of(resource)),
        Work::Open(_) | Work::Over(_) => 0,
    };
    works.iter().map(part).sum()
}

fn limit(budget: &Budget, resource: Resource) -> Option<u128> {
    let limit = match resource {
        Resource::Tokens => Some(budget.tokens_max),
        Resource::ToolCalls => Some(budget.tool_calls_max),
        Resource::Turns => budget.turns_max,
        Resource::Cost => budget.cost_micros_max,
    };
    limit.filter(|&limit| limit < u64::MAX).map(u128::from)
}

/// Four fifths of the limit, or more.
fn is_short(works: &[Work], budget: &Budget, resource: Resource) -> bool {
    limit(budget, resource).is_some_and(|limit| sum(works, resource, false) * 5 >= limit * 4)
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 6 => 0_u64..40, 1 => Just(1_000_000)]
}

fn usage() -> impl Strategy<Value = Usage> {
    [amount(), amount(), amount(), amount()].prop_map(|[tokens, tool_calls, turns, cost_micros]| Usage {
        tokens,
        tool_calls,
        turns,
        cost_micros,
    })
}

fn budget() -> impl Strategy<Value = Budget> {
    let some = || select(vec![0, 1, 50, 100, 1_000, u64::MAX]);
    let any = || select(vec![None, Some(0), Some(50), Some(100), Some(u64::MAX)]);
    (some(), some(), any(), any()).prop_map(|(tokens_max, tool_calls_max, turns_max, cost_micros_max)| {
        Budget { tokens_max, tool_calls_max, turns_max, cost_micros_max }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => usage().prop_map(Step::Reserve),
        6 => (any::<usize>(), usage()).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => Just(Step::Forfeit),
        1 => patch().prop_map(|patch| Step::Change(BudgetChange::Set(patch))),
        1 => usage().prop_map(|more| Step::Change(BudgetChange::Add(more))),
    ]
}

fn patch() -> impl Strategy<Value = BudgetPatch> {
    let some = || select(vec![None, Some(0), Some(50), Some(u64::MAX)]);
    let any = || select(vec![LimitChange::Keep, LimitChange::Lift, LimitChange::To(0), LimitChange::To(100)]);
    (some(), some(), any(), any()).prop_map(|(tokens_max, tool_calls_max, turns_max, cost_micros_max)| {
        BudgetPatch { tokens_max, tool_calls_max, turns_max, cost_micros_max }
    })
}

fn patched(budget: &Budget, patch: BudgetPatch) -> Budget {
    let mut budget = *budget;
    if let Some(max) = patch.tokens_max {
        budget.tokens_max = max;
    }
    if let Some(max) = patch.tool_calls_max {
        budget.tool_calls_max = max;
    }
    let pairs =
        [(&mut budget.turns_max, patch.turns_max), (&mut budget.cost_micros_max, patch.cost_micros_max)];
    for (max, change) in pairs {
        match change {
            LimitChange::Keep => {}
            LimitChange::Lift => *max = None,
            LimitChange::To(limit) => *max = Some(limit),
        }
    }
    budget
}

fn added(budget: &Budget, more: Usage) -> Budget {
    let sum = |limit: u64, more: u64| u64::try_from(u128::from(limit) + u128::from(more)).unwrap_or(u64::MAX);
    Budget {
        tokens_max: sum(budget.tokens_max, more.tokens),
        tool_calls_max: sum(budget.tool_calls_max, more.tool_calls),
        turns_max: budget.turns_max.map(|max| sum(max, more.turns)),
        cost_micros_max: budget.cost_micros_max.map(|max| sum(max, more.cost_micros)),
    }
}

/// The first resource of which there is too little left for that.
fn refusal(works: &[Work], budget: &Budget, worst: Usage) -> Option<Resource> {
    let lacks = |resource: &Resource| {
        let held = sum(works, *resource, true) + sum(works, *resource, false);
        let asked = u128::from(worst.of(*resource));
        asked > 0 && limit(budget, *resource).is_some_and(|limit| held + asked > limit)
    };
    Resource::ALL.iter().copied().find(lacks)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn an_account_is_the_sum_of_all_work(first in budget(), steps in prop::collection::vec(step(), 1..40)) {
        let mut account = Account { budget: first, ..Account::default() };
        let (mut budget, mut works) = (first, Vec::new());
        for step in steps {
            let short = |works: &[Work], budget: &Budget| -> Vec<Resource> {
                Resource::ALL.iter().copied().filter(|&resource| is_short(works, budget, resource)).collect()
            };
            let before = short(&works, &budget);
            let mut warned = Vec::new();
            match step {
                Step::Reserve(worst) => {
                    let refused = account.reserve(worst).err();
                    prop_assert_eq!(refused.map(|refused| refused.resource), refusal(&works, &budget, worst));
                    if refused.is_none() {
                        works.push(Work::Open(worst));
                    }
                }
                Step::Settle(which, actual) => {
                    let open: Vec<_> = works
                        .iter_mut()
                        .filter_map(|work| match *work {
                            Work::Open(worst) => Some((work, worst)),
                            Work::Over(_) => None,
                        })
                        .collect();
                    let count = open.len();
                    if let Some((work, worst)) = open.into_iter().nth(which % count.max(1)) {
                        *work = Work::Over(actual);
                        warned = account.settle(worst, actual).warn;
                    }
                }
                Step::Forfeit => {
                    for work in &mut works {
                        if let Work::Open(worst) = *work {
                            *work = Work::Over(worst);
                        }
                    }
                    warned = account.forfeit().warn;
                }
                Step::Change(change) => {
                    budget = match change {
                        BudgetChange::Set(patch) => patched(&budget, patch),
                        BudgetChange::Add(more) => added(&budget, more),
                    };
                    account.change(change);
                }
            }
            if !matches!(step, Step::Change(_)) {
                let crossed: Vec<_> =
                    short(&works, &budget).into_iter().filter(|resource| !before.contains(resource)).collect();
                prop_assert_eq!(warned, crossed);
            }
            prop_assert_eq!(account.budget, budget);
            for &resource in Resource::ALL {
                prop_assert_eq!(u128::from(account.used.of(resource)), sum(&works, resource, false));
                prop_assert_eq!(u128::from(account.reserved.of(resource)), sum(&works, resource, true));
                prop_assert_eq!(account.is_short_of(resource), is_short(&works, &budget, resource));
            }
        }
    }

    /// A meter is an account, whether its reservations are settled, dropped or held by others.
    #[test]
    fn a_meter_is_an_account(first in budget(), steps in prop::collection::vec((usage(), usage(), 0_u8..4), 1..40)) {
        let meter = std::sync::Arc::new(Meter::new(first, Usage::NONE));
        let mut account = Account { budget: first, ..Account::default() };
        let mut held = Vec::new();
        for (worst, actual, what) in steps {
            let reserved = meter.reserve_owned(worst);
            prop_assert_eq!(reserved.as_ref().err().copied(), account.reserve(worst).err());
            held.extend(reserved.ok().map(|reserved| (reserved, worst)));
            if what > 0 && !held.is_empty() {
                let (reserved, worst) = held.remove(0);
                if what == 1 {
                    drop(reserved);
                    account.settle(worst, worst);
                } else {
                    prop_assert_eq!(reserved.settle(actual), account.settle(worst, actual));
                }
            }
            prop_assert_eq!(meter.account(), account);
        }
        drop(held);
        account.forfeit();
        prop_assert_eq!(meter.account(), account);
    }
}

/// What is booked in a minute.
#[derive(Debug, Clone, Copy)]
struct Booking {
    minute: i64,
    tokens: u64,
}

fn at(minute: i64, second: i64) -> Timestamp {
    Timestamp::from_second(minute * 60 + second).unwrap()
}

fn counted(bookings: &[Booking], minute: i64) -> u64 {
    bookings.iter().filter(|booking| minute - booking.minute < 60).map(|booking| booking.tokens).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Taken, booked without asking, given back late, and gone on with after a restart, while time goes on.
    #[test]
    fn the_window_is_the_sum_of_the_bookings_that_count(
        limit in select(vec![0, 1, 100, 300, u64::MAX]),
        steps in prop::collection::vec((0_u8..5, 0_i64..50, 0_i64..60, 0_u64..150, any::<usize>()), 1..60),
    ) {
        let (mut window, mut minute) = (HourlyWindow::new(limit), -70);
        let mut bookings: Vec<Booking> = Vec::new();
        for (what, ahead, second, tokens, which) in steps {
            minute += if which % 3 == 0 { ahead } else { 0 };
            let now = at(minute, second);
            match what {
                0 | 1 => match window.take(now, tokens) {
                    Ok(()) => {
                        prop_assert!(tokens == 0 || counted(&bookings, minute) + tokens <= limit);
                        bookings.push(Booking { minute, tokens });
                    }
                    Err(refused) => {
                        prop_assert_eq!(refused.limit, limit);
                        prop_assert!(counted(&bookings, minute) + tokens > limit);
                        let fits = |wait: &i64| counted(&bookings, minute + wait) + tokens <= limit;
                        let first = (1..=60).find(fits).map(SignedDuration::from_mins);
                        prop_assert_eq!(refused.retry_after, first);
                    }
                },
                2 => {
                    window.book(now, tokens);
                    bookings.push(Booking { minute, tokens });
                }
                3 if !bookings.is_empty() => {
                    let count = bookings.len();
                    let booking = &mut bookings[which % count];
                    let unused = tokens.min(booking.tokens);
                    window.give_back(now, at(booking.minute, second), unused);
                    booking.tokens -= unused;
                }
                _ => {
                    let minutes = bookings.iter().map(|booking| (booking.minute, booking.tokens));
                    window = HourlyWindow::from_minutes(limit, minutes);
                }
            }
            prop_assert_eq!(window.used(now), counted(&bookings, minute));
        }
    }

    /// Whatever the clock does: nothing is taken beyond the limit, going back frees nothing, and who waits as long as
    /// the answer says finds room, and not before.
    #[test]
    fn a_clock_that_leaps_opens_no_gap(
        limit in 0_u64..300, steps in prop::collection::vec((-200_i64..200, 0_u64..150), 1..60)
    ) {
        let (mut window, mut minute) = (HourlyWindow::new(limit), 0);
        for (leap, tokens) in steps {
            minute += leap / 4;
            match window.take(at(minute, 0), tokens) {
                Ok(()) => prop_assert!(tokens == 0 || window.used(at(minute, 0)) <= limit),
                Err(HourlyLimit { retry_after: None, .. }) => prop_assert!(tokens > limit),
                Err(HourlyLimit { retry_after: Some(wait), .. }) => {
                    prop_assert!(wait.as_mins() >= 1);
                    let then = minute + wait.as_mins();
                    prop_assert!(window.clone().take(at(then, 0), tokens).is_ok());
                    prop_assert!(window.clone().take(at(then - 1, 0), tokens).is_err());
                }
            }
            for back in [1, 30, 59, 60, 61, 120] {
                prop_assert!(window.used(at(minute - back, 0)) >= window.used(at(minute, 0)));
            }
        }
    }
}
