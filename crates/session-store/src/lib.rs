//! The ports of session-core on SQLite and PostgreSQL.
//!
//! One [`SqlStore`] over two databases, with one text a statement wherever both understand it. It decides nothing of
//! its own: transitions, numbers and conflicts come from `session-core` and from the pure function in `plan.rs`. It
//! knows no manager, no process and no HTTP.
//!
//! * **SQLite**: one task owns the one connection that writes. It takes what waits in its queue, runs it in one
//!   transaction, commits with `synchronous=FULL`, and only then answers; readers have connections of their own.
//! * **PostgreSQL**: each change is a transaction that first locks the row of its session; appends go in groups
//!   through lanes. Other processes hear of changes by `LISTEN`.
//!
//! ```
//! use session_core::ports::{Page, SessionFilter, SessionStore as _};
//! use session_store::{OpenOptions, SqlStore, StoreUrl};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let directory = tempfile::tempdir()?;
//! let url = StoreUrl::Sqlite(directory.path().join("roomette.db"));
//! let store = SqlStore::open(&url, OpenOptions::default()).await?;
//! let reader = SqlStore::open_reader(&url).await?;
//! assert!(reader.list(&SessionFilter::default(), &Page::first(50)).await?.items.is_empty());
//! reader.close().await;
//! store.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// The macros of these two are used by the others.
#[macro_use]
mod rows;
#[macro_use]
mod conn;
mod allotments;
mod approvals;
mod bindings;
mod claim;
mod connect;
mod enqueue;
mod error;
mod events;
#[cfg(test)]
mod explain;
mod families;
mod history;
mod idempotency;
mod identity;
mod keys;
mod leases;
mod ledger;
pub mod legacy;
mod migrate;
mod open;
mod plan;
mod postgres;
mod runners;
mod runs;
mod sessions;
mod store;
mod sweep;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tokens;
mod tx;
mod url;
mod writer;

pub use error::DatabaseError;
pub use open::{Durability, OpenError, OpenOptions};
pub use store::SqlStore;
pub use url::{StoreUrl, StoreUrlError};
