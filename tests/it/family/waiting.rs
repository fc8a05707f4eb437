//! Runs that no runner takes: how long they wait, and what is said then.

use std::fs;

use serde_json::json;

use super::House;

/// The files of a session lie with a runner that does not come: that is said, with what was needed.
#[test]
fn a_run_that_nobody_takes_says_what_it_needs() {
    let house = House::with(&[("ROOMETTE_HOST_LINGER", "60s")]);
    let home = &house.home;
    let session = home.detached(&["true"]);
    home.run(&["wait", &session]).ok();
    let host = home.host();
    super::kill_9(host);
    // It does not come back: who was seen a moment ago is waited for.
    let records = rusqlite::Connection::open(home.data().join("roomette.db")).unwrap();
    records.execute("UPDATE runners SET seen_at_ms = 0", ()).unwrap();
    drop(records);
    let file = home.data().join("runner.id");
    let before = fs::read_to_string(&file).unwrap().trim().to_owned();
    fs::write(&file, "rnr_00000000000070008000000000000001").unwrap();
    let left = home.run(&["--json", "resume", "--claim-within", "100ms", &session]).exits(1);
    let run = left.json().remove(0);
    assert_eq!((&run["state"], &run["reason"]), (&json!("failed"), &json!("no_matching_runner")), "{run:#}");
    let message = run["message"].as_str().unwrap();
    assert!(message.contains(&before) && message.contains("executor command"), "{message}");
    assert!(message.contains(&format!("roomette runner rm {before}")), "{message}");
    // Without a word it waits as long as is set; one that a runner may take waits its turn, however long.
    let mut command = home.command(&["--json", "resume", "--detach", &session]);
    command.env("ROOMETTE_RUN_RESUME_WITHIN", "1h");
    session_tests::home::left(command).ok();
    assert_eq!(home.inspect(&session)["last_run"]["state"], "pending");
    home.run(&["stop", &session]).ok();
    // Once it is said that it does not come back the session goes on without its files.
    home.run(&["runner", "rm", &before]).ok();
    home.run(&["resume", &session]).ok();
    home.run(&["run", "--claim-within", "1ms", "--", "sleep", "0.1"]).ok();
    home.run(&["run", "--claim-within", "0s", "--", "true"]).exits(2);
}
