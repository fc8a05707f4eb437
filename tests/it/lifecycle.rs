//! The lives of sessions from the built program: idle, suspended, resumed, forked, ended; their budgets; who gives way.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use session_store::testing::pg;
use session_tests::home::{Home, gone_within, processes_with};

/// The id of the only session that a command worked in.
fn session_of(left: &session_tests::home::Left) -> String {
    left.json()[0]["session"].as_str().unwrap().to_owned()
}

/// What kinds of events a session's log holds, in order.
fn kinds(home: &Home, session: &str) -> Vec<String> {
    let events = home.run(&["--json", "events", session]).ok().json();
    events.iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

/// The payloads of one kind of event, in order.
fn payloads(home: &Home, session: &str, kind: &str) -> Vec<Value> {
    let events = home.run(&["--json", "events", session]).ok().json();
    let of_kind = events.into_iter().filter(|event| event["kind"] == kind);
    of_kind.map(|event| event["payload"].clone()).collect()
}

/// Resumes a session with a program that reads the conversation so far.
fn history_as_read(home: &Home, session: &str) -> Value {
    home.run(&["resume", session, "--", "sh", "-c", "cat \"$ROOMETTE_HISTORY\""]).ok();
    let log = home.run(&["logs", session]).ok().stdout;
    serde_json::from_str(log.lines().last().unwrap()).unwrap()
}

/// An export of a conversation, made by hand, as a session.
fn import_conversation(home: &Home, entries: &[(&str, Value)]) -> String {
    let header = json!({
        "roomette_export": 1, "session": "ses_00000000000040008000000000000001", "exported_at": "2026-01-01T00:00:00Z",
        "created_at": "2026-01-01T00:00:00Z", "label": "talk", "agent": null, "metadata": {},
        "budget": { "tokens": 1000, "tool_calls": 10, "turns": null, "cost_micros": null },
    });
    let events = entries.iter().enumerate().map(|(index, (kind, payload))| {
        json!({ "seq": index + 1, "at": "2026-01-01T00:00:00Z", "kind": kind, "payload": payload })
    });
    let lines: Vec<_> = std::iter::once(header).chain(events).map(|line| line.to_string()).collect();
    let file = home.path().join("export.jsonl");
    fs::write(&file, lines.join("\n")).unwrap();
    home.run(&["import", file.as_str()]).ok().stdout.trim().to_owned()
}

#[test]
fn a_suspended_session_keeps_everything_and_comes_back_under_its_id() {
    let home = Home::new();
    let session = session_of(&home.run(&["--json", "run", "--", "sh", "-c", "echo kept > note"]).ok());
    home.run(&["suspend", &session]).ok();
    home.run(&["suspend", &session]).ok();
    let suspended = home.inspect(&session);
    assert_eq!((&suspended["state"], suspended["expires_at"].is_string()), (&json!("suspended"), true));
    let resumed = home.run(&["--json", "resume", &session, "--", "cat", "note"]).ok();
    assert_eq!((session_of(&resumed), &resumed.json()[0]["last_line"]), (session.clone(), &json!("kept")));
    assert_eq!(home.inspect(&session)["state"], "active");
    let steps: Vec<_> = payloads(&home, &session, "session.resume");
    let steps: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["opened", "reconstructed", "restored"]);
}

#[test]
fn a_session_with_a_run_in_flight_is_not_suspended() {
    let home = Home::new();
    let left = home.run(&["run", "--detach", "--", "sh", "-c", "echo up; exec sleep 600"]).ok();
    let session = left.lines()[0].to_owned();
    home.until_logged(&session, "up");
    let refused = home.run(&["suspend", &session]).exits(6);
    assert!(refused.stderr.contains("stop it"), "{}", refused.stderr);
    home.run(&["stop", "--now", &session]).ok();
    home.run(&["suspend", &session]).ok();
}

