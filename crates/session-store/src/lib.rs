//! The ports of session-core on SQLite and PostgreSQL.

#![forbid(unsafe_code)]

#[macro_use]
mod rows;
#[macro_use]
mod conn;
mod claim;
mod connect;
mod enqueue;
mod error;
mod events;
#[cfg(test)]
mod explain;
mod identity;
mod migrate;
mod open;
mod plan;
mod postgres;
mod runs;
mod sessions;
mod store;
mod tx;
mod url;
mod writer;

pub use error::DatabaseError;
pub use open::{Durability, OpenError, OpenOptions};
pub use store::SqlStore;
pub use url::{StoreUrl, StoreUrlError};
