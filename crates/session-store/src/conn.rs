//! One connection, of either database, and statements that both understand.

use jiff::Timestamp;
use serde_json::Value;
use session_core::ids::{ApprovalId, ClaimId, CrewId, RunId, RunnerId, SessionId, TokenId};
use session_core::{Seq, StoreResult};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, AssertSqlSafe, PgConnection, PgPool, Sqlite, SqliteConnection, SqlitePool};
use sqlx::{Postgres, pool::PoolConnection};

use crate::error::{DatabaseError, failed};
use crate::rows::Read;

/// A connection in use.
pub(crate) enum Conn<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

/// Where connections come from.
#[derive(Debug, Clone)]
pub(crate) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// A connection of a pool.
pub(crate) enum Pooled {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

/// The same code for the values of both databases' types.
macro_rules! on {
    ($value:expr, $bound:ident => $body:expr) => {
        match $value {
            Self::Sqlite($bound) => $body,
            Self::Postgres($bound) => $body,
        }
    };
}

/// A statement, in the words of each database.
#[derive(Debug, Clone)]
pub(crate) enum Sql {
    /// One text for both.
    Both(&'static str),
    /// A text each.
    Each { sqlite: &'static str, postgres: &'static str },
    /// Put together from fixed parts, one text for both.
    Composed(String),
}

/// A statement's parameters, in the order of their numbers.
pub(crate) type Args = Vec<Arg>;

/// One parameter.
#[derive(Debug, Clone)]
pub(crate) enum Arg {
    Int(Option<i64>),
    Text(Option<String>),
}

/// A row of a query: readable from both databases.
pub(crate) trait Record: Read<SqliteRow> + Read<PgRow> + Send {}

impl<T: Read<SqliteRow> + Read<PgRow> + Send> Record for T {}

impl Pool {
    pub(crate) async fn acquire(&self) -> StoreResult<Pooled> {
        match self {
            Self::Sqlite(pool) => pool.acquire().await.map(Pooled::Sqlite).map_err(failed),
            Self::Postgres(pool) => pool.acquire().await.map(Pooled::Postgres).map_err(failed),
        }
    }

    pub(crate) async fn close(&self) {
        on!(self, pool => pool.close().await);
    }
}

impl Pooled {
    pub(crate) fn conn(&mut self) -> Conn<'_> {
        match self {
            Self::Sqlite(connection) => Conn::Sqlite(connection),
            Self::Postgres(connection) => Conn::Postgres(connection),
        }
    }
}

impl Conn<'_> {
    /// Runs a statement; returns how many rows it changed.
    pub(crate) async fn execute(&mut self, sql: &Sql, args: Args) -> StoreResult<u64> {
        self.try_execute(sql, args).await.map_err(failed)
    }

    /// Runs a statement, with the database's own error.
    pub(crate) async fn try_execute(&mut self, sql: &Sql, args: Args) -> Result<u64, DatabaseError> {
        match self {
            Self::Sqlite(connection) => {
                Ok(sql.sqlite(args)?.execute(&mut **connection).await?.rows_affected())
            }
            Self::Postgres(connection) => {
                Ok(sql.postgres(args)?.execute(&mut **connection).await?.rows_affected())
            }
        }
    }

    /// All rows of a query.
    pub(crate) async fn rows<R: Record>(&mut self, sql: &Sql, args: Args) -> StoreResult<Vec<R>> {
        self.try_rows(sql, args).await.map_err(failed)
    }

