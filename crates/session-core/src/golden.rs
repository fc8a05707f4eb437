//! Golden files: what is generated from the code is checked in, and a test keeps the two the same.

use std::fmt::Write as _;
use std::fs;

use camino::Utf8Path;

/// Compares a file of the repository with what the code says; `UPDATE=1` writes it instead.
#[expect(clippy::disallowed_methods, reason = "a switch of the person who runs the tests")]
pub(crate) fn check(file: &str, content: &str) {
    let path = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, content).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, content, "{file} is behind the code: run the tests with UPDATE=1 and read the diff");
}

/// A Markdown table of a transition function; a dash marks what is refused.
pub(crate) fn matrix(
    rows: &[&str],
    columns: &[&str],
    cell: impl Fn(usize, usize) -> Option<&'static str>,
) -> String {
    let mut table = format!("| from | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for (row, name) in rows.iter().enumerate() {
        let cells: Vec<_> = (0..columns.len()).map(|column| cell(row, column).unwrap_or("–")).collect();
        writeln!(table, "| **{name}** | {} |", cells.join(" | ")).unwrap();
    }
    table
}

#[test]
fn the_state_machines_page_is_written_from_the_tables() {
    let page = format!(
        "# The two state machines\n\nWritten by a test of `session-core`. A dash is a transition that is refused.\n\n\
         ## Session (residency)\n\n{}\n## Run\n\n\"requeue\" is what a policy may choose when a lease runs out; \
         \"end\" carries a reason code.\n\n{}",
        crate::state::tests::matrix(),
        crate::run::tests::matrix(),
    );
    check("docs/state-machines.md", &page);
}
