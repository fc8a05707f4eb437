//! Bad input: a clear error of the tool, nothing stored, nothing shown.

use std::fs;

use serde_json::{Value, json};
use session_tests::http::Served;
use session_tests::scribe::Agents;

use super::Ground;

/// What is refused before anything is stored, and how the refusal begins.
fn bad(file: &str) -> Vec<(&'static str, Value, &'static str)> {
    let long = "x".repeat(10_000);
    vec![
        ("append_entry", json!({ "text": "x".repeat(10 << 20) }), "invalid_argument: text"),
        ("append_entry", json!({ "text": "\u{1b}".repeat((1 << 20) + 1) }), "invalid_argument: text"),
        ("append_entry", json!({ "text": "bin\u{0}ary" }), "invalid_argument: text"),
        ("append_entry", json!({ "text": "" }), "invalid_argument: text"),
        ("append_entry", json!({ "text": "t", "agent": "" }), "invalid_argument: agent"),
        ("append_entry", json!({ "text": "t", "agent": "two\nlines" }), "invalid_argument: agent"),
        ("append_entry", json!({ "text": "t", "agent": long }), "invalid_argument: agent"),
        ("append_entry", json!({ "text": "t", "execution_id": long }), "invalid_argument: execution_id"),
        ("append_entry", json!({ "text": "t", "key": long }), "invalid_argument: key"),
        ("append_entry", json!({ "text": "t", "mode": "watch" }), "invalid_argument: mode"),
        (
            "append_entry",
            json!({ "text": "t", "repo_root": "/does/not/exist" }),
            "invalid_argument: repo_root",
        ),
        ("append_entry", json!({ "text": "t", "repo_root": file }), "invalid_argument: repo_root"),
        ("append_entry", json!({ "text": "t", "repo_root": "relative" }), "invalid_argument: repo_root"),
        ("append_entry", json!({ "text": "t", "repo_root": "nul\u{0}" }), "invalid_argument: repo_root"),
        ("append_entry", json!({ "text": "t", "identity_key": "0" }), "invalid_argument: unknown field"),
        ("read_recent", json!({ "since": "+9999999-01-01T00:00:00Z" }), "invalid_argument: since"),
        ("read_recent", json!({ "since": "noon" }), "invalid_argument: since"),
        ("read_recent", json!({ "before": 18_446_744_073_709_551_615_u64 }), "invalid_argument: before"),
        ("read_recent", json!({ "limit": 0 }), "invalid_argument: limit"),
        ("read_recent", json!({ "limit": 1_000_000 }), "invalid_argument: limit"),
        ("set_project", json!({ "name": "two\nlines" }), "invalid_argument: name"),
        ("session_status", json!({ "session_id": "../../etc/passwd" }), "invalid_argument: session_id"),
        ("list_sessions", json!({ "cursor": "x" }), "invalid_argument: cursor"),
        ("start_session", json!({}), "invalid_argument: prompt"),
    ]
}

#[test]
fn it_is_told_and_nothing_is_stored() {
    let ground = Ground::sqlite();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let file = repository.join("file");
    fs::write(&file, "").unwrap();
    let served = Served::start(&ground.home);
    let token = served.token.clone();
    agents.start(&ground.home, "stdio", &repository, &[]);
    agents.connect(&served, "http", &token, &json!({ "Roomette-Repo-Root": repository }), "legacy");
    for connection in ["stdio", "http"] {
        for (tool, arguments, expected) in bad(file.as_str()) {
            let said = agents.refused(connection, tool, &arguments);
            assert!(said.starts_with(expected) && said.len() < 700, "{connection} {tool}: {said}");
        }
    }
    let listed = ground.home.run(&["--json", "ps", "--all"]).ok().json().remove(0);
    assert_eq!(listed["sessions"], json!([]), "nothing was stored");
    // Over HTTP nothing is inferred of where an agent works.
    agents.connect(&served, "nowhere", &token, &json!({}), "2026-07-28");
    assert!(agents.refused("nowhere", "whoami", &json!({})).starts_with("missing_context: "));
}

