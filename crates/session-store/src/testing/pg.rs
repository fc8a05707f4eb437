//! Databases for tests on a real PostgreSQL: each test gets one of its own, and it is gone afterwards.
//!
//! `scripts/test` starts a private server and names it in `ROOMETTE_TEST_PG`. Without that name a test
//! fails; it is left out only when a person says so: `scripts/test --skip postgres`.
//!
//! ```no_run
//! # async fn example() {
//! if session_store::testing::pg::skipped("postgres") {
//!     return;
//! }
//! let database = session_store::testing::pg::fresh_database().await;
//! assert!(database.url().starts_with("postgres:"));
//! # }
//! ```
//!
//! The file stands on sqlx and tokio alone, so that session-store's tests can include it by path.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

/// The server: a URL such as `postgres:///postgres?host=/tmp/x&user=postgres`.
const SERVER: &str = "ROOMETTE_TEST_PG";
/// What a person left out by name, parted by commas.
const SKIP: &str = "ROOMETTE_TEST_SKIP";
/// How many names are tried before giving up. A name is taken only where an earlier test was killed.
const NAMES_MAX: u32 = 1_000;
/// PostgreSQL's code for a database that exists.
const DUPLICATE_DATABASE: &str = "42P04";

/// An empty database of one test. Dropping the value drops the database, whoever is connected.
#[derive(Debug)]
#[must_use = "the database is gone as soon as this is dropped"]
pub struct PgDatabase {
    name: String,
    url: String,
    server: PgConnectOptions,
}

impl PgDatabase {
    /// The URL of this database, for `session_store::open` and for a second process.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Makes a database that nobody else uses, named `roomette_test_<process>_<number>`.
///
/// # Panics
///
/// When `ROOMETTE_TEST_PG` is missing or the server refuses. Ask [`skipped`] first.
pub async fn fresh_database() -> PgDatabase {
    static NEXT: AtomicU32 = AtomicU32::new(1);

    let Some(server_url) = variable(SERVER) else {
        panic!(
            "{SERVER} is not set, so there is no PostgreSQL to test on: run `scripts/test`, which starts one, \
             or leave these tests out by name with `scripts/test --skip postgres` ({SKIP}=postgres)"
        );
    };
    let server: PgConnectOptions =
        server_url.parse().unwrap_or_else(|error| panic!("{SERVER} is not a PostgreSQL URL: {error}"));
    let mut connection = server
        .connect()
        .await
        .unwrap_or_else(|error| panic!("no PostgreSQL answers at {server_url}: {error}"));
    for _ in 0..NAMES_MAX {
        let name = format!("roomette_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match execute(&mut connection, format!("CREATE DATABASE {name}")).await {
            Ok(()) => {
                let url = with_database(&server_url, &name);
                return PgDatabase { name, url, server };
            }
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(DUPLICATE_DATABASE) => {}
            Err(error) => panic!("cannot create the database {name}: {error}"),
        }
    }
    panic!("{NAMES_MAX} names of test databases are taken: drop those named roomette_test_*");
}

/// Whether a person left these tests out by name, as `scripts/test --skip postgres` does.
#[must_use]
pub fn skipped(what: &str) -> bool {
    variable(SKIP).is_some_and(|names| names.split(',').any(|name| name.trim() == what))
}

impl Drop for PgDatabase {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let server = self.server.clone();
        // A destructor cannot await, and a runtime cannot be started inside one: hence the thread.
        let dropped = thread::spawn(move || -> Result<(), sqlx::Error> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = server.connect().await?;
                execute(&mut connection, sql).await?;
                connection.close().await
            })
        })
        .join();
        // A second panic would abort the process and hide the first.
        if !thread::panicking() {
            assert!(matches!(dropped, Ok(Ok(()))), "cannot drop the database {}: {dropped:?}", self.name);
        }
    }
}

/// Runs one statement that takes no parameters: names of databases cannot be bound.
async fn execute(connection: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// The same URL with another database: what stands between the authority and the question mark.
fn with_database(url: &str, name: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let (scheme, rest) = address.split_once("://").unwrap_or(("postgres", address));
    let authority = rest.split('/').next().unwrap_or_default();
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{scheme}://{authority}/{name}{query}")
}

#[expect(clippy::disallowed_methods, reason = "the test runner names its server in the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use sqlx::Row as _;

    use super::*;

    #[test]
    fn the_database_is_replaced_and_nothing_else() {
        let check = |url, expected| assert_eq!(with_database(url, "x"), expected);
        check("postgres:///postgres?host=/tmp/a&user=postgres", "postgres:///x?host=/tmp/a&user=postgres");
        check("postgres://me:secret@db:5433/main", "postgres://me:secret@db:5433/x");
        check("postgresql://db", "postgresql://db/x");
    }

    #[tokio::test]
    async fn postgres_gives_each_test_a_database_that_goes_away() {
        if skipped("postgres") {
            return;
        }
        let first = fresh_database().await;
        let second = fresh_database().await;
        assert_ne!(first.url(), second.url());

        let mut connection = PgConnection::connect(first.url()).await.unwrap();
        execute(&mut connection, "CREATE TABLE t (id BIGINT)".to_owned()).await.unwrap();
        let name: String =
            sqlx::query("SELECT current_database()").fetch_one(&mut connection).await.unwrap().get(0);
        assert_eq!(name, first.name);

        // Somebody is still connected: it goes all the same.
        let gone = first.url().to_owned();
        drop(first);
        let error = PgConnection::connect(&gone).await.unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
        PgConnection::connect(second.url()).await.unwrap().close().await.unwrap();
    }
}
