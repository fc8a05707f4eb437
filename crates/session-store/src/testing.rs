//! What tests and benches of other crates need of a real PostgreSQL, so that SQL stays in this crate.

pub mod floor;
pub mod pg;
