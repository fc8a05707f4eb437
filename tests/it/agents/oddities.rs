//! What is too long, looks like something else, or is no message at all.

use super::room::Room;

/// More than any command line holds in one piece.
const HUGE: usize = 900_000;
/// Read, and one that is longer than any that is.
const LONG: usize = 10_000_000;
const TOO_LONG: usize = 20_000_000;

pub(super) fn is_asked_over_stdin(room: &Room) {
    let prompt = format!("{}\n\nsay read\n", "é".repeat(HUGE / 2));
    let ran = room.run_from_stdin(&prompt).completed();
    assert!(room.said(&ran.session, "user")[0] == prompt, "the prompt is another one");
    assert_eq!(room.said(&ran.session, "assistant"), ["read"]);
    // What looks like an option is none, and nothing of a prompt is for a shell.
    for prompt in ["--version", "-p", "$(touch made); `touch made` 'x"] {
        let ran = room.run_from_stdin(prompt).completed();
        assert_eq!(room.said(&ran.session, "assistant"), [format!("heard: {prompt}")]);
        assert!(room.written(&ran.session, "made").is_none());
    }
}

pub(super) fn prints_long_lines(room: &Room) {
    let ran = room.run(&[], &format!("long {LONG}\nsay after")).completed();
    let said = room.said(&ran.session, "assistant");
    assert_eq!(said.last().unwrap(), "after");
    assert_eq!(said.iter().map(String::len).sum::<usize>(), LONG + "after".len());

    let ran = room.run(&[], &format!("long {TOO_LONG}\nsay after")).completed();
    let said = room.said(&ran.session, "assistant");
    assert_eq!(said.last().unwrap(), "after");
    assert!(said.iter().map(String::len).sum::<usize>() < 100);
    let errors = room.events(&ran.session, "error");
    assert!(errors[0]["message"].as_str().unwrap().contains("the line was skipped"), "{errors:?}");
}

pub(super) fn prints_garbage(room: &Room) {
    let ran = room.run(&[], "say before\ngarbage\nsay after").completed();
    assert_eq!(room.said(&ran.session, "assistant"), ["before", "after"]);
    let raw = room.events(&ran.session, "agent.raw");
    assert!(raw.iter().any(|raw| raw["raw"] == "Loading model..."), "{raw:?}");
}
