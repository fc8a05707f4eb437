//! Room for readers of streams: so many at once, and no more than half of them one principal's, so that nobody keeps all the
//! others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::names::Principal;

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

impl Readers {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, reading: Arc::default() }
    }

    /// A place for one more reader of this principal; `None` where there is none.
    pub(crate) fn enter(&self, principal: &Principal) -> Option<ReaderPlace> {
        let mut reading = self.lock();
        let all: usize = reading.values().sum();
        let own = reading.get(principal).copied().unwrap_or_default();
        if all >= self.most || own >= self.most.div_ceil(2) {
            return None;
        }
        reading.insert(principal.clone(), own + 1);
        drop(reading);
        Some(ReaderPlace { readers: self.clone(), principal: principal.clone() })
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
        let mut of_alice: Vec<_> = std::iter::from_fn(|| readers.enter(&alice)).collect();
        let of_bob: Vec<_> = std::iter::from_fn(|| readers.enter(&bob)).collect();
        assert_eq!((of_alice.len(), of_bob.len()), (3, 2));
        of_alice.pop();
        assert!(readers.enter(&bob).is_some());
        drop((of_alice, of_bob));
        assert!(readers.lock().is_empty());
    }
}
