//! Who is let in, and what that one sees.

use axum::body::Body;
use futures_util::stream;
use serde_json::json;

use crate::world::{World, request};

#[tokio::test]
async fn what_is_somebody_elses_is_answered_as_if_it_did_not_exist() {
    let world = World::new();
    let (alice, mallory) =
        (world.token("alice", "all").await, world.token("mallory", "read run control approve").await);
    let (session, run) = world.start(&alice).await;
    let nowhere = (format!("ses_{}", "1".repeat(32)), format!("run_{}", "1".repeat(32)));
    let say =
        |answer: &crate::world::Answer, id: &str| answer.body["detail"].as_str().unwrap().replace(id, "ID");
    for what in ["", "/status", "/result", "/affinity", "/children", "/events", "/approvals"] {
        let path = |id: &str| format!("/v1/sessions/{id}{what}");
        let (foreign, unknown) =
            (world.get(&mallory, &path(&session)).await, world.get(&mallory, &path(&nowhere.0)).await);
        foreign.refused(404, "not_found");
        assert_eq!(say(&foreign, &session), say(&unknown, &nowhere.0), "{what}");
    }
    for (run, session) in [(&run, &session), (&nowhere.1, &nowhere.0)] {
        world.get(&mallory, &format!("/v1/runs/{run}")).await.refused(404, "not_found");
        world.post(&mallory, &format!("/v1/runs/{run}/stop"), &json!({})).await.refused(404, "not_found");
        world
            .post(&mallory, &format!("/v1/sessions/{session}/stop"), &json!({}))
            .await
            .refused(404, "not_found");
        world.delete(&mallory, &format!("/v1/sessions/{session}")).await.refused(404, "not_found");
        world.get(&mallory, &format!("/v1/runs?session_id={session}")).await.refused(404, "not_found");
        let events = json!({"events": [{"kind": "note", "payload": {}}]});
        world
            .post(&mallory, &format!("/v1/sessions/{session}/events"), &events)
            .await
            .refused(404, "not_found");
        let resume = json!({"type": "resume", "session_id": session});
        world.post(&mallory, "/v1/runs", &resume).await.refused(404, "not_found");
    }
    assert_eq!(world.get(&mallory, "/v1/sessions").await.is(200).body, json!({"items": []}));
    assert_eq!(world.get(&mallory, "/v1/runs").await.is(200).body, json!({"items": []}));
    assert_eq!(
        world.get(&alice, "/v1/sessions").await.is(200).text("/items/0/status"),
        "pending",
        "untouched"
    );
    let admin = world.token("root", "all").await;
    assert_eq!(world.get(&admin, "/v1/sessions").await.is(200).text("/items/0/id"), session);
}

#[tokio::test]
async fn nobody_is_let_in_without_a_token_that_counts() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let cut = &alice[..alice.len() - 1];
    let other = format!("rmt_{}", "0".repeat(64));
    let forged = "rmr_eyJ2IjoxfQ.AAAA";
    for token in ["", cut, &other, forged, "rmr_", "x", "rmt_"] {
        let answer = world.get(token, "/v1/sessions").await;
        answer.refused(401, "unauthenticated");
        assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        assert!(token.len() < 8 || !answer.body.to_string().contains(token), "a token is not repeated");
    }
    for value in ["Basic YWxpY2U6", "Bearer", "bearer", ""] {
        let request = request("GET", "", "/v1/sessions").header("authorization", value);
        world.send(request.body(Body::empty()).unwrap()).await.refused(401, "unauthenticated");
    }
    let twice = request("GET", &alice, "/v1/sessions").header("authorization", format!("Bearer {alice}"));
    world.send(twice.body(Body::empty()).unwrap()).await.refused(401, "unauthenticated");
    world.get("", &format!("/v1/sessions?token={alice}")).await.refused(401, "unauthenticated");
    world.get(&alice, "/v1/sessions").await.is(200);
}

#[tokio::test]
async fn a_verb_is_for_what_it_says_and_nothing_else() {
    let world = World::new();
    let owner = world.token("alice", "all").await;
    let (session, _) = world.start(&owner).await;
    let (read, run, control) = (
        world.token("alice", "read").await,
        world.token("alice", "run").await,
        world.token("alice", "control").await,
    );
    let start = json!({"type": "start", "argv": ["true"]});
    for token in [&read, &control] {
        world.post(token, "/v1/runs", &start).await.refused(403, "forbidden");
        let resume = json!({"type": "resume", "session_id": session});
        world.post(token, "/v1/runs", &resume).await.refused(403, "forbidden");
    }
    for token in [&run, &control] {
        for path in ["/v1/sessions", "/v1/runs", "/v1/approvals", &format!("/v1/sessions/{session}")] {
            world.get(token, path).await.refused(403, "forbidden");
        }
        let unknown = format!("/v1/sessions/ses_{}", "1".repeat(32));
        world.get(token, &unknown).await.refused(403, "forbidden");
    }
    for token in [&run, &read] {
        world.delete(token, &format!("/v1/sessions/{session}")).await.refused(403, "forbidden");
    }
    world.delete(&control, &format!("/v1/sessions/{session}")).await.is(204);
}

