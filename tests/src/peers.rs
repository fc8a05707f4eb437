//! What `scripts/mcp` installed: programs that speak MCP and that nobody here wrote, for tests of the bridge.

use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};

use crate::home::Home;
use crate::skipped;

/// Where it is: `scripts/test` says so.
const PLACE: &str = "ROOMETTE_TEST_MCP";
const EVERYTHING: &str = include_str!("../fixtures/mcp/everything.mjs");

/// The programs that were installed.
#[derive(Debug, Clone)]
pub struct Peers {
    place: Utf8PathBuf,
}

impl Peers {
    /// Those of this machine; `None` where a person left them out by name: `scripts/test --skip mcp`.
    ///
    /// # Panics
    ///
    /// When they are not there.
    #[expect(
        clippy::disallowed_methods,
        reason = "the tests are told by their environment what they may use"
    )]
    #[must_use]
    pub fn installed() -> Option<Self> {
        if skipped("mcp") {
            return None;
        }
        let place = std::env::var(PLACE).unwrap_or_else(|_| {
            panic!(
                "{PLACE} is not set, so there are no clients and servers of others to test with: run `scripts/test`, which \
                 installs them, or leave these tests out by name: `scripts/test --skip mcp`"
            )
        });
        let place = Utf8PathBuf::from(place).canonicalize_utf8();
        Some(Self { place: place.unwrap_or_else(|error| panic!("{PLACE}: {error}")) })
    }

    /// The directory with all of them.
    #[must_use]
    pub fn place(&self) -> &Utf8Path {
        &self.place
    }

    /// The node that they run on.
    #[must_use]
    pub fn node(&self) -> Utf8PathBuf {
        self.place.join("bin/node")
    }

    /// The Python that has their packages.
    #[must_use]
    pub fn python(&self) -> Utf8PathBuf {
        self.place.join("python/bin/python")
    }

    /// A file of a package from npm.
    ///
    /// # Panics
    ///
    /// When it is not there.
    #[must_use]
    pub fn package(&self, path: &str) -> Utf8PathBuf {
        let file = self.place.join("packages/node_modules").join(path);
        assert!(file.exists(), "there is no {file}");
        file
    }

    /// A script of ours, put where it finds the packages that it wants.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    #[must_use]
    pub fn script(&self, name: &str, text: &str) -> Utf8PathBuf {
        let file = self.place.join("packages").join(name);
        if fs::read_to_string(&file).is_ok_and(|there| there == text) {
            return file;
        }
        // Tests run at once: each writes beside, and nobody reads half of it.
        let beside = self.place.join("packages").join(format!("{}-{name}", std::process::id()));
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, &file));
        written.unwrap_or_else(|error| panic!("{file}: {error}"));
        file
    }

    /// The server with all that clients and the conformance suite ask for, `tests/fixtures/mcp/everything.mjs`: on stdio, and
    /// with `--http` over HTTP.
    #[must_use]
    pub fn everything(&self) -> Utf8PathBuf {
        self.script("everything.mjs", EVERYTHING)
    }

    /// One of these programs, outside of all sessions.
    #[must_use]
    pub fn program(&self, home: &Home, program: &Utf8Path, arguments: &[&str]) -> Command {
        home.program(program.as_str(), arguments)
    }
}
