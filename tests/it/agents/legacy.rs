//! The sessions of a legacy coordinator, imported and carried on.

use std::fs;

use serde_json::Value;
use session_tests::home::{Left, left};
use session_tests::repository_root;

use super::executor::CLAUDE_CODE;
use super::room::Room;

const TOP: &str = "5d0e7a3c-0000-4000-8000-000000000001";

/// Makes the database of a coordinator that ran on this machine, in a directory of the room.
fn database(room: &Room) -> String {
    let (file, project) = (room.home.path().join("legacy.db"), room.home.path().join("project"));
    fs::create_dir_all(&project).unwrap();
    let script = repository_root().join("tests/fixtures/legacy/make");
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let arguments = [file.as_str(), hostname.trim(), project.as_str()];
    left(room.home.program(script.as_str(), &arguments)).ok();
    file.into()
}

fn import(room: &Room, options: &[&str]) -> Left {
    let file = room.home.path().join("legacy.db");
    let refused = room.home.run(&[&["--json", "import", "--legacy", file.as_str()], options].concat());
    let refused = refused.exits(1);
    assert!(refused.stderr.contains("3 of 8 sessions cannot be taken"), "{}", refused.stderr);
    refused
}

fn of<'l>(sessions: &'l [Value], name: &str) -> &'l Value {
    sessions.iter().find(|session| session["name"] == name).unwrap()
}

#[test]
fn a_legacy_database_is_taken_in_and_its_sessions_go_on() {
    let mut room = Room::new(&CLAUDE_CODE);
    // Where the agent's program lies.
    let programs = room.home.path().join("bin");
    room.home = std::mem::take(&mut room.home).with("ROOMETTE_SANDBOX_ALLOW_READ", programs.as_str());
    let file = database(&room);
    let before = fs::read(&file).unwrap();
    let trial = import(&room, &["--dry-run"]).json();
    assert_eq!(of(&trial, "orchestrator")["result"], "imported");
    assert_eq!(room.home.run(&["--json", "ps"]).ok().json()[0]["sessions"], serde_json::json!([]));
    let sessions = import(&room, &[]).json();
    let again = import(&room, &[]).json();
    for (first, second) in sessions.iter().zip(&again) {
        let expected = if first["result"] == "imported" { "known" } else { "refused" };
        assert_eq!((&second["result"], &second["session"]), (&expected.into(), &first["session"]));
    }
    assert_eq!(fs::read(&file).unwrap(), before, "it is only read");
    assert!(of(&sessions, "unknown")["reason"].as_str().unwrap().contains("abacus"));
    let session = of(&sessions, "orchestrator")["session"].as_str().unwrap();
    let child = of(&sessions, "research")["session"].as_str().unwrap();
    assert_eq!(room.home.inspect(child)["parent"], session);
    let found = room.home.inspect("orchestrator");
    assert_eq!((&found["id"], &found["state"]), (&session.into(), &"suspended".into()));
    assert_eq!(found["binding"]["executor_session_id"], TOP);
    assert_eq!(room.said(session, "assistant"), ["apple"]);
    goes_on(&room, session);
}

/// Its files are not here: it is said so, and what to do; once they are, its own conversation is carried on.
fn goes_on(room: &Room, session: &str) {
    let gone = room.send(session, &[], "recall").failed("executor_error");
    assert!(
        gone.message().contains("gone") && gone.message().contains("--from-history"),
        "{}",
        gone.message()
    );
    let memory = room.home.session(session).join("home/.fake_agent");
    fs::create_dir_all(&memory).unwrap();
    fs::write(memory.join(format!("{TOP}.jsonl")), "\"say apple\"\n").unwrap();
    room.recalls(session, "say apple");
    let bound = room.events(session, "bound");
    assert_eq!(bound.last().unwrap()["executor_session_id"], TOP);
    assert!(bound.last().unwrap()["runner"].is_string());
    room.send("research", &["--from-history"], "say pear").completed();
}

#[test]
fn what_is_no_legacy_database_is_refused() {
    let room = Room::new(&CLAUDE_CODE);
    let file = room.home.path().join("legacy.db");
    let import = ["import", "--legacy", file.as_str()];
    room.home.run(&import).exits(2);
    fs::write(&file, "x".repeat(5_000)).unwrap();
    let refused = room.home.run(&import).exits(2);
    assert!(refused.stderr.contains("is not an SQLite database"), "{}", refused.stderr);
    room.home.run(&["import"]).exits(2);
}
