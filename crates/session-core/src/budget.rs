//! Budgets: reserve the worst before, settle the truth after (SPEC section 5).
//!
//! Parallel prompts and children reserve from one meter, so together they cannot overshoot. Sums saturate:
//! absurd figures exhaust a budget, they never wrap around it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

/// What a session may use up in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Tokens, input and output together.
    pub tokens_max: u64,
    /// Tool calls.
    pub tool_calls_max: u64,
    /// Turns; `None` for no limit.
    pub turns_max: Option<u64>,
    /// Cost in millionths of a US dollar; `None` for no limit.
    pub cost_micros_max: Option<u64>,
}

impl Default for Budget {
    /// 200 000 tokens, 100 tool calls, turns and cost without limit.
    fn default() -> Self {
        Self { tokens_max: 200_000, tool_calls_max: 100, turns_max: None, cost_micros_max: None }
    }
}

impl Budget {
    fn limit(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Tokens => self.tokens_max,
            Resource::ToolCalls => self.tool_calls_max,
            Resource::Turns => self.turns_max.unwrap_or(u64::MAX),
            Resource::Cost => self.cost_micros_max.unwrap_or(u64::MAX),
        }
    }
}

/// A change of what a session may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetChange {
    /// These limits from now on.
    Set(Budget),
    /// So much more of each (a top-up); what has no limit keeps none.
    Add(Usage),
}

/// What was, or may be, used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Usage {
    /// Tokens, input and output together.
    pub tokens: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Turns.
    pub turns: u64,
    /// Cost in millionths of a US dollar.
    pub cost_micros: u64,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            turns: self.turns.saturating_add(other.turns),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            tool_calls: self.tool_calls.saturating_sub(other.tool_calls),
            turns: self.turns.saturating_sub(other.turns),
            cost_micros: self.cost_micros.saturating_sub(other.cost_micros),
        }
    }

    fn of(self, resource: Resource) -> u64 {
        match resource {
            Resource::Tokens => self.tokens,
            Resource::ToolCalls => self.tool_calls,
            Resource::Turns => self.turns,
            Resource::Cost => self.cost_micros,
        }
    }
}

crate::state::code_enum! {
    /// What a budget limits.
    Resource ("budgeted resource") {
        /// Tokens, input and output together.
        Tokens = "tokens",
        /// Tool calls.
        ToolCalls = "tool_calls",
        /// Turns.
        Turns = "turns",
        /// Cost in millionths of a US dollar.
        Cost = "cost_micros",
    }
}

/// What was asked for is more than is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the budget of {limit} {resource} is spent: {used} used, {reserved} reserved, {asked} more asked for"
)]
pub struct Exhausted {
    /// Of what.
    pub resource: Resource,
    /// The limit.
    pub limit: u64,
    /// Used up so far.
    pub used: u64,
    /// Held by others that have not settled yet.
    pub reserved: u64,
    /// Asked for.
    pub asked: u64,
}

/// A budget and what was used of it: one session's, shared by everything that works for it.
#[derive(Debug)]
pub struct Meter {
    // A std mutex: held for a few additions, never across an await.
    account: Mutex<Account>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    budget: Budget,
    used: Usage,
    reserved: Usage,
}

impl Account {
    fn reserve(&mut self, worst: Usage) -> Result<(), Exhausted> {
        for &resource in Resource::ALL {
            let (limit, asked) = (self.budget.limit(resource), worst.of(resource));
            let (used, reserved) = (self.used.of(resource), self.reserved.of(resource));
            // A limit that is reached stops everything that needs more of it, and nothing else.
            if asked > 0 && used.saturating_add(reserved).saturating_add(asked) > limit {
                return Err(Exhausted { resource, limit, used, reserved, asked });
            }
        }
        self.reserved = self.reserved.plus(worst);
        Ok(())
    }

