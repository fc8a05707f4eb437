//! The built program's HTTP API: who is let in, where it listens, and what comes of a first run.

mod ending;
mod hostile;
mod inside;
mod streams;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use session_store::testing::pg;
use session_tests::home::Home;
use session_tests::http::{Served, ask_unix};

/// A run of this program through the API, to its end: session and run.
fn run(home: &Home, served: &Served, argv: &[&str]) -> (String, String) {
    let (session, run) = started(served, argv);
    home.run(&["wait", &session]);
    (session, run)
}

/// The same without waiting.
fn started(served: &Served, argv: &[&str]) -> (String, String) {
    let made = served.post("/v1/runs", &json!({"type": "start", "argv": argv})).is(201);
    (made.text("/session_id"), made.text("/run_id"))
}

/// A token of this principal with these verbs.
fn token(home: &Home, principal: &str, verbs: &str) -> String {
    let made = home.run(&["token", "create", "--name", "t", "--principal", principal, "--verbs", verbs]).ok();
    made.stdout.trim().to_owned()
}

#[test]
fn a_first_run_takes_a_token_and_two_calls() {
    let home = Home::new();
    let mut served = Served::listening(&home, &["--listen", "127.0.0.1:0"]);
    assert!(served.says().contains("roomette token create"));
    served.get("/v1/sessions").refused(401, "unauthenticated");
    let made = home.run(&["token", "create", "--name", "mine", "--expires", "1h"]).ok();
    assert!(made.stderr.contains("of tester for read, run, control, approve"), "{}", made.stderr);
    served.token = made.stdout.trim().into();
    assert_eq!(made.stdout.trim().len(), 68);
    let (session, run) = run(&home, &served, &["sh", "-c", "echo hello; echo done"]);
    let view = served.get(&format!("/v1/runs/{run}")).is(200);
    assert_eq!((view.text("/state"), view.text("/executor")), ("completed".into(), "command".into()));
    let result = served.get(&format!("/v1/sessions/{session}/result")).is(200);
    assert_eq!(result.body["over"], json!(true), "{}", result.body);
    // It is the same session for the command.
    assert_eq!(home.inspect(&session)["principal"], json!("tester"));
    assert_eq!(home.run(&["logs", &session]).ok().stdout, "hello\ndone\n");
    // And a further run through the API takes what the first one had.
    let resume = json!({"type": "resume", "session_id": session});
    served.post("/v1/runs", &resume).is(201);
    home.run(&["wait", &session]);
    let runs = served.get(&format!("/v1/runs?session_id={session}")).is(200);
    assert_eq!(runs.body["items"].as_array().map(Vec::len), Some(2));
    served.get("/healthz").is(200);
    served.get("/readyz").is(200);
}

