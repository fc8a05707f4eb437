//! What a runner and an executor report: under their own claim, and no other.

use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn a_run_reports_from_its_start_to_its_end() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, run) = world.start(&alice).await;
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "").await;
    let at = |what: &str| format!("/v1/runs/{run}/{what}");
    let claim = json!({"epoch": 1});
    assert_eq!(world.post(&token, &at("starting"), &claim).await.is(200).text("/state"), "starting");
    let started = json!({"epoch": 1, "sandbox": {"level": "full"}});
    assert_eq!(world.post(&token, &at("started"), &started).await.is(200).text("/sandbox/level"), "full");
    assert_eq!(world.post(&token, &at("renew"), &claim).await.is(200).text("/directive"), "continue");
    let bind = json!({
        "executor_session_id": "abc", "hostname": "box", "executor_type": "codex", "project_dir": "/p",
    });
    let path = format!("/v1/sessions/{session}");
    for _ in 0..2 {
        let bound = world.post(&token, &format!("{path}/bind"), &bind).await.is(200);
        assert_eq!(bound.text("/runner"), claimed.run.state.lease().unwrap().runner.to_string());
    }
    let mut other = bind.clone();
    other["executor_session_id"] = json!("def");
    world.post(&token, &format!("{path}/bind"), &other).await.refused(409, "already_bound");
    let said = json!({"events": [{"kind": "message", "payload": {"role": "assistant", "text": "done"}}]});
    world.post(&token, &format!("{path}/events"), &said).await.is(201);
    world.post(&alice, &at("stop"), &json!({"mode": "kill"})).await.is(200);
    assert_eq!(world.post(&token, &at("renew"), &claim).await.is(200).text("/directive"), "kill");
    let done = json!({"epoch": 1, "exit_code": 0, "result": {"last_line": "bye"}});
    assert_eq!(world.post(&token, &at("completed"), &done).await.is(200).text("/state"), "completed");
    // The answer may have got lost: the same again is as good. Another end is not.
    assert_eq!(world.post(&token, &at("completed"), &done).await.is(200).text("/state"), "completed");
    let failed = json!({"epoch": 1, "exit_code": 1, "reason": "exit_nonzero", "message": "no"});
    world.post(&token, &at("failed"), &failed).await.refused(409, "wrong_state");
    world.post(&token, &format!("{path}/events"), &said).await.refused(409, "wrong_state");
    let result = world.get(&alice, &format!("{path}/result")).await.is(200);
    assert_eq!((result.text("/result/last_line"), result.text("/text")), ("bye".into(), "done".into()));
}

#[tokio::test]
async fn a_claim_that_counts_no_more_changes_nothing() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, run) = world.start(&alice).await;
    let first = world.claim().await;
    let token = world.run_token(&first, "").await;
    world.coordinator.give_back(first.run.fence()).await.unwrap();
    let second = world.claim().await;
    let runner = world.runner_token(second.run.state.lease().unwrap().runner).await;
    let at = |what: &str| format!("/v1/runs/{run}/{what}");
    world.post(&token, &at("starting"), &json!({"epoch": 1})).await.refused(409, "stale_epoch");
    let field = world.post(&token, &at("starting"), &json!({"epoch": 2})).await.refused(422, "mismatch");
    assert_eq!(field.as_deref(), Some("epoch"));
    world.post(&runner, &at("starting"), &json!({"epoch": 1})).await.refused(409, "stale_epoch");
    world.post(&runner, &at("starting"), &json!({"epoch": 2})).await.is(200);
    let failed = json!({"epoch": 1, "reason": "exit_nonzero", "message": "late"});
    world.post(&token, &at("failed"), &failed).await.refused(409, "stale_epoch");
    let note = json!({"events": [{"kind": "note", "payload": 1}]});
    world.post(&token, &format!("/v1/sessions/{session}/events"), &note).await.refused(409, "stale_epoch");
    let stopped = json!({"epoch": 2, "reason": "stopped_by_user", "signal": 9, "message": "as asked"});
    let over = world.post(&runner, &at("stopped"), &stopped).await.is(200);
    assert_eq!((&over.body["signal"], over.text("/message")), (&json!(9), "as asked".into()));
}

