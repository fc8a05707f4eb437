//! Budgets: reserve the worst before, settle the truth after (SPEC section 5).
//!
//! Parallel prompts and children reserve from one account, so together they cannot overshoot. Sums saturate:
//! absurd figures exhaust a budget, they never wrap around it. [`Account`] decides, in one process's [`Meter`] and
//! in every store's ledger alike.

mod allotment;
mod meter;
#[cfg(test)]
mod model;
mod window;

use thiserror::Error;

pub use self::allotment::{Allotment, share_of};
pub use self::meter::{Meter, Reserved};
pub use self::window::{HourlyLimit, HourlyWindow, minute_of};

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
    /// The limit of one resource; [`u64::MAX`] for none.
    #[must_use]
    pub fn limit(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Tokens => self.tokens_max,
            Resource::ToolCalls => self.tool_calls_max,
            Resource::Turns => self.turns_max.unwrap_or(u64::MAX),
            Resource::Cost => self.cost_micros_max.unwrap_or(u64::MAX),
        }
    }

    /// Limits of so much; none where that is [`u64::MAX`].
    #[must_use]
    pub fn of(limits: Usage) -> Self {
        let limit = |max: u64| Some(max).filter(|&max| max < u64::MAX);
        Self {
            tokens_max: limits.tokens,
            tool_calls_max: limits.tool_calls,
            turns_max: limit(limits.turns),
            cost_micros_max: limit(limits.cost_micros),
        }
    }

    /// The limits of all resources; [`u64::MAX`] for none.
    #[must_use]
    pub fn limits(&self) -> Usage {
        Usage::each(|resource| self.limit(resource))
    }

    /// By so much less of each resource; one without a limit stays without.
    pub(crate) fn less(self, less: Usage) -> Self {
        let limited =
            |limit: u64, less: u64| if limit < u64::MAX { limit.saturating_sub(less) } else { limit };
        Self {
            tokens_max: limited(self.tokens_max, less.tokens),
            tool_calls_max: limited(self.tool_calls_max, less.tool_calls),
            turns_max: self.turns_max.map(|max| limited(max, less.turns)),
            cost_micros_max: self.cost_micros_max.map(|max| limited(max, less.cost_micros)),
        }
    }
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
    /// Nothing at all.
    pub const NONE: Self = Self { tokens: 0, tool_calls: 0, turns: 0, cost_micros: 0 };

    /// So much of each resource.
    #[must_use]
    pub fn each(of: impl Fn(Resource) -> u64) -> Self {
        Self {
            tokens: of(Resource::Tokens),
            tool_calls: of(Resource::ToolCalls),
            turns: of(Resource::Turns),
            cost_micros: of(Resource::Cost),
        }
    }

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

    /// The first without the second; what would be below nothing is nothing.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            tool_calls: self.tool_calls.saturating_sub(other.tool_calls),
            turns: self.turns.saturating_sub(other.turns),
            cost_micros: self.cost_micros.saturating_sub(other.cost_micros),
        }
    }

    /// Of each resource the greater part.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        Self::each(|resource| self.of(resource).max(other.of(resource)))
    }

    /// The part of one resource.
    #[must_use]
    pub fn of(self, resource: Resource) -> u64 {
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
    /// Held by others that have not settled yet, and set aside for children.
    pub reserved: u64,
    /// Asked for.
    pub asked: u64,
}

/// New limits for some resources; the others keep theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BudgetPatch {
    /// Tokens, input and output together; `None` to keep the limit.
    pub tokens_max: Option<u64>,
    /// Tool calls; `None` to keep the limit.
    pub tool_calls_max: Option<u64>,
    /// Turns.
    pub turns_max: LimitChange,
    /// Cost in millionths of a US dollar.
    pub cost_micros_max: LimitChange,
}

/// What becomes of the limit of a resource that may be without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LimitChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is this.
    To(u64),
    /// There is none.
    Lift,
}

impl LimitChange {
    fn applied_to(self, limit: Option<u64>) -> Option<u64> {
        match self {
            Self::Keep => limit,
            Self::To(limit) => Some(limit),
            Self::Lift => None,
        }
    }
}

