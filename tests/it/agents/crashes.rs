//! What is left when one of those who take part is killed with -9: nothing that runs, and everything that was said.

use serde_json::json;

use super::executor::Can;
use super::room::{Room, kill_9};

/// Begins a turn that does not end.
#[track_caller]
fn hanging(room: &Room) -> String {
    let session = room.begin(&[], "say up\nhang");
    room.until_said(&session, "up");
    session
}

/// It goes on, and knows what it was told.
#[track_caller]
fn goes_on(room: &Room, session: &str) {
    room.nothing_is_left();
    if room.executor.can(Can::Remember) {
        assert_eq!(room.said(session, "assistant"), ["up"]);
        room.recalls(session, "say up");
    } else {
        room.send(session, &[], "say again").completed();
    }
}

pub(super) fn dies(room: &Room) {
    let session = hanging(room);
    kill_9(room.executor_of(&session));
    room.wait(&session).failed("signalled");
    goes_on(room, &session);
}

/// What it had begun to say is not lost with it.
pub(super) fn dies_in_mid_sentence(room: &Room) {
    let session = room.begin(&[], "say up\nhalf and then I");
    room.until_said(&session, "and then I");
    kill_9(room.executor_of(&session));
    let ran = room.wait(&session).failed("signalled");
    assert!(!ran.message().is_empty(), "{ran:#?}");
    room.nothing_is_left();
    room.says(&session, &["up", "and then I"]);
    room.recalls(&session, "say up");
}

/// Nor with its host, which has told the log before.
pub(super) fn loses_its_host_in_mid_sentence(room: &Room) {
    let session = room.begin(&[], "say up\nhalf and then I");
    room.until_said(&session, "and then I");
    room.home.kill_host();
    room.home.run(&["recover"]).ok();
    assert_eq!(room.last_run(&session)["state"], "lost");
    room.nothing_is_left();
    room.says(&session, &["up", "and then I"]);
    room.recalls(&session, "say up");
}

pub(super) fn loses_its_keeper(room: &Room) {
    let session = hanging(room);
    kill_9(room.keeper_of(&session));
    let ran = room.wait(&session);
    assert_eq!(ran.run["state"], "lost", "{ran:#?}");
    goes_on(room, &session);
}

pub(super) fn loses_its_host(room: &Room) {
    let session = hanging(room);
    room.home.kill_host();
    room.home.run(&["recover"]).ok();
    assert_eq!(room.last_run(&session)["state"], "lost");
    goes_on(room, &session);
}

/// Nobody waits for the answer any more, and what was asked about is not done.
pub(super) fn loses_its_host_while_it_asks(room: &Room) {
    let session = room.begin(&[], "say up\ntool touch made");
    let question = room.until_it_asks(&session);
    room.home.kill_host();
    room.home.run(&["recover"]).ok();
    let questions = room.questions(&session, &["--all"]);
    assert_eq!((questions.len(), &questions[0]["state"]), (1, &json!("withdrawn")));
    room.home.run(&["approvals", "allow", question["id"].as_str().unwrap()]).exits(6);
    goes_on(room, &session);
    assert!(room.written(&session, "made").is_none());
}
