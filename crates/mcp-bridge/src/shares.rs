//! What there is a limit of, and how much of it each principal has: nobody can have more than half, so that one never keeps all
//! others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::names::Principal;

/// Something of which there is so much: requests, streams, bytes.
#[derive(Debug)]
pub(crate) struct Shares {
    max: usize,
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    each: HashMap<Principal, usize>,
}

/// What somebody has of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    principal: Principal,
    amount: usize,
}

impl Shares {
    /// So much in all; one principal has half of it at the most, and one in any case.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, each: max.div_ceil(2), taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing in here is ever half done.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much for this principal; `None` where there is not so much left, in all or of its own.
    pub(crate) fn take(self: &Arc<Self>, principal: &Principal, amount: usize) -> Option<Share> {
        let mut share = Share { of: Arc::clone(self), principal: principal.clone(), amount: 0 };
        share.grow(amount).then_some(share)
    }
}

impl Share {
    /// More of it. False where there is not so much left: then it stays as it is.
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        let mut taken = self.of.taken();
        let own = taken.each.get(&self.principal).copied().unwrap_or_default();
        if taken.all + amount > self.of.max || own + amount > self.of.each {
            return false;
        }
        taken.all += amount;
        taken.each.insert(self.principal.clone(), own + amount);
        self.amount += amount;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken();
        taken.all -= self.amount;
        let own = taken.each.get(&self.principal).copied().unwrap_or_default();
        if own <= self.amount {
            taken.each.remove(&self.principal);
        } else {
            taken.each.insert(self.principal.clone(), own - self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_half_and_gives_back_what_it_had() {
        let (ada, bob): (Principal, Principal) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let shares = Shares::new(10);
        let mut first = shares.take(&ada, 2).unwrap();
        assert!(first.grow(3));
        assert!(!first.grow(1) && shares.take(&ada, 1).is_none(), "it has its half");
        let second = shares.take(&bob, 5).unwrap();
        assert!(shares.take(&"cyd".parse().unwrap(), 1).is_none(), "there is no more");
        drop(first);
        assert!(shares.take(&bob, 1).is_none());
        let again = shares.take(&ada, 5).unwrap();
        drop((second, again));
        let taken = shares.taken();
        assert_eq!((taken.all, taken.each.len()), (0, 0));
        assert!(Shares::new(1).take(&ada, 1).is_some());
    }
}
