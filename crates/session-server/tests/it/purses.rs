//! A run's children spend from the budget of the run's own session: together no more than that has, and what they leave
//! comes back.

use serde_json::{Value, json};
use session_core::SessionId;
use session_core::budget::Usage;
use session_core::ports::{ClaimedRun, RunProgress, Spent};
use session_core::run::Ending;

use crate::world::World;

fn child(budget: &Value) -> Value {
    json!({"type": "start", "argv": ["true"], "budget": budget})
}

/// A session whose run is claimed, with 1000 tokens of which 400 are used, and two turns; its id, and the run's token.
async fn parent(world: &World, alice: &str) -> (SessionId, String) {
    let body = child(&json!({"tokens": 1_000, "turns": 2}));
    let parent = world.post(alice, "/v1/runs", &body).await.is(201).text("/session_id").parse().unwrap();
    let token = world.run_token(&world.claim().await, "run").await;
    let used = Usage { tokens: 400, ..Usage::NONE };
    world.coordinator.store().settle(parent, Usage::NONE, used, None, world.env.now()).await.unwrap();
    (parent, token)
}

async fn shares(world: &World, alice: &str, session: &str, part: &str) -> [Value; 3] {
    let view = world.get(alice, &format!("/v1/sessions/{session}")).await.is(200);
    ["tokens", "turns", "tool_calls"].map(|name| view.body["budget"][name][part].clone())
}

/// Ends a run of a child that used so many tokens.
async fn end(world: &World, claimed: &ClaimedRun, tokens: u64) {
    let (store, now) = (world.coordinator.store(), world.env.now());
    let (fence, worst) = (claimed.run.fence(), Usage { tokens: 20, turns: 1, ..Usage::NONE });
    store.reserve(claimed.session.id, worst, now).await.unwrap();
    for to in [RunProgress::Starting, RunProgress::RUNNING] {
        store.advance(fence, to, now).await.unwrap();
    }
    let spent = Spent { worst, actual: Usage { tokens, ..worst } };
    store.finish_and_settle(fence, Ending::completed(None), None, Some(spent), now).await.unwrap();
}

#[tokio::test]
async fn children_have_no_more_together_than_their_parent() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (parent, token) = parent(&world, &alice).await;
    for (name, amount) in [("tokens", 601), ("turns", 3)] {
        let refused = world.post(&token, "/v1/runs", &child(&json!({name: amount}))).await;
        assert_eq!(refused.refused(422, "invalid"), Some(format!("budget.{name}")));
    }
    let start = async |body: Value| {
        let made = world.post(&token, "/v1/runs", &body).await.is(201);
        (made.text("/session_id"), world.claim().await)
    };
    let (first, first_run) = start(child(&json!({"tokens": 500}))).await;
    assert_eq!(shares(&world, &alice, &first, "max").await, [json!(500), json!(1), json!(25)]);
    let (second, second_run) = start(json!({"type": "start", "argv": ["true"]})).await;
    assert_eq!(shares(&world, &alice, &second, "max").await, [json!(25), json!(1), json!(19)], "a quarter");
    let of_parent = async |part| shares(&world, &alice, &parent.to_string(), part).await;
    assert_eq!(of_parent("allotted").await, [json!(525), json!(2), json!(44)]);
    let refused = world.post(&token, "/v1/runs", &json!({"type": "start", "argv": ["true"]})).await;
    refused.refused(409, "budget_exhausted");

    end(&world, &first_run, 70).await;
    assert_eq!(of_parent("used").await, [json!(470), json!(1), json!(0)]);
    assert_eq!(of_parent("allotted").await, [json!(25), json!(1), json!(19)]);
    end(&world, &second_run, 30).await;
    assert_eq!(of_parent("used").await, [json!(500), json!(2), json!(0)], "five more than it had");
    assert_eq!(of_parent("allotted").await, [Value::Null, Value::Null, Value::Null]);
}

/// Where nothing is left of what an agent cannot do without, and nothing was said of it, there is no child that fails as soon
/// as it begins. What is a command's does without.
#[tokio::test]
async fn an_agent_is_not_started_without_anything() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (parent, token) = parent(&world, &alice).await;
    let all = Usage { tokens: 600, ..Usage::NONE };
    world.coordinator.store().reserve(parent, all, world.env.now()).await.unwrap();
    let agent = json!({"type": "start", "executor": "codex", "prompt": "go"});
    world.post(&token, "/v1/runs", &agent).await.refused(409, "budget_exhausted");
    let said = json!({"type": "start", "executor": "codex", "prompt": "go", "budget": {"tokens": 0}});
    world.post(&token, "/v1/runs", &said).await.is(201);
    world.post(&token, "/v1/runs", &json!({"type": "start", "argv": ["true"]})).await.is(201);
}

#[tokio::test]
async fn what_an_owner_starts_the_owner_pays_for() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (parent, _) = parent(&world, &alice).await;
    let mut owners = child(&json!({"tokens": 1_000_000}));
    owners["parent_session_id"] = json!(parent);
    world.post(&alice, "/v1/runs", &owners).await.is(201);
    let session = world.coordinator.store().session(parent).await.unwrap().unwrap();
    assert_eq!(session.allotted, Usage::NONE);
}

#[tokio::test]
async fn a_renewal_says_what_a_run_may_use() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    world.post(&alice, "/v1/runs", &child(&json!({"tokens": 1_000, "turns": 2}))).await.is(201);
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "run").await;
    let (path, claim) = (format!("/v1/runs/{}/renew", claimed.run.id), json!({"epoch": claimed.run.epoch.0}));
    let left = async || world.post(&token, &path, &claim).await.is(200).body;
    let expected = json!({"directive": "continue", "left": {"tokens": 1_000, "tool_calls": 100, "turns": 2}});
    assert_eq!(left().await, expected);
    world.post(&token, "/v1/runs", &child(&json!({"tokens": 300}))).await.is(201);
    assert_eq!(left().await["left"], json!({"tokens": 700, "tool_calls": 75, "turns": 1}));
    world
        .coordinator
        .store()
        .request_stop(claimed.run.id, session_core::run::StopMode::Graceful, world.env.now())
        .await
        .unwrap();
    assert_eq!(left().await, json!({"directive": "stop"}));
}
