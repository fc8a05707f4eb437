//! The database of a legacy coordinator: sessions keyed by a name of theirs, with the framework's id as primary key.
//!
//! It is only read, whatever its exact columns are: those that it lacks count as empty, those that nobody knows are left alone.
//! [`SqlStore::import_legacy`](crate::SqlStore::import_legacy) makes sessions of its rows.

pub(crate) mod import;
mod log;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use thiserror::Error;

pub use self::import::{LegacyImport, LegacyOutcome, LegacyPlace, LegacyResult, Places};

use crate::conn::{Conn, Sql};
use crate::error::{DatabaseError, Failure};
use crate::rows::TextRow;

/// The most sessions that one database may have.
pub const LEGACY_SESSIONS_MAX: u32 = 100_000;
/// The most events that one session of it may have.
pub const LEGACY_EVENTS_MAX: u32 = 1_000_000;

/// A legacy coordinator's database, open to read.
#[derive(Debug)]
pub struct LegacyDatabase {
    connection: SqliteConnection,
    file: PathBuf,
    sessions: HashSet<String>,
    /// The columns of its log; nothing where it has none.
    events: HashSet<String>,
}

/// Why nothing of a database can be imported.
#[derive(Debug, Error)]
pub enum LegacyError {
    /// There is no such file.
    #[error("there is no file {}", .0.display())]
    Missing(PathBuf),
    /// It is something else, or torn.
    #[error("{} is not an SQLite database, or is damaged: {reason}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What SQLite says.
        reason: String,
    },
    /// It is a database of something else.
    #[error("{} is no legacy coordinator's database: {reason}", .file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What it lacks.
        reason: String,
    },
    /// More sessions than are taken at once.
    #[error("{} has more than {LEGACY_SESSIONS_MAX} sessions", .0.display())]
    TooMany(PathBuf),
    /// It cannot be read.
    #[error("{} cannot be read", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: DatabaseError,
    },
    /// The store into which it was to be imported did not answer.
    #[error(transparent)]
    Store(#[from] session_core::StoreError),
}

/// A column as SQLite holds it: any bytes.
type Cell = Option<Vec<u8>>;

row! {
    /// A session of theirs.
    SessionRow {
        session_id: Cell,
        session_name: Cell,
        status: Cell,
        created_at: Cell,
        last_resumed_at: Cell,
        project_dir: Cell,
        agent_name: Cell,
        parent_session_name: Cell,
        executor_type: Cell,
        hostname: Cell,
    }
}

row! {
    /// An event of theirs.
    EventRow {
        number: i64,
        event_type: Cell,
        timestamp: Cell,
        tool_name: Cell,
        tool_input: Cell,
        tool_output: Cell,
        error: Cell,
        exit_code: Cell,
        reason: Cell,
        role: Cell,
        content: Cell,
    }
}

const SESSION_COLUMNS: [&str; 10] = [
    "session_id",
    "session_name",
    "status",
    "created_at",
    "last_resumed_at",
    "project_dir",
    "agent_name",
    "parent_session_name",
    "executor_type",
    "hostname",
];

const EVENT_COLUMNS: [&str; 10] = [
    "event_type",
    "timestamp",
    "tool_name",
    "tool_input",
    "tool_output",
    "error",
    "exit_code",
    "reason",
    "role",
    "content",
];

const CHECK: Sql = sql!("PRAGMA quick_check(1)");
const COLUMNS: Sql = sql!("SELECT name FROM pragma_table_info($1)");

