//! How the API ends: in order, or by a kill from which the next host goes on.

use rustix::process::Signal;
use serde_json::json;
use session_tests::home::Home;
use session_tests::http::Served;

use super::{run, started};

#[test]
fn readers_of_a_host_that_leaves_are_asked_back() {
    let home = Home::new();
    let mut served = Served::start(&home);
    let (session, _) = run(&home, &served, &["true"]);
    let page = served.get(&format!("/v1/sessions/{session}/events?limit=1000")).is(200);
    let count = page.body["items"].as_array().unwrap().len() as u64;
    let mut readers: Vec<_> = (0..10).map(|_| served.follow(&session, Some(count - 1))).collect();
    for reader in &mut readers {
        assert_eq!(reader.frame().unwrap().id, Some(count));
    }
    served.signal(Signal::TERM);
    for reader in &mut readers {
        assert_eq!(reader.frame().unwrap().event.as_deref(), Some("reconnect"));
        assert_eq!(reader.frame(), None);
    }
    assert_eq!(served.ended(), Some(0));
    home.until_free();
}

#[test]
fn a_host_that_was_killed_is_followed_by_one_that_goes_on() {
    let home = Home::new();
    let mut served = Served::start(&home);
    let (session, live) = started(&served, &["sh", "-c", "echo ready; sleep 1000"]);
    home.until_logged(&session, "ready");
    let note = |n: u64| json!({"events": [{"kind": "note", "payload": {"n": n}}]});
    let path = format!("/v1/sessions/{session}/events");
    let acknowledged = served.post(&path, &note(1)).is(201).body["seqs"][0].as_u64().unwrap();
    let mut reader = served.follow(&session, Some(acknowledged - 1));
    assert_eq!(reader.frame().unwrap().id, Some(acknowledged));
    let waiting = served.post("/v1/runs", &json!({"type": "start", "argv": ["true"]})).is(201);
    let secret = served.token.clone();
    served.signal(Signal::KILL);
    assert_eq!(served.ended(), None);
    assert_eq!(reader.frame(), None);
    home.until_free();
    let served = Served::start(&home);
    assert_eq!(served.token, secret);
    // What was acknowledged is there, and the reader goes on behind it.
    let mut reader = served.follow(&session, Some(acknowledged - 1));
    assert_eq!(reader.frame().unwrap().data["payload"], json!({"n": 1}));
    home.run(&["wait", &session]);
    let over = served.get(&format!("/v1/runs/{live}")).is(200);
    assert_eq!(over.text("/state"), "lost", "{}", over.body);
    home.run(&["wait", &waiting.text("/session_id")]).ok();
    let found = served.get(&format!("/v1/runs/{}", waiting.text("/run_id"))).is(200);
    assert_eq!(found.text("/state"), "completed");
    served.post("/v1/runs", &json!({"type": "resume", "session_id": session, "argv": ["true"]})).is(201);
}
