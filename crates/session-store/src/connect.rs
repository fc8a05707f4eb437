//! From an address to connections.

use std::path::Path;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, PgPool, SqliteConnection, SqlitePool};

use crate::conn::{Conn, Pooled, Sql};
use crate::error::{DatabaseError, Failure};
use crate::migrate::{self, MIGRATIONS, Migration};
use crate::open::{Durability, OpenError, OpenOptions};
use crate::postgres::POOL_MAX;
use crate::rows::TextRow;
use crate::url::StoreUrl;

/// How many connections read an SQLite file at once.
const READERS: u32 = 4;

/// How long SQLite waits for another program's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How many rows SQLite's thread reads ahead of who asked for them.
const ROWS_AHEAD: usize = 1_024;

/// How long a connection to PostgreSQL may take, and how long a caller waits for one to become free.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a statement waits for a lock of PostgreSQL's. Nobody holds one for longer than a transaction of a few statements takes,
/// unless something hangs; then whoever waits is told so, as that the store is out of reach.
const LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "10s");

/// After how many pages of write-ahead log SQLite checkpoints by itself: 8 MiB.
const CHECKPOINT_PAGES: &str = "2000";

/// The size of a page of a file that this program makes.
const PAGE_BYTES: u64 = 4_096;

/// Every statement goes by an index, for few rows. What the server believes about the size of a table, which may be
/// minutes old, must not talk it into walking over one; compiling a plan takes longer than running it, and so does
/// making one anew for each set of values.
const PLANNER: [(&str, &str); 6] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// How long to wait before the change to write-ahead logging is tried again: SQLite itself does not wait there.
const WAL_RETRY: Duration = Duration::from_millis(5);

const JOURNAL: Sql = sql!("PRAGMA journal_mode = WAL");

/// The one connection that writes, to a file with the newest schema.
pub(crate) async fn sqlite_writer(
    file: &Path,
    wanted: &OpenOptions,
    migrations: &[Migration],
) -> Result<SqliteConnection, OpenError> {
    if let Some(directory) = file.parent()
        && !directory.as_os_str().is_empty()
        && !directory.is_dir()
    {
        return Err(OpenError::DirectoryMissing(file.into()));
    }
    let synchronous = match wanted.durability {
        Durability::Full => SqliteSynchronous::Full,
        Durability::Normal => SqliteSynchronous::Normal,
    };
    let mut options = sqlite(file)
        .create_if_missing(true)
        .synchronous(synchronous)
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES);
    if let Some(bytes) = wanted.size_max_bytes {
        options = options.pragma("max_page_count", (bytes / PAGE_BYTES).max(1).to_string());
    }
    let opened = async {
        let mut connection = options.connect().await.map_err(|error| OpenError::Database(error.into()))?;
        migrate::check_library(&mut connection).await?;
        write_ahead(&mut connection).await.map_err(OpenError::Database)?;
        migrate::migrate_sqlite(&mut connection, file, migrations).await?;
        Ok(connection)
    };
    opened.await.map_err(|error| of_file(file, error))
}

/// Connections that read an SQLite file. None is opened yet.
pub(crate) fn sqlite_readers(file: &Path) -> SqlitePool {
    PoolOptions::new()
        .max_connections(READERS)
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(sqlite(file).read_only(true))
}

/// Checks that a reader can read the file.
pub(crate) async fn check_sqlite(pool: &SqlitePool, file: &Path) -> Result<(), OpenError> {
    if !file.exists() {
        return Err(OpenError::FileMissing(file.into()));
    }
    let checked = async {
        let mut connection = pool.acquire().await.map_err(|error| OpenError::Database(error.into()))?;
        migrate::check_library(&mut connection).await?;
        let store = StoreUrl::Sqlite(file.into()).to_string();
        migrate::check(&mut Pooled::Sqlite(connection).conn(), &store, MIGRATIONS).await
    };
    checked.await.map_err(|error| of_file(file, error))
}

fn sqlite(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .row_buffer_size(ROWS_AHEAD)
        .disable_statement_logging()
}

/// Turns write-ahead logging on, which stays with the file. Two programs that do so at once get in each other's way.
async fn write_ahead(connection: &mut SqliteConnection) -> Result<(), DatabaseError> {
    let mut waited = Duration::ZERO;
    loop {
        match Conn::Sqlite(connection).try_rows::<TextRow>(&JOURNAL, args![]).await {
            Err(error) if error.kind == Failure::Busy && waited < BUSY_TIMEOUT => {
                tokio::time::sleep(WAL_RETRY).await;
                waited += WAL_RETRY;
            }
            other => return other.map(drop),
        }
    }
}

/// The same failure in words that fit a file.
fn of_file(file: &Path, error: OpenError) -> OpenError {
    let OpenError::Database(error) = error else { return error };
    let path = file.to_path_buf();
    match error.kind {
        Failure::Busy => OpenError::Locked(error),
        Failure::Full => OpenError::DiskFull(path),
        Failure::ReadOnly => OpenError::ReadOnly(path),
        Failure::NotADatabase => OpenError::NotADatabase(path),
        Failure::CannotOpen | Failure::Io => OpenError::Unreadable { path, source: Box::new(error) },
        Failure::Unique | Failure::NoTable | Failure::Serialization | Failure::Closed | Failure::Other => {
            OpenError::Database(error)
        }
    }
}

/// One connection to PostgreSQL, and the options with which it was made.
pub(crate) async fn postgres(url: &str) -> Result<(PgConnection, PgConnectOptions), OpenError> {
    let shown = || StoreUrl::Postgres(url.into()).to_string();
    let options: PgConnectOptions = url.parse().map_err(|_| OpenError::PostgresUrl { url: shown() })?;
    let options = options.disable_statement_logging().options(PLANNER);
    let unreachable =
        |source: DatabaseError| OpenError::PostgresUnreachable { url: shown(), source: Box::new(source) };
    match tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await {
        Ok(Ok(connection)) => Ok((connection, options)),
        Ok(Err(error)) => Err(unreachable(error.into())),
        Err(_) => Err(unreachable(DatabaseError::plain(Failure::Io, "no answer in time"))),
    }
}

/// Brings PostgreSQL to the newest schema.
pub(crate) async fn migrate_postgres(mut connection: PgConnection) -> Result<(), OpenError> {
    migrate::migrate_postgres(&mut connection, MIGRATIONS).await?;
    connection.close().await.map_err(|error| OpenError::Database(error.into()))
}

/// Checks that a reader can read the database.
pub(crate) async fn check_postgres(mut connection: PgConnection, store: &str) -> Result<(), OpenError> {
    migrate::check(&mut Conn::Postgres(&mut connection), store, MIGRATIONS).await?;
    connection.close().await.map_err(|error| OpenError::Database(error.into()))
}

/// Connections to PostgreSQL. None is opened yet.
pub(crate) fn postgres_pool(options: PgConnectOptions) -> PgPool {
    PoolOptions::new()
        .max_connections(POOL_MAX)
        .acquire_timeout(CONNECT_TIMEOUT)
        .test_before_acquire(false)
        // Not for the connection that migrates: it waits for others that do so for as long as they take.
        .connect_lazy_with(options.options([LOCK_TIMEOUT]))
}
