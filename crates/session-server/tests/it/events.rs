//! The log: appended to once, read in pages.

use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn an_owner_appends_and_a_retry_is_a_no_op() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, _) = world.start(&alice).await;
    let path = format!("/v1/sessions/{session}/events");
    let note = |n: u64, text: &str| json!({"kind": "vendor.note", "payload": {"text": text}, "producer": "cli", "producer_seq": n});
    let first = json!({"events": [note(1, "a"), note(2, "b")]});
    let seqs = world.post(&alice, &path, &first).await.is(201).body;
    assert_eq!(world.post(&alice, &path, &first).await.is(201).body, seqs);
    let other = json!({"events": [note(3, "c"), note(2, "other")]});
    world.post(&alice, &path, &other).await.refused(409, "origin_conflict");
    let page = world.get(&alice, &path).await.is(200);
    let kinds: Vec<_> =
        page.body["items"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["session.created", "run.state", "vendor.note", "vendor.note"],
        "nothing of the refused batch"
    );
    let page = world.get(&alice, &format!("{path}?after=1&limit=2")).await.is(200);
    assert_eq!(
        (&page.body["items"][0]["seq"], &page.body["after"], &page.body["more"]),
        (&json!(2), &json!(3), &json!(true))
    );
    let end = world.get(&alice, &format!("{path}?after=99")).await.is(200);
    assert_eq!(end.body, json!({"items": [], "after": 99, "more": false}));
}

#[tokio::test]
async fn a_payload_is_kept_byte_for_byte() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, _) = world.start(&alice).await;
    let path = format!("/v1/sessions/{session}/events");
    let body = "{\"events\": [{\"kind\": \"note\", \"payload\": {\"b\": 1.0,  \"a\": 1e400}}]}";
    let request = crate::world::request("POST", &alice, &path).header("content-type", "application/json");
    world.send(request.body(body.into()).unwrap()).await.is(201);
    let answer = world.get(&alice, &format!("{path}?after=2")).await.is(200).body.to_string();
    assert!(
        answer.contains("{\\\"b\\\": 1.0,  \\\"a\\\": 1e400}")
            || answer.contains("{\"b\": 1.0,  \"a\": 1e400}"),
        "{answer}"
    );
}

#[tokio::test]
async fn what_only_the_program_says_nobody_appends() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, run) = world.start(&alice).await;
    let path = format!("/v1/sessions/{session}/events");
    for kind in ["grant", "session.state", "session.mine", "run.state", "usage", "permission.answered"] {
        let body = json!({"events": [{"kind": "note", "payload": 1}, {"kind": kind, "payload": {}}]});
        let field = world.post(&alice, &path, &body).await.refused(422, "reserved_kind");
        assert_eq!(field.as_deref(), Some("events[1].kind"));
    }
    let cases = [
        (json!({"events": []}), "events"),
        (json!({"events": [{"kind": "", "payload": {}}]}), "events[0].kind"),
        (json!({"events": [{"kind": "note"}]}), "events[0]"),
        (json!({"events": [{"kind": "note", "payload": "x".repeat(1 << 20)}]}), "events[0].payload"),
        (json!({"events": [{"kind": "note", "payload": 1, "producer": "x"}]}), "events[0].producer"),
        (
            json!({"events": [{"kind": "note", "payload": 1, "producer": "x", "producer_seq": u64::MAX}]}),
            "events[0].producer_seq",
        ),
        (json!({"epoch": 1, "events": [{"kind": "note", "payload": 1}]}), "epoch"),
        (json!({"run_id": run, "events": [{"kind": "note", "payload": 1}]}), "epoch"),
        (json!({"run_id": "run_1", "events": [{"kind": "note", "payload": 1}]}), "run_id"),
    ];
    for (body, field) in cases {
        let answer = world.post(&alice, &path, &body).await;
        assert_eq!(answer.refused(422, "invalid").as_deref(), Some(field), "{}", answer.body);
    }
    for query in ["after=-1", "after=18446744073709551615", "limit=0", "since=1"] {
        world.get(&alice, &format!("{path}?{query}")).await.refused(422, "invalid");
    }
    let page = world.get(&alice, &path).await.is(200);
    assert_eq!(page.body["items"].as_array().unwrap().len(), 2, "nothing was appended");
}