#[test]
fn others_see_nothing_and_get_no_more_than_their_sandbox() {
    let home = Home::new();
    let served = Served::start(&home);
    let (session, run) = run(&home, &served, &["true"]);
    let guest = token(&home, "guest", "read,run,control,approve");
    let ask = |method: &str, path: &str, body: &str| served.ask(method, path, &guest, body);
    for path in ["", "/status", "/result", "/events", "/approvals", "/children", "/affinity"] {
        ask("GET", &format!("/v1/sessions/{session}{path}"), "").refused(404, "not_found");
    }
    ask("GET", &format!("/v1/runs/{run}"), "").refused(404, "not_found");
    ask("DELETE", &format!("/v1/sessions/{session}"), "").refused(404, "not_found");
    ask("POST", &format!("/v1/sessions/{session}/stop"), "").refused(404, "not_found");
    assert_eq!(ask("GET", "/v1/sessions", "").is(200).body, json!({"items": []}));
    let start = |extra: serde_json::Value| {
        let mut body = json!({"type": "start", "argv": ["true"]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask("POST", "/v1/runs", &body.to_string())
    };
    for (extra, field) in [
        (json!({"sandbox": {"level": "off"}}), "sandbox.level"),
        (json!({"sandbox": {"allow_read": ["/etc"]}}), "sandbox.allow_read"),
        (json!({"project_dir": "/etc", "workspace": "in-place"}), "project_dir"),
    ] {
        let refused = start(extra);
        refused.refused(422, "invalid");
        assert_eq!(refused.text("/field"), field);
    }
    let own = start(json!({})).is(201).text("/session_id");
    assert_eq!(home.inspect(&own)["principal"], json!("guest"));
    // Nor is anything opened by a variable.
    let private = home.path().join("private/bin");
    std::fs::create_dir_all(&private).unwrap();
    let path = json!({"env": {"PATH": format!("{private}:/usr/bin:/bin")}});
    let session = start(path).is(201).text("/session_id");
    let shown = ask("GET", &format!("/v1/sessions/{session}"), "").is(200);
    assert!(!shown.body["sandbox"]["allow_read"].to_string().contains("private"), "{}", shown.body);
    let ended = home.run(&["token", "ls"]).ok();
    let id =
        ended.lines().into_iter().find(|line| line.contains(" guest ")).unwrap().split(' ').next().unwrap();
    home.run(&["token", "rm", id]).ok();
    ask("GET", "/v1/sessions", "").refused(401, "unauthenticated");
    assert!(home.run(&["token", "ls", "--all"]).ok().stdout.contains("revoked"));
    home.run(&["token", "rm", "tok_f00d"]).exits(4);
    home.run(&["token", "create", "--name", "n", "--verbs", "fly"]).exits(2);
}

#[test]
fn a_public_address_asks_who_is_there() {
    let home = Home::new();
    let refused = home.run(&["serve", "--listen", "0.0.0.0:0"]).exits(5);
    assert!(refused.stderr.contains("roomette token create"), "{}", refused.stderr);
    home.run(&["token", "create", "--name", "n"]).ok();
    home.until_free();
    let mut open = home.command(&["serve", "--listen", "0.0.0.0:0"]);
    open.env("ROOMETTE_SERVE_WITHOUT_TOKEN", "true");
    let refused = session_tests::home::left(open).exits(5);
    assert!(refused.stderr.contains("serve.without_token = false"), "{}", refused.stderr);
    let served = Served::listening(&home, &["--listen", "0.0.0.0:0"]);
    assert!(served.address.starts_with("0.0.0.0:"));
    drop(served);
    home.until_free();
    for bad in ["example.com:80", "7777", "unix:"] {
        home.run(&["serve", "--listen", bad]).exits(2);
    }
    home.run(&["serve", "--token-file", "t"]).exits(2);
}

#[test]
fn loopback_is_open_where_the_settings_say_so() {
    let home = Home::new().with("ROOMETTE_SERVE_WITHOUT_TOKEN", "true");
    let served = Served::listening(&home, &["--listen", "127.0.0.1:0"]);
    let (session, _) = run(&home, &served, &["true"]);
    assert_eq!(served.get(&format!("/v1/sessions/{session}")).is(200).text("/principal"), "tester");
    // A page in a browser has its own name for this address.
    let request = "GET /v1/sessions HTTP/1.1\r\nHost: evil.example:80\r\nConnection: close\r\n\r\n";
    served.raw(request.as_bytes()).refused(403, "foreign_host");
}

#[test]
fn a_socket_lets_its_owner_in() {
    let home = Home::new();
    let path = home.path().join("api.sock");
    let at = format!("unix:{path}");
    let mut served = Served::listening(&home, &["--listen", &at]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let start = json!({"type": "start", "argv": ["true"]}).to_string();
    let made = ask_unix(&path, "POST", "/v1/runs", &start).is(201);
    home.run(&["wait", &made.text("/session_id")]);
    let view = ask_unix(&path, "GET", &format!("/v1/runs/{}", made.text("/run_id")), "").is(200);
    assert_eq!(view.text("/state"), "completed");
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(served.ended(), Some(0));
    assert!(!path.exists());
    fs::write(&path, "precious").unwrap();
    home.run(&["serve", "--listen", &at]).exits(1);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_token_file_is_made_once_and_is_its_owners_alone() {
    let home = Home::new();
    let file = home.path().join("token");
    let first = Served::start(&home);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = first.token.clone();
    drop(first);
    home.until_free();
    let second = Served::start(&home);
    assert_eq!(second.token, secret);
    second.get("/v1/tokens").is(200);
    drop(second);
    home.until_free();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--token-file", file.as_str()];
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    home.run(&arguments).exits(1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "hunter2").unwrap();
    let refused = home.run(&arguments).exits(2);
    assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
}

#[tokio::test]
async fn the_same_over_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let home = Home::new().with("ROOMETTE_STORE_URL", database.url());
    let served = Served::start(&home);
    let (session, _) = run(&home, &served, &["echo", "hello"]);
    let mut reader = served.follow(&session, None);
    let last = served.get(&format!("/v1/sessions/{session}/events?limit=1000")).is(200);
    let count = last.body["items"].as_array().unwrap().len() as u64;
    for seq in 1..=count {
        assert_eq!(reader.frame().unwrap().id, Some(seq));
    }
    let note = json!({"events": [{"kind": "note", "payload": {"a": 1}}]});
    served.post(&format!("/v1/sessions/{session}/events"), &note).is(201);
    assert_eq!(reader.frame().unwrap().id, Some(count + 1));
}
