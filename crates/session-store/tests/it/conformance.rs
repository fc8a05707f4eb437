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

    /// Without PostgreSQL only where a person said so: then the cases show nothing, and say so by their output.
    async fn store() -> (Arc<dyn Store>, Option<PgDatabase>) {
        if pg::skipped("postgres") {
            println!("left out: PostgreSQL");
            return (Arc::new(MemoryStore::new()), None);
        }
        let database = pg::fresh_database().await;
        (Arc::new(open(database.url()).await), Some(database))
    }

    session_core::conformance_suite!(store);
}
