//! The leave that an agent asks for, and every way in which it is given, refused or no longer wanted.

use serde_json::{Value, json};

use super::room::Room;

/// What is asked about: whether it was done is seen in the session's directory.
const TOUCHES: &str = "tool touch made\nsay done";

/// Begins it, and gives the session and the question back.
#[track_caller]
fn asked(room: &Room) -> (String, Value) {
    let session = room.begin(&[], TOUCHES);
    let question = room.until_it_asks(&session);
    assert_eq!((&question["state"], &question["tool"]), (&json!("open"), &json!(room.executor.tool)));
    assert_eq!(question["input"]["command"], "touch made");
    assert!(room.written(&session, "made").is_none(), "it was done before anybody was asked");
    (session, question)
}

#[track_caller]
fn answer(room: &Room, question: &Value, words: &[&str]) {
    let (verdict, options) = words.split_first().unwrap();
    let id = question["id"].as_str().unwrap();
    room.home.run(&[&["approvals", verdict, id], options].concat()).ok();
}

/// What became of a session's only question.
#[track_caller]
fn only_question(room: &Room, session: &str) -> Value {
    let mut questions = room.questions(session, &["--all"]);
    assert_eq!(questions.len(), 1, "{questions:#?}");
    questions.remove(0)
}

/// Its turn went on without it.
#[track_caller]
fn was_refused(room: &Room, session: &str) {
    assert!(room.written(session, "made").is_none(), "it was done");
    let results = room.events(session, "tool_result");
    assert_eq!(results.last().unwrap()["is_error"], true);
    let said = room.said(session, "assistant");
    assert!(said.iter().any(|said| said.starts_with("refused: ")), "{said:?}");
    assert!(said.last().unwrap().ends_with("done"), "{said:?}");
}

pub(super) fn is_allowed(room: &Room) {
    let (session, question) = asked(room);
    assert_eq!(room.last_run(&session)["state"], "running");
    // By the beginning of its id.
    let id = question["id"].as_str().unwrap();
    room.home.run(&["approvals", "allow", &id[..id.len() - 2]]).ok();
    room.wait(&session).completed();
    assert!(room.written(&session, "made").is_some());
    let answered = only_question(room, &session);
    assert_eq!((&answered["state"], &answered["by"]), (&json!("allowed"), &json!("tester")));
    assert_eq!(room.events(&session, "permission").len(), 1);
    assert_eq!(room.events(&session, "permission.answered")[0]["verdict"], "allow");
    room.home.run(&["approvals", "deny", id]).exits(6);
}

pub(super) fn is_refused(room: &Room) {
    let (session, question) = asked(room);
    answer(room, &question, &["deny", "--message", "not here"]);
    room.wait(&session).completed();
    was_refused(room, &session);
    let answered = only_question(room, &session);
    assert_eq!((&answered["state"], &answered["message"]), (&json!("denied"), &json!("not here")));
}

pub(super) fn is_allowed_always(room: &Room) {
    let (session, question) = asked(room);
    answer(room, &question, &["allow", "--always"]);
    room.wait(&session).completed();
    let again = "tool touch made\ntool touch again";
    room.send(&session, &["--ask", "never"], again).completed();
    assert!(room.written(&session, "again").is_none(), "that is another command");
    // After it was let go of, too.
    room.home.run(&["suspend", &session]).ok();
    std::fs::remove_file(room.home.session(&session).join("work/made")).unwrap();
    room.send(&session, &["--ask", "never"], TOUCHES).completed();
    assert!(room.written(&session, "made").is_some());
    assert!(only_question(room, &session)["lasting"] == true);
}

/// Also where the run's own list would allow it.
pub(super) fn is_refused_always(room: &Room) {
    let (session, question) = asked(room);
    answer(room, &question, &["deny", "--always"]);
    room.wait(&session).completed();
    was_refused(room, &session);
    room.send(&session, &["--allow-tool", room.executor.tool], TOUCHES).completed();
    was_refused(room, &session);
    only_question(room, &session);
}

pub(super) fn waits_until_the_deadline(room: &Room) {
    let ran = room.run(&["--ask", "300ms"], TOUCHES).completed();
    was_refused(room, &ran.session);
    let question = only_question(room, &ran.session);
    assert_eq!(question["state"], "expired");
    assert!(question["deadline"].is_string(), "{question:#}");
    assert_eq!(room.events(&ran.session, "permission.withdrawn").len(), 1);
}

pub(super) fn asks_nobody(room: &Room) {
    let ran = room.run(&["--ask", "never"], TOUCHES).completed();
    was_refused(room, &ran.session);
    assert_eq!(room.questions(&ran.session, &["--all"]).len(), 0);
}

pub(super) fn asks_until_it_is_stopped(room: &Room) {
    let (session, question) = asked(room);
    room.home.run(&["stop", &session]).ok();
    assert_eq!(room.last_run(&session)["state"], "stopped");
    assert_eq!(only_question(room, &session)["state"], "withdrawn");
    let late = room.home.run(&["approvals", "allow", question["id"].as_str().unwrap()]).exits(6);
    assert!(!late.stderr.is_empty());
    assert!(room.written(&session, "made").is_none());
}
