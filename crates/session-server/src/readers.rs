//! Room for readers of streams: so many at once, and no more than half of them one principal's, so that nobody keeps all the
//! others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::names::Principal;
use thiserror::Error;

/// How many read, and who.
#[derive(Debug, Clone)]
pub(crate) struct Readers {
    most: usize,
    // A std mutex: held for a look into the map, never across an await.
    reading: Arc<Mutex<HashMap<Principal, usize>>>,
}

/// One reader's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReaderPlace {
    readers: Readers,
    principal: Principal,
}

/// Why one more reader has no place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NoPlace {
    /// All are taken.
    #[error("as many streams as there may be are open")]
    Full,
    /// The principal has its share, its runs' and other tokens' included.
    #[error("{principal} reads {share} streams already, which is one principal's share of `serve.readers`")]
    Share {
        /// Whose.
        principal: Principal,
        /// How many it may read.
        share: usize,
    },
}

impl Readers {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, reading: Arc::default() }
    }

    /// A place for one more reader of this principal, or why there is none.
    pub(crate) fn enter(&self, principal: &Principal) -> Result<ReaderPlace, NoPlace> {
        let mut reading = self.lock();
        let all: usize = reading.values().sum();
        let own = reading.get(principal).copied().unwrap_or_default();
        let share = self.most.div_ceil(2);
        if all >= self.most {
            return Err(NoPlace::Full);
        }
        if own >= share {
            return Err(NoPlace::Share { principal: principal.clone(), share });
        }
        reading.insert(principal.clone(), own + 1);
        drop(reading);
        Ok(ReaderPlace { readers: self.clone(), principal: principal.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, usize>> {
        // A count is changed in one step: no panic leaves it half done.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReaderPlace {
    fn drop(&mut self) {
        let mut reading = self.readers.lock();
        if let Some(own) = reading.get_mut(&self.principal) {
            *own -= 1;
            if *own == 0 {
                reading.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_half_and_all_have_no_more_than_all() {
        let readers = Readers::new(5);
        let [alice, bob] = ["alice", "bob"].map(|name| name.parse::<Principal>().unwrap());
        let mut of_alice: Vec<_> = std::iter::from_fn(|| readers.enter(&alice).ok()).collect();
        let of_bob: Vec<_> = std::iter::from_fn(|| readers.enter(&bob).ok()).collect();
        assert_eq!((of_alice.len(), of_bob.len()), (3, 2));
        assert_eq!(readers.enter(&alice).unwrap_err(), NoPlace::Full);
        of_alice.pop();
        assert!(readers.enter(&bob).is_ok());
        drop(of_bob);
        of_alice.push(readers.enter(&alice).unwrap());
        let share = readers.enter(&alice).unwrap_err();
        assert!(share.to_string().contains("alice reads 3 streams"), "{share}");
        let of_bob = readers.enter(&bob);
        drop((of_alice, of_bob));
        assert!(readers.lock().is_empty());
    }
}
