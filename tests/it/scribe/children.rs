//! Agents that start others, and agents that roomette started: each is who it is, and sees what is its own.

use std::fs;

use serde_json::{Value, json};
use session_tests::home::Home;
use session_tests::http::Served;
use session_tests::program::roomette;
use session_tests::scribe::Agents;

use super::Ground;

/// What an agent is told of a session once nothing runs in it.
fn result(home: &Home, agents: &mut Agents, context: &Value, session: &Value) -> Value {
    // However it ended.
    let _ended = home.run(&["wait", session.as_str().unwrap(), "--timeout", "60s"]);
    let mut arguments = context.clone();
    arguments["session_id"] = session.clone();
    let result = agents.done("one", "get_result", &arguments);
    assert_eq!(result["over"], json!(true), "{result}");
    result
}

#[test]
fn an_agent_starts_sends_reads_and_stops() {
    let ground = Ground::sqlite();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    agents.start(&ground.home, "one", &repository, &[]);
    let context = json!({ "agent": "a" });
    let start = json!({ "agent": "a", "argv": ["/bin/echo", "hello"], "label": "greeting", "key": "k" });
    let started = agents.done("one", "start_session", &start);
    assert_eq!(agents.done("one", "start_session", &start), started, "a key starts it once");
    let session = &started["session_id"];
    let first = result(&ground.home, &mut agents, &context, session);
    assert_eq!(
        (&first["state"], &first["result"]["last_line"]),
        (&json!("completed"), &json!("hello")),
        "{first}"
    );
    let again =
        json!({ "agent": "a", "session_id": session, "argv": ["/bin/sh", "-c", "echo again; exit 3"] });
    assert_ne!(agents.done("one", "send", &again)["run_id"], started["run_id"]);
    let second = result(&ground.home, &mut agents, &context, session);
    assert_eq!((&second["state"], &second["reason"]), (&json!("failed"), &json!("exit_nonzero")), "{second}");
    let sleep = json!({ "agent": "a", "argv": ["/bin/sleep", "600"] });
    let sleeper = agents.done("one", "start_session", &sleep)["session_id"].clone();
    let busy =
        agents.refused("one", "send", &json!({ "agent": "a", "session_id": sleeper, "argv": ["/bin/true"] }));
    assert!(busy.starts_with("busy: "), "{busy}");
    agents.done("one", "stop_session", &json!({ "agent": "a", "session_id": sleeper, "now": true }));
    assert_eq!(result(&ground.home, &mut agents, &context, &sleeper)["state"], "stopped");
    let listed = agents.done("one", "list_sessions", &context);
    let labels: Vec<_> =
        listed["sessions"].as_array().unwrap().iter().map(|one| one["label"].clone()).collect();
    assert_eq!(labels, [Value::Null, Value::Null, json!("greeting")]);
    let uris = agents.ask(&json!({ "resources": "one" }))["uris"].clone();
    assert_eq!(uris, json!([]), "who names no agent has no session yet, and gets none by that");
    // Nobody else sees any of it.
    let others = agents.refused("one", "get_result", &json!({ "agent": "b", "session_id": session }));
    assert!(others.starts_with("not_found: "), "{others}");
}

