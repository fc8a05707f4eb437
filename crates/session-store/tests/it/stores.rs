//! Stores for tests.

use std::path::PathBuf;

use session_store::{OpenOptions, SqlStore, StoreUrl};
use tempfile::TempDir;

/// An SQLite file in a directory of its own, which goes with it.
pub struct SqliteFile {
    directory: TempDir,
}

impl SqliteFile {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    pub fn url(&self) -> StoreUrl {
        StoreUrl::Sqlite(self.path())
    }

    pub async fn open(&self) -> SqlStore {
        SqlStore::open(&self.url(), OpenOptions::default()).await.unwrap()
    }
}

pub async fn open(url: &str) -> SqlStore {
    SqlStore::open(&url.parse().unwrap(), OpenOptions::default()).await.unwrap()
}
