//! The store against its contract, on both databases, and under what may go wrong.

#[path = "../../../../tests/src/pg.rs"]
mod pg;

mod conformance;
mod stores;
