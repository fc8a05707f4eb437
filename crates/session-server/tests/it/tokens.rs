//! Tokens: issued never stronger, shown once, revoked with all that came of them.

use serde_json::{Value, json};
use session_core::token::Subject;

use crate::world::World;

#[tokio::test]
async fn a_token_issues_weaker_ones_and_takes_them_with_it() {
    let world = World::new();
    let alice = world.token("alice", "read run").await;
    let body = json!({"name": "ci", "verbs": ["read"], "expires_at": "2026-01-02T00:00:00Z"});
    let made = world.post(&alice, "/v1/tokens", &body).await.is(201);
    let (child, id) = (made.text("/secret"), made.text("/token/id"));
    world.get(&child, "/v1/sessions").await.is(200);
    let grandchild = world.post(&child, "/v1/tokens", &json!({"name": "x", "verbs": ["read"]})).await.is(201);
    assert_eq!(grandchild.text("/token/expires_at"), "2026-01-02T00:00:00Z", "it ends with its parent");
    let list = world.get(&alice, "/v1/tokens").await.is(200);
    let items = list.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 3);
    assert!(!list.body.to_string().contains("rmt_"), "no secret is shown again");
    let revoked = world.delete(&alice, &format!("/v1/tokens/{id}")).await.is(200);
    assert_ne!(revoked.body["revoked_at"], Value::Null);
    for token in [&child, &grandchild.text("/secret")] {
        world.get(token, "/v1/sessions").await.refused(401, "unauthenticated");
    }
    world.delete(&alice, &format!("/v1/tokens/{id}")).await.is(200);
}

#[tokio::test]
async fn nobody_makes_itself_stronger() {
    let world = World::new();
    let alice = world.token("alice", "read run").await;
    let cases = [
        (json!({"name": "x", "verbs": ["admin"]}), 403, "stronger_token"),
        (json!({"name": "x", "verbs": ["read"], "principal": "bob"}), 403, "stronger_token"),
        (
            json!({"name": "x", "verbs": ["runner"], "runner_id": format!("rnr_{}", "1".repeat(32))}),
            403,
            "stronger_token",
        ),
        (json!({"name": "x", "verbs": []}), 422, "invalid"),
        (json!({"name": "x", "verbs": ["everything"]}), 422, "invalid"),
        (json!({"name": "", "verbs": ["read"]}), 422, "invalid"),
        (json!({"name": "x", "verbs": ["read"], "runner_id": "me"}), 422, "invalid"),
        (json!({"name": "x", "verbs": ["read"], "expires_at": "tomorrow"}), 422, "invalid"),
        (json!({"name": "x", "verbs": ["read"], "expires_at": "2025-01-01T00:00:00Z"}), 422, "invalid"),
        (json!({"name": "x", "verbs": ["read"], "secret": "mine"}), 422, "invalid"),
    ];
    for (body, status, code) in cases {
        world.post(&alice, "/v1/tokens", &body).await.refused(status, code);
    }
    let bob = world.token("bob", "read").await;
    let theirs = world.get(&bob, "/v1/tokens").await.is(200).text("/items/0/id");
    world.delete(&alice, &format!("/v1/tokens/{theirs}")).await.refused(404, "not_found");
    world.get(&bob, "/v1/sessions").await.is(200);
    let root = world.token("root", "all").await;
    let made =
        world.post(&root, "/v1/tokens", &json!({"name": "b", "verbs": ["run"], "principal": "bob"})).await;
    assert_eq!(made.is(201).text("/token/principal"), "bob");
}

#[tokio::test]
async fn a_token_revokes_none_that_is_stronger() {
    let world = World::new();
    let alice = world.token("alice", "read run control").await;
    let strong = world.get(&alice, "/v1/tokens").await.is(200).text("/items/0/id");
    let weak = world.token("alice", "read").await;
    let runner = world.token_of("alice", "read run control", Subject::Runner(world.env.runner_id())).await;
    for token in [&weak, &runner] {
        world.delete(token, &format!("/v1/tokens/{strong}")).await.refused(403, "forbidden");
    }
    world.get(&alice, "/v1/sessions").await.is(200);
    let own = world.get(&weak, "/v1/tokens").await.is(200);
    let own = own.body["items"].as_array().unwrap().iter().find(|token| token["verbs"] == json!(["read"]));
    let own = own.unwrap()["id"].as_str().unwrap().to_owned();
    world.delete(&weak, &format!("/v1/tokens/{own}")).await.is(200);
    world.get(&weak, "/v1/sessions").await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn a_repeated_call_issues_one_token_and_shows_its_secret_again() {
    let world = World::new();
    let (alice, bob) = (world.token("alice", "read run").await, world.token("bob", "read run").await);
    let other = world.token("alice", "read run").await;
    let body = json!({"name": "ci", "verbs": ["read"], "expires_at": "2026-01-02T00:00:00Z"});
    let first = world.post_once(&alice, "/v1/tokens", "k", &body).await.is(201);
    assert_eq!(world.post_once(&alice, "/v1/tokens", "k", &body).await.is(201).body, first.body);
    world.get(&first.text("/secret"), "/v1/sessions").await.is(200);
    // What one caller's key leads to is nobody else's, be it another token of the same principal.
    for shown in [&bob, &other] {
        let made = world.post_once(shown, "/v1/tokens", "k", &body).await.is(201);
        assert_ne!(made.text("/secret"), first.text("/secret"));
    }
    for (field, value) in [("name", json!("cd")), ("verbs", json!(["run"])), ("expires_at", Value::Null)] {
        let mut body = body.clone();
        body[field] = value;
        world.post_once(&alice, "/v1/tokens", "k", &body).await.refused(422, "key_reused");
    }
    let path = format!("/v1/tokens/{}", first.text("/token/id"));
    world.delete(&alice, &path).await.is(200);
    // The secret of a token that lets nobody in is not given as if it did.
    let again = world.post_once(&alice, "/v1/tokens", "k", &body).await;
    again.refused(409, "wrong_state");
    assert!(again.text("/detail").contains(&first.text("/token/id")));
    world.post_once(&alice, "/v1/tokens", "l", &body).await.is(201);
}
