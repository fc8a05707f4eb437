//! How a store is opened, and why it cannot be.

use std::path::PathBuf;

use thiserror::Error;

use crate::error::DatabaseError;

/// How a store is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// What SQLite makes sure of before a write is acknowledged. PostgreSQL has a setting of its own for it.
    pub durability: Durability,
    /// How large an SQLite file may grow, in bytes; `None` for as large as the disk. At the limit, writes that need
    /// more room fail as on a full disk, and reads go on.
    pub size_max_bytes: Option<u64>,
}

impl OpenOptions {
    /// The same options with another durability.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// The same options with another limit to the size of an SQLite file.
    #[must_use]
    pub fn size_max_bytes(self, size_max_bytes: Option<u64>) -> Self {
        Self { size_max_bytes, ..self }
    }
}

/// What SQLite makes sure of before a write is acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk (`synchronous=FULL`).
    #[default]
    Full,
    /// It is with the operating system (`synchronous=NORMAL`): it survives the end of the program, but the last
    /// acknowledged writes may be missing after a loss of power. The database stays sound.
    Normal,
}

/// Why a store was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory of the file does not exist.
    #[error("the directory of {} does not exist: create it first", .0.display())]
    DirectoryMissing(PathBuf),
    /// There is no such file, and a reader makes none.
    #[error("there is no store at {}", .0.display())]
    FileMissing(PathBuf),
    /// The path cannot be used: a directory, no permission, …
    #[error("{} cannot be opened as a store", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system or SQLite said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file or its directory may not be written.
    #[error("{} is read-only: a store must be writable, together with its directory", .0.display())]
    ReadOnly(PathBuf),
    /// No space left.
    #[error("the disk of {} is full", .0.display())]
    DiskFull(PathBuf),
    /// The file holds something else.
    #[error("{} is not an SQLite database, or is damaged", .0.display())]
    NotADatabase(PathBuf),
    /// The SQLite that the program was linked with has known faults.
    #[error("SQLite {found} is too old: {needed} is needed, earlier ones can damage a store")]
    SqliteTooOld {
        /// What there is.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A reader found a database without tables.
    #[error("{0} holds no store yet")]
    NoSchema(String),
    /// A reader found tables that a writer must migrate first.
    #[error(
        "the store has schema {found}, this program needs {known}: start its host once, which migrates it"
    )]
    SchemaOlder {
        /// What there is.
        found: i64,
        /// What the program knows.
        known: i64,
    },
    /// Another, newer program wrote this store.
    #[error("the store has schema {found}, this program knows {known} at the most: update the program")]
    SchemaNewer {
        /// What there is.
        found: i64,
        /// What the program knows.
        known: i64,
    },
    /// A migration that was applied is not the one that the program knows.
    #[error("migration {version} was applied to the store with another text: it belongs to another program")]
    SchemaDiffers {
        /// The migration.
        version: i64,
    },
    /// The copy before a migration could not be made; nothing was migrated.
    #[error("the store could not be copied to {} before its migration", .path.display())]
    Backup {
        /// Where the copy was to be.
        path: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No PostgreSQL answers there, or it refuses.
    #[error("PostgreSQL is out of reach at {url}")]
    PostgresUnreachable {
        /// The address, without the password.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address is no PostgreSQL URL.
    #[error("{url} is no PostgreSQL URL")]
    PostgresUrl {
        /// The address, without the password.
        url: String,
    },
    /// Somebody else holds the database's lock for too long.
    #[error("the store is locked by another program")]
    Locked(#[source] DatabaseError),
    /// Anything else that the database said.
    #[error("the store could not be opened")]
    Database(#[source] DatabaseError),
}
