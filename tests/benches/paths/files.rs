//! SQLite files for a path and its floor: the same schema and the same rows in both.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use session_store::{OpenOptions, SqlStore, StoreUrl};
use tempfile::TempDir;

use crate::measure::{Outcome, ensure};

/// What the store sets on its own writing connection, at synchronous=FULL.
const PRAGMAS: &str =
    "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA wal_autocheckpoint = 2000;";

/// A directory on the disk of the build, which goes with the value.
pub(crate) fn directory() -> Outcome<TempDir> {
    Ok(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?)
}

/// A file for the floor and one for the store.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    /// Files with what `fill` puts into them.
    pub(crate) async fn filled(fill: impl AsyncFnOnce(&SqlStore) -> Outcome) -> Outcome<Self> {
        let files = Self { directory: directory()? };
        let store = open(&files.ours()).await?;
        fill(&store).await?;
        store.close().await;
        std::fs::copy(files.ours(), files.floor())?;
        Ok(files)
    }

    /// Files with what `fill` puts into them by plain SQL.
    pub(crate) async fn filled_raw(fill: impl FnOnce(&Connection) -> Outcome) -> Outcome<Self> {
        let files = Self { directory: directory()? };
        open(&files.ours()).await?.close().await;
        let connection = Connection::open(files.ours())?;
        connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; BEGIN")?;
        fill(&connection)?;
        connection.execute_batch("COMMIT; ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)")?;
        connection.close().map_err(|(_, error)| error)?;
        Ok(files)
    }

    /// A further copy of the store's file, which must be closed.
    pub(crate) fn copy(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.directory.path().join(name);
        for side in ["-wal", "-shm"] {
            let _none_there = std::fs::remove_file(self.directory.path().join(format!("{name}{side}")));
        }
        std::fs::copy(self.ours(), &path)?;
        Ok(path)
    }

    pub(crate) fn ours(&self) -> PathBuf {
        self.directory.path().join("ours.db")
    }

    pub(crate) fn floor(&self) -> PathBuf {
        self.directory.path().join("floor.db")
    }
}

pub(crate) async fn open(path: &Path) -> Outcome<SqlStore> {
    Ok(SqlStore::open(&StoreUrl::Sqlite(path.into()), OpenOptions::default()).await?)
}

/// The raw driver, with the settings of the store's writer.
pub(crate) fn raw(path: &Path) -> Outcome<Connection> {
    let connection = Connection::open(path)?;
    connection.execute_batch(PRAGMAS)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// The one number that a query comes to.
pub(crate) fn number(path: &Path, query: &str) -> Outcome<usize> {
    let found: i64 = Connection::open(path)?.query_row(query, (), |row| row.get(0))?;
    Ok(usize::try_from(found)?)
}

/// Checks that there are so many events, each session's numbered 1, 2, 3 …
pub(crate) fn check_events(path: &Path, events: usize) -> Outcome {
    let found = number(path, "SELECT count(*) FROM events")?;
    ensure!(found == events, "{events} events were appended, {found} are there: {}", path.display());
    let torn = "SELECT count(*) FROM (SELECT 1 FROM events GROUP BY session_id HAVING max(seq) <> count(*))";
    let torn = number(path, torn)?;
    ensure!(torn == 0, "{torn} logs are not dense: {}", path.display());
    Ok(())
}
