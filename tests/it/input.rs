//! Bad input of every kind: a sentence that names the field, the right exit code, and nothing half made.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use session_tests::home::{Home, left_with};

/// Runs a command that must fail so, and checks that no session was made by it.
#[track_caller]
fn refused(home: &Home, arguments: &[&str], code: i32, reason: &str) {
    let before = home.run(&["ps", "--quiet", "--all"]).stdout;
    let left = home.run(arguments).exits(code);
    assert!(left.stderr.contains(reason), "{arguments:?}: no {reason:?} in:\n{}", left.stderr);
    assert!(!left.stderr.contains("panicked"), "{}", left.stderr);
    assert_eq!(home.run(&["ps", "--quiet", "--all"]).stdout, before, "{arguments:?} made a session");
}

#[test]
fn values_that_are_not_valid() {
    let home = Home::new();
    fs::write(home.path().join("file"), "").unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["run"], "nothing to run"),
        (&["run", "--worktree", "--", "true"], "git repository"),
        (&["run", "--count", "0", "--", "true"], "--count"),
        (&["run", "--metadata", "{not json", "--", "true"], "--metadata"),
        (&["run", "--metadata", "[1]", "--", "true"], "--metadata"),
        (&["run", "--label", "two\nlines", "--", "true"], "label"),
        (&["run", "--label", "", "--", "true"], "label"),
        (&["run", "--label", "ses_x", "--", "true"], "taken for an id"),
        (&["run", "--timeout", "soon", "--", "true"], "--timeout"),
        (&["run", "--timeout", "0s", "--", "true"], "timeout"),
        (&["run", "--timeout=-5s", "--", "true"], "timeout"),
        (&["run", "--env", "=x", "--", "true"], "--env"),
        (&["run", "--env", "NOT_SET_ANYWHERE", "--", "true"], "NOT_SET_ANYWHERE"),
        (&["run", "--env", "ROOMETTE_RUN_ID=x", "--", "true"], "ROOMETTE_RUN_ID"),
        (&["run", "--project", "gone", "--", "true"], "--project"),
        (&["run", "--in-place", "--project", "file", "--", "true"], "not a directory"),
        (&["run", "--", ""], "argv"),
        (&["run", "-f", "gone.toml"], "gone.toml"),
        (&["inspect", "../../etc/passwd"], "neither a session id"),
        (&["inspect", "ses_12"], "too short"),
        (&["inspect", "ses_xyz"], "32 hex digits"),
        (&["inspect", "run_0123456789abcdef0123456789abcdef"], "expected ses_"),
        (&["logs", "ses_00000000000000000000000000000000"], "nil id"),
        (&["ps", "--after", "nonsense"], "--after"),
        (&["frobnicate"], "frobnicate"),
    ];
    for (arguments, reason) in cases {
        refused(&home, arguments, 2, reason);
    }
    for missing in ["ses_0123456789abcdef0123456789abcdef", "ses_0123", "no such label"] {
        refused(&home, &["inspect", missing], 4, "there is no session");
    }
}

#[test]
fn what_only_the_machine_can_refuse() {
    let home = Home::new();
    let nul = left_with(home.command(&["import", "-"]), "not an export\n").exits(2);
    assert!(nul.stderr.contains("line 1"), "{}", nul.stderr);
}

