//! Runs: made, found, ended.

use axum::body::Body;
use serde_json::{Value, json};
use session_core::budget::{BudgetChange, Usage};

use crate::world::{World, request};

#[tokio::test]
async fn a_run_is_there_at_once_and_nothing_has_executed() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let body = json!({
        "type": "start", "argv": ["echo", "it's \"$(x)\"\n"], "label": "first", "env": {"A": "1"}, "timeout_s": 1.5,
        "metadata": {"ticket": 42}, "budget": {"turns": 3}, "priority": 7,
    });
    let made = world.post(&alice, "/v1/runs", &body).await.is(201);
    let run = world.get(&alice, &format!("/v1/runs/{}", made.text("/run_id"))).await.is(200);
    assert_eq!(run.body["argv"], json!(["echo", "it's \"$(x)\"\n"]));
    assert_eq!((run.text("/state"), run.text("/kind")), ("pending".into(), "start".into()));
    assert_eq!((&run.body["env"], &run.body["timeout_s"]), (&json!(["A"]), &json!(1.5)));
    let session = world.get(&alice, &format!("/v1/sessions/{}", made.text("/session_id"))).await.is(200);
    assert_eq!((session.text("/label"), session.text("/principal")), ("first".into(), "alice".into()));
    assert_eq!(session.body["metadata"], json!({"ticket": 42}));
    assert_eq!(session.body["budget"]["turns"], json!({"used": 0, "max": 3}));
    assert_eq!(session.body["last_run"]["id"], run.body["id"]);
}

