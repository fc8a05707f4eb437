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
    ];
    for (body, field) in cases {
        assert_eq!(world.post(&alice, &path, &body).await.refused(422, "invalid").as_deref(), Some(field));
    }
    let nothing = format!("/v1/approvals/apr_{}", "1".repeat(32));
    world.post(&alice, &nothing, &allow).await.refused(404, "not_found");
    assert_eq!(world.get(&alice, &path).await.is(200).text("/state"), "open");
}
