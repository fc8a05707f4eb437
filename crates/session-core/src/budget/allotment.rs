//! Allotments: what a session sets aside of its budget for a child, so that a family spends from one purse.
//!
//! As long as an allotment is open, what the child has not used of it is set aside in its parent's account. It is closed
//! when nobody works in the child or below it: then what was used is booked with the parent, and the rest is the parent's
//! again. A child that is used again gets of that rest what the parent has left then, and more the next time where it has more.

use super::{Account, Budget, BudgetChange, Exhausted, Resource, Settled, Usage};

/// What a session has for one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allotment {
    /// The most that the child may use of its parent's budget in all, as it is this time; [`u64::MAX`] of a resource that the
    /// parent had without limit when the child was made. What an owner gave the child beyond that is not the parent's.
    pub given: Usage,
    /// What of the child's usage is booked with the parent. More than was given where the child overshot its own limit.
    pub booked: Usage,
    /// What was given and is not booked is set aside in the parent's account.
    pub open: bool,
}

impl Allotment {
    /// What a child with this budget takes from its parent's account, where it is set aside at once; or of which resource
    /// the parent has too little left. What the parent has without limit nothing is set aside of.
    pub fn of(parent: &mut Account, child: &Budget) -> Result<Self, Exhausted> {
        let of = |resource| match parent.budget.limit(resource) {
            u64::MAX => u64::MAX,
            _ => child.limit(resource),
        };
        // A child without a limit would take all numbers: of what its parent has a limit that is never left.
        let asked = Usage::each(|resource| match parent.budget.limit(resource) {
            u64::MAX => 0,
            _ => child.limit(resource),
        });
        let given = Usage::each(of);
        parent.allot(asked)?;
        Ok(Self { given, booked: Usage::NONE, open: true })
    }

    /// What is set aside in the parent's account.
    #[must_use]
    pub fn aside(&self) -> Usage {
        if !self.open {
            return Usage::NONE;
        }
        Usage::each(|resource| match self.given.of(resource) {
            u64::MAX => 0,
            given => given.saturating_sub(self.booked.of(resource)),
        })
    }

    /// Nobody works for the child any more: books with the parent what the child used, and gives the rest back. Returns
    /// what was booked, and what that led to; `None` where the allotment is closed already.
    ///
    /// What the child has set aside counts as used: whoever set it aside is gone.
    pub fn close(&mut self, child: &Account, parent: &mut Account) -> Option<(Usage, Settled)> {
        if !self.open {
            return None;
        }
        let used = child.used.plus(child.reserved);
        let owed = Usage::each(|resource| {
            let (used, given) = (used.of(resource), self.given.of(resource));
            // What it used beyond what was given is its owner's as far as the owner raised the limit.
            let raised = child.budget.limit(resource).saturating_sub(given);
            used - used.saturating_sub(given).min(raised)
        });
        let more = owed.minus(self.booked);
        parent.allotted = parent.allotted.minus(self.aside());
        let settled = parent.settle(Usage::NONE, more);
        self.booked = self.booked.plus(more);
        self.open = false;
        Some((more, settled))
    }

    /// What was given when a child was `made` with these limits, as far as that is known: no less than is given now.
    #[must_use]
    pub fn at_first(&self, made: Option<Budget>) -> Usage {
        Usage::each(|resource| match (self.given.of(resource), made) {
            (u64::MAX, _) => u64::MAX,
            (given, None) => given,
            (given, Some(made)) => made.limit(resource).max(given),
        })
    }

    /// The child is used again: of what it was given at `first` and is not booked as much is set aside as the parent has left
    /// at this moment. What was given, and the child's limits, become less or more by that. Nothing happens where the allotment
    /// is open.
    pub fn reopen(&mut self, first: Usage, child: &mut Account, parent: &mut Account) {
        if self.open {
            return;
        }
        let before = std::mem::replace(&mut self.given, first);
        self.open = true;
        let short = Usage::each(|resource| self.aside().of(resource).saturating_sub(parent.left(resource)));
        self.given = self.given.minus(short);
        parent.allotted = parent.allotted.plus(self.aside());
        let raised = BudgetChange::Add(self.given.minus(before)).applied_to(child.budget);
        child.budget = raised.less(before.minus(self.given));
    }
}

