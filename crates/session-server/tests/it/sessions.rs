//! Sessions: listed in pages, looked at, stopped, ended.

use serde_json::{Value, json};

use crate::world::{Answer, World};

#[tokio::test]
async fn a_list_is_paged_without_gap_or_double() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let mut made = Vec::new();
    for _ in 0..7 {
        made.push(world.start(&alice).await.0);
        world.clock.advance(jiff::SignedDuration::from_millis(1));
    }
    made.reverse();
    let (mut found, mut path) = (Vec::new(), "/v1/sessions?limit=3".to_owned());
    loop {
        let page = world.get(&alice, &path).await.is(200);
        let ids = page.body["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap());
        found.extend(ids.map(str::to_owned));
        let Some(next) = page.body["next"].as_str() else { break };
        path = format!("/v1/sessions?limit=3&cursor={next}");
    }
    assert_eq!(found, made);
    for bad in ["limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=1-ses_1", "colour=1", "busy=perhaps"]
    {
        world.get(&alice, &format!("/v1/sessions?{bad}")).await.refused(422, "invalid");
    }
}

#[tokio::test]
async fn a_list_shows_what_was_asked_for() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let body = json!({"type": "start", "argv": ["true"], "label": "x"});
    let labelled = world.post(&alice, "/v1/runs", &body).await.is(201).text("/session_id");
    let (over, _) = world.start(&alice).await;
    world.delete(&alice, &format!("/v1/sessions/{over}")).await.is(204);
    world.delete(&alice, &format!("/v1/sessions/{over}")).await.is(204);
    let count = async |query: &str| {
        let page = world.get(&alice, &format!("/v1/sessions?{query}")).await.is(200);
        let ids: Vec<_> =
            page.body["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
        ids
    };
    assert_eq!(count("").await.len(), 2);
    for query in ["label=x", "live=true", "busy=true", "principal=alice&live=true"] {
        assert_eq!(count(query).await, [Value::String(labelled.clone())], "{query}");
    }
    assert_eq!(count("principal=bob").await, [Value::Null; 0]);
    let session = world.get(&alice, &format!("/v1/sessions/{over}")).await.is(200);
    assert_eq!(
        (session.text("/state"), session.text("/terminated_because")),
        ("terminated".into(), "killed".into())
    );
}

#[tokio::test]
async fn where_it_stands_and_what_it_came_to() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, run) = world.start(&alice).await;
    let at = |what: &str| format!("/v1/sessions/{session}/{what}");
    let status = world.get(&alice, &at("status")).await.is(200);
    assert_eq!(
        status.body,
        json!({
            "session_id": session, "status": "pending", "state": "active", "run_id": run, "over": false,
        })
    );
    assert_eq!(world.get(&alice, &at("result")).await.is(200).body["over"], json!(false));
    let affinity = world.get(&alice, &at("affinity")).await.is(200);
    assert_eq!(affinity.body, json!({"session_id": session, "resumable": false}));
    let stopped = world.post(&alice, &at("stop"), &json!({"mode": "kill"})).await.is(200);
    assert_eq!(stopped.body, json!({"runs": [run]}));
    for nothing in [json!({}), Value::Null] {
        assert_eq!(world.post(&alice, &at("stop"), &nothing).await.is(200).body, json!({"runs": []}));
    }
    let field = world.post(&alice, &at("stop"), &json!({"mode": "gently"})).await.refused(422, "invalid");
    assert_eq!(field.as_deref(), Some("mode"));
    let result = world.get(&alice, &at("result")).await.is(200);
    assert_eq!((&result.body["over"], result.text("/run/state")), (&json!(true), "stopped".into()));
    assert_eq!(world.get(&alice, &at("children")).await.is(200).body, json!({"items": []}));
}

#[tokio::test]
async fn children_are_their_parents() {
    let world = World::new();
    let (alice, bob) = (world.token("alice", "run read").await, world.token("bob", "run read").await);
    let (parent, _) = world.start(&alice).await;
    let body = json!({"type": "start", "argv": ["true"], "parent_session_id": parent});
    let child = world.post(&alice, "/v1/runs", &body).await.is(201).text("/session_id");
    world.post(&bob, "/v1/runs", &body).await.refused(404, "not_found");
    let children = world.get(&alice, &format!("/v1/sessions/{parent}/children")).await.is(200);
    assert_eq!((children.text("/items/0/id"), children.text("/items/0/parent")), (child, parent));
}

