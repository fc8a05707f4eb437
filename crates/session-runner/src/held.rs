//! The runs that one process holds: pure bookkeeping, without clock, lock or I/O.
//!
//! It decides how many more runs may be taken and which orders are new; the runner acts.

use std::collections::HashMap;

use session_core::run::{Fence, StopMode};
use session_core::{RunId, SessionId};

/// The runs that one process holds, each with a handle `H` to whatever executes it.
#[derive(Debug)]
pub(crate) struct HeldRuns<H> {
    capacity: usize,
    held: HashMap<RunId, Held<H>>,
}

/// One run that is held.
#[derive(Debug)]
pub(crate) struct Held<H> {
    /// The claim.
    pub(crate) fence: Fence,
    /// Its session.
    pub(crate) session: SessionId,
    /// Whatever executes it.
    pub(crate) handle: H,
    stop: Option<StopMode>,
}

impl<H> HeldRuns<H> {
    /// Room for `capacity` runs at once.
    #[must_use]
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, held: HashMap::new() }
    }

    /// How many more runs may be taken, when so many of those that are held take nobody's place.
    #[must_use]
    pub(crate) fn free(&self, waiting: usize) -> usize {
        self.capacity.saturating_add(waiting).saturating_sub(self.held.len())
    }

    /// Holds a run from now on. Adopted runs may exceed the capacity: they were there before.
    pub(crate) fn hold(&mut self, fence: Fence, session: SessionId, handle: H) {
        self.held.insert(fence.run, Held { fence, session, handle, stop: None });
    }

    /// Lets go of a claim that is over. A later claim on the same run stays.
    pub(crate) fn release(&mut self, fence: Fence) -> Option<Held<H>> {
        if self.held.get(&fence.run)?.fence == fence { self.held.remove(&fence.run) } else { None }
    }

    /// Every run that is held.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held<H>> {
        self.held.values()
    }

    /// Whatever executes the run of this claim.
    pub(crate) fn handle(&self, fence: Fence) -> Option<&H> {
        self.held.get(&fence.run).filter(|held| held.fence == fence).map(|held| &held.handle)
    }

    /// Whether this run is held.
    #[must_use]
    pub(crate) fn holds(&self, run: RunId) -> bool {
        self.held.contains_key(&run)
    }

    /// The orders that are noted.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = (RunId, StopMode)> {
        self.held.iter().filter_map(|(run, held)| Some((*run, held.stop?)))
    }

    /// The claims to keep alive.
    #[must_use]
    pub(crate) fn fences(&self) -> Vec<Fence> {
        self.held.values().map(|held| held.fence).collect()
    }

    /// Notes an order to stop. The handle comes back only when the order is new or harder than the one before,
    /// so that each is passed on once.
    pub(crate) fn order(&mut self, run: RunId, mode: StopMode) -> Option<&H> {
        let held = self.held.get_mut(&run)?;
        if held.stop >= Some(mode) {
            return None;
        }
        held.stop = Some(mode);
        Some(&held.handle)
    }
}

#[cfg(test)]
mod tests {
    use session_core::run::Epoch;
    use session_core::testing;

    use super::*;

    #[test]
    fn capacity_counts_what_is_held() {
        let (env, _clock) = testing::env();
        let mut held = HeldRuns::new(1);
        let fence = Fence { run: env.run_id(), epoch: Epoch(1) };
        held.hold(fence, env.session_id(), ());
        assert_eq!((held.free(0), held.fences().len()), (0, 1));
        held.hold(Fence { run: env.run_id(), epoch: Epoch(1) }, env.session_id(), ());
        assert_eq!(held.free(0), 0, "adopted runs may exceed the capacity");
        assert_eq!(held.free(3), 2, "two are held, three wait, one may execute");
        assert!(held.release(fence).is_some());
        assert!(held.release(fence).is_none());
    }

    #[test]
    fn the_end_of_an_old_claim_leaves_the_new_one() {
        let (env, _clock) = testing::env();
        let mut held = HeldRuns::new(1);
        let old = Fence { run: env.run_id(), epoch: Epoch(1) };
        let new = Fence { epoch: Epoch(2), ..old };
        held.hold(old, env.session_id(), "old");
        held.hold(new, env.session_id(), "new");
        assert!(held.release(old).is_none());
        assert_eq!(held.fences(), [new]);
        assert_eq!((held.handle(old), held.handle(new)), (None, Some(&"new")));
        assert_eq!(held.release(new).map(|held| held.handle), Some("new"));
    }

    #[test]
    fn orders_are_passed_on_once_and_only_harden() {
        let (env, _clock) = testing::env();
        let mut held = HeldRuns::new(2);
        let fence = Fence { run: env.run_id(), epoch: Epoch(1) };
        held.hold(fence, env.session_id(), "handle");
        assert_eq!(held.order(fence.run, StopMode::Graceful), Some(&"handle"));
        assert_eq!(held.order(fence.run, StopMode::Graceful), None);
        assert_eq!(held.order(fence.run, StopMode::Kill), Some(&"handle"));
        assert_eq!(held.order(fence.run, StopMode::Graceful), None);
        assert_eq!(held.order(env.run_id(), StopMode::Kill), None);
    }
}