impl Account {
    /// What a child gets of a resource where nobody says how much: [`share_of`] what is left. Refused where something was given
    /// of it and nothing is left.
    pub fn share(&self, resource: Resource) -> Result<u64, Exhausted> {
        let (limit, left) = (self.budget.limit(resource), self.left(resource));
        if left > 0 || limit == 0 {
            return Ok(share_of(left));
        }
        let reserved = self.reserved.plus(self.allotted).of(resource);
        Err(Exhausted { resource, limit, used: self.used.of(resource), reserved, asked: 1 })
    }
}

/// The share of what is left that a child gets where nobody says how much: a quarter, and something where there is
/// anything.
#[must_use]
pub fn share_of(left: u64) -> u64 {
    match left {
        u64::MAX => u64::MAX,
        left => left.div_ceil(SHARES),
    }
}

/// Into how many shares what is left is divided.
const SHARES: u64 = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::{BudgetPatch, LimitChange};

    fn tokens(tokens: u64) -> Usage {
        Usage { tokens, ..Usage::NONE }
    }

    fn account(tokens_max: u64) -> Account {
        Account { budget: Budget { tokens_max, ..Budget::default() }, ..Account::default() }
    }

    /// A child with so many tokens, one tool call and one turn.
    fn child(tokens_max: u64) -> Account {
        let budget = Budget { tokens_max, tool_calls_max: 1, turns_max: Some(1), cost_micros_max: None };
        Account { budget, ..Account::default() }
    }

    #[test]
    fn children_share_what_their_parent_has() {
        let mut parent = account(100);
        let mut first = Allotment::of(&mut parent, &child(60).budget).unwrap();
        assert_eq!(first.given, Usage { tokens: 60, tool_calls: 1, turns: u64::MAX, cost_micros: u64::MAX });
        assert_eq!(parent.allotted, Usage { tool_calls: 1, ..tokens(60) });
        let before = parent;
        let refused = Allotment::of(&mut parent, &child(41).budget).unwrap_err();
        assert_eq!((refused.resource, refused.reserved, refused.asked), (Resource::Tokens, 60, 41));
        assert!(parent.reserve(tokens(41)).is_err());
        assert_eq!(parent, before);
        let used = Account { used: Usage { turns: 1, ..tokens(85) }, ..child(60) };
        let (booked, settled) = first.close(&used, &mut parent).unwrap();
        assert_eq!(booked, Usage { turns: 1, ..tokens(85) }, "it overshot, and that is paid for");
        assert_eq!((parent.used, parent.allotted), (booked, Usage::NONE));
        assert_eq!(settled.warn, [Resource::Tokens]);
        assert_eq!(first.close(&used, &mut parent), None, "once");
    }

    #[test]
    fn of_what_is_all_gone_there_is_no_share() {
        let mut parent = account(100);
        assert_eq!(parent.share(Resource::Tokens), Ok(25));
        assert_eq!(parent.share(Resource::Turns), Ok(u64::MAX));
        parent.used = tokens(70);
        parent.reserve(tokens(20)).unwrap();
        parent.allot(tokens(9)).unwrap();
        assert_eq!(parent.share(Resource::Tokens), Ok(1));
        parent.allot(tokens(1)).unwrap();
        let gone = Exhausted { resource: Resource::Tokens, limit: 100, used: 70, reserved: 30, asked: 1 };
        assert_eq!(parent.share(Resource::Tokens), Err(gone));
        assert_eq!(account(0).share(Resource::Tokens), Ok(0), "it never had any");
    }

    #[test]
    fn what_nobody_settled_counts_as_used() {
        let mut parent = account(100);
        let mut allotment = Allotment::of(&mut parent, &child(60).budget).unwrap();
        let lost = Account { used: tokens(10), reserved: tokens(20), ..child(60) };
        assert_eq!(allotment.close(&lost, &mut parent).unwrap().0, tokens(30));
        let forfeited = Account { used: tokens(30), ..child(60) };
        allotment.reopen(allotment.given, &mut forfeited.clone(), &mut parent);
        assert_eq!(parent.allotted.tokens, 30);
        assert_eq!(allotment.close(&forfeited, &mut parent).unwrap().0, Usage::NONE, "not twice");
        assert_eq!((parent.used, parent.allotted), (tokens(30), Usage::NONE));
    }

    #[test]
    fn what_an_owner_gives_a_child_is_not_its_parents() {
        for (used, paid) in [(50, 50), (60, 60), (80, 60), (100, 60), (103, 63)] {
            let mut parent = account(100);
            let mut allotment = Allotment::of(&mut parent, &child(60).budget).unwrap();
            let mut rich = child(60);
            rich.change(BudgetChange::Add(tokens(40)));
            rich.settle(Usage::NONE, tokens(used));
            assert_eq!(allotment.close(&rich, &mut parent).unwrap().0, tokens(paid), "{used} used");
        }
    }

    #[test]
    fn a_child_that_is_used_again_gets_what_there_is() {
        let mut parent = account(100);
        let mut one = child(60);
        let mut allotment = Allotment::of(&mut parent, &one.budget).unwrap();
        one.settle(Usage::NONE, tokens(10));
        allotment.close(&one, &mut parent).unwrap();
        parent.reserve(tokens(70)).unwrap();
        let first = allotment.at_first(Some(child(60).budget));
        assert_eq!(first, allotment.given);
        allotment.reopen(first, &mut one, &mut parent);
        assert_eq!((parent.allotted.tokens, allotment.given.tokens), (20, 30));
        assert_eq!((one.budget.tokens_max, one.left(Resource::Tokens)), (30, 20));
        assert_eq!((one.budget.turns_max, allotment.given.turns), (Some(1), u64::MAX));
        let again = (allotment, one, parent);
        allotment.reopen(first, &mut one, &mut parent);
        assert_eq!((allotment, one, parent), again, "it is open");
        // What the parent had set aside it has again: so has the child.
        allotment.close(&one, &mut parent).unwrap();
        parent.settle(tokens(70), tokens(5));
        assert_eq!(
            allotment.at_first(None),
            allotment.given,
            "of one that was made before that was recorded"
        );
        let first = allotment.at_first(Some(child(60).budget));
        allotment.reopen(first, &mut one, &mut parent);
        assert_eq!((one.budget, allotment.given, parent.allotted.tokens), (child(60).budget, first, 50));
    }

    #[test]
    fn a_share_is_a_quarter() {
        let cases = [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (100, 25), (u64::MAX, u64::MAX)];
        for (left, share) in cases {
            assert_eq!(share_of(left), share, "of {left}");
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// A child with so much.
        Start(u64),
        /// The child of this number, counted round, sets so much aside and uses so much of it in percent.
        Work(usize, u64, u64),
        Rest(usize),
        Use(usize),
        /// The parent itself works.
        Own(u64, u64),
        /// The owner gives a child more.
        Give(usize, u64),
        /// The owner gives the parent more.
        TopUp(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let which = any::<usize>;
        prop_oneof![
            3 => (0_u64..80).prop_map(Step::Start),
            6 => (which(), 0_u64..40, 0_u64..=100).prop_map(|(n, worst, used)| Step::Work(n, worst, used)),
            2 => which().prop_map(Step::Rest),
            2 => which().prop_map(Step::Use),
            3 => (0_u64..40, 0_u64..=100).prop_map(|(worst, used)| Step::Own(worst, used)),
            1 => (which(), 0_u64..30).prop_map(|(n, more)| Step::Give(n, more)),
            1 => (0_u64..30).prop_map(Step::TopUp),
        ]
    }

    fn work(account: &mut Account, worst: u64, percent: u64) -> u64 {
        let used = worst * percent / 100;
        if account.reserve(tokens(worst)).is_err() {
            return 0;
        }
        account.settle(tokens(worst), tokens(used));
        used
    }

    proptest! {
        /// Whoever of a family works, in whatever order: together they use no more than the parent has, and what owners
        /// gave to children beside that; and when all is over nothing is set aside.
        #[test]
        fn a_family_uses_no_more_than_its_purse(
            limit in 0_u64..200, steps in prop::collection::vec(step(), 0..80)
        ) {
            let (mut parent, mut given_beside) = (account(limit), 0);
            let mut children: Vec<(Allotment, Account)> = Vec::new();
            let mut firsts: Vec<Usage> = Vec::new();
            let mut worked = 0;
            for step in steps {
                let count = children.len().max(1);
                match step {
                    Step::Start(tokens_max) => {
                        let budget = Budget { tokens_max, tool_calls_max: 0, ..Budget::default() };
                        if let Ok(allotment) = Allotment::of(&mut parent, &budget) {
                            firsts.push(allotment.given);
                            children.push((allotment, Account { budget, ..Account::default() }));
                        }
                    }
                    Step::Work(n, worst, percent) => {
                        if let Some((Allotment { open: true, .. }, child)) = children.get_mut(n % count) {
                            worked += work(child, worst, percent);
                        }
                    }
                    Step::Rest(n) => {
                        if let Some((allotment, child)) = children.get_mut(n % count) {
                            allotment.close(child, &mut parent);
                        }
                    }
                    Step::Use(n) => {
                        if let Some((allotment, child)) = children.get_mut(n % count) {
                            allotment.reopen(firsts[n % count], child, &mut parent);
                        }
                    }
                    Step::Own(worst, percent) => worked += work(&mut parent, worst, percent),
                    Step::Give(n, more) => {
                        if let Some((_, child)) = children.get_mut(n % count) {
                            child.change(BudgetChange::Add(tokens(more)));
                            given_beside += more;
                        }
                    }
                    Step::TopUp(more) => parent.change(BudgetChange::Add(tokens(more))),
                }
                let aside = children.iter().fold(Usage::NONE, |sum, (one, _)| sum.plus(one.aside()));
                prop_assert_eq!(parent.allotted, aside);
                let max = parent.budget.tokens_max;
                prop_assert!(parent.used.plus(parent.allotted).tokens <= max, "{:?}", parent);
                prop_assert!(worked <= max + given_beside, "{worked} of {max} and {given_beside}");
                for (allotment, child) in &children {
                    prop_assert!(child.used.tokens <= child.budget.tokens_max);
                    prop_assert!(allotment.booked.tokens <= child.used.tokens);
                }
            }
            for (allotment, child) in &mut children {
                allotment.close(child, &mut parent);
            }
            prop_assert_eq!((parent.reserved, parent.allotted), (Usage::NONE, Usage::NONE));
            prop_assert!(parent.used.tokens <= worked);
            prop_assert!(worked <= parent.used.tokens + given_beside, "all is paid for by somebody");
        }

        /// Whatever an owner does to limits, closing and opening again neither loses nor doubles a thing.
        #[test]
        fn absurd_numbers_are_neither_lost_nor_doubled(
            limit in prop_oneof![0..100_u64, Just(u64::MAX)], own in prop_oneof![0..100_u64, Just(u64::MAX)],
            rounds in prop::collection::vec((0_u64..200, prop_oneof![0..200_u64, Just(u64::MAX)]), 0..20),
        ) {
            let mut parent = account(limit);
            let cost_micros_max = LimitChange::To(own);
            parent.change(BudgetChange::Set(BudgetPatch { cost_micros_max, ..BudgetPatch::default() }));
            let mut one = child(limit);
            one.budget.cost_micros_max = Some(own);
            let mut allotment = Allotment::of(&mut parent, &one.budget).unwrap();
            for (used, tokens_max) in rounds {
                one.settle(Usage::NONE, tokens(used));
                one.budget.tokens_max = tokens_max;
                let before = parent.used;
                let (more, _) = allotment.close(&one, &mut parent).unwrap();
                prop_assert_eq!(parent.used, before.plus(more));
                prop_assert_eq!((parent.used, parent.allotted), (allotment.booked, Usage::NONE));
                prop_assert!(parent.used.tokens <= one.used.tokens);
                allotment.reopen(allotment.given, &mut one, &mut parent);
                prop_assert_eq!(parent.allotted, allotment.aside());
            }
        }
    }
}