impl LegacyDatabase {
    /// Opens a database, which must be whole and a legacy coordinator's. It is not changed.
    pub async fn open(file: &Path) -> Result<Self, LegacyError> {
        if !file.is_file() {
            return Err(LegacyError::Missing(file.into()));
        }
        let options = SqliteConnectOptions::new().filename(file).read_only(true).disable_statement_logging();
        let connection = options.connect().await.map_err(|error| of_file(file, error.into()))?;
        let none = HashSet::new;
        let mut database = Self { connection, file: file.into(), sessions: none(), events: none() };
        let found = database.texts(&CHECK, args![]).await?;
        if found != ["ok"] {
            let reason = found.into_iter().next().unwrap_or_default();
            return Err(LegacyError::Damaged { file: file.into(), reason });
        }
        database.sessions = database.columns("sessions").await?;
        database.events = database.columns("events").await?;
        let foreign = |reason: String| LegacyError::Foreign { file: file.into(), reason };
        if database.sessions.is_empty() {
            return Err(foreign("it has no table \"sessions\"".into()));
        }
        for needed in ["session_id", "session_name"] {
            if !database.sessions.contains(needed) {
                return Err(foreign(format!("its table \"sessions\" has no column \"{needed}\"")));
            }
        }
        if !database.events.is_empty() && !database.events.contains("session_id") {
            return Err(foreign("its table \"events\" has no column \"session_id\"".into()));
        }
        Ok(database)
    }

    /// Closes it.
    pub async fn close(self) {
        if let Err(error) = self.connection.close().await {
            // Nothing was written.
            tracing::debug!(%error, "a legacy database was not closed");
        }
    }

    async fn sessions(&mut self) -> Result<Vec<SessionRow>, LegacyError> {
        let columns = columns_of(&self.sessions, &SESSION_COLUMNS);
        let sql = Sql::Composed(format!("SELECT {columns} FROM sessions ORDER BY rowid LIMIT $1"));
        let rows: Vec<SessionRow> = self.rows(&sql, args![LEGACY_SESSIONS_MAX + 1]).await?;
        if rows.len() > LEGACY_SESSIONS_MAX as usize {
            return Err(LegacyError::TooMany(self.file.clone()));
        }
        Ok(rows)
    }

    /// The log of a session, oldest first; at most one more than a session may have.
    async fn events(&mut self, session: &str) -> Result<Vec<EventRow>, LegacyError> {
        if self.events.is_empty() {
            return Ok(Vec::new());
        }
        let columns = columns_of(&self.events, &EVENT_COLUMNS);
        let text =
            format!("SELECT rowid, {columns} FROM events WHERE session_id = $1 ORDER BY rowid LIMIT $2");
        self.rows(&Sql::Composed(text), args![session, LEGACY_EVENTS_MAX + 1]).await
    }

    async fn columns(&mut self, table: &str) -> Result<HashSet<String>, LegacyError> {
        Ok(self.texts(&COLUMNS, args![table]).await?.into_iter().collect())
    }

    async fn texts(&mut self, sql: &Sql, args: crate::conn::Args) -> Result<Vec<String>, LegacyError> {
        let rows: Vec<TextRow> = self.rows(sql, args).await?;
        Ok(rows.into_iter().map(|row| row.text).collect())
    }

    async fn rows<R: crate::conn::Record>(
        &mut self,
        sql: &Sql,
        args: crate::conn::Args,
    ) -> Result<Vec<R>, LegacyError> {
        let rows = Conn::Sqlite(&mut self.connection).try_rows(sql, args).await;
        rows.map_err(|error| of_file(&self.file, error))
    }
}

/// The columns in this order, as bytes; those that are not there are empty. All names are ours.
fn columns_of(there: &HashSet<String>, wanted: &[&str]) -> String {
    let column = |name: &&str| {
        if there.contains(*name) { format!("CAST({name} AS BLOB)") } else { "NULL".into() }
    };
    wanted.iter().map(column).collect::<Vec<_>>().join(", ")
}

fn of_file(file: &Path, error: DatabaseError) -> LegacyError {
    match error.kind {
        Failure::NotADatabase => LegacyError::Damaged { file: file.into(), reason: error.to_string() },
        Failure::Unique
        | Failure::Busy
        | Failure::Full
        | Failure::ReadOnly
        | Failure::Io
        | Failure::CannotOpen
        | Failure::NoTable
        | Failure::Serialization
        | Failure::Closed
        | Failure::Other => LegacyError::Unreadable { file: file.into(), source: error },
    }
}

/// A column as text, without blanks around it; `None` where it is empty. What is no text is an error that names the column.
fn text(cell: &Cell, column: &str) -> Result<Option<String>, String> {
    let Some(bytes) = cell else { return Ok(None) };
    let text = str::from_utf8(bytes).map_err(|_| format!("its {column} is no text"))?.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