#[test]
fn time_makes_sessions_idle_then_suspended_then_over() {
    let timeouts = |home: Home| {
        home.with("ROOMETTE_LIMITS_IDLE_TIMEOUT", "300ms").with("ROOMETTE_LIMITS_SUSPENDED_TTL", "400ms")
    };
    // While its host is there, and while there is none.
    let home = timeouts(Home::new().with("ROOMETTE_HOST_LINGER", "60s"));
    let session = session_of(&home.run(&["--json", "run", "--", "true"]).ok());
    home.until(|| home.inspect(&session)["state"] == "terminated");
    assert_eq!(home.inspect(&session)["terminated_because"], "ttl_expired");
    let moves = payloads(&home, &session, "session.state");
    let moves: Vec<_> = moves.iter().map(|step| step["to"].as_str().unwrap()).collect();
    assert_eq!(moves, ["idle", "suspended", "terminated"]);
    let refused = home.run(&["resume", &session]).exits(6);
    assert!(refused.stderr.contains("fork"), "{}", refused.stderr);
    home.kill_host();

    let home = timeouts(Home::new());
    let session = session_of(&home.run(&["--json", "run", "--", "true"]).ok());
    home.until(|| {
        home.run(&["recover"]).ok();
        home.inspect(&session)["state"] == "terminated"
    });
}

#[test]
fn what_is_used_is_active_again() {
    let home = Home::new().with("ROOMETTE_LIMITS_IDLE_TIMEOUT", "2s").with("ROOMETTE_HOST_LINGER", "60s");
    let session = session_of(&home.run(&["--json", "run", "--", "true"]).ok());
    home.until(|| home.inspect(&session)["state"] == "idle");
    home.run(&["resume", &session]).ok();
    assert!(payloads(&home, &session, "session.state").iter().any(|step| step["to"] == "active"));
    assert!(!kinds(&home, &session).contains(&"session.resume".to_owned()), "its engine was still there");
}

#[test]
fn a_turn_that_the_budget_does_not_have_is_refused_and_a_top_up_is_recorded() {
    let home = Home::new();
    let session = session_of(&home.run(&["--json", "run", "--max-turns", "2", "--", "true"]).ok());
    home.run(&["suspend", &session]).ok();
    home.run(&["resume", &session]).ok();
    let refused = home.run(&["resume", &session]).exits(7);
    assert!(refused.stderr.contains("2 turns") && refused.stderr.contains("top-up"), "{}", refused.stderr);
    let account = &home.run(&["--json", "budget", "show", &session]).ok().json()[0];
    assert_eq!(account["turns"], json!({ "used": 2, "max": 2 }));
    assert_eq!(payloads(&home, &session, "warning")[0]["resource"], "turns");
    home.run(&["budget", "top-up", &session, "--turns", "1"]).ok();
    let change = &payloads(&home, &session, "session.budget")[0];
    assert_eq!(
        (&change["from"]["turns"], &change["to"]["turns"], &change["by"]),
        (&json!(2), &json!(3), &json!("tester"))
    );
    home.run(&["resume", &session]).ok();
    home.run(&["resume", &session]).exits(7);
    let bar = home.run(&["ps"]).ok().stdout;
    assert!(bar.contains("[#####] 100%"), "{bar}");
}

#[test]
fn a_turn_that_was_begun_is_paid_for_also_when_the_host_is_killed() {
    let home = Home::new().with("ROOMETTE_RUN_GRACE", "200ms");
    let left =
        home.run(&["run", "--detach", "--max-turns", "2", "--", "sh", "-c", "echo up; exec sleep 600"]).ok();
    let session = left.lines()[0].to_owned();
    home.until_logged(&session, "up");
    home.kill_host();
    home.run(&["recover"]).ok();
    let account = &home.run(&["--json", "budget", "show", &session]).ok().json()[0];
    assert_eq!(account["turns"], json!({ "used": 1, "max": 2 }));
    home.run(&["resume", &session, "--", "true"]).ok();
    home.run(&["resume", &session]).exits(7);
}

#[test]
fn a_resume_that_dies_between_two_steps_leaves_the_session_suspended() {
    let home = Home::new();
    let session = import_conversation(
        &home,
        &[
            ("message", json!({ "role": "user", "text": "what is in it?" })),
            ("tool_call", json!({ "id": "c1", "name": "ls", "input": {} })),
        ],
    );
    home.run(&["suspend", &session]).ok();
    for step in ["opened", "reconstructed", "restored"] {
        let mut command = home.command(&["resume", "--detach", &session, "--", "true"]);
        command.env("ROOMETTE_TEST_STOP_AT", step);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let host = home.until_stopped();
        kill_process(Pid::from_raw(host).unwrap(), Signal::KILL).unwrap();
        assert!(gone_within(host, Duration::from_secs(10)));
        child.wait().unwrap();
        assert_eq!(home.inspect(&session)["state"], "suspended", "killed at {step}");
        home.run(&["stop", "--now", &session]).ok();
    }
    let history = history_as_read(&home, &session);
    assert_eq!(home.inspect(&session)["state"], "active");
    assert_eq!(history["messages"][0]["parts"][0]["text"], "what is in it?");
    assert_eq!(history["messages"][2]["parts"][0]["output"], "interrupted");
    assert_eq!(history["repairs"].as_array().unwrap().len(), 1);
}

