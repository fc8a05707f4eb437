//! Conversations over several runs: what is remembered, what is gone, and who takes over.

use std::fs;

use super::executor::{ACP, CLAUDE_CODE, Can};
use super::room::Room;

/// The conversations that a session was bound to, in order.
fn conversations(room: &Room, session: &str) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let bound = room.events(session, "bound");
    bound.iter().map(|bound| (text(&bound["executor"]), text(&bound["executor_session_id"]))).collect()
}

pub(super) fn remembers(room: &Room) {
    let ran = room.run(&[], "say apple").completed();
    room.recalls(&ran.session, "say apple");
    room.home.run(&["suspend", &ran.session]).ok();
    room.recalls(&ran.session, "say apple / recall");
    room.home.kill_host();
    room.recalls(&ran.session, "say apple / recall / recall");
    let said = room.said(&ran.session, "assistant");
    assert_eq!((said.len(), said.contains(&"replayed".into())), (4, false), "{said:?}");
    let mut bound = conversations(room, &ran.session);
    bound.dedup();
    assert_eq!(bound.len(), 1, "{bound:?}");
}

pub(super) fn remembers_what_was_interrupted(room: &Room) {
    for stop in [&["stop"][..], &["stop", "--now"]] {
        let session = room.begin(&[], "say up\nhang");
        room.until_said(&session, "up");
        room.home.run(&[stop, &[&session]].concat()).ok();
        room.recalls(&session, "say up");
    }
}

pub(super) fn has_forgotten(room: &Room) {
    let ran = room.run(&[], "say apple").completed();
    room.forget(&ran.session);
    let gone = room.send(&ran.session, &[], "recall").failed("executor_error");
    assert!(
        gone.message().contains("gone") && gone.message().contains("--from-history"),
        "{}",
        gone.message()
    );
    // As the message says, and then with another prompt: now it knows again.
    let anew = ["--json", "resume", &ran.session, "--from-history"];
    room.ran(room.home.run(&anew)).completed();
    room.recalls(&ran.session, "apple");
    let primed = room.send(&ran.session, &["--from-history"], "recall").completed();
    let said = room.said(&primed.session, "assistant").pop().unwrap();
    assert!(said.contains("User: say apple") && said.contains("Assistant: apple"), "{said}");
}

pub(super) fn is_handed_over(room: &Room) {
    let other = if room.executor.name == ACP.name { &CLAUDE_CODE } else { &ACP };
    let ran = room.run(&[], "say apple").completed();
    let mut arguments = vec!["--json", "resume", &ran.session, "--agent", other.name];
    let behind = [&["--"], other.arguments].concat();
    // Its own conversation means nothing to another one.
    let refused = room.home.run(&[arguments.as_slice(), &behind].concat());
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(format!("{refused:?}").contains("--from-history"), "{refused:?}");
    arguments.push("--from-history");
    let explained = room.home.run(&[&arguments[..], &["--explain"]].concat()).ok().json().remove(0);
    assert_eq!(explained["not_carried_over"][0]["what"], "conversation", "{explained:#}");
    arguments.extend(behind);
    room.ran(room.home.run(&arguments)).completed();
    room.recalls(&ran.session, "User: say apple");
    let bound = conversations(room, &ran.session);
    assert_eq!((&bound[0].0[..], &bound.last().unwrap().0[..]), (room.executor.name, other.name));
    let told = room.events(&ran.session, "agent.handed_over").remove(0);
    assert_eq!((&told["from"], &told["to"]), (&room.executor.name.into(), &other.name.into()));
    let lost = told["not_carried_over"].as_array().unwrap();
    assert!(
        lost[0]["what"] == "conversation" && lost[0]["why"].as_str().unwrap().contains(&bound[0].1),
        "{lost:?}"
    );
    assert_eq!(room.home.inspect(&ran.session)["executor"], other.name);
}

/// What is said in another conversation is not taken for what this one says.
pub(super) fn takes_up_another_conversation(room: &Room) {
    let ran = room.run(&[], "say apple\nwander").completed();
    let wandered = room.send(&ran.session, &[], "say pear").failed("executor_error");
    let message = wandered.message();
    assert!(message.contains("99999999-9999") && message.contains("--from-history"), "{message}");
    assert_eq!(room.said(&ran.session, "assistant"), ["apple"]);
    assert_eq!(conversations(room, &ran.session).len(), 1);
    room.recalls(&ran.session, "say apple");
}

/// Nothing is started anywhere else, and once it is back the session goes on.
pub(super) fn loses_its_directory(room: &Room) {
    let project = room.home.path().join("project");
    fs::create_dir(&project).unwrap();
    let ran = room.run(&["--in-place", "--project", project.as_str()], "say apple").completed();
    let away = room.home.path().join("away");
    fs::rename(&project, &away).unwrap();
    let lost = room.send(&ran.session, &[], "say pear").failed("workspace_failed");
    assert!(lost.message().contains("project"), "{}", lost.message());
    fs::rename(&away, &project).unwrap();
    if room.executor.can(Can::Remember) {
        room.recalls(&ran.session, "say apple");
    } else {
        room.send(&ran.session, &[], "say again").completed();
    }
}