#[tokio::test]
async fn a_repeated_call_makes_nothing_and_another_one_under_its_key_is_refused() {
    let world = World::new();
    let (alice, bob) = (world.token("alice", "run read").await, world.token("bob", "run read").await);
    let send =
        async |token: &str, key: &str, body: &Value| world.post_once(token, "/v1/runs", key, body).await;
    let body = json!({"type": "start", "argv": ["true"]});
    let first = send(&alice, "k", &body).await.is(201);
    let again = json!({"argv": ["true"], "type": "start"});
    assert_eq!(send(&alice, "k", &again).await.is(201).body, first.body, "the order of fields is nothing");
    assert_ne!(send(&bob, "k", &body).await.is(201).body, first.body, "another principal's keys are others");
    let other = json!({"type": "start", "argv": ["false"]});
    send(&alice, "k", &other).await.refused(422, "key_reused");
    assert_eq!(send(&alice, " ", &body).await.refused(422, "invalid").as_deref(), Some("Idempotency-Key"));
    let list = world.get(&alice, "/v1/sessions").await.is(200);
    assert_eq!(list.body["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_further_run_takes_what_the_last_one_had() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let body = json!({"type": "start", "argv": ["make"], "env": {"A": "1"}, "timeout_s": 5.0});
    let made = world.post(&alice, "/v1/runs", &body).await.is(201);
    let session = made.text("/session_id");
    let resume = json!({"type": "resume", "session_id": session, "env": {"B": "2"}});
    world.post(&alice, "/v1/runs", &resume).await.refused(409, "busy");
    let path = format!("/v1/runs/{}/stop", made.text("/run_id"));
    let stopped = world.send(request("POST", &alice, &path).body(Body::empty()).unwrap()).await.is(200);
    assert_eq!(
        (stopped.text("/state"), stopped.text("/reason")),
        ("stopped".into(), "stopped_by_user".into())
    );
    let again = world.post(&alice, "/v1/runs", &resume).await.is(201);
    assert_eq!(again.text("/session_id"), session);
    let run = world.get(&alice, &format!("/v1/runs/{}", again.text("/run_id"))).await.is(200);
    assert_eq!((&run.body["argv"], &run.body["env"]), (&json!(["make"]), &json!(["A", "B"])));
    assert_eq!((run.text("/kind"), &run.body["timeout_s"]), ("resume".into(), &json!(5.0)));
    // One by one, and then no more.
    let path = format!("/v1/runs?session_id={session}&limit=1");
    let newest = world.get(&alice, &path).await.is(200);
    let oldest = world.get(&alice, &format!("{path}&cursor={}", newest.text("/next"))).await.is(200);
    assert_eq!((oldest.text("/items/0/id"), &oldest.body["next"]), (made.text("/run_id"), &Value::Null));
    let (_, elsewhere) = world.start(&alice).await;
    let (_, foreign) = world.start(&world.token("bob", "run").await).await;
    for cursor in ["x", &format!("run_{}", "1".repeat(32)), &elsewhere, &foreign] {
        let refused = world.get(&alice, &format!("{path}&cursor={cursor}")).await;
        assert_eq!(refused.refused(422, "invalid").as_deref(), Some("cursor"), "{cursor}");
    }
    let behind = world.get(&alice, &format!("{path}&cursor={}", made.text("/run_id"))).await.is(200);
    assert_eq!(behind.body, json!({"items": []}), "it ends with the oldest");
    let runs = world.get(&alice, &format!("/v1/runs?session_id={session}")).await.is(200);
    let ids: Vec<_> = runs.body["items"].as_array().unwrap().iter().map(|run| run["id"].clone()).collect();
    assert_eq!(ids, [again.body["run_id"].clone(), made.body["run_id"].clone()]);
    let last = world.get(&alice, "/v1/runs").await.is(200);
    let last: Vec<_> = last.body["items"].as_array().unwrap().iter().map(|run| &run["id"]).collect();
    assert!(last.contains(&&again.body["run_id"]), "{last:?}");
}

#[tokio::test]
async fn a_key_finds_its_session_and_an_agent_is_asked() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let body = json!({
        "type": "start", "key": "ticket:42", "executor": "codex", "prompt": "go", "model": "large",
        "allow_tools": ["read"], "ask": {"for_ms": 5000},
    });
    let made = world.post(&alice, "/v1/runs", &body).await.is(201);
    let run = world.get(&alice, &format!("/v1/runs/{}", made.text("/run_id"))).await.is(200);
    assert_eq!((run.text("/executor"), run.text("/prompt")), ("codex".into(), "go".into()));
    let session = world.get(&alice, &format!("/v1/sessions/{}", made.text("/session_id"))).await.is(200);
    assert_eq!(session.text("/key"), "ticket:42");
    world.post(&alice, "/v1/runs", &body).await.refused(409, "busy");
}

#[tokio::test]
async fn what_the_session_of_a_key_is_not_is_refused() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let bare = json!({"type": "start", "argv": ["true"], "key": "ticket:42"});
    let with = |more: Value| {
        let mut body = bare.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = with(json!({
        "label": "nightly", "budget": {"tokens": 1000}, "metadata": {"a": 1}, "workspace": "scratch", "agent": "writer",
    }));
    let mut sessions = Vec::new();
    // What it is called is for people, and counts when it is made.
    let relabelled = with(json!({"label": "daily", "budget": {"tokens": 1000}}));
    for body in [&whole, &whole, &bare, &relabelled] {
        let session = world.post(&alice, "/v1/runs", body).await.is(201).text("/session_id");
        world.post(&alice, &format!("/v1/sessions/{session}/stop"), &json!({"mode": "kill"})).await.is(200);
        sessions.push(session);
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1);
    for (other, word) in [
        (json!({"agent": "reader"}), "an agent"),
        (json!({"budget": {"tokens": 5}}), "limits"),
        (json!({"budget": {"turns": 5}}), "limits"),
        (json!({"metadata": {"a": 2}}), "metadata"),
        (json!({"workspace": "in-place", "project_dir": "/srv"}), "a workspace"),
        (json!({"project_dir": "/srv"}), "a workspace"),
        (json!({"parent_session_id": sessions[0]}), "a parent"),
        (json!({"parent_session_id": sessions[0], "callback": true}), "a parent, no callbacks"),
    ] {
        let refused = world.post(&alice, "/v1/runs", &with(other)).await;
        assert_eq!(refused.refused(409, "exists").as_deref(), Some("key"));
        let detail = refused.text("/detail");
        assert!(detail.contains(&sessions[0]) && detail.contains(word), "{detail}");
    }
    // What its owner changes since is no other session: each further message may say the same as the first.
    let (store, id) = (world.coordinator.store(), sessions[0].parse().unwrap());
    let more = BudgetChange::Add(Usage { tokens: 500, ..Usage::NONE });
    store.set_budget(id, more, &"alice".parse().unwrap(), world.env.now()).await.unwrap();
    for tokens in [1_000, 1_500] {
        let again =
            world.post(&alice, "/v1/runs", &with(json!({"budget": {"tokens": tokens}}))).await.is(201);
        assert_eq!(again.text("/session_id"), sessions[0]);
        world.post(&alice, &format!("/v1/sessions/{id}/stop"), &json!({"mode": "kill"})).await.is(200);
    }
    // Another owner's key is another one.
    let bob = world.token("bob", "run read").await;
    let other = world.post(&bob, "/v1/runs", &with(json!({"label": "daily"}))).await.is(201);
    assert_ne!(other.text("/session_id"), sessions[0]);
}

#[tokio::test]
async fn what_is_wrong_with_a_run_is_said_of_its_field() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let cases = [
        (json!({"type": "start"}), "argv"),
        (json!({"type": "start", "argv": ["a\u{0}b"]}), "argv"),
        (json!({"type": "start", "argv": [""]}), "argv"),
        (json!({"type": "start", "argv": "true"}), "argv"),
        (json!({"type": "start", "argv": ["true"], "env": {"A=B": "1"}}), "env"),
        (json!({"type": "start", "argv": ["true"], "timeout_s": 0}), "timeout_s"),
        (json!({"type": "start", "argv": ["true"], "timeout_s": -1e300}), "timeout_s"),
        (json!({"type": "start", "argv": ["true"], "session_id": "ses_1"}), "session_id"),
        (json!({"type": "start", "argv": ["true"], "label": ""}), "label"),
        (json!({"type": "start", "argv": ["true"], "key": "\n"}), "key"),
        (json!({"type": "start", "argv": ["true"], "workspace": "cloud"}), "workspace"),
        (json!({"type": "start", "argv": ["true"], "project_dir": "../x"}), "project_dir"),
        (json!({"type": "start", "argv": ["true"], "workspace": "in-place"}), "project_dir"),
        (json!({"type": "start", "argv": ["true"], "metadata": []}), "metadata"),
        (json!({"type": "start", "argv": ["true"], "budget": {"tokens": -1}}), "budget.tokens"),
        (json!({"type": "start", "argv": ["true"], "budget": {"coins": 1}}), "budget.coins"),
        (json!({"type": "start", "argv": ["true"], "sandbox": {"net": "open"}}), "sandbox"),
        (json!({"type": "start", "argv": ["true"], "model": "m"}), "model"),
        (json!({"type": "start", "argv": ["true"], "parent_session_id": "x"}), "parent_session_id"),
        (json!({"type": "start", "argv": ["true"], "priority": 1e10}), "priority"),
        (json!({"type": "start", "argv": ["true"], "callback": true}), "callback"),
        (json!({"type": "start", "prompt": "go"}), "executor"),
        (json!({"type": "start", "executor": "codex"}), "prompt"),
        (json!({"type": "start", "executor": "codex", "prompt": " "}), "prompt"),
        (json!({"type": "start", "executor": "codex", "prompt": "go", "ask": {"for_ms": 0}}), "ask"),
        (json!({"type": "start", "executor": "codex", "prompt": "go", "allow_tools": [""]}), "allow_tools"),
        (json!({"type": "start", "executor": "", "argv": ["x"]}), "executor"),
        (json!({"type": "resume"}), "session_id"),
        (json!({"type": "resume", "session_id": "../../etc"}), "session_id"),
        (json!({"type": "resume", "session_id": "ses_1", "label": "x"}), "session_id"),
        (json!({"type": "again"}), "type"),
    ];
    for (body, field) in cases {
        let answer = world.post(&alice, "/v1/runs", &body).await;
        assert_eq!(answer.refused(422, "invalid").as_deref(), Some(field), "{body}: {}", answer.body);
    }
    for body in
        [json!({"type": "start", "argv": ["true"], "colour": "red"}), json!({}), json!([]), json!("x")]
    {
        world.post(&alice, "/v1/runs", &body).await.refused(422, "invalid");
    }
    let nobody = format!("ses_{}", "1".repeat(32));
    let resume = json!({"type": "resume", "session_id": nobody});
    world.post(&alice, "/v1/runs", &resume).await.refused(404, "not_found");
    let child = json!({"type": "start", "argv": ["true"], "parent_session_id": nobody});
    world.post(&alice, "/v1/runs", &child).await.refused(404, "not_found");
    let list = world.get(&alice, "/v1/sessions").await.is(200);
    assert_eq!(list.body["items"], json!([]), "nothing was made");
}

