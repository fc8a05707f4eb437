//! The schema: forward only, each step in one transaction with the others, safe when several programs start at once.

use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};

use crate::conn::{Conn, Sql};
use crate::error::DatabaseError;
use crate::open::OpenError;
use crate::rows::TextRow;

/// One step of the schema, in the words of each database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    pub(crate) version: i64,
    pub(crate) name: &'static str,
    pub(crate) sqlite: &'static str,
    pub(crate) postgres: &'static str,
}

/// Every step, in order.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "init",
        sqlite: include_str!("../migrations/sqlite/0001_init.sql"),
        postgres: include_str!("../migrations/postgres/0001_init.sql"),
    },
    Migration {
        version: 2,
        name: "lifecycle",
        sqlite: include_str!("../migrations/sqlite/0002_lifecycle.sql"),
        postgres: include_str!("../migrations/postgres/0002_lifecycle.sql"),
    },
    Migration {
        version: 3,
        name: "sandbox",
        sqlite: include_str!("../migrations/sqlite/0003_sandbox.sql"),
        postgres: include_str!("../migrations/postgres/0003_sandbox.sql"),
    },
    Migration {
        version: 4,
        name: "agents",
        sqlite: include_str!("../migrations/sqlite/0004_agents.sql"),
        postgres: include_str!("../migrations/postgres/0004_agents.sql"),
    },
    Migration {
        version: 5,
        name: "coordinator",
        sqlite: include_str!("../migrations/sqlite/0005_coordinator.sql"),
        postgres: include_str!("../migrations/postgres/0005_coordinator.sql"),
    },
    Migration {
        version: 6,
        name: "runners",
        sqlite: include_str!("../migrations/sqlite/0006_runners.sql"),
        postgres: include_str!("../migrations/postgres/0006_runners.sql"),
    },
    Migration {
        version: 7,
        name: "families",
        sqlite: include_str!("../migrations/sqlite/0007_families.sql"),
        postgres: include_str!("../migrations/postgres/0007_families.sql"),
    },
    Migration {
        version: 8,
        name: "held_callbacks",
        sqlite: include_str!("../migrations/sqlite/0008_held_callbacks.sql"),
        postgres: include_str!("../migrations/postgres/0008_held_callbacks.sql"),
    },
    Migration {
        version: 9,
        name: "allotments",
        sqlite: include_str!("../migrations/sqlite/0009_allotments.sql"),
        postgres: include_str!("../migrations/postgres/0009_allotments.sql"),
    },
    Migration {
        version: 10,
        name: "notes",
        sqlite: include_str!("../migrations/sqlite/0010_notes.sql"),
        postgres: include_str!("../migrations/postgres/0010_notes.sql"),
    },
];

/// The key of PostgreSQL's advisory lock around a migration: "roomette" in ASCII.
const LOCK_KEY: i64 = 0x726f_6f6d_6574_7465;

const BEGIN: Sql = Sql::Each { sqlite: "BEGIN IMMEDIATE", postgres: "BEGIN" };
const COMMIT: Sql = sql!("COMMIT");
const ROLLBACK: Sql = sql!("ROLLBACK");
const LOCK: Sql = sql!("SELECT pg_advisory_xact_lock($1)::text");

const HAS_TABLE: Sql = Sql::Each {
    sqlite: "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'roomette_migrations'",
    postgres: "SELECT relname::text FROM pg_class WHERE oid = to_regclass('roomette_migrations')",
};

const TABLE: Sql = Sql::Each {
    sqlite: "CREATE TABLE roomette_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, \
             checksum TEXT NOT NULL) STRICT",
    postgres: "CREATE TABLE roomette_migrations (version BIGINT PRIMARY KEY, name TEXT NOT NULL, \
               checksum TEXT NOT NULL)",
};

const APPLIED: Sql = sql!("SELECT version, checksum FROM roomette_migrations ORDER BY version");

