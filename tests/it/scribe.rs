//! The scribe through the official SDK: agents find their own session again, by who they are, and no other.

mod agents;
mod bad;
mod children;
mod gates;
mod many;

use std::fs;

use camino::Utf8PathBuf;
use session_store::testing::pg::{self, PgDatabase};
use session_tests::home::Home;

/// A data directory on one of the databases.
struct Ground {
    home: Home,
    _database: Option<PgDatabase>,
}

impl Ground {
    fn sqlite() -> Self {
        Self { home: Home::new(), _database: None }
    }

    /// `None` where a person left PostgreSQL out by name.
    fn postgres() -> Option<Self> {
        if pg::skipped("postgres") {
            return None;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let database = runtime.block_on(pg::fresh_database());
        let home = Home::new().with("ROOMETTE_STORE_URL", database.url());
        Some(Self { home, _database: Some(database) })
    }

    /// A repository of this name.
    fn repository(&self, name: &str) -> Utf8PathBuf {
        let path = self.home.path().canonicalize_utf8().unwrap().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

/// A test on each database.
macro_rules! on_both {
    ($($scenario:ident)*) => {
        mod sqlite {
            $(#[test]
            fn $scenario() {
                super::$scenario(&crate::scribe::Ground::sqlite());
            })*
        }

        mod postgres {
            $(#[test]
            fn $scenario() {
                if let Some(ground) = crate::scribe::Ground::postgres() {
                    super::$scenario(&ground);
                }
            })*
        }
    };
}
use on_both;