impl From<Budget> for BudgetPatch {
    /// Every limit is to be as in this budget.
    fn from(budget: Budget) -> Self {
        let change = |limit: Option<u64>| limit.map_or(LimitChange::Lift, LimitChange::To);
        Self {
            tokens_max: Some(budget.tokens_max),
            tool_calls_max: Some(budget.tool_calls_max),
            turns_max: change(budget.turns_max),
            cost_micros_max: change(budget.cost_micros_max),
        }
    }
}

/// A change of limits; what was used stays. It names only what is to change: two changes of different resources, each
/// decided on without knowing of the other, both hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetChange {
    /// These limits from now on, higher or lower; those that are not named stay.
    Set(BudgetPatch),
    /// So much more of each resource. One without a limit stays without.
    Add(Usage),
}

impl BudgetChange {
    /// The limits after the change. A sum beyond all numbers is the largest, which is no limit.
    #[must_use]
    pub fn applied_to(self, budget: Budget) -> Budget {
        match self {
            Self::Set(patch) => Budget {
                tokens_max: patch.tokens_max.unwrap_or(budget.tokens_max),
                tool_calls_max: patch.tool_calls_max.unwrap_or(budget.tool_calls_max),
                turns_max: patch.turns_max.applied_to(budget.turns_max),
                cost_micros_max: patch.cost_micros_max.applied_to(budget.cost_micros_max),
            },
            Self::Add(more) => Budget {
                tokens_max: budget.tokens_max.saturating_add(more.tokens),
                tool_calls_max: budget.tool_calls_max.saturating_add(more.tool_calls),
                turns_max: budget.turns_max.map(|max| max.saturating_add(more.turns)),
                cost_micros_max: budget.cost_micros_max.map(|max| max.saturating_add(more.cost_micros)),
            },
        }
    }
}

/// A budget, what was used of it, and what is set aside by work that has not settled: plain values, and every decision
/// about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Account {
    /// The limits.
    pub budget: Budget,
    /// Used up so far.
    pub used: Usage,
    /// Set aside by work that has not settled.
    pub reserved: Usage,
    /// Set aside for children: their open [`Allotment`]s.
    pub allotted: Usage,
}

impl Account {
    /// Sets `worst` aside, or says of which resource there is too little left; then nothing has changed.
    pub fn reserve(&mut self, worst: Usage) -> Result<(), Exhausted> {
        self.must_have(worst)?;
        self.reserved = self.reserved.plus(worst);
        Ok(())
    }

    /// The same for a child.
    fn allot(&mut self, share: Usage) -> Result<(), Exhausted> {
        self.must_have(share)?;
        self.allotted = self.allotted.plus(share);
        Ok(())
    }

    fn must_have(&self, more: Usage) -> Result<(), Exhausted> {
        let aside = self.reserved.plus(self.allotted);
        for &resource in Resource::ALL {
            let (limit, asked) = (self.budget.limit(resource), more.of(resource));
            let (used, reserved) = (self.used.of(resource), aside.of(resource));
            // A limit that is reached stops everything that needs more of it, and nothing else.
            if asked > 0 && used.saturating_add(reserved).saturating_add(asked) > limit {
                return Err(Exhausted { resource, limit, used, reserved, asked });
            }
        }
        Ok(())
    }

    /// What may still be set aside of a resource; [`u64::MAX`] of one without a limit.
    #[must_use]
    pub fn left(&self, resource: Resource) -> u64 {
        self.without(resource, self.used.plus(self.reserved).plus(self.allotted))
    }

    /// What the session's own work may use until it settles, whatever it has set aside for that: all that was not used and
    /// is not its children's; [`u64::MAX`] of a resource without a limit.
    #[must_use]
    pub fn in_hand(&self) -> Usage {
        Usage::each(|resource| self.without(resource, self.used.plus(self.allotted)))
    }

    fn without(&self, resource: Resource, gone: Usage) -> u64 {
        match self.budget.limit(resource) {
            u64::MAX => u64::MAX,
            limit => limit.saturating_sub(gone.of(resource)),
        }
    }