const RECORD: Sql = sql!("INSERT INTO roomette_migrations (version, name, checksum) VALUES ($1, $2, $3)");

const VERSION: Sql = sql!("SELECT sqlite_version()");

/// The first SQLite without a fault that can damage a write-ahead log.
const SQLITE_NEEDED: (&str, [u32; 3]) = ("3.51.3", [3, 51, 3]);

row! {
    /// A step that was applied.
    AppliedRow { version: i64, checksum: String, }
}

/// Refuses an SQLite library with known faults.
pub(crate) async fn check_library(connection: &mut SqliteConnection) -> Result<(), OpenError> {
    let rows = Conn::Sqlite(connection).try_rows::<TextRow>(&VERSION, args![]).await;
    let found = rows.map_err(OpenError::Database)?.into_iter().next().map(|row| row.text).unwrap_or_default();
    if is_old(&found) {
        return Err(OpenError::SqliteTooOld { found, needed: SQLITE_NEEDED.0 });
    }
    Ok(())
}

fn is_old(version: &str) -> bool {
    let parts: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    parts < SQLITE_NEEDED.1.to_vec()
}

/// What a reader needs to know: that the schema is the one of this program.
pub(crate) async fn check(conn: &mut Conn<'_>, store: &str, known: &[Migration]) -> Result<(), OpenError> {
    let applied = applied(conn).await.map_err(OpenError::Database)?;
    let Some(last) = applied.last() else { return Err(OpenError::NoSchema(store.into())) };
    match pending(&applied, known, conn.is_postgres())? {
        [] => Ok(()),
        [.., newest] => Err(OpenError::SchemaOlder { found: last.version, known: newest.version }),
    }
}

async fn applied(conn: &mut Conn<'_>) -> Result<Vec<AppliedRow>, DatabaseError> {
    if conn.try_rows::<TextRow>(&HAS_TABLE, args![]).await?.is_empty() {
        return Ok(Vec::new());
    }
    conn.try_rows(&APPLIED, args![]).await
}

/// The steps that are still to be done; why there can be none.
fn pending<'m>(
    applied: &[AppliedRow],
    known: &'m [Migration],
    postgres: bool,
) -> Result<&'m [Migration], OpenError> {
    let found = applied.last().map_or(0, |row| row.version);
    let newest = known.last().map_or(0, |migration| migration.version);
    if found > newest {
        return Err(OpenError::SchemaNewer { found, known: newest });
    }
    for (row, migration) in applied.iter().zip(known) {
        if row.version != migration.version || row.checksum != checksum(migration.text(postgres)) {
            return Err(OpenError::SchemaDiffers { version: row.version });
        }
    }
    Ok(known.get(applied.len()..).unwrap_or_default())
}

impl Migration {
    fn text(&self, postgres: bool) -> &'static str {
        if postgres { self.postgres } else { self.sqlite }
    }
}

