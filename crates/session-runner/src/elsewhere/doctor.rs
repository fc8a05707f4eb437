//! What this system offers to runs.

use session_core::names::ExecutorType;

use crate::workspace::Git;

/// What one look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What was looked for.
    pub check: &'static str,
    /// Whether it is there.
    pub works: bool,
    /// Whether runs need it.
    pub needed: bool,
    /// What was found.
    pub found: String,
    /// What to do when it is missing.
    pub hint: Option<&'static str>,
}

/// One answer for all: no run is started here.
#[must_use]
pub fn probe(_: &Git) -> Vec<Probe> {
    vec![Probe {
        check: "runs",
        works: false,
        needed: true,
        found: "none is started on this system, with or without a sandbox".into(),
        hint: None,
    }]
}

/// Nothing is started here, so nothing is missing.
#[must_use]
pub fn is_here(_: &ExecutorType, _: &str) -> bool {
    true
}