#[test]
fn who_must_say_who_it_is_and_does_not_is_told_what_to_say() {
    let ground = Ground::sqlite();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let strict = [("ROOMETTE_SCRIBE_REQUIRE_AGENT", "true"), ("ROOMETTE_SCRIBE_REQUIRE_EXECUTION", "true")];
    agents.start(&ground.home, "one", &repository, &strict);
    for (context, missing) in
        [(json!({ "execution_id": "run" }), "`agent`"), (json!({ "agent": "a" }), "`execution_id`")]
    {
        for tool in ["whoami", "read_recent", "append_entry"] {
            let mut arguments = context.clone();
            if tool == "append_entry" {
                arguments["text"] = json!("t");
            }
            let said = agents.refused("one", tool, &arguments);
            assert!(said.starts_with("missing_context: ") && said.contains(missing), "{tool}: {said}");
        }
    }
    let named = json!({ "agent": "a", "execution_id": "run", "text": "t" });
    agents.done("one", "append_entry", &named);
    let listed = ground.home.run(&["--json", "ps", "--all"]).ok().json().remove(0);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn odd_text_is_data() {
    let ground = Ground::sqlite();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    agents.start(&ground.home, "one", &repository, &[]);
    let odd = [
        "a:b",
        "агент",
        "аgent",
        "agent",
        "💡",
        "'; DROP TABLE sessions; --",
        "$(rm -rf ~)",
        "../..",
        "x".repeat(500).as_str(),
    ]
    .map(str::to_owned);
    for (number, agent) in odd.iter().enumerate() {
        let text = format!("\u{1b}[31m{number}\u{1b}[0m \"quoted\" {agent}\r\n\u{7}");
        agents.done("one", "append_entry", &json!({ "agent": agent, "text": text }));
    }
    for (number, agent) in odd.iter().enumerate() {
        let texts = agents.texts("one", &json!({ "agent": agent }));
        assert_eq!(texts, [format!("\u{1b}[31m{number}\u{1b}[0m \"quoted\" {agent}\r\n\u{7}")]);
    }
    // The longest entry, of what takes the most room in a record.
    let longest = "\u{1b}".repeat(1 << 20);
    agents.done("one", "append_entry", &json!({ "agent": "long", "text": longest }));
    assert_eq!(agents.texts("one", &json!({ "agent": "long" })), [longest]);
    // Two spellings of one name are one name.
    agents.done("one", "append_entry", &json!({ "agent": "cafe\u{301}", "text": "one" }));
    assert_eq!(agents.texts("one", &json!({ "agent": "café" })), ["one"]);
    // A terminal that shows the log is not spoken to by an entry.
    let id =
        agents.done("one", "whoami", &json!({ "agent": "agent" }))["session_id"].as_str().unwrap().to_owned();
    let shown = ground.home.run(&["events", &id]).ok().stdout;
    assert!(shown.contains("entry") && !shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn another_agents_session_is_as_if_it_did_not_exist() {
    let ground = Ground::sqlite();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let served = Served::start(&ground.home);
    let token = served.token.clone();
    let issue = |principal: &str| {
        let issued = ground.home.run(&[
            "--json",
            "token",
            "create",
            "--name",
            "t",
            "--principal",
            principal,
            "--verbs",
            "run,control,read",
        ]);
        issued.ok().json().remove(0)["secret"].as_str().unwrap().to_owned()
    };
    let bob = issue("bob");
    let here = json!({ "Roomette-Repo-Root": repository });
    agents.connect(&served, "own", &token, &here, "legacy");
    agents.done("own", "append_entry", &json!({ "agent": "a", "text": "secret" }));
    let id = agents.done("own", "whoami", &json!({ "agent": "a" }))["session_id"].clone();
    // An owner of another name, on another machine, where the same path is another place.
    let there = json!({ "Roomette-Repo-Root": repository, "Roomette-Machine": "elsewhere" });
    agents.connect(&served, "bob", &bob, &there, "legacy");
    assert!(agents.texts("bob", &json!({ "agent": "a" })).is_empty());
    agents.done("bob", "append_entry", &json!({ "agent": "a", "text": "of bob" }));
    assert_eq!(agents.texts("bob", &json!({ "agent": "a" })), ["of bob"]);
    assert_ne!(agents.done("bob", "whoami", &json!({ "agent": "a" }))["session_id"], id);
    for (connection, agent) in [("own", "b"), ("bob", "a")] {
        for tool in ["session_status", "get_result", "stop_session", "send"] {
            let said = agents.refused(connection, tool, &json!({ "agent": agent, "session_id": id }));
            assert!(said.starts_with("not_found: ") && !said.contains("secret"), "{tool}: {said}");
            let made_up = json!({ "agent": agent, "session_id": "ses_00000000000040008000000000000001" });
            let unknown = agents.refused(connection, tool, &made_up);
            let id = id.as_str().unwrap();
            assert_eq!(
                unknown,
                said.replace(id, "ses_00000000000040008000000000000001"),
                "one answer for both"
            );
        }
        let uri = format!("roomette://session/{}/log", id.as_str().unwrap());
        assert!(agents.ask(&json!({ "read": connection, "uri": uri })).get("error").is_some());
    }
    // What lies on the host's machine others learn nothing of.
    agents.connect(&served, "near", &bob, &here, "legacy");
    let there = agents.refused("near", "whoami", &json!({}));
    let gone = agents.refused("near", "whoami", &json!({ "repo_root": "/does/not/exist" }));
    assert_eq!(there.replace(repository.as_str(), "/does/not/exist"), gone);
}