#[test]
fn a_fork_begins_anywhere_and_leaves_its_source_alone() {
    let home = Home::new();
    let source = import_conversation(
        &home,
        &[
            ("message", json!({ "role": "user", "text": "one" })),
            ("message", json!({ "role": "assistant", "text": "two" })),
            ("grant", json!({ "scope": "tool", "tool": "write", "verdict": "allow" })),
            ("message", json!({ "role": "user", "text": "three" })),
        ],
    );
    let before = home.run(&["--json", "events", &source]).ok().stdout;
    let fork =
        home.run(&["fork", &source, "--at", "3", "--label", "other way"]).ok().stdout.trim().to_owned();
    assert_eq!(home.run(&["--json", "events", &source]).ok().stdout, before, "the source is untouched");
    let shown = home.inspect(&fork);
    assert_eq!(shown["forked_from"], json!({ "session": source, "at": 3 }));
    assert_eq!((&shown["label"], &shown["state"]), (&json!("other way"), &json!("suspended")));
    assert_eq!(kinds(&home, &fork)[..4], ["message", "message", "grant", "session.forked"]);
    let history = history_as_read(&home, &fork);
    assert_eq!(history["messages"].as_array().unwrap().len(), 2);
    let explained = &home.run(&["--json", "resume", "--explain", &fork]).ok().json()[0];
    assert_eq!(explained["restored"]["answers"], 0, "what was granted to another session means nothing here");
    // From a session that is over, too.
    home.run(&["kill", &source]).ok();
    home.run(&["fork", &source]).ok();
    for bad in ["0", "99"] {
        home.run(&["fork", &source, "--at", bad]).exits(2);
    }
    home.run(&["fork", "ses_00000000000000000000000000000000"]).exits(2);
}

#[test]
fn an_explanation_says_what_stands_in_the_way_before_anything_is_tried() {
    let home = Home::new();
    let session = session_of(&home.run(&["--json", "run", "--", "sh", "-c", "echo x"]).ok());
    let explain = || home.run(&["--json", "resume", "--explain", &session]).ok().json()[0].clone();
    let fine = explain();
    assert_eq!(
        (&fine["possible"], &fine["runner"]["here"], &fine["directory"]["there"]),
        (&json!(true), &json!(true), &json!(true))
    );
    assert_eq!(fine["argv"], json!(["sh", "-c", "echo x"]));
    fs::remove_dir_all(home.session(&session)).unwrap();
    let gone = explain();
    assert!(gone["not_restored"].to_string().contains("made anew, empty"), "{gone}");
    home.run(&["kill", &session]).ok();
    let over = explain();
    assert_eq!(over["possible"], false);
    assert!(over["obstacles"].to_string().contains("fork"), "{over}");
    let text = home.run(&["resume", "--explain", &session]).ok().stdout;
    assert!(text.contains("cannot be resumed now") && text.contains("budget"), "{text}");
    home.run(&["resume", "--explain", "nobody"]).exits(4);
    home.run(&["resume", "--explain", "ses_00000000000000000000000000000000"]).exits(2);
}

#[test]
fn one_key_is_one_session_until_that_is_over() {
    let home = Home::new();
    let run = |key: &str| {
        session_of(&home.run(&["--json", "run", "--key", key, "--", "sh", "-c", "echo line >> notes"]).ok())
    };
    let first = run("telegram:dm:42");
    assert_ne!(run("telegram:dm:43"), first);
    home.run(&["suspend", &first]).ok();
    assert_eq!(run("telegram:dm:42"), first, "suspended, and after a restart of the host");
    assert_eq!(fs::read_to_string(home.session(&first).join("work/notes")).unwrap(), "line\nline\n");
    home.run(&["kill", &first]).ok();
    let second = run("telegram:dm:42");
    assert_ne!(second, first, "a key never leads to a dead session");
    assert_eq!(home.inspect(&second)["key"], "telegram:dm:42");
    let mut other = home.command(&["--json", "run", "--key", "telegram:dm:42", "--", "true"]);
    other.env("USER", "somebody else");
    assert_ne!(session_of(&session_tests::home::left(other).ok()), second, "a key is its owner's");
    home.run(&["run", "--key", "two\nlines", "--", "true"]).exits(2);
    // A limit that does not hold must not look as if it did.
    let refused = home.run(&["run", "--key", "telegram:dm:42", "--max-turns", "9", "--", "true"]).exits(6);
    assert!(refused.stderr.contains("limits"), "{}", refused.stderr);
}