    fn settle(&mut self, worst: Usage, actual: Usage) -> Settled {
        let share = |account: &Self| {
            let fraction = |&resource: &Resource| {
                let (used, limit) = (account.used.of(resource), account.budget.limit(resource));
                limit != u64::MAX && u128::from(used) * 100 >= u128::from(limit) * u128::from(WARN_AT_PERCENT)
            };
            Resource::ALL.iter().copied().find(fraction)
        };
        let before = share(self);
        self.reserved = self.reserved.minus(worst);
        self.used = self.used.plus(actual);
        Settled { used: self.used, warn: if before.is_none() { share(self) } else { None } }
    }
}

/// From which share of a limit on a session is warned.
pub const WARN_AT_PERCENT: u8 = 80;

/// What a settlement led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Used up now.
    pub used: Usage,
    /// This settlement was the one that crossed [`WARN_AT_PERCENT`], of this resource.
    pub warn: Option<Resource>,
}

impl Meter {
    /// A meter that goes on where `used` stands: limits and usage survive suspend, resume and restart.
    #[must_use]
    pub fn new(budget: Budget, used: Usage) -> Self {
        Self { account: Mutex::new(Account { budget, used, reserved: Usage::default() }) }
    }

    /// Sets `worst` aside, or says of which resource there is too little left.
    pub fn reserve(&self, worst: Usage) -> Result<Reserved<'_>, Exhausted> {
        self.account().reserve(worst)?;
        Ok(Reserved { meter: self, worst: Some(worst) })
    }

    /// Used up so far.
    #[must_use]
    pub fn used(&self) -> Usage {
        self.account().used
    }

    /// The limits.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.account().budget
    }

    /// Replaces the limits (a top-up); usage stays.
    pub fn set_budget(&self, budget: Budget) {
        self.account().budget = budget;
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // Every change is a few additions: a panic cannot leave it half done.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a budget that is set aside. Dropped unsettled, it counts as used: what was not measured is paid
/// at its worst.
#[must_use = "settle it with what was really used"]
#[derive(Debug)]
pub struct Reserved<'m> {
    meter: &'m Meter,
    worst: Option<Usage>,
}

impl Reserved<'_> {
    /// Gives back what was not used, and books what was, also if it is more than was set aside.
    #[must_use = "a settlement may say that a warning is due"]
    pub fn settle(mut self, actual: Usage) -> Settled {
        let worst = self.worst.take().unwrap_or_default();
        self.meter.account().settle(worst, actual)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(worst) = self.worst.take() {
            let _settled = self.meter.account().settle(worst, worst);
        }
    }
}

/// Tokens of the last hour over all sessions: a sliding window of sixty minutes.
#[derive(Debug, Clone)]
pub struct HourlyWindow {
    limit: u64,
    /// The minute since the epoch that each bucket counts for, and its tokens.
    buckets: [(i64, u64); 60],
}

impl HourlyWindow {
    /// An empty window; the default limit of an installation is 1 000 000 tokens.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, buckets: [(i64::MIN, 0); 60] }
    }

    /// Books tokens, or says after how long there is room for them again.
    pub fn take(&mut self, now: Timestamp, tokens: u64) -> Result<(), HourlyLimit> {
        let minute = now.as_second().div_euclid(60);
        // A clock that was set back must not resurrect or lose what was booked: the future counts as now.
        let counts = |at: i64| at > minute - 60;
        let used = |from: i64| {
            let booked = self.buckets.iter().filter(|&&(at, _)| counts(at) && at >= from);
            booked.fold(0_u64, |sum, &(_, tokens)| sum.saturating_add(tokens))
        };
        if used(i64::MIN + 1).saturating_add(tokens) > self.limit {
            let wait =
                (1..=60).find(|&ahead| used(minute - 60 + ahead + 1).saturating_add(tokens) <= self.limit);
            return Err(HourlyLimit { limit: self.limit, retry_after: wait.map(SignedDuration::from_mins) });
        }
        let index = usize::try_from(minute.rem_euclid(60)).unwrap_or_default();
        let bucket = &mut self.buckets[index];
        *bucket = if counts(bucket.0) {
            (bucket.0.max(minute), bucket.1.saturating_add(tokens))
        } else {
            (minute, tokens)
        };
        Ok(())
    }
}