    /// The one row of a query, if there is one.
    pub(crate) async fn row<R: Record>(&mut self, sql: &Sql, args: Args) -> StoreResult<Option<R>> {
        // Never `fetch_one` or `fetch_optional`: they leave a statement open that holds up checkpoints.
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// All rows of a query, with the database's own error.
    pub(crate) async fn try_rows<R: Record>(
        &mut self,
        sql: &Sql,
        args: Args,
    ) -> Result<Vec<R>, DatabaseError> {
        match self {
            Self::Sqlite(connection) => {
                let rows = sql.sqlite(args)?.fetch_all(&mut **connection).await?;
                rows.iter().map(|row| Ok(R::read(row, &mut (0..))?)).collect()
            }
            Self::Postgres(connection) => {
                let rows = sql.postgres(args)?.fetch_all(&mut **connection).await?;
                rows.iter().map(|row| Ok(R::read(row, &mut (0..))?)).collect()
            }
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }
}

type SqliteQuery = sqlx::query::Query<'static, Sqlite, SqliteArguments>;
type PgQuery = sqlx::query::Query<'static, Postgres, PgArguments>;

impl Sql {
    fn sqlite(&self, args: Args) -> Result<SqliteQuery, DatabaseError> {
        let mut bound = SqliteArguments::default();
        for arg in args {
            match arg {
                Arg::Int(value) => bound.add(value),
                Arg::Text(value) => bound.add(value),
            }
            .map_err(sqlx::Error::Encode)?;
        }
        Ok(match self {
            Self::Both(text) | Self::Each { sqlite: text, .. } => sqlx::query_with(*text, bound),
            Self::Composed(text) => sqlx::query_with(AssertSqlSafe(text.clone()), bound),
        })
    }

    fn postgres(&self, args: Args) -> Result<PgQuery, DatabaseError> {
        let mut bound = PgArguments::default();
        for arg in args {
            match arg {
                Arg::Int(value) => bound.add(value),
                Arg::Text(value) => bound.add(value.map(without_nul)),
            }
            .map_err(sqlx::Error::Encode)?;
        }
        Ok(match self {
            Self::Both(text) | Self::Each { postgres: text, .. } => sqlx::query_with(*text, bound),
            Self::Composed(text) => sqlx::query_with(AssertSqlSafe(text.clone()), bound),
        })
    }
}

/// PostgreSQL stores no NUL in a text; the sign for "not a character" stands in for it.
pub(crate) fn without_nul(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// Parameters from values.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::conn::Arg::from($value)),*] };
}

/// A statement in which `[n]` stands for "is one of the texts in parameter n", a JSON array.
macro_rules! sql {
    ($text:expr) => {
        $crate::conn::Sql::Both($text)
    };
    ($before:expr, [$n:literal], $after:expr) => {
        $crate::conn::Sql::Each {
            sqlite: concat!($before, " IN (SELECT value FROM json_each($", $n, ")) ", $after),
            postgres: concat!(
                $before,
                " = ANY (ARRAY(SELECT json_array_elements_text($",
                $n,
                "::json))) ",
                $after
            ),
        }
    };
}

impl Arg {
    /// A JSON array of texts, for a list in a statement.
    pub(crate) fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> Self {
        let items: Vec<_> = items.into_iter().map(|item| Value::from(item.to_string())).collect();
        Self::Text(Some(Value::from(items).to_string()))
    }
}

impl Arg {
    /// A JSON array of rows, for a statement that writes many.
    pub(crate) fn table(rows: impl IntoIterator<Item = Args>) -> Self {
        let value = |arg| match arg {
            Self::Int(number) => number.map_or(Value::Null, Value::from),
            Self::Text(text) => text.map_or(Value::Null, |text| Value::from(without_nul(text))),
        };
        let row = |args: Args| -> Value { args.into_iter().map(value).collect() };
        Self::Text(Some(rows.into_iter().map(row).collect::<Value>().to_string()))
    }
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self::Int(Some(value.into()))
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Self::Int(Some(value.into()))
    }
}

impl From<Timestamp> for Arg {
    fn from(at: Timestamp) -> Self {
        Self::Int(Some(at.as_millisecond()))
    }
}

impl From<Seq> for Arg {
    fn from(seq: Seq) -> Self {
        Self::Int(Some(i64::try_from(seq.0).unwrap_or(i64::MAX)))
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.into()))
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

macro_rules! ids {
    ($($id:ty),*) => { $(impl From<$id> for Arg {
        fn from(id: $id) -> Self {
            Self::Text(Some(id.to_string()))
        }
    })* };
}
ids!(SessionId, RunId, RunnerId, CrewId, ApprovalId, ClaimId, TokenId);

/// `None` is NULL of the type that the value would have.
macro_rules! optional {
    ($($kind:ident: $($of:ty),*;)*) => { $($(impl From<Option<$of>> for Arg {
        fn from(value: Option<$of>) -> Self {
            value.map_or(Self::$kind(None), Self::from)
        }
    })*)* };
}
optional! {
    Int: i64, u32, i32, Timestamp;
    Text: &str, String, SessionId, RunId, RunnerId, CrewId, ClaimId, TokenId;
}
