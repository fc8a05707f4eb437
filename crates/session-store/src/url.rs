//! Where a store is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Where a store is: a file, or a PostgreSQL database.
///
/// Parsed from `sqlite:PATH`, a plain path, or `postgres://…` (also `postgresql://…`). Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// An SQLite file.
    Sqlite(PathBuf),
    /// A PostgreSQL database, with whatever the URL carries, a password among it.
    Postgres(String),
}

/// Why a text names no store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreUrlError {
    /// Nothing at all.
    #[error("the store's address is empty: give a path, sqlite:PATH or postgres://…")]
    Empty,
    /// Another database.
    #[error("{0}:// is no store that is known: give a path, sqlite:PATH or postgres://…")]
    Scheme(String),
    /// `sqlite::memory:` and the like: a store that nobody else could read.
    #[error("a store in memory cannot be shared: give a path")]
    Memory,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        if let Some((scheme, _)) = text.split_once("://")
            && !scheme.contains('/')
            && scheme != "sqlite"
        {
            return match scheme {
                "postgres" | "postgresql" => Ok(Self::Postgres(text.into())),
                other => Err(StoreUrlError::Scheme(other.into())),
            };
        }
        let path = text.strip_prefix("sqlite://").or_else(|| text.strip_prefix("sqlite:")).unwrap_or(text);
        match path {
            "" => Err(StoreUrlError::Empty),
            ":memory:" => Err(StoreUrlError::Memory),
            path => Ok(Self::Sqlite(path.into())),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The URL without the two places where a password may stand: behind the user's name, and among the parameters.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (address, query) =
        rest.split_once('?').map_or((rest, None), |(address, query)| (address, Some(query)));
    // The last @ before the path: a password that was not encoded may hold others.
    let (authority, path) = address.split_at(
        address.rfind('@').map_or(0, |at| address[at..].find('/').map_or(address.len(), |slash| at + slash)),
    );
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", user.split(':').next().unwrap_or_default()),
        None => authority.into(),
    };
    let kept = query.map(|query| {
        let shown = query
            .split('&')
            .filter(|pair| !pair.split('=').next().unwrap_or_default().eq_ignore_ascii_case("password"));
        shown.collect::<Vec<_>>().join("&")
    });
    let query = kept.filter(|query| !query.is_empty()).map(|query| format!("?{query}")).unwrap_or_default();
    format!("{scheme}://{authority}{path}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_told_apart() {
        let check = |text: &str, expect: Result<StoreUrl, StoreUrlError>| {
            assert_eq!(text.parse::<StoreUrl>(), expect, "{text:?}");
        };
        check("sqlite:/a/b.db", Ok(StoreUrl::Sqlite("/a/b.db".into())));
        check("sqlite:///a/b.db", Ok(StoreUrl::Sqlite("/a/b.db".into())));
        check("a b/c:d.db", Ok(StoreUrl::Sqlite("a b/c:d.db".into())));
        check("postgres://h/d", Ok(StoreUrl::Postgres("postgres://h/d".into())));
        check("postgresql:///d?host=/tmp", Ok(StoreUrl::Postgres("postgresql:///d?host=/tmp".into())));
        check("mysql://h/d", Err(StoreUrlError::Scheme("mysql".into())));
        check("", Err(StoreUrlError::Empty));
        check("sqlite:", Err(StoreUrlError::Empty));
        check("sqlite::memory:", Err(StoreUrlError::Memory));
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://u:s3cret@h:5/d", "postgres://u@h:5/d"),
            ("postgres://u:s3@cr/et@h/d?x=1", "postgres://u@h/d?x=1"),
            ("postgres:///d?host=/tmp/x&password=s3cret&user=u", "postgres:///d?host=/tmp/x&user=u"),
            ("postgres:///d?Password=s3cret", "postgres:///d"),
            ("postgresql://h/d", "postgresql://h/d"),
        ] {
            let url: StoreUrl = url.parse().unwrap();
            assert_eq!((url.to_string(), format!("{url:?}")), (shown.into(), shown.into()));
        }
    }
}
