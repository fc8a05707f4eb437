//! The ports of session-core on SQLite and PostgreSQL.

#![forbid(unsafe_code)]

mod error;
mod open;
mod store;
mod url;

pub use error::DatabaseError;
pub use open::{Durability, OpenError, OpenOptions};
pub use store::SqlStore;
pub use url::{StoreUrl, StoreUrlError};