/// FNV-1a, 64 bits: tells texts apart, and hides nothing.
fn checksum(text: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Brings an SQLite file to the newest schema. One that holds anything already is copied before.
pub(crate) async fn migrate_sqlite(
    connection: &mut SqliteConnection,
    file: &Path,
    known: &[Migration],
) -> Result<(), OpenError> {
    let mut conn = Conn::Sqlite(connection);
    begin(&mut conn).await?;
    let done = async {
        let applied = applied(&mut conn).await.map_err(OpenError::Database)?;
        let pending = pending(&applied, known, false)?;
        if let (false, Some(last)) = (pending.is_empty(), applied.last()) {
            // We hold the lock of the writer, so the copy is of what we are about to change.
            back_up(file, last.version).await?;
        }
        apply(&mut conn, applied.is_empty(), pending).await
    }
    .await;
    end(&mut conn, done).await
}

/// Brings a PostgreSQL database to the newest schema. Copies of it are its operator's.
pub(crate) async fn migrate_postgres(
    connection: &mut PgConnection,
    known: &[Migration],
) -> Result<(), OpenError> {
    let mut conn = Conn::Postgres(connection);
    begin(&mut conn).await?;
    let done = async {
        conn.try_rows::<TextRow>(&LOCK, args![LOCK_KEY]).await.map_err(OpenError::Database)?;
        let applied = applied(&mut conn).await.map_err(OpenError::Database)?;
        let pending = pending(&applied, known, true)?;
        apply(&mut conn, applied.is_empty(), pending).await
    }
    .await;
    end(&mut conn, done).await
}

async fn begin(conn: &mut Conn<'_>) -> Result<(), OpenError> {
    conn.try_execute(&BEGIN, args![]).await.map(drop).map_err(OpenError::Database)
}

async fn end(conn: &mut Conn<'_>, done: Result<(), OpenError>) -> Result<(), OpenError> {
    match done {
        Ok(()) => conn.try_execute(&COMMIT, args![]).await.map(drop).map_err(OpenError::Database),
        Err(error) => {
            // The first error is the one to tell.
            drop(conn.try_execute(&ROLLBACK, args![]).await);
            Err(error)
        }
    }
}

async fn apply(conn: &mut Conn<'_>, new: bool, pending: &[Migration]) -> Result<(), OpenError> {
    let run = async {
        if new && !pending.is_empty() && conn.try_rows::<TextRow>(&HAS_TABLE, args![]).await?.is_empty() {
            conn.try_execute(&TABLE, args![]).await?;
        }
        for migration in pending {
            let text = migration.text(conn.is_postgres());
            conn.script(text).await?;
            let record = args![migration.version, migration.name, checksum(text)];
            conn.try_execute(&RECORD, record).await?;
            tracing::info!(version = migration.version, name = migration.name, "migrated the store");
        }
        Ok(())
    };
    run.await.map_err(OpenError::Database)
}

/// Copies the file beside itself, named by the schema that it has.
async fn back_up(file: &Path, version: i64) -> Result<(), OpenError> {
    let path = beside(file, &format!(".v{version}.backup"));
    let unfinished = beside(file, &format!(".v{version}.backup.unfinished"));
    let failed =
        |source: Box<dyn std::error::Error + Send + Sync>| OpenError::Backup { path: path.clone(), source };
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error.into())),
        Ok(()) | Err(_) => {}
    }
    let options = SqliteConnectOptions::new().filename(file).disable_statement_logging();
    let copy = async {
        let mut connection = options.connect().await?;
        sqlx::query("VACUUM INTO $1")
            .bind(unfinished.to_string_lossy().into_owned())
            .execute(&mut connection)
            .await?;
        connection.close().await
    };
    copy.await.map_err(|error| failed(Box::new(DatabaseError::from(error))))?;
    let finish = || {
        std::fs::File::open(&unfinished)?.sync_all()?;
        std::fs::rename(&unfinished, &path)
    };
    finish().map_err(|error| failed(error.into()))
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Conn<'_> {
    /// Runs several statements that take no parameters.
    async fn script(&mut self, text: &str) -> Result<(), DatabaseError> {
        match self {
            Self::Sqlite(connection) => {
                sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut **connection).await?;
            }
            Self::Postgres(connection) => {
                sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut **connection).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Row as _;

    use super::*;

    const FIRST: Migration = Migration {
        version: 1,
        name: "first",
        sqlite: "CREATE TABLE things (x INTEGER) STRICT; INSERT INTO things VALUES (7)",
        postgres: "",
    };
    const SECOND: Migration = Migration {
        version: 2,
        name: "second",
        sqlite: "ALTER TABLE things ADD COLUMN y INTEGER; UPDATE things SET y = x + 1",
        postgres: "",
    };
    const BROKEN: Migration = Migration {
        version: 3,
        name: "broken",
        sqlite: "CREATE TABLE half (x INTEGER) STRICT; INSERT INTO nowhere VALUES (1)",
        postgres: "",
    };

    struct File {
        directory: tempfile::TempDir,
    }

    impl File {
        fn path(&self) -> PathBuf {
            self.directory.path().join("store.db")
        }

        async fn connect(&self) -> SqliteConnection {
            let options = SqliteConnectOptions::new().filename(self.path()).create_if_missing(true);
            options.connect().await.unwrap()
        }

        async fn migrate(&self, known: &[Migration]) -> Result<(), OpenError> {
            migrate_sqlite(&mut self.connect().await, &self.path(), known).await
        }

        async fn names(&self) -> Vec<String> {
            let rows = sqlx::query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
                .fetch_all(&mut self.connect().await)
                .await
                .unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }

        fn backups(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.directory.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.contains("backup")).collect()
        }
    }

    fn file() -> File {
        File { directory: tempfile::tempdir().unwrap() }
    }

    #[tokio::test]
    async fn an_older_store_is_copied_and_then_migrated() {
        let file = file();
        file.migrate(&[FIRST]).await.unwrap();
        file.migrate(&[FIRST]).await.unwrap();
        assert_eq!(file.backups(), Vec::<String>::new());
        let mut connection = file.connect().await;
        let older = check(&mut Conn::Sqlite(&mut connection), "store", &[FIRST, SECOND]).await.unwrap_err();
        assert!(matches!(older, OpenError::SchemaOlder { found: 1, known: 2 }), "{older:?}");
        file.migrate(&[FIRST, SECOND]).await.unwrap();
        let row = sqlx::query("SELECT x, y FROM things").fetch_one(&mut connection).await.unwrap();
        assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (7, 8));
        check(&mut Conn::Sqlite(&mut connection), "store", &[FIRST, SECOND]).await.unwrap();
        assert_eq!(file.backups(), ["store.db.v1.backup"]);
        let copy = SqliteConnectOptions::new().filename(file.path().with_extension("db.v1.backup"));
        let rows =
            sqlx::query("SELECT * FROM things").fetch_all(&mut copy.connect().await.unwrap()).await.unwrap();
        assert_eq!((rows.len(), rows[0].len(), rows[0].get::<i64, _>(0)), (1, 1, 7));
    }

    #[tokio::test]
    async fn a_step_that_fails_leaves_the_store_as_it_was() {
        let file = file();
        file.migrate(&[FIRST]).await.unwrap();
        let failed = file.migrate(&[FIRST, SECOND, BROKEN]).await.unwrap_err();
        assert!(matches!(failed, OpenError::Database(_)), "{failed:?}");
        assert_eq!(file.names().await, ["roomette_migrations", "things"]);
        let mut connection = file.connect().await;
        check(&mut Conn::Sqlite(&mut connection), "store", &[FIRST]).await.unwrap();
    }

    #[tokio::test]
    async fn several_may_migrate_at_once() {
        let file = file();
        file.migrate(&[FIRST]).await.unwrap();
        let known = [FIRST, SECOND];
        let all = tokio::join!(
            file.migrate(&known),
            file.migrate(&known),
            file.migrate(&known),
            file.migrate(&known),
        );
        assert!(matches!(all, (Ok(()), Ok(()), Ok(()), Ok(()))), "{all:?}");
        assert_eq!(file.backups(), ["store.db.v1.backup"]);
    }

    #[test]
    fn versions_of_sqlite_are_compared_by_number() {
        for (version, old) in [
            ("3.51.2", true),
            ("3.9.0", true),
            ("3.51.3", false),
            ("3.100.0", false),
            ("4.0", false),
            ("", true),
        ] {
            assert_eq!(is_old(version), old, "{version}");
        }
    }

    #[test]
    fn migrations_count_up_and_come_in_pairs() {
        for (migration, version) in MIGRATIONS.iter().zip(1..) {
            assert_eq!(migration.version, version);
            assert!(!migration.sqlite.is_empty() && !migration.postgres.is_empty(), "{}", migration.name);
        }
    }
}