    /// Gives back what was set aside and books what was really used, also if that is more.
    pub fn settle(&mut self, worst: Usage, actual: Usage) -> Settled {
        let before = *self;
        self.reserved = self.reserved.minus(worst);
        self.used = self.used.plus(actual);
        let crossed = |resource: &Resource| !before.is_short_of(*resource) && self.is_short_of(*resource);
        Settled { used: self.used, warn: Resource::ALL.iter().copied().filter(crossed).collect() }
    }

    /// The session's work needs so much by now: as much is set aside for it, also if that is more than is left.
    pub fn need(&mut self, spending: Usage) {
        self.reserved = self.reserved.at_least(spending);
    }

    /// Books all that work has set aside as used: whoever set it aside is gone, and nobody knows what it really took. What
    /// is set aside for children stays so.
    pub fn forfeit(&mut self) -> Settled {
        self.settle(self.reserved, self.reserved)
    }

    /// Changes the limits; usage stays. Warns of nothing: whoever lowers a limit knows it.
    pub fn change(&mut self, change: BudgetChange) {
        self.budget = change.applied_to(self.budget);
    }

    /// Whether [`WARN_AT_PERCENT`] of a resource are used. Never of one without a limit.
    #[must_use]
    pub fn is_short_of(&self, resource: Resource) -> bool {
        let (used, limit) = (self.used.of(resource), self.budget.limit(resource));
        limit != u64::MAX && u128::from(used) * 100 >= u128::from(limit) * u128::from(WARN_AT_PERCENT)
    }
}

/// From which share of a limit on a session is warned.
pub const WARN_AT_PERCENT: u8 = 80;

