//! Runners: they come, wait for work, live, report, and go.

use serde_json::{Value, json};
use session_core::budget::Usage;

use crate::world::World;

/// A runner that registered, as its own requests say it.
struct Runner<'w> {
    world: &'w World,
    id: String,
    token: String,
    instance: u64,
}

fn registration(id: &str) -> Value {
    json!({"id": id, "hostname": "box", "executors": ["command", "codex"], "version": "1.0.0"})
}

impl<'w> Runner<'w> {
    async fn new(world: &'w World) -> Self {
        let joining = world.token("fleet", "runner").await;
        let id = world.env.runner_id().to_string();
        let answer = world.post(&joining, "/v1/runners", &registration(&id)).await.is(201);
        assert_eq!(answer.body["lease_ms"], json!(90_000));
        Self { world, id, token: answer.text("/secret"), instance: 1 }
    }

    async fn post(&self, what: &str, body: &Value) -> crate::world::Answer {
        let mut body = body.clone();
        if !matches!(what, "reports" | "session-reports" | "session" | "answer") {
            body["instance"] = json!(self.instance);
        }
        self.world.post(&self.token, &format!("/v1/runners/{}/{what}", self.id), &body).await
    }

    async fn claim(&self) -> Value {
        let claim = self.world.env.claim_id().to_string();
        self.post("claim", &json!({"claim_id": claim})).await.is(200).body["claim"].clone()
    }

    async fn report(&self, run: &str, epoch: u32, what: Value) -> crate::world::Answer {
        self.post("reports", &json!({"run_id": run, "epoch": epoch, "what": what})).await
    }
}

fn ended(settled: bool) -> Value {
    let amounts = |tokens: u32| json!({"tokens": tokens, "tool_calls": 0, "turns": 1});
    let mut ended = json!({"ending": {"kind": "completed", "exit_code": 0}, "result": {"last_line": "bye"}});
    if settled {
        ended["settled"] = json!({"worst": amounts(500), "actual": amounts(70)});
    }
    json!({"ended": ended})
}