#[tokio::test]
async fn a_runs_token_is_for_its_own_run_alone() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (own, _) = world.start(&alice).await;
    let claimed = world.claim().await;
    let (other, other_run) = world.start(&alice).await;
    let (weak, strong) = (world.run_token(&claimed, "").await, world.run_token(&claimed, "run").await);
    world.get(&weak, &format!("/v1/sessions/{own}")).await.is(200);
    world.get(&weak, &format!("/v1/sessions/{other}")).await.refused(404, "not_found");
    world.get(&weak, &format!("/v1/runs/{other_run}")).await.refused(404, "not_found");
    world
        .post(&weak, &format!("/v1/runs/{other_run}/starting"), &json!({"epoch": 1}))
        .await
        .refused(404, "not_found");
    let note = json!({"events": [{"kind": "note", "payload": 1}]});
    world.post(&weak, &format!("/v1/sessions/{other}/events"), &note).await.refused(404, "not_found");
    let mut named = note.clone();
    named["run_id"] = json!(other_run);
    let field =
        world.post(&weak, &format!("/v1/sessions/{own}/events"), &named).await.refused(422, "mismatch");
    assert_eq!(field.as_deref(), Some("run_id"));
    for path in ["/v1/sessions", "/v1/tokens", "/v1/approvals", "/metrics"] {
        world.get(&weak, path).await.refused(403, "forbidden");
    }
    world.delete(&weak, &format!("/v1/sessions/{own}")).await.refused(403, "forbidden");
    let start = json!({"type": "start", "argv": ["true"]});
    world.post(&weak, "/v1/runs", &start).await.refused(403, "forbidden");
    let elsewhere = json!({"type": "start", "argv": ["true"], "parent_session_id": other});
    world.post(&strong, "/v1/runs", &elsewhere).await.refused(422, "mismatch");
    let child = world.post(&strong, "/v1/runs", &start).await.is(201).text("/session_id");
    let view = world.get(&strong, &format!("/v1/sessions/{child}")).await.is(200);
    assert_eq!((view.text("/parent"), view.text("/principal")), (own, "alice".into()));
    world.clock.advance(jiff::SignedDuration::from_hours(2));
    world.get(&weak, &format!("/v1/sessions/{child}")).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn a_runs_token_is_worth_no_more_than_its_claim() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, run) = world.start(&alice).await;
    let claimed = world.claim().await;
    let token = world.run_token(&claimed, "run").await;
    let path = format!("/v1/sessions/{session}");
    world.get(&token, &path).await.is(200);
    let epoch = json!({"epoch": 1});
    world.post(&token, &format!("/v1/runs/{run}/starting"), &epoch).await.is(200);
    world.post(&token, &format!("/v1/runs/{run}/started"), &epoch).await.is(200);
    world.post(&token, &format!("/v1/runs/{run}/completed"), &epoch).await.is(200);
    world.get(&token, &path).await.refused(401, "unauthenticated");
    let child = json!({"type": "start", "argv": ["true"]});
    world.post(&token, "/v1/runs", &child).await.refused(401, "unauthenticated");
    let note = json!({"events": [{"kind": "note", "payload": 1}]});
    let late = world.post(&token, &format!("{path}/events"), &note).await;
    assert_eq!(late.status.as_u16(), 409, "{}", late.body);
}

#[tokio::test]
async fn a_runner_reports_of_what_it_holds_and_a_report_is_checked() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, run) = world.start(&alice).await;
    let claimed = world.claim().await;
    let stranger = world.runner_token(world.env.runner_id()).await;
    let owner = world.token("alice", "run read control approve").await;
    let at = |what: &str| format!("/v1/runs/{run}/{what}");
    world.post(&stranger, &at("starting"), &json!({"epoch": 1})).await.refused(404, "not_found");
    world.post(&owner, &at("starting"), &json!({"epoch": 1})).await.refused(403, "forbidden");
    let runner = world.runner_token(claimed.run.state.lease().unwrap().runner).await;
    let cases = [
        ("starting", json!({}), "epoch"),
        ("failed", json!({"epoch": 1, "reason": "bored", "message": ""}), "reason"),
        ("failed", json!({"epoch": 1, "reason": "timeout", "message": "x".repeat(4_001)}), "message"),
        ("failed", json!({"epoch": 1, "reason": "timeout", "message": "", "signal": 65}), "signal"),
        (
            "failed",
            json!({"epoch": 1, "reason": "timeout", "message": "", "signal": 1, "exit_code": 1}),
            "signal",
        ),
        ("completed", json!({"epoch": 1, "exit_code": 256}), "exit_code"),
        ("completed", json!({"epoch": 1, "result": []}), "result"),
        ("started", json!({"epoch": 1, "sandbox": 1}), "sandbox"),
    ];
    for (what, body, field) in cases {
        let answer = world.post(&runner, &at(what), &body).await;
        let found = answer.refused(422, "invalid");
        assert!(
            found.as_deref() == Some(field) || answer.body.to_string().contains(field),
            "{}",
            answer.body
        );
    }
    world.post(&runner, &at("completed"), &json!({"epoch": 1})).await.refused(409, "wrong_state");
    let bind = json!({
        "run_id": run, "epoch": 1, "executor_session_id": "a", "hostname": "h", "executor_type": "codex",
        "project_dir": "relative",
    });
    let path = format!("/v1/sessions/{session}/bind");
    assert_eq!(
        world.post(&runner, &path, &bind).await.refused(422, "invalid").as_deref(),
        Some("project_dir")
    );
    // What comes when the claim is over is known to be late; to others the run is not there.
    world.complete(&claimed).await;
    world
        .post(&runner, &at("failed"), &json!({"epoch": 1, "reason": "timeout", "message": ""}))
        .await
        .refused(409, "stale_epoch");
    world.post(&stranger, &at("completed"), &json!({"epoch": 1})).await.refused(404, "not_found");
}