#[test]
fn whoever_was_left_alone_longest_makes_room() {
    let home = Home::new().with("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "2").with("ROOMETTE_HOST_LINGER", "60s");
    let session =
        |label: &str| session_of(&home.run(&["--json", "run", "--label", label, "--", "true"]).ok());
    let (first, second, third) = (session("first"), session("second"), session("third"));
    let states: Vec<_> = [&first, &second, &third].map(|id| home.inspect(id)["state"].clone()).into();
    assert_eq!(states, [json!("suspended"), json!("active"), json!("active")]);
    // More runs than places take turns.
    let left = home.run(&["--json", "run", "--count", "7", "--", "sh", "-c", "sleep 0.05"]).ok();
    assert!(left.json().iter().all(|run| run["state"] == "completed"), "{}", left.stdout);
}

#[test]
fn room_that_is_made_is_taken_at_once_and_who_needs_none_does_not_wait() {
    let home = Home::new()
        .with("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "1")
        .with("ROOMETTE_LIMITS_EVICTION", "reject_new")
        .with("ROOMETTE_HOST_LINGER", "60s");
    let first = session_of(&home.run(&["--json", "run", "--label", "first", "--", "true"]).ok());
    let second =
        home.run(&["run", "--detach", "--label", "second", "--", "echo", "in"]).ok().lines()[0].to_owned();
    home.until(|| home.inspect(&second)["status"] == "claimed");
    home.run(&["resume", &first]).ok();
    assert_eq!(home.inspect(&second)["status"], "claimed", "the only place is the first one's");
    home.run(&["suspend", &first]).ok();
    home.run(&["wait", "--timeout", "20s", &second]).ok();
    home.run(&["kill", &second, "nobody"]).exits(4);
    assert_eq!(home.inspect(&second)["state"], "terminated", "what was named rightly is ended");
    home.run(&["resume", &first]).ok();
}

#[test]
fn the_limit_of_an_owner_keeps_nobody_else_out() {
    let home =
        Home::new().with("ROOMETTE_LIMITS_ACTIVE_PER_PRINCIPAL", "1").with("ROOMETTE_HOST_LINGER", "60s");
    let busy = ["run", "--detach", "--", "sh", "-c", "echo up; exec sleep 600"];
    let first = home.run(&busy).ok().lines()[0].to_owned();
    home.until_logged(&first, "up");
    let second = home.run(&busy).ok().lines()[0].to_owned();
    home.until(|| home.inspect(&second)["status"] == "claimed");
    let mut other = home.command(&["run", "--", "true"]);
    other.env("USER", "somebody else");
    assert_eq!(session_tests::home::left(other).code, 0);
    home.run(&["kill", "--all"]).ok();
}

#[test]
fn nothing_is_recorded_as_active_where_nothing_is_alive() {
    let home = Home::new().with("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "2");
    for label in ["a", "b", "c"] {
        home.run(&["run", "--label", label, "--", "true"]).ok();
        home.until_free();
    }
    let states = home.run(&["--json", "ps"]).ok().json()[0]["sessions"].clone();
    let states: Vec<_> = states.as_array().unwrap().iter().map(|session| session["state"].clone()).collect();
    assert_eq!(states, ["suspended", "suspended", "suspended"], "their host has left");
    let left = home.run(&["run", "--detach", "--", "sh", "-c", "echo up; exec sleep 600"]).ok();
    home.until_logged(left.lines()[0], "up");
    home.kill_host();
    home.run(&["recover"]).ok();
    let left = home.run(&["--json", "ps"]).ok().json()[0]["sessions"][0].clone();
    assert_eq!((&left["status"], &left["state"]), (&json!("lost"), &json!("suspended")), "it was killed");
}

#[test]
fn whoever_comes_waits_where_nobody_gives_way() {
    let home = Home::new()
        .with("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "1")
        .with("ROOMETTE_LIMITS_EVICTION", "reject_new")
        .with("ROOMETTE_LIMITS_IDLE_TIMEOUT", "200ms")
        .with("ROOMETTE_HOST_LINGER", "60s");
    let left = home.run(&["--json", "run", "--count", "2", "--", "true"]).ok();
    assert!(left.json().iter().all(|run| run["state"] == "completed"), "{}", left.stdout);
}

#[test]
fn the_kill_switch_ends_everything() {
    let home = Home::new();
    let left = home
        .run(&[
            "run",
            "--detach",
            "--count",
            "3",
            "--",
            "sh",
            "-c",
            "(setsid sleep 600 &) & echo up; exec sleep 600",
        ])
        .ok();
    let sessions: Vec<String> = left.lines().iter().map(|&id| id.to_owned()).collect();
    for session in &sessions {
        home.until_logged(session, "up");
    }
    assert_eq!(home.run(&["kill", "--principal", "somebody else"]).ok().stdout, "");
    assert_eq!(home.run(&["kill", "--all"]).ok().lines().len(), 3);
    for session in &sessions {
        assert_eq!(home.inspect(session)["state"], "terminated");
        assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={session}")), [] as [i32; 0]);
    }
    home.run(&["kill"]).exits(2);
}

#[test]
fn a_child_shows_its_parent() {
    let home = Home::new();
    let parent = session_of(&home.run(&["--json", "run", "--label", "parent", "--", "true"]).ok());
    assert!(!home.run(&["ps"]).ok().stdout.contains("PARENT"), "most sessions have none");
    let child = session_of(&home.run(&["--json", "run", "--parent", "parent", "--", "true"]).ok());
    assert_eq!(home.inspect(&child)["parent"], parent);
    let shown = home.run(&["ps"]).ok().stdout;
    assert!(shown.contains("PARENT") && shown.matches(&parent[..16]).count() == 2, "{shown}");
    home.run(&["run", "--parent", "nobody", "--", "true"]).exits(4);
}

#[test]
fn limits_that_make_no_sense_are_named() {
    for (name, value, said) in [
        ("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "0", "nothing could ever run"),
        ("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "-1", "active_sessions"),
        ("ROOMETTE_LIMITS_IDLE_TIMEOUT", "-5m", "idle_timeout"),
        ("ROOMETTE_LIMITS_IDLE_TIMEOUT", "soon", "idle_timeout"),
        ("ROOMETTE_LIMITS_EVICTION", "kill_everybody", "eviction"),
    ] {
        let refused = Home::new().with(name, value).run(&["run", "--", "true"]).exits(2);
        assert!(refused.stderr.contains(said), "{name}={value}: {}", refused.stderr);
    }
    // Beyond the calendar, and the largest there is: never, and all there could be.
    let home = Home::new()
        .with("ROOMETTE_LIMITS_IDLE_TIMEOUT", "175307616h")
        .with("ROOMETTE_LIMITS_TOKENS", "9223372036854775807");
    home.run(&["run", "--max-turns", "18446744073709551615", "--", "true"]).ok();
    let refused = home.run(&["run", "--max-turns", "0", "--", "true"]).exits(7);
    assert!(refused.stderr.contains("0 turns"), "{}", refused.stderr);
}

#[tokio::test]
async fn lives_go_the_same_way_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let home = Home::new().with("ROOMETTE_STORE_URL", database.url());
    let run = || {
        home.run(&[
            "--json",
            "run",
            "--key",
            "ticket 7",
            "--max-turns",
            "3",
            "--",
            "sh",
            "-c",
            "echo x >> notes",
        ])
    };
    let session = session_of(&run().ok());
    home.run(&["suspend", &session]).ok();
    assert_eq!(home.inspect(&session)["state"], "suspended");
    assert_eq!(session_of(&run().ok()), session);
    home.kill_host();
    home.run(&["resume", &session]).ok();
    home.run(&["resume", &session]).exits(7);
    home.run(&["budget", "top-up", &session, "--turns", "1"]).ok();
    home.run(&["resume", &session]).ok();
    assert_eq!(fs::read_to_string(home.session(&session).join("work/notes")).unwrap().lines().count(), 4);
    let fork = home.run(&["fork", &session]).ok().stdout.trim().to_owned();
    assert_eq!(home.inspect(&fork)["forked_from"]["session"], session);
    assert_eq!(home.run(&["kill", "--all"]).ok().lines().len(), 2);
    assert_ne!(session_of(&run().ok()), session);
}
