//! How grave a line of a server's log is.

/// From the least to the gravest, as JSON.
pub(crate) const LEVELS: [&str; 8] = [
    "\"debug\"",
    "\"info\"",
    "\"notice\"",
    "\"warning\"",
    "\"error\"",
    "\"critical\"",
    "\"alert\"",
    "\"emergency\"",
];

/// Where this, which is JSON, stands among them.
pub(crate) fn rank(level: &str) -> Option<usize> {
    LEVELS.iter().position(|of| *of == level)
}
