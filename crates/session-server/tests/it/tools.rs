//! What stands beside the routes: let in as one of the API, and doing what its callers may.

use axum::body::Body;
use serde_json::json;
use session_api::runs::CreateRun;
use session_core::run::StopMode;
use session_core::token::{Bearer, RunToken, SigningKey, Verbs};
use session_server::Acting;

use crate::world::{World, request};

#[tokio::test]
async fn a_service_beside_the_routes_learns_whose_a_request_is() {
    let world = World::new();
    let alice = world.token("alice", "read run").await;
    let shown = world.post(&alice, "/mcp/scribe", &json!({})).await.is(200);
    assert_eq!(shown.body, "of alice for read run");
    let started = world.start(&alice).await;
    let claimed = world.claim().await;
    let run = world.run_token(&claimed, "run").await;
    assert_eq!(world.get(&run, "/mcp/scribe").await.is(200).body, format!("of {}", started.1));
    world.get("", "/mcp/scribe").await.refused(401, "unauthenticated");
    world.get("rmt_1", "/mcp/scribe").await.refused(401, "unauthenticated");
    let runner = world.runner_token(world.env.runner_id()).await;
    world.get(&runner, "/mcp/scribe").await.refused(403, "forbidden");
    let foreign = request("POST", &alice, "/mcp/scribe").header("origin", "http://evil.example");
    world.send(foreign.body(Body::empty()).unwrap()).await.refused(403, "foreign_origin");
    world.get(&alice, "/mcp/other").await.refused(404, "no_such_path");
}

#[tokio::test]
async fn a_tool_is_for_who_is_known_and_its_request_is_checked() {
    let world = World::new();
    let alice = world.token("alice", "run").await;
    let call = json!({"arguments": {}, "context": {"agent": {"value": "a", "from": "argument"}}});
    let answer = world.post(&alice, "/v1/tools/whoami", &call).await.is(200);
    assert_eq!(answer.text("/refused/code"), "unavailable", "this coordinator has no scribe");
    world.post("", "/v1/tools/whoami", &call).await.refused(401, "unauthenticated");
    let unknown = json!({"arguments": {}, "who": "me"});
    world.post(&alice, "/v1/tools/whoami", &unknown).await.refused(422, "invalid");
}

#[tokio::test]
async fn an_agent_starts_and_sends_once_a_key_and_only_as_long_as_it_may() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (parent, _) = world.start(&alice).await;
    let parent = parent.parse().unwrap();
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "run").await;
    let key = world.coordinator.store().signing_key(SigningKey::new([0; 32])).await.unwrap();
    let token = RunToken::open(&token, &key, world.env.now()).unwrap();
    let acting = Acting::new(world.state.clone(), Bearer::Run(token));
    let request = || CreateRun { argv: vec!["true".into()], ..CreateRun::default() };
    let key = || Some("k".parse().unwrap());
    let first = acting.start(parent, request(), key()).await.unwrap();
    let again = acting.start(parent, request(), key()).await.unwrap();
    assert_eq!((first.run_id, first.session_id.clone()), (again.run_id, again.session_id));
    let other = CreateRun { argv: vec!["false".into()], ..CreateRun::default() };
    assert_eq!(acting.start(parent, other, key()).await.unwrap_err().code.as_str(), "key_reused");
    let owner = Bearer::Owner { principal: "alice".parse().unwrap(), verbs: Verbs::all() };
    let of_owner = Acting::new(world.state.clone(), owner);
    let child = first.session_id.parse().unwrap();
    let session = world.coordinator.store().session(child).await.unwrap().unwrap();
    assert_eq!(session.parent, Some(parent));
    let busy = acting.send(parent, &session, request(), None).await.unwrap_err();
    assert_eq!(busy.code.as_str(), "busy");
    assert_eq!(acting.stop(child, StopMode::Kill).await.unwrap().len(), 1);
    let result = of_owner.result(child).await.unwrap().unwrap();
    assert!(result.over && result.run.state == "stopped", "{result:?}");
    acting.send(parent, &session, request(), None).await.unwrap();
    world.complete(&claimed).await;
    let over = acting.start(parent, request(), None).await.unwrap_err();
    assert_eq!(over.code.as_str(), "unauthenticated", "its claim is over");
    assert!(of_owner.result(world.env.session_id()).await.unwrap().is_none());
}
