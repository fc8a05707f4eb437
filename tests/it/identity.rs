//! Get-or-create by identity from several processes at once.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use session_store::testing::pg;

/// The program that opens one identity many times at once; built as an example of this package.
fn opener() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let program = profile.join("examples/open_identity");
    assert!(program.exists(), "{} is missing: cargo build -p session-tests --examples", program.display());
    program
}

#[expect(clippy::disallowed_methods, reason = "a test starts a program as a user would")]
fn open_from_two_processes(url: &str) {
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut command = Command::new(opener());
            command.args([url, "50"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut sessions = HashSet::new();
    let (mut calls, mut created) = (0, 0);
    for child in children {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let (session, how) = line.split_once(' ').unwrap();
            sessions.insert(session.to_owned());
            created += usize::from(how == "created");
            calls += 1;
        }
    }
    assert_eq!((calls, sessions.len(), created), (100, 1, 1));
}

#[test]
fn a_hundred_calls_from_two_processes_give_one_session_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    open_from_two_processes(&format!("sqlite:{}", directory.path().join("roomette.db").display()));
}

#[tokio::test]
async fn a_hundred_calls_from_two_processes_give_one_session_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    open_from_two_processes(database.url());
}
