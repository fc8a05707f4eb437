//! What end-to-end tests share: the repository, the built program, homes and fleets of it.
//!
//! The tests themselves are in `it/`: one binary for the whole workspace.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod compiled;
pub mod fleet;
pub mod home;
pub mod http;
pub mod model;
pub mod peers;
pub mod program;
pub mod scribe;
pub mod script;
pub mod trials;

use std::sync::LazyLock;

use camino::{Utf8Path, Utf8PathBuf};
pub use session_store::testing::pg::skipped;

static REPOSITORY_ROOT: LazyLock<Utf8PathBuf> = LazyLock::new(|| {
    let manifest = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
});

/// The directory that holds the workspace's `Cargo.toml`.
#[must_use]
pub fn repository_root() -> &'static Utf8Path {
    &REPOSITORY_ROOT
}

/// Where `scripts/test --agents` put the real agents; `None` where nobody asked for tests with them.
#[expect(clippy::disallowed_methods, reason = "the tests are told by their environment what they may use")]
#[must_use]
pub fn agents() -> Option<Utf8PathBuf> {
    std::env::var("ROOMETTE_TEST_AGENTS")
        .ok()
        .filter(|directory| !directory.is_empty())
        .map(Utf8PathBuf::from)
}
