//! Opening: what is there, what is missing, what is newer, and who else does it at once.

use std::time::Duration;

use session_core::StoreError;
use session_core::ports::{EventStore as _, SessionStore as _};
use session_store::{OpenError, OpenOptions, SqlStore, StoreUrl};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tokio::task::JoinSet;

use crate::pg;
use crate::stores::{SqliteFile, new_session, open, world};

async fn sqlite(file: &SqliteFile, sql: &str) {
    let mut connection =
        SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", file.path().display())).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn postgres(url: &str, sql: &str) {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

const NEWER: &str = "INSERT INTO roomette_migrations VALUES (99, 'future', 'x')";
/// The version of the schema that this program makes.
const KNOWN: i64 = 10;

const OTHER: &str = "UPDATE roomette_migrations SET checksum = 'x'";

#[tokio::test]
async fn a_reader_says_what_is_missing() {
    let file = SqliteFile::new();
    let missing = SqlStore::open_reader(&file.url()).await.unwrap_err();
    assert!(matches!(missing, OpenError::FileMissing(_)), "{missing:?}");
    sqlite(&file, "CREATE TABLE other (x)").await;
    let empty = SqlStore::open_reader(&file.url()).await.unwrap_err();
    assert!(matches!(empty, OpenError::NoSchema(_)), "{empty:?}");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let file = SqliteFile::new();
    file.open().await.close().await;
    sqlite(&file, NEWER).await;
    for refused in [
        SqlStore::open(&file.url(), OpenOptions::default()).await.unwrap_err(),
        SqlStore::open_reader(&file.url()).await.unwrap_err(),
    ] {
        assert!(matches!(refused, OpenError::SchemaNewer { found: 99, known: KNOWN }), "{refused:?}");
        assert!(refused.to_string().contains("update the program"), "{refused}");
    }
}

#[tokio::test]
async fn another_program_s_schema_is_refused() {
    let file = SqliteFile::new();
    file.open().await.close().await;
    sqlite(&file, OTHER).await;
    let refused = SqlStore::open(&file.url(), OpenOptions::default()).await.unwrap_err();
    assert!(matches!(refused, OpenError::SchemaDiffers { version: 1 }), "{refused:?}");
}

#[tokio::test]
async fn postgres_says_the_same() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let url: StoreUrl = database.url().parse().unwrap();
    let empty = SqlStore::open_reader(&url).await.unwrap_err();
    assert!(matches!(empty, OpenError::NoSchema(_)), "{empty:?}");
    open(database.url()).await.close().await;
    SqlStore::open_reader(&url).await.unwrap().close().await;
    postgres(database.url(), NEWER).await;
    let newer = SqlStore::open(&url, OpenOptions::default()).await.unwrap_err();
    assert!(matches!(newer, OpenError::SchemaNewer { found: 99, known: KNOWN }), "{newer:?}");
    let nobody: StoreUrl = "postgres://u:s3cret@127.0.0.1:1/d".parse().unwrap();
    let unreachable = SqlStore::open(&nobody, OpenOptions::default()).await.unwrap_err();
    assert!(matches!(unreachable, OpenError::PostgresUnreachable { .. }), "{unreachable:?}");
    assert!(!format!("{unreachable:?} {unreachable}").contains("s3cret"), "{unreachable:?}");
}

#[tokio::test]
async fn what_is_no_store_is_told_apart() {
    let file = SqliteFile::new();
    std::fs::write(file.path(), "this is a text of more than sixteen bytes, and no database").unwrap();
    let text = SqlStore::open(&file.url(), OpenOptions::default()).await.unwrap_err();
    assert!(matches!(text, OpenError::NotADatabase(_)), "{text:?}");
    let nowhere = StoreUrl::Sqlite(file.path().join("store.db"));
    let below = SqlStore::open(&nowhere, OpenOptions::default()).await.unwrap_err();
    assert!(matches!(below, OpenError::DirectoryMissing(_)), "{below:?}");
    let directory = StoreUrl::Sqlite(file.path().parent().unwrap().into());
    let refused = SqlStore::open(&directory, OpenOptions::default()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Unreadable { .. }), "{refused:?}");
}

