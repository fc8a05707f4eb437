//! Questions of agents, and answers.

use serde_json::json;
use session_core::approval::{NewApproval, Question};
use session_core::event::Payload;

use crate::world::World;

async fn asked(world: &World) -> String {
    let claimed = world.claim().await;
    let question = Question {
        tool: "shell".parse().unwrap(),
        title: "rm -rf /".into(),
        command: None,
        input: Payload::parse("{\"a\":  1}").unwrap(),
        deadline: None,
    };
    let new = NewApproval { id: world.env.approval_id(), question };
    world.coordinator.ask(claimed.run.fence(), new).await.unwrap().id.to_string()
}

#[tokio::test]
async fn a_question_is_answered_once() {
    let world = World::new();
    let alice = world.token("alice", "run read approve").await;
    let (session, _) = world.start(&alice).await;
    let id = asked(&world).await;
    let path = format!("/v1/approvals/{id}");
    for list in ["/v1/approvals?open=true".to_owned(), format!("/v1/sessions/{session}/approvals")] {
        let page = world.get(&alice, &list).await.is(200);
        assert_eq!((page.text("/items/0/id"), page.text("/items/0/state")), (id.clone(), "open".into()));
    }
    let deny = json!({"verdict": "deny", "lasting": true, "message": "never"});
    for _ in 0..2 {
        let answered = world.post(&alice, &path, &deny).await.is(200);
        assert_eq!(
            (answered.text("/state"), answered.text("/answered_by")),
            ("denied".into(), "alice".into())
        );
    }
    world.post(&alice, &path, &json!({"verdict": "allow"})).await.refused(409, "already_answered");
    assert_eq!(world.get(&alice, "/v1/approvals?open=true").await.is(200).body, json!({"items": []}));
    assert_eq!(world.get(&alice, &path).await.is(200).text("/message"), "never");
}

#[tokio::test]
async fn an_answer_is_its_owners_and_is_checked() {
    let world = World::new();
    let (alice, bob) =
        (world.token("alice", "run read approve").await, world.token("bob", "read approve").await);
    world.start(&alice).await;
    let path = format!("/v1/approvals/{}", asked(&world).await);
    let allow = json!({"verdict": "allow"});
    world.post(&bob, &path, &allow).await.refused(404, "not_found");
    world.get(&bob, &path).await.refused(404, "not_found");
    let reader = world.token("alice", "read").await;
    world.post(&reader, &path, &allow).await.refused(403, "forbidden");
    let cases = [
        (json!({"verdict": "perhaps"}), "verdict"),
        (json!({"verdict": "allow", "for": "ever"}), "for"),
        (json!({"verdict": "allow", "message": "x".repeat(4_001)}), "message"),
        (json!({"verdict": "allow", "message": "a\u{0}b"}), "message"),
    ];
    for (body, field) in cases {
        assert_eq!(world.post(&alice, &path, &body).await.refused(422, "invalid").as_deref(), Some(field));
    }
    let nothing = format!("/v1/approvals/apr_{}", "1".repeat(32));
    world.post(&alice, &nothing, &allow).await.refused(404, "not_found");
    assert_eq!(world.get(&alice, &path).await.is(200).text("/state"), "open");
}

