//! One process's share of a budget: reservations that cannot be forgotten.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Account, Budget, BudgetChange, Exhausted, Settled, Usage};

/// A budget and what was used of it: one session's, shared by everything that works for it.
#[derive(Debug)]
pub struct Meter {
    // A std mutex: held for a few additions, never across an await.
    account: Mutex<Account>,
}

impl Meter {
    /// A meter that goes on where `used` stands: limits and usage survive suspend, resume and restart.
    #[must_use]
    pub fn new(budget: Budget, used: Usage) -> Self {
        Self { account: Mutex::new(Account { budget, used, ..Account::default() }) }
    }

    /// Sets `worst` aside, or says of which resource there is too little left.
    pub fn reserve(&self, worst: Usage) -> Result<Reserved<&Self>, Exhausted> {
        self.lock().reserve(worst)?;
        Ok(Reserved { meter: self, worst: Some(worst) })
    }

    /// The same for work that outlives the caller: the reservation holds the meter itself.
    pub fn reserve_owned(self: &Arc<Self>, worst: Usage) -> Result<Reserved<Arc<Self>>, Exhausted> {
        self.lock().reserve(worst)?;
        Ok(Reserved { meter: Arc::clone(self), worst: Some(worst) })
    }

    /// Limits, usage and what is set aside, as they are together at this moment.
    #[must_use]
    pub fn account(&self) -> Account {
        *self.lock()
    }

    /// Used up so far.
    #[must_use]
    pub fn used(&self) -> Usage {
        self.lock().used
    }

    /// The limits.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.lock().budget
    }

    /// Changes the limits; usage stays.
    pub fn change(&self, change: BudgetChange) {
        self.lock().change(change);
    }

    /// What is set aside for children is this by now.
    pub fn set_allotted(&self, allotted: Usage) {
        self.lock().allotted = allotted;
    }

    /// Replaces the limits; usage stays.
    pub fn set_budget(&self, budget: Budget) {
        self.change(BudgetChange::Set(budget.into()));
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        // Every change is a few additions: a panic cannot leave it half done.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a budget that is set aside, of a meter that is borrowed or shared. Dropped unsettled, it counts as used:
/// what was not measured is paid at its worst.
#[must_use = "settle it with what was really used"]
#[derive(Debug)]
pub struct Reserved<M: Deref<Target = Meter>> {
    meter: M,
    worst: Option<Usage>,
}

impl<M: Deref<Target = Meter>> Reserved<M> {
    /// Gives back what was not used, and books what was, also if it is more than was set aside.
    #[must_use = "a settlement may say that a warning is due"]
    pub fn settle(mut self, actual: Usage) -> Settled {
        let worst = self.worst.take().unwrap_or_default();
        self.meter.lock().settle(worst, actual)
    }
}

impl<M: Deref<Target = Meter>> Drop for Reserved<M> {
    fn drop(&mut self) {
        if let Some(worst) = self.worst.take() {
            let _settled = self.meter.lock().settle(worst, worst);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Resource;

    fn tokens(tokens: u64) -> Usage {
        Usage { tokens, ..Usage::NONE }
    }

    fn meter(tokens_max: u64) -> Meter {
        Meter::new(Budget { tokens_max, ..Budget::default() }, Usage::NONE)
    }

    #[test]
    fn parallel_reservations_cannot_overshoot_together() {
        let meter = meter(100);
        let first = meter.reserve(tokens(60)).unwrap();
        let refused = meter.reserve(tokens(60)).unwrap_err();
        assert_eq!((refused.resource, refused.reserved, refused.asked), (Resource::Tokens, 60, 60));
        assert_eq!(first.settle(tokens(10)).used.tokens, 10);
        drop(meter.reserve(tokens(90)).unwrap());
        assert_eq!(meter.used().tokens, 100, "what is dropped unsettled is paid at its worst");
        assert!(meter.reserve(tokens(1)).is_err());
        assert!(meter.reserve(Usage { tool_calls: 1, ..Usage::NONE }).is_ok());
    }

    #[test]
    fn a_reservation_that_holds_its_meter_outlives_the_caller() {
        let meter = Arc::new(meter(100));
        let reserved = meter.reserve_owned(tokens(80)).unwrap();
        let account = meter.account();
        assert_eq!((account.used, account.reserved), (Usage::NONE, tokens(80)));
        let worker = std::thread::spawn(move || reserved.settle(tokens(80)));
        assert_eq!(worker.join().unwrap().warn, [Resource::Tokens]);
        drop(meter.reserve_owned(tokens(20)).unwrap());
        assert_eq!((meter.used(), meter.account().reserved), (tokens(100), Usage::NONE));
        meter.set_budget(Budget { tokens_max: 101, ..Budget::default() });
        drop(meter.reserve_owned(tokens(1)).unwrap());
        meter.change(BudgetChange::Add(tokens(1)));
        assert_eq!(meter.budget().tokens_max, 102);
        assert!(meter.reserve_owned(tokens(1)).is_ok());
    }

    proptest! {
        #[test]
        fn used_never_exceeds_the_limit_when_no_one_underestimates(
            limit in 0_u64..1_000, steps in prop::collection::vec((0_u64..200, 0_u64..=100), 0..50)
        ) {
            let meter = meter(limit);
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
            prop_assert_eq!(meter.account().reserved, Usage::NONE);
        }
    }
}