#[tokio::test]
async fn a_runner_comes_works_and_reports_and_each_report_counts_once() {
    let world = World::new();
    let runner = Runner::new(&world).await;
    assert_eq!(runner.claim().await, Value::Null);
    let alice = world.token("alice", "all").await;
    let start = json!({"type": "start", "argv": ["echo", "$(x)"], "env": {"KEY": "värde \"'"}});
    let made = world.post(&alice, "/v1/runs", &start).await.is(201);
    let (session, run) = (made.text("/session_id"), made.text("/run_id"));
    let claim_id = json!({"claim_id": world.env.claim_id().to_string(), "wait_ms": 1000});
    let claimed = runner.post("claim", &claim_id).await.is(200);
    assert_eq!(claimed.body["claim"]["run"]["argv"], json!(["echo", "$(x)"]));
    assert!(claimed.body["claim"]["run"]["env"].to_string().contains("värde"));
    // The answer was lost: the same again.
    assert_eq!(runner.post("claim", &claim_id).await.is(200).text("/claim/run/id"), run);
    for _ in 0..2 {
        runner.report(&run, 1, json!("starting")).await.is(200);
    }
    let worst = json!({"tokens": 500, "tool_calls": 0, "turns": 1});
    let reserve = json!({"session_id": session, "what": {"reserve": worst}});
    runner.post("session-reports", &reserve).await.is(200);
    let too_much = json!({"tokens": 10_000_000, "tool_calls": 0});
    let refused = json!({"session_id": session, "what": {"reserve": too_much}});
    let refused = runner.post("session-reports", &refused).await.is(200);
    assert_eq!(refused.text("/exhausted/resource"), "tokens");
    for _ in 0..2 {
        runner.report(&run, 1, json!({"running": {"sandbox": {"level": "full"}}})).await.is(200);
    }
    let said = json!({"kind": "message", "payload": {"text": "hi"}, "producer": "p", "producer_seq": 0});
    for _ in 0..2 {
        runner.report(&run, 1, json!({"appended": [said]})).await.is(200);
    }
    let read = runner.post("session", &json!({"session_id": session, "after": 0})).await.is(200);
    let events = read.body["events"].as_array().unwrap();
    assert_eq!(events.iter().filter(|event| event["kind"] == "message").count(), 1);
    for _ in 0..2 {
        runner.report(&run, 1, ended(true)).await.is(200);
    }
    let failed = json!({"ended": {"ending": {"kind": "failed", "reason": "timeout", "message": "late"}}});
    runner.report(&run, 1, failed).await.refused(409, "wrong_state");
    let session = world.coordinator.store().session(session.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((session.usage.tokens, session.reserved), (70, Usage::NONE), "booked once");
}

#[tokio::test]
async fn a_sign_of_life_prolongs_and_brings_orders() {
    let world = World::new();
    let runner = Runner::new(&world).await;
    let alice = world.token("alice", "all").await;
    let (_, run) = world.start(&alice).await;
    let (_, other) = world.start(&alice).await;
    assert_eq!(runner.claim().await["run"]["id"], json!(run));
    let beat = |run: &str| json!({"claims": [{"run_id": run, "epoch": 1}]});
    assert_eq!(runner.post("heartbeat", &beat(&run)).await.is(200).body["claims"], json!(["continue"]));
    assert_eq!(runner.post("heartbeat", &beat(&other)).await.is(200).body["claims"], json!(["gone"]));
    world.post(&alice, &format!("/v1/runs/{run}/stop"), &json!({})).await.is(200);
    let known = json!({"known": []});
    let orders = runner.post("orders", &known).await.is(200);
    assert_eq!(orders.body["items"], json!([{"run_id": run, "mode": "graceful"}]));
    let known = json!({"known": orders.body["items"]});
    assert_eq!(runner.post("orders", &known).await.is(200).body["items"], json!([]));
    assert_eq!(runner.post("heartbeat", &beat(&run)).await.is(200).body["claims"], json!(["stop"]));
    let held = world.get(&runner.token, &format!("/v1/runners/{}/runs", runner.id)).await.is(200);
    assert_eq!(held.body["items"].as_array().unwrap().len(), 1);
    let taken = runner.post("take-over", &json!({"run_id": run})).await.is(200);
    assert_eq!(taken.body["claim"]["run"]["epoch"], json!(2));
    runner.report(&run, 1, json!("starting")).await.refused(409, "stale_epoch");
    assert_eq!(runner.post("heartbeat", &beat(&run)).await.is(200).body["claims"], json!(["gone"]));
    world.delete(&alice, &format!("/v1/runners/{}", runner.id)).await.refused(409, "runner_busy");
}

/// What a run has used, by its runner's signs of life, is given to no child of it, and comes back when the run settles.
#[tokio::test]
async fn a_sign_of_life_says_what_a_run_needs() {
    let world = World::new();
    let runner = Runner::new(&world).await;
    let alice = world.token("alice", "all").await;
    let body = json!({"type": "start", "argv": ["true"], "budget": {"tokens": 1_000}});
    let parent = world.post(&alice, "/v1/runs", &body).await.is(201).text("/session_id");
    let claim = runner.claim().await;
    let (run, token) = (claim["run"]["id"].as_str().unwrap(), claim["token"].as_str().unwrap());
    let beat = async |spending: Value| {
        let claim = json!({"run_id": run, "epoch": 1, "spending": spending});
        runner.post("heartbeat", &json!({"claims": [claim]})).await.is(200).body
    };
    let beaten = beat(Value::Null).await;
    assert_eq!((&beaten["asks_spending"], &beaten["left"][0]["tokens"]), (&json!(true), &json!(1_000)));
    let beaten = beat(json!({"tokens": 700, "tool_calls": 90, "turns": 1})).await;
    assert_eq!(beaten["left"][0]["tokens"], json!(1_000), "the run itself may use all of it");
    let child = |name: &str, amount: u32| {
        let mut budget = json!({"tokens": 1, "tool_calls": 1});
        budget[name] = json!(amount);
        json!({"type": "start", "argv": ["true"], "budget": budget})
    };
    for (name, amount) in [("tokens", 301), ("tool_calls", 11)] {
        let refused = world.post(token, "/v1/runs", &child(name, amount)).await;
        assert_eq!(refused.refused(422, "invalid"), Some(format!("budget.{name}")));
    }
    world.post(token, "/v1/runs", &child("tokens", 300)).await.is(201);
    let amounts = |tokens: u32| json!({"tokens": tokens, "tool_calls": 90, "turns": 1});
    let ending = json!({"ending": {"kind": "stopped", "reason": "stopped_by_user", "message": "enough"}});
    let mut ended = ending.clone();
    ended["settled"] = json!({"worst": amounts(700), "actual": amounts(650)});
    runner.report(run, 1, json!({"ended": ended})).await.is(200);
    let parent = world.coordinator.store().session(parent.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((parent.usage.tokens, parent.reserved, parent.allotted.tokens), (650, Usage::NONE, 300));
}

#[tokio::test]
async fn a_runner_is_itself_and_nobody_else() {
    let world = World::new();
    let runner = Runner::new(&world).await;
    let stranger = Runner::new(&world).await;
    let alice = world.token("alice", "all").await;
    let (session, run) = world.start(&alice).await;
    runner.claim().await;
    let path = format!("/v1/runners/{}/claim", runner.id);
    let claim = json!({"instance": 1, "claim_id": world.env.claim_id().to_string()});
    world.post(&stranger.token, &path, &claim).await.refused(404, "not_found");
    stranger.report(&run, 1, json!("starting")).await.refused(409, "stale_epoch");
    let read = json!({"session_id": session});
    stranger.post("session", &read).await.refused(404, "not_found");
    let joining = world.token("fleet", "runner").await;
    world.post(&joining, "/v1/runners", &registration(&runner.id)).await.refused(403, "forbidden");
    world.post(&stranger.token, "/v1/runners", &registration(&runner.id)).await.refused(403, "forbidden");
    let again = world.post(&runner.token, "/v1/runners", &registration(&runner.id)).await.is(201);
    assert_eq!((&again.body["runner"]["instance"], &again.body["secret"]), (&json!(2), &Value::Null));
    runner.post("claim", &claim).await.refused(409, "superseded");
    let reader = world.token("bob", "read").await;
    world.post(&reader, "/v1/runners", &registration(&runner.id)).await.refused(403, "forbidden");
}

#[tokio::test]
async fn a_draining_runner_gets_nothing_and_a_forgotten_one_is_gone() {
    let world = World::new();
    let runner = Runner::new(&world).await;
    let admin = world.token("ops", "all").await;
    let path = format!("/v1/runners/{}", runner.id);
    let drain = |draining: bool| json!({"draining": draining});
    world.post(&admin, &format!("{path}/drain"), &drain(true)).await.is(200);
    world.start(&admin).await;
    assert_eq!(runner.claim().await, Value::Null);
    let beat = runner.post("heartbeat", &json!({"claims": []})).await.is(200);
    assert_eq!(beat.body["draining"], json!(true));
    world.post(&runner.token, &format!("{path}/drain"), &drain(false)).await.is(200);
    let listed = world.get(&admin, "/v1/runners").await.is(200);
    assert_eq!(
        (listed.text("/items/0/hostname"), &listed.body["items"][0]["live"]),
        ("box".into(), &json!(true))
    );
    world.delete(&admin, &path).await.is(200);
    world.get(&admin, &path).await.refused(404, "not_found");
    runner.post("heartbeat", &json!({"claims": []})).await.refused(404, "not_found");
    let bad = [
        ("hostname", json!("")),
        ("executors", json!(["no such \u{0} thing"])),
        ("project_dirs", json!(["relative"])),
        ("id", json!("ses_1")),
    ];
    for (field, value) in bad {
        let mut body = registration(&runner.id);
        body[field] = value;
        let found = world.post(&runner.token, "/v1/runners", &body).await.refused(422, "invalid");
        assert_eq!(found.as_deref(), Some(field));
    }
}