#[tokio::test]
async fn probes_and_the_description_ask_nobody() {
    let world = World::new();
    assert_eq!(world.get("", "/healthz").await.is(200).body, json!("ok\n"));
    assert_eq!(world.get("", "/readyz").await.is(200).body, json!("ready\n"));
    assert_eq!(world.get("", "/openapi.json").await.is(200).text("/openapi"), "3.1.0");
    world.get("", "/metrics").await.refused(401, "unauthenticated");
    let alice = world.token("alice", "read").await;
    world.get(&alice, "/v1/nothing/at/all").await.refused(404, "no_such_path");
    let text = world.get(&alice, "/metrics").await.is(200).body.as_str().unwrap().to_owned();
    let line = r#"roomette_http_requests_total{route="none",method="GET",status="404"} 1"#;
    assert!(text.contains(line), "{text}");
    world.drain.cancel();
    world.get("", "/healthz").await.is(200);
    world.get("", "/readyz").await.refused(503, "draining");
    let refused = world.get(&alice, "/v1/sessions").await;
    refused.refused(503, "draining");
    assert_eq!(refused.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_run_is_told_the_same_of_what_is_somebody_elses_and_of_what_is_not_there() {
    let world = World::new();
    let (alice, bob) = (world.token("alice", "all").await, world.token("bob", "all").await);
    let (theirs, their_run) = world.start(&bob).await;
    let held = world.run_token(&world.claim().await, "").await;
    let question = json!({"tool": "shell", "title": "ls?"});
    let asked = world.post(&held, &format!("/v1/runs/{their_run}/approvals"), &question).await.is(201);
    world.start(&alice).await;
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "run").await;
    let pairs = [
        (format!("/v1/sessions/{theirs}"), format!("/v1/sessions/ses_{}", "1".repeat(32))),
        (format!("/v1/runs/{their_run}"), format!("/v1/runs/run_{}", "1".repeat(32))),
        (format!("/v1/approvals/{}", asked.text("/id")), format!("/v1/approvals/apr_{}", "1".repeat(32))),
    ];
    for (foreign, unknown) in &pairs {
        world.get(&token, foreign).await.refused(404, "not_found");
        world.get(&token, unknown).await.refused(404, "not_found");
    }
    world.complete(&claimed).await;
    for path in pairs.iter().flat_map(|(foreign, unknown)| [foreign, unknown]) {
        world.get(&token, path).await.refused(401, "unauthenticated");
    }
}

#[tokio::test]
async fn a_run_begins_nothing_in_a_session_that_its_owner_has_a_key_for() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let keyed = json!({"type": "start", "argv": ["true"], "key": "ticket-1"});
    let own = world.post(&alice, "/v1/runs", &keyed).await.is(201).text("/session_id");
    world.complete(&world.claim().await).await;
    world.start(&alice).await;
    let token = world.run_token(&world.claim().await, "run").await;
    let field = world.post(&token, "/v1/runs", &keyed).await.refused(403, "forbidden");
    assert_eq!(field.as_deref(), Some("key"));
    let runs = world.get(&alice, &format!("/v1/runs?session_id={own}")).await.is(200);
    assert_eq!(runs.body["items"].as_array().unwrap().len(), 1, "untouched");
}

#[tokio::test]
async fn a_run_that_lost_its_claim_while_its_request_was_on_the_way_starts_no_child() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "run").await;
    let coordinator = world.coordinator.clone();
    // Its owner was known by the head; the body comes when the claim counts no more.
    let body = stream::once(async move {
        coordinator.give_back(claimed.run.fence()).await.unwrap();
        Ok::<_, std::io::Error>(json!({"type": "start", "argv": ["true"]}).to_string())
    });
    let request = request("POST", &token, "/v1/runs").header("content-type", "application/json");
    let late = world.send(request.body(Body::from_stream(body)).unwrap()).await;
    late.refused(401, "unauthenticated");
    let children = world.get(&alice, &format!("/v1/sessions/{session}/children")).await.is(200);
    assert_eq!(children.body["items"], json!([]));
}