#[tokio::test]
async fn the_idempotency_keys_of_a_run_are_those_of_its_session() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let body = json!({"type": "start", "argv": ["true"]}).to_string();
    let send = async |token: &str, key: &str| {
        let request = request("POST", token, "/v1/runs").header("content-type", "application/json");
        let request = request.header("idempotency-key", key);
        world.send(request.body(Body::from(body.clone())).unwrap()).await.is(201).text("/session_id")
    };
    for key in ["step-1", &"k".repeat(200)] {
        let (first, _) = world.start(&alice).await;
        let one = world.run_token(&world.claim().await, "run").await;
        let (second, _) = world.start(&alice).await;
        let two = world.run_token(&world.claim().await, "run").await;
        let children = [send(&one, key).await, send(&two, key).await];
        for (parent, child) in [(&first, &children[0]), (&second, &children[1])] {
            let view = world.get(&alice, &format!("/v1/sessions/{child}")).await.is(200);
            assert_eq!(view.text("/parent"), *parent);
        }
        assert_eq!([send(&one, key).await, send(&two, key).await], children, "the same call again");
        assert!(!children.contains(&send(&alice, key).await), "nor are they the owner's");
        // Nothing is left that another claim of this test could get.
        for _ in 0..3 {
            world.claim().await;
        }
    }
}