/// All sessions together used what they may in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the limit of {limit} tokens an hour over all sessions is reached")]
pub struct HourlyLimit {
    /// The limit.
    pub limit: u64,
    /// After how long there is room; `None` when there never will be.
    pub retry_after: Option<SignedDuration>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(tokens: u64) -> Usage {
        Usage { tokens, ..Usage::default() }
    }

    #[test]
    fn parallel_reservations_cannot_overshoot_together() {
        let meter = Meter::new(Budget { tokens_max: 100, ..Budget::default() }, Usage::default());
        let first = meter.reserve(tokens(60)).unwrap();
        let refused = meter.reserve(tokens(60)).unwrap_err();
        assert_eq!((refused.resource, refused.reserved, refused.asked), (Resource::Tokens, 60, 60));
        assert_eq!(first.settle(tokens(10)).used.tokens, 10);
        drop(meter.reserve(tokens(90)).unwrap());
        assert_eq!(meter.used().tokens, 100, "what is dropped unsettled is paid at its worst");
        assert!(meter.reserve(tokens(1)).is_err());
        assert!(meter.reserve(Usage { tool_calls: 1, ..Usage::default() }).is_ok());
    }

    #[test]
    fn the_warning_comes_once_at_eighty_percent() {
        let meter = Meter::new(Budget { tokens_max: 100, ..Budget::default() }, tokens(79));
        assert_eq!(meter.reserve(tokens(1)).unwrap().settle(tokens(1)).warn, Some(Resource::Tokens));
        assert_eq!(meter.reserve(tokens(1)).unwrap().settle(tokens(1)).warn, None);
    }

    #[test]
    fn a_limit_of_zero_refuses_and_the_largest_never_wraps() {
        let none = Meter::new(Budget { tokens_max: 0, ..Budget::default() }, Usage::default());
        assert!(none.reserve(tokens(1)).is_err());
        let endless = Meter::new(Budget { tokens_max: u64::MAX, ..Budget::default() }, tokens(u64::MAX - 1));
        assert_eq!(endless.reserve(tokens(1)).unwrap().settle(tokens(u64::MAX)).used.tokens, u64::MAX);
    }

    #[test]
    fn the_window_slides() {
        let at = |minute: i64| Timestamp::from_second(minute * 60 + 5).unwrap();
        let mut window = HourlyWindow::new(100);
        window.take(at(0), 60).unwrap();
        window.take(at(30), 40).unwrap();
        let full = window.take(at(59), 1).unwrap_err();
        assert_eq!(full.retry_after, Some(SignedDuration::from_mins(1)));
        window.take(at(60), 60).unwrap();
        assert_eq!(window.take(at(61), 101).unwrap_err().retry_after, None);
        assert!(window.take(at(10), 1).is_err(), "a clock set back frees nothing");
    }

    proptest! {
        #[test]
        fn used_never_exceeds_the_limit_when_no_one_underestimates(
            limit in 0_u64..1_000, steps in prop::collection::vec((0_u64..200, 0_u64..=100), 0..50)
        ) {
            let meter = Meter::new(Budget { tokens_max: limit, ..Budget::default() }, Usage::default());
            let mut held = Vec::new();
            for (worst, percent) in steps {
                if let Ok(reserved) = meter.reserve(tokens(worst)) {
                    held.push((reserved, worst * percent / 100));
                }
                if held.len() > 3 {
                    let (reserved, actual) = held.remove(0);
                    let _settled = reserved.settle(tokens(actual));
                }
                prop_assert!(meter.used().tokens <= limit);
            }
            drop(held);
            prop_assert!(meter.used().tokens <= limit);
            prop_assert_eq!(meter.account().reserved, Usage::default());
        }
    }
}