async fn eight_at_once(url: StoreUrl) {
    let mut opening = JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        opening.spawn(async move { SqlStore::open(&url, OpenOptions::default()).await.unwrap() });
    }
    let stores = opening.join_all().await;
    let env = world();
    for store in &stores {
        store.create(new_session(&env), env.now()).await.unwrap();
    }
    for store in stores {
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_may_make_one_store_at_once_on_sqlite() {
    let file = SqliteFile::new();
    eight_at_once(file.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_may_make_one_store_at_once_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    eight_at_once(database.url().parse().unwrap()).await;
}

#[tokio::test]
async fn a_reader_reads_beside_a_writer_and_after_it_and_never_writes() {
    let file = SqliteFile::new();
    let writer = file.open().await;
    let env = world();
    let new = new_session(&env);
    let id = new.id;
    let reader = SqlStore::open_reader(&file.url()).await.unwrap();
    let session = writer.create(new, env.now()).await.unwrap();
    assert_eq!(reader.session(id).await.unwrap(), Some(session.clone()));
    for refused in [
        reader.create(new_session(&env), env.now()).await.unwrap_err(),
        reader.append(session_core::ports::Author::Session(id), Vec::new(), env.now()).await.unwrap_err(),
    ] {
        let StoreError::Unavailable(source) = refused else { panic!("{refused:?}") };
        assert!(source.to_string().contains("only to read"), "{source}");
    }
    writer.close().await;
    assert_eq!(reader.session(id).await.unwrap(), Some(session.clone()));
    reader.close().await;
    let late = SqlStore::open_reader(&file.url()).await.unwrap();
    assert_eq!(late.session(id).await.unwrap(), Some(session));
}

#[tokio::test]
async fn a_closed_store_says_so_and_leaves_no_log_behind() {
    let file = SqliteFile::new();
    let store = file.open().await;
    let env = world();
    store.create(new_session(&env), env.now()).await.unwrap();
    let clone = store.clone();
    store.close().await;
    let refused = clone.create(new_session(&env), env.now()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    let log = file.path().with_extension("db-wal");
    assert!(!log.exists(), "{} is left", log.display());
}

/// Every table with its columns, in order, and every index.
#[tokio::test]
async fn both_databases_have_the_same_schema() {
    if pg::skipped("postgres") {
        return;
    }
    let (file, database) = (SqliteFile::new(), pg::fresh_database().await);
    file.open().await.close().await;
    open(database.url()).await.close().await;
    let url = format!("sqlite:{}", file.path().display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let sqlite: Vec<(String, String)> = sqlx::query_as(
        "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c \
         WHERE m.type = 'table' ORDER BY m.name, c.cid",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let sqlite_indexes: Vec<(String,)> = sqlx::query_as(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
    let postgres: Vec<(String, String)> = sqlx::query_as(
        "SELECT table_name::text, column_name::text FROM information_schema.columns \
         WHERE table_schema = 'public' ORDER BY table_name, ordinal_position",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let postgres_indexes: Vec<(String,)> = sqlx::query_as(
        "SELECT indexname::text FROM pg_indexes WHERE schemaname = 'public' AND indexname !~ '_(pkey|key)$' \
         ORDER BY indexname",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(sqlite.len() > 70, "{sqlite:?}");
    assert_eq!((sqlite, sqlite_indexes), (postgres, postgres_indexes));
}

#[tokio::test]
async fn a_reader_is_ready_in_a_few_milliseconds() {
    let file = SqliteFile::new();
    file.open().await.close().await;
    let begin = tokio::time::Instant::now();
    for _ in 0..10 {
        SqlStore::open_reader(&file.url()).await.unwrap().close().await;
    }
    let each = begin.elapsed() / 10;
    assert!(each < Duration::from_millis(20), "{each:?}");
}
