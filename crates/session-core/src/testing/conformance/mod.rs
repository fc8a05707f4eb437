//! The conformance suite: what the documentation of the ports says, as test cases for any store.
//!
//! In a crate with tokio (`macros`, `rt`) among its dev-dependencies:
//!
//! ```ignore
//! async fn memory() -> Arc<dyn Store> { Arc::new(MemoryStore::new()) }
//! session_core::conformance_suite!(memory);
//! ```
//!
//! makes one `#[tokio::test]` a case, in one module a port. The function is called once a case and gives an *empty*
//! store: an `Arc<dyn Store>`, a pair of one and whatever must live as long (a temporary directory), or any other
//! [`Subject`]. Several stores in one file each get a module of their own around the macro.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "the cases are tests")]

mod fixture;

pub mod identity;
pub mod sessions;

use std::sync::Arc;

pub use fixture::{ALL, Fixture, LEASE, Snapshot, TICK};

use crate::ports::Store;

/// Something that holds the store under test.
pub trait Subject {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;
}

impl Subject for Arc<dyn Store> {
    fn store(&self) -> Arc<dyn Store> {
        Self::clone(self)
    }
}

impl<G> Subject for (Arc<dyn Store>, G) {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }
}

/// Makes one `#[tokio::test]` of every case of the conformance suite. The argument is the name of an async function
/// in scope that makes an empty store; see [`testing::conformance`](crate::testing::conformance).
#[macro_export]
macro_rules! conformance_suite {
    ($make:ident) => {
        $crate::conformance_cases! { tests $make }
    };
}

/// Every case, by module. The one list: a test compares it with the functions that there are.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($use:ident $($make:ident)?) => {
        $crate::conformance_group! { $use $($make)? => sessions:
            a_created_session_is_there_as_it_was_given
        }
        $crate::conformance_group! { $use $($make)? => identity:
            the_truth_table_holds
        }
    };
}

/// One module of cases: as tests, or as the list of their names.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_group {
    (tests $make:ident => $group:ident: $($case:ident)+) => {
        mod $group {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = super::$make().await;
                    let store = $crate::testing::conformance::Subject::store(&subject);
                    let fixture = $crate::testing::conformance::Fixture::new(store);
                    $crate::testing::conformance::$group::$case(&fixture).await;
                }
            )+
        }
    };
    (names => $group:ident: $($case:ident)+) => {
        mod $group {
            pub(super) const CASES: &[&str] = &[$(stringify!($case),)+];
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::MemoryStore;

    async fn memory() -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    crate::conformance_suite!(memory);

    mod names {
        crate::conformance_cases! { names }

        pub(super) const LISTED: &[(&str, &[&str], &str)] = &[
            ("sessions", sessions::CASES, include_str!("sessions.rs")),
            ("identity", identity::CASES, include_str!("identity.rs")),
        ];
    }

    #[test]
    fn every_case_is_listed() {
        let mut files = 0;
        for entry in
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/testing/conformance")).unwrap()
        {
            let name = entry.unwrap().file_name().into_string().unwrap();
            files += usize::from(name != "mod.rs" && name != "fixture.rs");
        }
        assert_eq!(files, names::LISTED.len(), "a file of cases is not in the list");
        for (group, listed, source) in names::LISTED {
            let written = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            let written: BTreeSet<_> = written.filter_map(|line| line.split('(').next()).collect();
            assert_eq!(written, listed.iter().copied().collect(), "{group}");
        }
    }
}
