//! What the databases say, as errors that name no value of anybody.

use std::error::Error as StdError;

use session_core::StoreError;
use thiserror::Error;

/// A database did not do what it was told. Its text never holds a parameter's value.
#[derive(Debug, Clone, Error)]
#[error("{kind}: {message}{}", .code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default())]
pub struct DatabaseError {
    pub(crate) kind: Failure,
    /// The database's own code.
    pub(crate) code: Option<String>,
    message: String,
}

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Failure {
    #[error("a unique key is taken")]
    Unique,
    #[error("locked by another program")]
    Busy,
    #[error("the disk is full")]
    Full,
    #[error("read-only")]
    ReadOnly,
    #[error("input or output failed")]
    Io,
    #[error("not a database")]
    NotADatabase,
    #[error("cannot be opened")]
    CannotOpen,
    #[error("there is no such table")]
    NoTable,
    #[error("another transaction came in between")]
    Serialization,
    #[error("the connection is closed")]
    Closed,
    #[error("the statement failed")]
    Other,
}

impl From<sqlx::Error> for DatabaseError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's list of errors grows with its versions")]
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => Self::from_database(error.as_ref()),
            sqlx::Error::Io(error) => {
                Self { kind: io_failure(&error), code: None, message: error.to_string() }
            }
            sqlx::Error::PoolTimedOut => Self::plain(Failure::Busy, "no connection became free in time"),
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::plain(Failure::Closed, "the store was closed")
            }
            sqlx::Error::Tls(_) => Self::plain(Failure::Io, "the encrypted connection failed"),
            sqlx::Error::ColumnDecode { index, .. } => {
                Self::plain(Failure::Other, &format!("column {index} holds another type"))
            }
            other => Self::plain(Failure::Other, variant_of(&other)),
        }
    }
}

impl DatabaseError {
    pub(crate) fn plain(kind: Failure, message: &str) -> Self {
        Self { kind, code: None, message: message.into() }
    }

    fn from_database(error: &(dyn sqlx::error::DatabaseError + 'static)) -> Self {
        let code = error.code().map(std::borrow::Cow::into_owned);
        let kind = code.as_deref().map_or(Failure::Other, |code| {
            // SQLite's codes are decimal numbers, PostgreSQL's have five characters.
            match code.parse::<u32>() {
                Ok(number) if code.len() < 5 => sqlite_failure(number),
                Ok(_) | Err(_) => postgres_failure(code),
            }
        });
        let postgres = code.as_deref().is_some_and(|code| code.len() == 5);
        let message = match (postgres, error.constraint(), error.table()) {
            // PostgreSQL repeats offending input in some messages (classes 22 and 23): keep the names only.
            (true, Some(constraint), _) => format!("constraint {constraint}"),
            (true, None, _) if code.as_deref().is_some_and(|code| code.starts_with("22")) => {
                "bad data".into()
            }
            _ => error.message().into(),
        };
        Self { kind, code, message }
    }

    /// Whether a lock was waited for for too long (PostgreSQL).
    pub(crate) fn is_lock_timeout(&self) -> bool {
        self.code.as_deref() == Some("55P03")
    }

    /// Whether the same transaction, tried again, may succeed.
    pub(crate) fn is_retriable(&self) -> bool {
        self.kind == Failure::Serialization
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's list of errors grows with its versions")]
fn variant_of(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::Configuration(_) => "the configuration is wrong",
        sqlx::Error::Protocol(_) => "the server does not keep to the protocol",
        sqlx::Error::RowNotFound => "a row is missing",
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => "a value has another type",
        sqlx::Error::Encode(_) => "a value cannot be sent",
        _ => "the driver failed",
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the system's list of errors is long and grows")]
fn io_failure(error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Failure::Full,
        std::io::ErrorKind::ReadOnlyFilesystem => Failure::ReadOnly,
        _ => Failure::Io,
    }
}

/// <https://www.sqlite.org/rescode.html>; the low byte is the primary code.
fn sqlite_failure(code: u32) -> Failure {
    match (code & 0xff, code) {
        (5 | 6, _) => Failure::Busy,
        (8, _) => Failure::ReadOnly,
        (10, _) => Failure::Io,
        (11 | 26, _) => Failure::NotADatabase,
        (13, _) => Failure::Full,
        (14, _) => Failure::CannotOpen,
        (19, 1555 | 2067) => Failure::Unique,
        _ => Failure::Other,
    }
}

/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
fn postgres_failure(code: &str) -> Failure {
    match code {
        "23505" => Failure::Unique,
        "40001" | "40P01" => Failure::Serialization,
        "42P01" => Failure::NoTable,
        "53100" => Failure::Full,
        "25006" => Failure::ReadOnly,
        "55P03" => Failure::Busy,
        _ if code.starts_with("08") || code.starts_with("57P") => Failure::Io,
        _ if code.starts_with("53") => Failure::Busy,
        _ => Failure::Other,
    }
}

/// What a caller of the ports is told.
pub(crate) fn failed(error: impl Into<DatabaseError>) -> StoreError {
    let error: DatabaseError = error.into();
    match error.kind {
        Failure::Busy
        | Failure::Full
        | Failure::ReadOnly
        | Failure::Io
        | Failure::CannotOpen
        | Failure::Serialization
        | Failure::Closed => StoreError::Unavailable(Box::new(error)),
        Failure::Unique | Failure::NotADatabase | Failure::NoTable | Failure::Other => {
            StoreError::Backend(Box::new(error))
        }
    }
}

/// A fault of the program or of the data that is no statement's.
pub(crate) fn broken(what: impl Into<Box<dyn StdError + Send + Sync>>) -> StoreError {
    StoreError::Backend(what.into())
}

/// The database's own error inside one of the ports', if there is one.
pub(crate) fn database_error(error: &StoreError) -> Option<&DatabaseError> {
    match error {
        StoreError::Unavailable(source) | StoreError::Backend(source) => source.downcast_ref(),
        StoreError::UnknownSession(_)
        | StoreError::UnknownRun(_)
        | StoreError::UnknownApproval(_)
        | StoreError::UnknownRunner(_)
        | StoreError::UnknownToken(_)
        | StoreError::Busy { .. }
        | StoreError::Fenced { .. }
        | StoreError::Transition(_)
        | StoreError::Conflict(_)
        | StoreError::Exhausted(_)
        | StoreError::Corrupt { .. } => None,
    }
}