#[test]
fn crew_files_that_are_not_valid() {
    let home = Home::new();
    let task = |name: &str, more: &str| format!("[[task]]\nname = \"{name}\"\nargv = [\"true\"]\n{more}\n");
    let cases = [
        ("unknown key", format!("{}colour = 3\n", task("a", "")), "colour"),
        ("cycle", task("a", "after = [\"b\"]") + &task("b", "after = [\"a\"]"), "a after b after a"),
        ("duplicate", task("a", "") + &task("a", ""), "two tasks are named \"a\""),
        ("unknown name", task("a", "after = [\"z\"]"), "\"z\""),
        ("no task", String::new(), "has no task"),
        ("empty argv", "[[task]]\nname = \"a\"\nargv = []\n".into(), "argv"),
        ("nul", "[[task]]\nname = \"a\"\nargv = [\"x\\u0000y\"]\n".into(), "NUL"),
        ("zero at once", format!("at_once = 0\n{}", task("a", "")), "at_once"),
        ("project", task("a", "project = \"gone\""), "project"),
        ("kind", task("a", "workspace = \"cloud\""), "cloud"),
        ("no toml", "[[task".into(), "crew.toml"),
    ];
    for (what, text, reason) in cases {
        fs::write(home.path().join("crew.toml"), text).unwrap();
        println!("{what}");
        refused(&home, &["run", "-f", "crew.toml"], 2, reason);
    }
}

#[test]
fn data_directories_that_cannot_be_used() {
    let home = Home::new();
    fs::write(home.data(), "a file").unwrap();
    let left = home.run(&["run", "--", "true"]).exits(2);
    assert!(left.stderr.contains("is a file"), "{}", left.stderr);
    fs::remove_file(home.data()).unwrap();

    fs::create_dir(home.data()).unwrap();
    fs::write(home.data().join("sessions"), "a file").unwrap();
    refused(&home, &["run", "--", "true"], 2, "sessions is a file");
    fs::remove_file(home.data().join("sessions")).unwrap();
    fs::write(
        home.data().join("roomette.db"),
        "no database at all, and long enough to be looked at".repeat(40),
    )
    .unwrap();
    let left = home.run(&["run", "--", "true"]).exits(1);
    assert!(left.stderr.contains("not an SQLite database"), "{}", left.stderr);
    assert!(
        fs::read(home.data().join("roomette.db")).unwrap().starts_with(b"no database"),
        "it was overwritten"
    );
}

#[test]
fn a_read_only_data_directory_can_be_read() {
    // Root may write anywhere: as root the directory is made immutable to it by a read-only bind mount elsewhere.
    if rustix::process::geteuid().is_root() {
        return read_only_for_root();
    }
    let home = Home::new();
    home.run(&["run", "--label", "kept", "--", "true"]).ok();
    home.until_free();
    fs::set_permissions(home.data(), fs::Permissions::from_mode(0o500)).unwrap();
    let left = home.run(&["run", "--", "true"]).exits(1);
    assert!(left.stderr.contains("cannot be opened"), "{}", left.stderr);
    fs::set_permissions(home.data(), fs::Permissions::from_mode(0o700)).unwrap();
}

/// The same as root: `/proc` is a directory that nobody can write.
fn read_only_for_root() {
    let home = Home::new().with("ROOMETTE_HOME", "/proc/roomette");
    let left = home.run(&["run", "--", "true"]).exits(1);
    assert!(left.stderr.contains("/proc/roomette"), "{}", left.stderr);
    assert!(left.stderr.contains("ROOMETTE_HOME"), "{}", left.stderr);
    assert_eq!(home.run(&["ps", "--quiet"]).ok().stdout, "");
}

#[test]
fn settings_that_are_not_valid() {
    let home = Home::new();
    fs::create_dir(home.data()).unwrap();
    fs::write(home.data().join("config.toml"), "[host]\nruns_at_onec = 3\n").unwrap();
    let left = home.run(&["ps"]).exits(2);
    assert!(left.stderr.contains("runs_at_onec") && left.stderr.contains("config.toml"), "{}", left.stderr);
    fs::write(home.data().join("config.toml"), "[host]\nruns_at_once = 3\n").unwrap();
    let shown = home.run(&["config", "show"]).ok().stdout;
    assert!(shown.contains("runs_at_once = 3") && shown.contains("config.toml"), "{shown}");
    let left = home.run(&["--store", "mysql://x/y", "ps"]).exits(2);
    assert!(left.stderr.contains("mysql"), "{}", left.stderr);
}