/// Says to `roomette mcp` what stands in a file, and prints its answers.
const ROOM: &str = r#"import json, subprocess, sys
said = [json.loads(line) for line in open(sys.argv[1])]
mcp = subprocess.Popen([sys.argv[2], "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def ask(id, method, params):
    mcp.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n")
    mcp.stdin.flush()
    return json.loads(mcp.stdout.readline())
ask(0, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
mcp.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
for call in said:
    print(json.dumps(ask(1, "tools/call", call)), flush=True)
mcp.stdin.close()
sys.exit(mcp.wait())
"#;

/// Runs that in a room, and tells the answers.
fn in_a_room(home: &Home, said: &[Value]) -> Vec<Value> {
    let place = home.path().join("room");
    fs::create_dir(&place).unwrap();
    let (script, calls) = (place.join("room.py"), place.join("calls"));
    fs::write(&script, ROOM).unwrap();
    let lines: Vec<_> = said.iter().map(ToString::to_string).collect();
    fs::write(&calls, lines.join("\n")).unwrap();
    let program = roomette();
    let directory = program.parent().unwrap();
    let reads = ["--allow-read", place.as_str(), "--allow-read", directory.as_str()];
    let argv = ["--", "/usr/bin/python3", script.as_str(), calls.as_str(), program.as_str()];
    let told = home.run(&[&["--json", "run"][..], &reads, &argv].concat()).ok();
    let session = told.json().pop().unwrap()["session"].as_str().unwrap().to_owned();
    let logged = home.run(&["logs", &session]).ok().stdout;
    let answers: Vec<Value> = logged.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(answers.len(), said.len(), "{logged}");
    answers
}

#[test]
fn a_run_is_who_its_token_says() {
    let ground = Ground::sqlite();
    let served = Served::start(&ground.home);
    let call = |tool: &str, arguments: Value| json!({ "name": tool, "arguments": arguments });
    let answers = in_a_room(
        &ground.home,
        &[
            call("whoami", json!({})),
            call("append_entry", json!({ "text": "in a room", "key": "k" })),
            call("read_recent", json!({})),
            call("read_recent", json!({ "agent": "somebody else" })),
            call("read_recent", json!({ "repo_root": "/" })),
        ],
    );
    let who = &answers[0]["result"]["structuredContent"];
    assert!(who["run_id"].is_string() && who["session_id"].is_string(), "{answers:?}");
    assert_eq!(answers[1]["result"]["structuredContent"]["session_id"], who["session_id"], "{answers:?}");
    assert_eq!(answers[2]["result"]["structuredContent"]["entries"][0]["text"], "in a room", "{answers:?}");
    for claimed in &answers[3..] {
        let said = claimed["result"]["content"][0]["text"].as_str().unwrap();
        assert!(said.starts_with("forbidden: "), "{said}");
    }
    // It is in the log of its session, as everything that happens there.
    let id = who["session_id"].as_str().unwrap();
    assert!(ground.home.run(&["events", id]).ok().stdout.contains("in a room"));
    drop(served);
}

/// Calls tools of the scribe in a room, each an array of its name and its arguments, and prints the answers.
const CALLS: &str = r#"import json, os, sys, urllib.request
for name, arguments in json.loads(sys.argv[1]):
    headers = {"Authorization": "Bearer " + os.environ["ROOMETTE_TOKEN"], "Content-Type": "application/json"}
    body = json.dumps({"arguments": arguments}).encode()
    print(urllib.request.urlopen(urllib.request.Request(os.environ["ROOMETTE_URL"] + "/v1/tools/" + name, body, headers)).read().decode())
"#;

#[test]
fn a_notebook_that_is_run_is_in_a_room_and_commands_nobody_outside_of_it() {
    let ground = Ground::sqlite();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let served = Served::start(&ground.home);
    let repository = ground.repository("repo");
    let secret = repository.join("secret");
    fs::write(&secret, "secret").unwrap();
    agents.start(&ground.home, "one", &repository, &[]);
    let context = json!({ "agent": "a" });
    let kept = agents.done("one", "append_entry", &json!({ "agent": "a", "text": "kept" }));
    let notebook = kept["session_id"].as_str().unwrap();
    assert_ne!(ground.home.inspect(notebook)["sandbox"]["level"], "off");
    // What the agent starts is bounded by the settings, and not by its notebook.
    let argv = ["/bin/sh", "-c", "echo made > made"];
    let start = json!({ "agent": "a", "argv": argv, "project_dir": repository, "workspace": "in-place" });
    let child = agents.done("one", "start_session", &start)["session_id"].clone();
    assert_eq!(result(&ground.home, &mut agents, &context, &child)["state"], "completed");
    assert_eq!(fs::read_to_string(repository.join("made")).unwrap(), "made\n");
    // A run of the notebook has what any session has.
    let spy = ["resume", notebook, "--", "/bin/cat", secret.as_str()];
    assert_ne!(ground.home.run(&spy).code, 0);
    let report = ground.home.inspect(notebook)["last_run"]["sandbox"].clone();
    assert!(report["level"] == "full" || report["level"] == "floor", "{report}");
    assert!(!ground.home.run(&["logs", notebook]).ok().stdout.contains("secret\n"));
    // It reads what was kept, and nobody who may do more than itself works for it.
    let send = json!({ "session_id": child, "argv": ["/bin/cat", secret] });
    let calls = json!([["read_recent", {}], ["send", send], ["start_session", start]]).to_string();
    let resume = ["resume", notebook, "--", "/usr/bin/python3", "-c", CALLS, &calls];
    ground.home.run(&resume).ok();
    let logged = ground.home.run(&["logs", notebook]).ok().stdout;
    let answers: Vec<Value> = logged.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [notes, refused, started] = answers.as_slice() else { panic!("{logged}") };
    assert_eq!(notes["answer"]["entries"][0]["text"], "kept", "{notes}");
    assert_eq!(refused["refused"]["code"], "forbidden", "{refused}");
    assert!(started["refused"]["message"].is_string(), "{started}");
    drop(served);
}