/// What a settlement led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Used up now.
    pub used: Usage,
    /// Of which resources this settlement crossed [`WARN_AT_PERCENT`], from below. After a higher limit took a
    /// resource below it, it is crossed anew.
    pub warn: Vec<Resource>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(tokens: u64) -> Usage {
        Usage { tokens, ..Usage::NONE }
    }

    fn account(tokens_max: u64, used: u64) -> Account {
        let budget = Budget { tokens_max, ..Budget::default() };
        Account { budget, used: tokens(used), ..Account::default() }
    }

    #[test]
    fn a_refused_reservation_says_why_and_changes_nothing() {
        let mut account = account(100, 10);
        account.reserve(tokens(60)).unwrap();
        let before = account;
        let refused = account.reserve(Usage { tool_calls: 1, ..tokens(31) }).unwrap_err();
        let expected =
            Exhausted { resource: Resource::Tokens, limit: 100, used: 10, reserved: 60, asked: 31 };
        assert_eq!((refused, account), (expected, before));
        account.reserve(tokens(30)).unwrap();
        account.reserve(Usage { tool_calls: 100, turns: 7, ..Usage::NONE }).unwrap();
        assert_eq!(account.reserve(Usage { tool_calls: 1, ..Usage::NONE }).unwrap_err().limit, 100);
    }

    #[test]
    fn every_resource_warns_once_when_it_is_crossed() {
        let budget =
            Budget { tokens_max: 100, tool_calls_max: 10, turns_max: Some(5), cost_micros_max: None };
        let mut account = Account { budget, ..Account::default() };
        let mut use_up = |actual: Usage| account.settle(Usage::NONE, actual).warn;
        assert_eq!(use_up(tokens(79)), []);
        assert_eq!(use_up(tokens(1)), [Resource::Tokens]);
        assert_eq!(use_up(Usage { turns: 3, ..tokens(1) }), []);
        let both = Usage { tool_calls: 8, turns: 1, cost_micros: u64::MAX, ..Usage::NONE };
        assert_eq!(use_up(both), [Resource::ToolCalls, Resource::Turns]);
        assert_eq!(use_up(Usage { tokens: 50, tool_calls: 9, turns: 9, cost_micros: 1 }), []);
    }

    #[test]
    fn after_a_top_up_the_warning_comes_again() {
        let mut account = account(100, 0);
        assert_eq!(account.settle(Usage::NONE, tokens(100)).warn, [Resource::Tokens]);
        account.change(BudgetChange::Add(tokens(10)));
        assert_eq!(account.settle(Usage::NONE, tokens(1)).warn, [], "it was never below");
        account.change(BudgetChange::Add(tokens(100)));
        assert_eq!(account.settle(Usage::NONE, tokens(66)).warn, []);
        assert_eq!(account.settle(Usage::NONE, tokens(1)).warn, [Resource::Tokens]);
    }

    #[test]
    fn what_is_forfeited_counts_as_used() {
        let mut account = account(100, 10);
        account.reserve(Usage { turns: 2, ..tokens(75) }).unwrap();
        account.allot(tokens(15)).unwrap();
        let settled = account.forfeit();
        assert_eq!((settled.used, settled.warn), (Usage { turns: 2, ..tokens(85) }, vec![Resource::Tokens]));
        assert_eq!((account.used, account.reserved), (settled.used, Usage::NONE));
        assert_eq!(account.allotted, tokens(15), "children go on");
        assert_eq!((account.left(Resource::Tokens), account.in_hand().tokens), (0, 0));
        assert_eq!((account.left(Resource::Turns), account.in_hand().turns), (u64::MAX, u64::MAX));
    }

    #[test]
    fn limits_are_replaced_or_raised() {
        let budget =
            Budget { tokens_max: 5, tool_calls_max: u64::MAX, turns_max: None, cost_micros_max: Some(0) };
        let more = Usage { tokens: u64::MAX, tool_calls: 1, turns: 1, cost_micros: 9 };
        let raised = BudgetChange::Add(more).applied_to(budget);
        let expected = Budget { tokens_max: u64::MAX, cost_micros_max: Some(9), ..budget };
        assert_eq!(raised, expected);
        for whole in [Budget::default(), expected, budget] {
            assert_eq!(BudgetChange::Set(whole.into()).applied_to(budget), whole);
        }
        assert_eq!(BudgetChange::Set(BudgetPatch::default()).applied_to(budget), budget);
        assert_eq!(Budget::of(budget.limits()), budget);
        let patch = BudgetPatch {
            tool_calls_max: Some(2),
            turns_max: LimitChange::To(3),
            cost_micros_max: LimitChange::Lift,
            ..BudgetPatch::default()
        };
        let patched = Budget { tokens_max: 5, tool_calls_max: 2, turns_max: Some(3), cost_micros_max: None };
        assert_eq!(BudgetChange::Set(patch).applied_to(budget), patched);
    }

    #[test]
    fn a_limit_of_zero_refuses_and_the_largest_never_wraps() {
        assert!(account(0, 0).reserve(tokens(1)).is_err());
        account(0, 0).reserve(Usage::NONE).unwrap();
        let mut endless = account(u64::MAX, u64::MAX - 1);
        endless.reserve(tokens(u64::MAX)).unwrap();
        let settled = endless.settle(tokens(u64::MAX), tokens(u64::MAX));
        assert_eq!((settled.used, settled.warn), (tokens(u64::MAX), vec![]));
    }

    proptest! {
        #[test]
        fn a_warning_comes_exactly_when_the_share_is_crossed(
            limits in prop::collection::vec(1_u64..200, 1..5), uses in prop::collection::vec(0_u64..60, 1..40)
        ) {
            let mut account = account(limits[0], 0);
            for (n, actual) in uses.into_iter().enumerate() {
                if n % 7 == 6 {
                    let tokens_max = limits[n % limits.len()];
                    let patch = BudgetPatch { tokens_max: Some(tokens_max), ..BudgetPatch::default() };
                    account.change(BudgetChange::Set(patch));
                }
                let short = |account: &Account| account.used.tokens * 100 >= account.budget.tokens_max * 80;
                let before = short(&account);
                let warned = account.settle(Usage::NONE, tokens(actual)).warn.contains(&Resource::Tokens);
                prop_assert_eq!(warned, !before && short(&account));
            }
        }
    }
}
