//! The store against its contract, on both databases, and under what may go wrong.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, unreachable_pub, reason = "these are tests, and no crate uses them")]

#[path = "../../src/testing/pg.rs"]
mod pg;

mod cancelled;
mod conformance;
mod contention;
mod faults;
mod growth;
mod history;
mod legacy;
mod lifecycle;
mod opening;
mod stores;
mod upgrade;