#[tokio::test]
async fn a_result_is_found_however_much_came_after_it() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, run) = world.start(&alice).await;
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "").await;
    let events = format!("/v1/sessions/{session}/events");
    let message = |payload: Value| json!({ "kind": "message", "payload": payload });
    let said = json!({ "events": [
        message(json!({ "role": "assistant", "text": "first" })),
        message(json!({ "role": "assistant", "text": "do", "unfinished": true })),
        message(json!({ "role": "assistant", "text": "ne", "continues": true })),
    ] });
    world.post(&token, &events, &said).await.is(201);
    let report = |what: &str| format!("/v1/runs/{run}/{what}");
    for step in ["starting", "started"] {
        world.post(&token, &report(step), &json!({"epoch": 1})).await.is(200);
    }
    let done = json!({"epoch": 1, "exit_code": 0, "result": {"last_line": "bye"}});
    world.post(&token, &report("completed"), &done).await.is(200);
    let notes = vec![json!({"kind": "note", "payload": {}}); 200];
    world.post(&alice, &events, &json!({ "events": notes })).await.is(201);
    let result = world.get(&alice, &format!("/v1/sessions/{session}/result")).await.is(200);
    assert_eq!((result.text("/result/last_line"), result.text("/text")), ("bye".into(), "done".into()));
}

/// What `GET …/result` says of a run whose agent said this, in entries of the log, and that was stopped then.
async fn said_last(entries: &[Value]) -> Answer {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, run) = world.start(&alice).await;
    let token = world.run_token(&world.claim().await, "").await;
    for entries in entries.chunks(100) {
        let events: Vec<_> =
            entries.iter().map(|entry| json!({ "kind": "message", "payload": entry })).collect();
        world
            .post(&token, &format!("/v1/sessions/{session}/events"), &json!({ "events": events }))
            .await
            .is(201);
    }
    for (step, report) in [
        ("starting", json!({"epoch": 1})),
        ("failed", json!({"epoch": 1, "reason": "timeout", "message": ""})),
    ] {
        world.post(&token, &format!("/v1/runs/{run}/{step}"), &report).await.is(200);
    }
    world.get(&alice, &format!("/v1/sessions/{session}/result")).await.is(200)
}

#[tokio::test]
async fn the_last_words_of_a_run_are_whole_however_long_they_took() {
    let piece = |number: usize| match number {
        0 => json!({"role": "assistant", "text": "[0]", "unfinished": true}),
        _ => {
            json!({"role": "assistant", "text": format!("[{number}]"), "continues": true, "unfinished": true})
        }
    };
    let mut entries = vec![json!({"role": "assistant", "text": "before"})];
    entries.extend((0..300).map(piece));
    let result = said_last(&entries).await;
    let whole = (0..300).map(|number| format!("[{number}]")).collect::<Vec<_>>().concat();
    assert_eq!((result.text("/text"), &result.body["text_cut"]), (whole, &Value::Null));

    // What was broken off does not count, whatever it was.
    entries.push(json!({"role": "assistant", "text": "", "continues": true, "abandoned": true}));
    assert_eq!(said_last(&entries).await.text("/text"), "before");
    entries.push(json!({"role": "assistant", "text": "anew"}));
    assert_eq!(said_last(&entries).await.text("/text"), "anew");

    // There is an end, and it is told.
    let long = "x".repeat(100 * 1024);
    let mut entries = vec![json!({"role": "assistant", "text": "begin"})];
    entries.extend((0..30).map(|_| json!({"role": "assistant", "text": long, "continues": true})));
    let result = said_last(&entries).await;
    let text = result.text("/text");
    assert!(text.starts_with('x') && text.len() >= 1024 * 1024, "{}", text.len());
    assert_eq!(result.body["text_cut"], json!(true));
}

#[tokio::test]
async fn a_page_of_sessions_is_bounded_in_bytes_and_the_next_one_goes_on() {
    const SESSIONS: usize = 60;
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    for _ in 0..SESSIONS {
        let metadata = json!({"a": "x".repeat(512 * 1024)});
        let body = json!({"type": "start", "argv": ["true", "y".repeat(100 * 1024)], "metadata": metadata});
        world.post(&alice, "/v1/runs", &body).await.is(201);
    }
    for list in ["/v1/sessions?limit=1000", "/v1/runs?limit=1000"] {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = world.get(&alice, &format!("{list}{cursor}")).await.is(200);
            assert!(page.body.to_string().len() < 16 * 1024 * 1024, "{list}");
            found.extend(page.body["items"].as_array().unwrap().iter().map(|item| item["id"].to_string()));
            let Some(next) = page.body["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let all: std::collections::BTreeSet<_> = found.iter().collect();
        assert_eq!((found.len(), all.len()), (SESSIONS, SESSIONS), "{list}");
    }
}
