//! The API as the processes of a session find it: their own address, their own token, and no more than their own run.

use std::fs;

use serde_json::{Value, json};
use session_tests::home::Home;
use session_tests::http::{Reply, Served};

/// A run that says where the API is and what its token is, and stays. Session, run, address and token.
fn staying(home: &Home, served: &Served, sandbox: &Value) -> (String, String, Vec<String>) {
    let script = "printf '%s\\n' \"$ROOMETTE_URL\" \"$ROOMETTE_TOKEN\" \"$TRACEPARENT\" > $ROOMETTE_OUTPUT_DIR/found; \
                  echo ready; sleep 1000";
    let body = json!({"type": "start", "argv": ["sh", "-c", script], "sandbox": sandbox});
    let made = served.post("/v1/runs", &body).is(201);
    let session = made.text("/session_id");
    home.until_logged(&session, "ready");
    let found = fs::read_to_string(home.data().join("output").join(&session).join("found")).unwrap();
    (session, made.text("/run_id"), found.lines().map(Into::into).collect())
}

#[test]
fn a_run_has_a_token_for_itself_alone() {
    let home = Home::new();
    let served = Served::start(&home);
    let (session, run, found) = staying(&home, &served, &json!({}));
    let [url, token, trace] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(url, &format!("http://{}", served.address));
    let id = run.strip_prefix("run_").unwrap();
    assert_eq!(trace, &format!("00-{id}-{}-01", &id[16..]));
    let ask = |method: &str, path: &str, body: &Value| -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        served.ask(method, path, token, &body)
    };
    let nothing = Value::Null;
    let path = format!("/v1/sessions/{session}");
    ask("GET", &path, &nothing).is(200);
    let note = json!({"events": [{"kind": "note", "payload": {"from": "inside"}, "producer": "me", "producer_seq": 1}]});
    let appended = ask("POST", &format!("{path}/events"), &note).is(201);
    assert_eq!(ask("POST", &format!("{path}/events"), &note).is(201).body, appended.body);
    ask("GET", "/v1/sessions", &nothing).refused(403, "forbidden");
    ask("DELETE", &path, &nothing).refused(403, "forbidden");
    let child = ask("POST", "/v1/runs", &json!({"type": "start", "argv": ["true"]})).is(201);
    let view = served.get(&format!("/v1/sessions/{}", child.text("/session_id"))).is(200);
    assert_eq!(view.text("/parent"), session);
    let wider = json!({"type": "start", "argv": ["true"], "sandbox": {"level": "off"}});
    ask("POST", "/v1/runs", &wider).refused(422, "wider_sandbox");
    // A person answers what the run asks.
    let question = json!({"tool": "shell", "title": "May I?"});
    let asked = ask("POST", &format!("/v1/runs/{run}/approvals"), &question).is(201).text("/id");
    assert!(home.run(&["approvals"]).ok().stdout.contains("May I?"));
    ask("POST", &format!("/v1/approvals/{asked}"), &json!({"verdict": "allow"})).refused(403, "forbidden");
    home.run(&["approvals", "allow", &asked, "--message", "go on"]).ok();
    let answered = ask("GET", &format!("/v1/approvals/{asked}"), &nothing).is(200);
    assert_eq!((answered.text("/state"), answered.text("/message")), ("allowed".into(), "go on".into()));
    let bind = |id: &str| json!({"executor_session_id": id, "hostname": "here", "executor_type": "command", "project_dir": "/tmp"});
    ask("POST", &format!("{path}/bind"), &bind("a")).is(200);
    ask("POST", &format!("{path}/bind"), &bind("a")).is(200);
    ask("POST", &format!("{path}/bind"), &bind("b")).refused(409, "already_bound");
    home.run(&["stop", "--now", &session]).ok();
    home.run(&["wait", &session]);
    ask("GET", &path, &nothing).refused(401, "unauthenticated");
    assert_eq!(
        ask("POST", &format!("{path}/events"), &json!({"events": [{"kind": "note", "payload": 1}]})).status,
        409
    );
}

#[test]
fn a_session_with_a_network_of_its_own_has_no_token() {
    let home = Home::new();
    let served = Served::start(&home);
    let (_, _, found) = staying(&home, &served, &json!({"net": "none"}));
    assert_eq!(found[..2], ["", ""]);
    // A host that serves nothing gives none either.
    drop(served);
    home.until_free();
    let session = home.detached(&["sh", "-c", "echo \"<$ROOMETTE_URL$ROOMETTE_TOKEN>\""]);
    home.run(&["wait", &session]);
    assert_eq!(home.run(&["logs", &session]).ok().stdout, "<>\n");
}

#[test]
fn the_api_is_reached_from_inside() {
    let home = Home::new();
    let served = Served::start(&home);
    let script = "at=${ROOMETTE_URL#http://}; exec 3<>/dev/tcp/${at%:*}/${at#*:}; printf 'GET /v1/sessions/%s HTTP/1.1\\r\\n\
                  Host: %s\\r\\nAuthorization: Bearer %s\\r\\nConnection: close\\r\\n\\r\\n' \"$ROOMETTE_SESSION_ID\" \"$at\" \
                  \"$ROOMETTE_TOKEN\" >&3; head -1 <&3";
    let (session, _) = super::run(&home, &served, &["bash", "-c", script]);
    assert_eq!(home.run(&["logs", &session]).ok().stdout.trim(), "HTTP/1.1 200 OK");
}