#[tokio::test]
async fn a_run_asks_for_itself_and_looks_for_the_answer() {
    let world = World::new();
    let alice = world.token("alice", "run read approve").await;
    let (session, run) = world.start(&alice).await;
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "").await;
    let (other, other_run) = world.start(&alice).await;
    let asking = format!("/v1/runs/{run}/approvals");
    let question =
        json!({"tool": "shell", "title": "ls?", "command": ["ls", "-l"], "cwd": "/tmp", "input": {"a": 1}});
    let asked = world.post(&token, &asking, &question).await.is(201);
    assert_eq!((asked.text("/state"), asked.text("/session_id")), ("open".into(), session.clone()));
    let at = format!("/v1/approvals/{}", asked.text("/id"));
    assert_eq!(world.get(&token, &at).await.is(200).text("/cwd"), "/tmp");
    world.post(&token, &at, &json!({"verdict": "allow"})).await.refused(403, "forbidden");
    world.post(&alice, &at, &json!({"verdict": "allow"})).await.is(200);
    assert_eq!(world.get(&token, &at).await.is(200).text("/state"), "allowed");
    let answered = format!("{asking}/{}/withdraw", asked.text("/id"));
    assert_eq!(world.post(&token, &answered, &json!({})).await.is(200).text("/state"), "allowed");
    let second = world.post(&token, &asking, &question).await.is(201).text("/id");
    let withdrawing = format!("{asking}/{second}/withdraw");
    let foreign = format!("/v1/runs/{other_run}/approvals/{second}/withdraw");
    world.post(&token, &foreign, &json!({})).await.refused(404, "not_found");
    let expired = world.post(&token, &withdrawing, &json!({"why": "expired"})).await.is(200);
    assert_eq!(expired.text("/state"), "expired");
    let cases = [
        (json!({"title": "?"}), "tool"),
        (json!({"tool": "", "title": "?"}), "tool"),
        (json!({"tool": "a", "title": "x".repeat(2_001)}), "title"),
        (json!({"tool": "a", "title": "?", "command": ["ls"]}), "cwd"),
        (json!({"tool": "a", "title": "?", "command": ["ls"], "cwd": "here"}), "cwd"),
        (json!({"tool": "a", "title": "?", "input": []}), "input"),
        (json!({"tool": "a", "title": "?", "approval_id": second}), "approval_id"),
    ];
    for (body, named) in cases {
        let answer = world.post(&token, &asking, &body).await;
        let found = answer.refused(422, "invalid");
        assert!(found.as_deref() == Some(named) || answer.text("/detail").contains(named), "{}", answer.body);
    }
    let epoch = json!({"tool": "a", "title": "?", "epoch": 2});
    world.post(&token, &asking, &epoch).await.refused(422, "mismatch");
    world.post(&token, &format!("/v1/runs/{other_run}/approvals"), &question).await.refused(404, "not_found");
    world.get(&token, &format!("/v1/sessions/{other}/approvals")).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_runner_that_asks_again_asks_once() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let (_, run) = world.start(&alice).await;
    let claimed = world.claim().await;
    let runner = world.runner_token(claimed.run.state.lease().unwrap().runner).await;
    let asking = format!("/v1/runs/{run}/approvals");
    let id = world.env.approval_id().to_string();
    let question = json!({"epoch": 1, "approval_id": id, "tool": "shell", "title": "ls?"});
    for _ in 0..2 {
        assert_eq!(world.post(&runner, &asking, &question).await.is(201).text("/id"), id);
    }
    let stale = json!({"epoch": 2, "tool": "shell", "title": "ls?"});
    world.post(&runner, &asking, &stale).await.refused(409, "stale_epoch");
}

#[tokio::test]
async fn a_run_that_repeats_its_call_asks_once() {
    let world = World::new();
    let alice = world.token("alice", "run read").await;
    let (session, run) = world.start(&alice).await;
    let token = world.run_token(&world.claim().await, "").await;
    let asking = format!("/v1/runs/{run}/approvals");
    let question = json!({"tool": "shell", "title": "ls?"});
    let first = world.post_once(&token, &asking, "step 1", &question).await.is(201);
    assert_eq!(world.post_once(&token, &asking, "step 1", &question).await.is(201).body, first.body);
    let other = json!({"tool": "shell", "title": "rm?"});
    world.post_once(&token, &asking, "step 1", &other).await.refused(422, "key_reused");
    let second = world.post_once(&token, &asking, "step 2", &question).await.is(201);
    assert_ne!(second.text("/id"), first.text("/id"));
    let open = world.get(&alice, &format!("/v1/sessions/{session}/approvals?open=true")).await.is(200);
    assert_eq!(open.body["items"].as_array().unwrap().len(), 2);
}
