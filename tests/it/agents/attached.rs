//! Attached to a session: what goes on in it is seen, and what is typed goes in.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use session_tests::home::left_with;

use super::executor::Can;
use super::room::Room;

/// Each line is a prompt of its own, said when the turn before it is over; the command ends with the last answer.
pub(super) fn is_talked_to(room: &Room) {
    let ran = room.run(&[], "say one").completed();
    let talked = left_with(room.home.command(&["attach", &ran.session]), "say two\n\nsay three");
    let talked = talked.ok();
    assert_eq!(talked.stdout, "two\nthree\n", "{}", talked.stderr);
    assert!(talked.stderr.contains("> say two"), "{}", talked.stderr);
    assert_eq!(room.said(&ran.session, "user"), ["say one", "say two", "say three"]);
    let told = left_with(room.home.command(&["--json", "attach", &ran.session]), "say four\n").ok();
    let events = told.json();
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"message") && kinds.contains(&"result"), "{kinds:?}");
    let failed = left_with(room.home.command(&["attach", &ran.session]), "fail the model is away\n");
    failed.exits(1);
    // Nothing is typed, and nothing runs: there is nothing to wait for.
    room.home.run(&["attach", &ran.session]).ok();
}

/// The line behind a prompt answers what is asked on the way.
pub(super) fn is_answered_by_who_is_attached(room: &Room) {
    let ran = room.run(&[], "say one").completed();
    let talk =
        "tool touch made\nn not here\ntool touch made\nyes\ntool touch made\na\ntool touch made\nsay done\n";
    let talked = left_with(room.home.command(&["attach", &ran.session]), talk).ok();
    assert!(talked.stderr.contains("[y]es, [a]lways in this session, [n]o"), "{}", talked.stderr);
    assert!(talked.stdout.ends_with("done\n"), "{talked:?}");
    assert!(room.written(&ran.session, "made").is_some());
    let questions = room.questions(&ran.session, &["--all"]);
    let states: Vec<_> = questions.iter().rev().map(|question| question["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["denied", "allowed", "allowed"], "the fourth time nobody is asked");
    assert_eq!(questions.last().unwrap()["message"], "not here");
}

/// A person at a terminal, who comes while a turn is in flight.
struct Person {
    child: Child,
    screen: ChildStdout,
    seen: String,
}

impl Person {
    fn attach(room: &Room, session: &str) -> Self {
        let line = format!("{} attach {session}", session_tests::program::roomette());
        let mut command = room.home.program("script", &["-qec", &line, "/dev/null"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let screen = child.stdout.take().unwrap();
        Self { child, screen, seen: String::new() }
    }

    fn types(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits until this is on the screen.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(text) {
            let read = self.screen.read(&mut buffer).unwrap();
            assert!(read > 0, "{text:?} is not in {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..read]).replace('\r', ""));
        }
    }

    /// The exit code, once the command is over.
    fn leaves(mut self) -> i32 {
        while self.screen.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
        self.child.wait().unwrap().code().unwrap()
    }
}

/// What a person types waits for the turn in flight, which `/stop` interrupts; who leaves ends nothing.
pub(super) fn is_visited_by_a_person(room: &Room) {
    let session = room.begin(&[], "say up\nhang");
    room.until_said(&session, "up");
    let mut person = Person::attach(room, &session);
    person.types("say after\nsay last\nhang\n/stop\n");
    for part in ["(queued, 0 before it) say after", "stopping", "\nafter\n", "\nlast\n"] {
        person.sees(part);
    }
    room.home.until(|| room.said(&session, "user").last().is_some_and(|said| said == "hang"));
    let stopped = room.events(&session, "run.state").iter().filter(|state| state["to"] == "stopped").count();
    assert_eq!(stopped, 1);
    // Ctrl-D at the beginning of a line.
    person.types("\u{4}");
    assert_eq!(person.leaves(), 0);
    let mut person = Person::attach(room, &session);
    person.types("say never\n");
    person.sees("(queued, 0 before it) say never");
    person.types("\u{3}");
    person.sees("not sent: say never");
    assert_eq!(person.leaves(), 130);
    room.home.until(|| room.last_run(&session)["state"] == "running");
    room.home.run(&["stop", &session]).ok();
}

/// What it is about to say is in the log, and before the eyes of who is attached, while it has not said all of it.
pub(super) fn is_heard_by_the_word(room: &Room) {
    let session = room.begin(&[], "say first\nhalf I am about t");
    room.until_said(&session, "I am about t");
    let last = room.events(&session, "message").pop().unwrap();
    assert_eq!(last["unfinished"], true, "{last}");
    let mut person = Person::attach(room, &session);
    person.sees(if room.executor.can(Can::Separate) { "first\nI am about t" } else { "firstI am about t" });
    person.types("\u{3}");
    assert_eq!(person.leaves(), 130);
    assert_eq!(room.last_run(&session)["state"], "running");
    room.home.run(&["stop", &session]).ok();
    room.says(&session, &["first", "I am about t"]);
}

/// What takes no input says so, and is followed.
pub(super) fn takes_no_input(room: &Room) {
    let session = room.begin(&[], "say up\nhang");
    room.until_said(&session, "up");
    let mut person = Person::attach(room, &session);
    person.sees("takes no input");
    person.sees("\nup\n");
    person.types("\u{3}");
    assert_eq!(person.leaves(), 130);
    assert_eq!(room.last_run(&session)["state"], "running");
    room.home.run(&["stop", &session]).ok();
    let over = room.home.run(&["attach", &session]).exits(6);
    assert!(over.stderr.contains("is over"), "{}", over.stderr);
}
