//! Test doubles and the conformance suite of the ports (feature `testing`).
//!
//! [`env()`] gives a world in which time stands still until it is moved and ids count up; [`MemoryStore`] is the
//! reference implementation of every port; [`conformance_suite!`](crate::conformance_suite) holds any store to
//! the ports' documentation.

mod clock;
pub mod conformance;
mod ids;
mod memory;

use std::sync::Arc;

pub use clock::ManualClock;
pub use ids::SequentialIds;
pub use memory::MemoryStore;

use crate::env::Env;

/// A world of its own, the same in every test: a clock that moves only when told to, and ids that count up.
#[must_use]
pub fn env() -> (Env, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let env = Env { clock: Arc::clone(&clock) as _, ids: Arc::new(SequentialIds::default()) };
    (env, clock)
}
