//! The runs that one process holds: pure bookkeeping, without clock, lock or I/O.
//!
//! The registry decides how many more runs may be taken and whose lease is due; the runner acts.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use session_core::run::{Fence, StopMode};
use session_core::{RunId, SessionId};

/// The runs that one process holds, each with a handle `H` to whatever executes it.
#[derive(Debug)]
pub struct Registry<H> {
    capacity: usize,
    lease: SignedDuration,
    held: HashMap<RunId, Held<H>>,
}

/// One run that is held.
#[derive(Debug)]
pub struct Held<H> {
    /// The claim.
    pub fence: Fence,
    /// Its session.
    pub session: SessionId,
    /// Whatever executes it.
    pub handle: H,
    renew_at: Timestamp,
    stop: Option<StopMode>,
}

impl<H> Registry<H> {
    /// An empty registry for `capacity` runs at once. Leases are renewed when a third of them has passed.
    #[must_use]
    pub fn new(capacity: usize, lease: SignedDuration) -> Self {
        Self { capacity, lease, held: HashMap::new() }
    }

    /// How many more runs may be taken.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity.saturating_sub(self.held.len())
    }

    /// How many runs are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// No run is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds a run from now on. Adopted runs may exceed the capacity: they were there before.
    pub fn hold(&mut self, fence: Fence, session: SessionId, handle: H, now: Timestamp) {
        let renew_at = self.renewal(now);
        self.held.insert(fence.run, Held { fence, session, handle, renew_at, stop: None });
    }

    /// Lets go of a run that is over.
    pub fn release(&mut self, run: RunId) -> Option<Held<H>> {
        self.held.remove(&run)
    }

    /// Every run that is held.
    pub fn iter(&self) -> impl Iterator<Item = &Held<H>> {
        self.held.values()
    }

    /// The claims to renew now; each is due again after a third of the lease.
    pub fn due(&mut self, now: Timestamp) -> Vec<Fence> {
        let next = self.renewal(now);
        let due = self.held.values_mut().filter(|held| held.renew_at <= now);
        due.map(|held| {
            held.renew_at = next;
            held.fence
        })
        .collect()
    }

    /// When the next renewal is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.held.values().map(|held| held.renew_at).min()
    }

    /// Notes an order to stop. The handle comes back only when the order is new or harder than the one before,
    /// so that each is passed on once.
    pub fn order(&mut self, run: RunId, mode: StopMode) -> Option<&H> {
        let held = self.held.get_mut(&run)?;
        if held.stop >= Some(mode) {
            return None;
        }
        held.stop = Some(mode);
        Some(&held.handle)
    }

    fn renewal(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(self.lease / 3).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use session_core::run::Epoch;
    use session_core::testing;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn capacity_counts_what_is_held() {
        let (env, _clock) = testing::env();
        let mut registry = Registry::new(1, SignedDuration::from_secs(60));
        let fence = Fence { run: env.run_id(), epoch: Epoch(1) };
        registry.hold(fence, env.session_id(), (), at(0));
        assert_eq!((registry.free(), registry.len()), (0, 1));
        registry.hold(Fence { run: env.run_id(), epoch: Epoch(1) }, env.session_id(), (), at(0));
        assert_eq!(registry.free(), 0, "adopted runs may exceed the capacity");
        assert!(registry.release(fence.run).is_some());
        assert!(registry.release(fence.run).is_none());
    }

    #[test]
    fn leases_are_renewed_after_a_third() {
        let (env, _clock) = testing::env();
        let mut registry = Registry::new(2, SignedDuration::from_secs(60));
        let fence = Fence { run: env.run_id(), epoch: Epoch(3) };
        assert_eq!(registry.next_deadline(), None);
        registry.hold(fence, env.session_id(), (), at(0));
        assert_eq!(registry.next_deadline(), Some(at(20)));
        assert!(registry.due(at(19)).is_empty());
        assert_eq!(registry.due(at(20)), [fence]);
        assert!(registry.due(at(20)).is_empty());
        assert_eq!(registry.next_deadline(), Some(at(40)));
    }

    #[test]
    fn orders_are_passed_on_once_and_only_harden() {
        let (env, _clock) = testing::env();
        let mut registry = Registry::new(2, SignedDuration::from_secs(60));
        let fence = Fence { run: env.run_id(), epoch: Epoch(1) };
        registry.hold(fence, env.session_id(), "handle", at(0));
        assert_eq!(registry.order(fence.run, StopMode::Graceful), Some(&"handle"));
        assert_eq!(registry.order(fence.run, StopMode::Graceful), None);
        assert_eq!(registry.order(fence.run, StopMode::Kill), Some(&"handle"));
        assert_eq!(registry.order(fence.run, StopMode::Graceful), None);
        assert_eq!(registry.order(env.run_id(), StopMode::Kill), None);
    }
}
