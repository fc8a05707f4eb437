//! The conformance suite of the ports, on SQLite and on PostgreSQL.

mod sqlite {
    use std::sync::Arc;

    use session_core::Store;

    use crate::stores::SqliteFile;

    async fn store() -> (Arc<dyn Store>, SqliteFile) {
        let file = SqliteFile::new();
        (Arc::new(file.open().await), file)
    }

    session_core::conformance_suite!(store);
}

mod postgres {
    use std::sync::Arc;

    use session_core::Store;
    use session_core::testing::MemoryStore;

    use crate::pg::{self, PgDatabase};
    use crate::stores::open;

    /// Where a person left PostgreSQL out by name the cases have nothing to show, and run on something else.
    async fn store() -> (Arc<dyn Store>, Option<PgDatabase>) {
        if pg::skipped("postgres") {
            return (Arc::new(MemoryStore::new()), None);
        }
        let database = pg::fresh_database().await;
        (Arc::new(open(database.url()).await), Some(database))
    }

    session_core::conformance_suite!(store);
}