#[tokio::test]
async fn a_part_that_is_not_valid_is_called_by_its_name_in_the_request() {
    let world = World::new();
    let alice = world.token("alice", "run").await;
    let agent = |more: Value| {
        let mut body = json!({"type": "start", "executor": "codex", "prompt": "go"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let cases = [
        (agent(json!({"prompt": " "})), "prompt"),
        (agent(json!({"model": "--yolo"})), "model"),
        (agent(json!({"from_history": true})), "from_history"),
        (agent(json!({"ask": {"for_ms": 0}})), "ask"),
        (agent(json!({"allow_tools": vec!["a"; 1_001]})), "allow_tools"),
        (json!({"type": "start", "executor": "command", "argv": ["true"], "prompt": "go"}), "prompt"),
        (json!({"type": "start", "executor": "codex"}), "prompt"),
        (json!({"type": "start", "argv": ["true"], "workspace": "worktree"}), "project_dir"),
        (json!({"type": "start", "argv": ["true"], "project_dir": "here"}), "project_dir"),
        (json!({"type": "start", "argv": ["true"], "project_dir": "/a\u{0}b"}), "project_dir"),
        (
            json!({"type": "start", "argv": ["true"], "project_dir": format!("/{}", "a".repeat(5_000))}),
            "project_dir",
        ),
        (json!({"type": "start", "argv": ["true"], "metadata": {"a": "x".repeat(1 << 20)}}), "metadata"),
    ];
    for (body, field) in cases {
        assert_eq!(
            world.post(&alice, "/v1/runs", &body).await.refused(422, "invalid").as_deref(),
            Some(field)
        );
    }
}
