//! The manager of sessions against engines, factories and sinks that behave badly, under a clock that is set by hand.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod busy;
mod cancellation;
mod eviction;
mod expectations;
mod families;
mod governance;
mod isolation;
mod leaving;
mod opening;
mod races;
mod resuming;
mod sinks;
#[cfg(test)]
mod stress;
mod suspending;
mod sweeping;
mod world;
