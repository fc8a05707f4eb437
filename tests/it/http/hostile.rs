//! What nobody should send: it gets a code and a sentence, and the host lives on.

use std::io::Write as _;

use serde_json::json;
use session_tests::home::Home;
use session_tests::http::Served;

use super::{run, started};

fn raw(served: &Served, path: &str, kind: &str, body: &[u8]) -> session_tests::http::Reply {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: {kind}\r\nContent-Length: \
         {}\r\nConnection: close\r\n\r\n",
        served.address,
        served.token,
        body.len()
    );
    served.raw(&[head.as_bytes(), body].concat())
}

#[test]
fn bodies_that_are_none_are_refused() {
    let home = Home::new();
    let served = Served::start(&home);
    let json = "application/json";
    let large = [&b"{\"type\":\"start\",\"argv\":[\""[..], &vec![b'x'; 100 * 1024 * 1024], b"\"]}"].concat();
    raw(&served, "/v1/runs", json, &large).refused(413, "too_large");
    raw(&served, "/v1/runs", json, b"{\"type\":\"start\",\"argv\":[\"\xff\xfe\"]}").refused(400, "malformed");
    raw(&served, "/v1/runs", json, b"{\"type\":").refused(400, "malformed");
    raw(&served, "/v1/runs", json, b"[]").refused(422, "invalid");
    raw(&served, "/v1/runs", "text/plain", b"{}").refused(415, "unsupported_media_type");
    let unknown = raw(&served, "/v1/runs", json, b"{\"type\":\"start\",\"argv\":[\"true\"],\"colour\":1}");
    unknown.refused(422, "invalid");
    assert!(unknown.text("/detail").contains("colour"), "{}", unknown.body);
    for (body, field) in [
        (json!({"type": "start", "argv": ["a\u{0}b"]}), "argv"),
        (json!({"type": "start", "argv": []}), "argv"),
        (json!({"type": "start", "argv": ["true"], "env": {"A=B": "1"}}), "env"),
        (json!({"type": "start", "argv": ["true"], "env": {"ROOMETTE_TOKEN": "1"}}), "env"),
        (json!({"type": "start", "argv": ["true"], "project_dir": "../.."}), "project_dir"),
        (json!({"type": "start", "argv": ["true"], "sandbox": {"net": "wide"}}), "sandbox.net"),
        (
            json!({"type": "start", "argv": ["true"], "sandbox": {"allow_read": [home.data()]}}),
            "sandbox.allow_read",
        ),
        (json!({"type": "resume", "session_id": "../../etc/passwd"}), "session_id"),
    ] {
        let refused = served.post("/v1/runs", &body);
        refused.refused(422, "invalid");
        assert!(refused.text("/field").starts_with(field), "{}", refused.body);
    }
    served.get("/v1/sessions").is(200);
}

#[test]
fn heads_that_are_none_are_refused() {
    let home = Home::new();
    let served = Served::start(&home);
    let status = |bytes: &[u8]| served.raw(bytes).status;
    assert_eq!(status(b"GARBAGE\r\n\r\n"), 400);
    let long = format!("GET /{} HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(100_000), served.address);
    assert!([414, 431].contains(&status(long.as_bytes())));
    served.ask("GET", "/v1/nothing", &served.token, "").refused(404, "no_such_path");
    served.ask("PUT", "/v1/runs", &served.token, "").refused(405, "method_not_allowed");
    served.ask("GET", "/v1/sessions/ses_%00", &served.token, "").refused(422, "invalid");
    served.ask("GET", "/v1/sessions?limit=0", &served.token, "").refused(422, "invalid");
    served.ask("GET", "/v1/sessions", "rmt_zz", "").refused(401, "unauthenticated");
    served.ask("GET", "/v1/sessions", &"x".repeat(10_000), "").refused(401, "unauthenticated");
    let both = format!(
        "GET /v1/sessions HTTP/1.1\r\nHost: {0}\r\nHost: {0}\r\nAuthorization: Bearer {1}\r\nConnection: close\r\n\r\n",
        served.address, served.token
    );
    served.raw(both.as_bytes()).refused(400, "bad_host");
    // Somebody who says nothing keeps nobody else from being answered.
    let mut silent: Vec<_> = (0..100).map(|_| served.connect()).collect();
    for stream in &mut silent {
        stream.write_all(b"GET /").unwrap();
    }
    served.get("/v1/sessions").is(200);
}

#[test]
fn ids_that_do_not_fit_are_refused() {
    let home = Home::new();
    let served = Served::start(&home);
    let (session, over) = run(&home, &served, &["true"]);
    let (other, live) = started(&served, &["sleep", "1000"]);
    let nobody = "0123456789abcdef0123456789abcdef";
    served.get(&format!("/v1/sessions/ses_{nobody}")).refused(404, "not_found");
    served.get(&format!("/v1/sessions/{over}")).refused(422, "invalid");
    served
        .post(&format!("/v1/approvals/apr_{nobody}"), &json!({"verdict": "allow"}))
        .refused(404, "not_found");
    let note = |run: &str, epoch: u32| json!({"run_id": run, "epoch": epoch, "events": [{"kind": "note", "payload": 1}]});
    // The run of another session, and a claim that is none.
    served.post(&format!("/v1/sessions/{session}/events"), &note(&live, 1)).refused(404, "not_found");
    served.post(&format!("/v1/sessions/{other}/events"), &note(&live, 7)).refused(409, "stale_epoch");
    served.post(&format!("/v1/runs/{live}/completed"), &json!({"epoch": 7})).refused(409, "stale_epoch");
    served.post("/v1/runs", &json!({"type": "resume", "session_id": other})).refused(409, "busy");
    served.post(&format!("/v1/sessions/{other}/stop"), &json!({"mode": "kill"})).is(200);
    home.run(&["wait", &other]);
    served.ask("DELETE", &format!("/v1/sessions/{other}"), &served.token, "").is(204);
    served.ask("DELETE", &format!("/v1/sessions/{other}"), &served.token, "").is(204);
    served.post("/v1/runs", &json!({"type": "resume", "session_id": other})).refused(409, "wrong_state");
    let key = |name: &str| {
        let body = json!({"type": "start", "argv": ["true"], "label": name}).to_string();
        let head = format!(
            "POST /v1/runs HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Idempotency-Key: once\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            served.address,
            served.token,
            body.len()
        );
        served.raw((head + &body).as_bytes())
    };
    let first = key("a").is(201);
    assert_eq!(key("a").is(201).body, first.body);
    key("b").refused(422, "key_reused");
}
