//! Several clients of one process, and batches.

use proptest::prelude::*;

use super::modern::DEAF;
use super::*;
use crate::talk::FAILED_STARTS_MAX;

fn shared() -> Settings {
    Settings { isolation: false, ..settings() }
}

#[tokio::test]
async fn clients_share_a_process_and_nothing_else() {
    let world = World::new(shared()).await;
    let first = world.client().begin(V, r#"{"roots":{}}"#).await;
    let second = world.client().begin("2025-06-18", "{}").await;
    assert_eq!((world.host.opened(), world.host.alive()), (1, 1));
    // Both use the same ids at the same time.
    let calls = (0..20).map(|call| {
        let client = if call % 2 == 0 { &first } else { &second };
        async move {
            let arguments = format!(r#"{{"n":{call}}}"#);
            assert_eq!(client.result(&(call / 2).to_string(), "echo", &arguments).await, arguments);
        }
    });
    futures_util::future::join_all(calls).await;
    // What one is asked is not asked of the other.
    let mut asking = second.call("1", "ask", "{}").await;
    let asked = message(&asking.event().await.unwrap().data);
    let reply = format!(r#"{{"jsonrpc":"2.0","id":{},"result":7}}"#, asked.id_text().unwrap());
    assert_eq!(first.post(&reply).await.status, 400, "nobody asked this one");
    assert_eq!(second.post(&reply).await.status, 202);
    assert_eq!(asking.message().await.result(), Some("7"));
    // What is for all reaches both.
    let (mut one, mut two) = (first.get().await, second.get().await);
    assert_eq!(one.event().await.unwrap().data, "", "primed");
    assert_eq!(first.result("1", "tell", "{}").await, r#""told""#);
    for stream in [&mut one, &mut two] {
        let event = stream.event().await.unwrap();
        assert_eq!(message(&event.data).method(), Some("notifications/tools/list_changed"));
    }
    // One leaves, the other stays.
    assert_eq!(first.request("DELETE", "").await.status, 204);
    assert_eq!(first.call("1", "echo", "{}").await.status, 404);
    assert_eq!(second.result("1", "scope", "{}").await, r#""default""#);
    world.end().await;
}

#[tokio::test]
async fn who_hung_up_on_a_call_is_asked_on_the_general_stream_also_where_the_process_is_shared() {
    // One may have one request on its way: who comes while it is gets 503.
    let caps = Caps { requests: 2, ..Caps::default() };
    for isolation in [false, true] {
        let world = World::new(Settings { isolation, caps, ..settings() }).await;
        let client = world.client().begin("2025-06-18", "{}").await;
        let calling = client.clone();
        let calling = tokio::spawn(async move { calling.call("1", "later", "{}").await.status });
        while world.host.strays.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        calling.abort();
        assert!(calling.await.is_err());
        while client.call("2", "now", "{}").await.status == 503 {}
        let mut stream = client.get().await;
        let asked = message(&stream.event().await.unwrap().data);
        assert_eq!(asked.method(), Some("sampling/createMessage"), "isolation: {isolation}");
        world.end().await;
    }
}

#[tokio::test]
async fn who_never_says_goodbye_makes_room_when_it_was_away_for_long() {
    let caps = Caps { sessions: 2, ..Caps::default() };
    let world = World::new(Settings { caps, ..shared() }).await;
    let _two = (world.client().begin(V, "{}").await, world.client().begin(V, "{}").await);
    let initialize =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    assert_eq!(world.client().post(initialize).await.status, 503, "both may be there");
    world.end().await;

    let times = Times { idle: Duration::ZERO, ..Times::default() };
    let world = World::new(Settings { times, caps, ..shared() }).await;
    let first = world.client().begin(V, "{}").await;
    let second = world.client().begin(V, "{}").await;
    let _listening = first.get().await;
    let third = world.client().begin(V, "{}").await;
    assert_eq!(second.call("1", "echo", "{}").await.status, 404);
    for client in [first, third] {
        assert_eq!(client.result("1", "echo", "{}").await, "{}");
    }
    world.end().await;
}

#[tokio::test]
async fn the_next_bridge_goes_on_with_clients_that_share() {
    let host = Arc::new(TestHost::default());
    let world = World::with(Arc::clone(&host), shared(), true).await;
    let of = |client: &Client, name: &str| client.set("authorization", Some(&format!("Bearer t-{name}")));
    let client = of(&world.client(), "ada").begin("2025-06-18", "{}").await;
    let gone = of(&world.client(), "ada").begin(V, "{}").await;
    assert_eq!(gone.request("DELETE", "").await.status, 204);
    assert_eq!(gone.call("1", "echo", "{}").await.status, 404);
    world.end().await;
    let world = World::with(Arc::clone(&host), shared(), true).await;
    let again = of(&world.client(), "ada").set("mcp-session-id", Some(client.session()));
    assert_eq!(of(&again, "bob").call("1", "echo", "{}").await.status, 404, "it is another's");
    assert_eq!(again.result("1", "echo", "{}").await, "{}");
    let over = again.set("mcp-session-id", Some(gone.session()));
    assert_eq!(over.call("1", "echo", "{}").await.status, 404, "its client has ended it");
    let unknown = again.set("mcp-session-id", Some("ses_0123456789ab4def8123456789abcdef"));
    assert_eq!(unknown.call("1", "echo", "{}").await.status, 404);
    world.end().await;
}

#[tokio::test]
async fn when_what_they_share_is_over_its_clients_begin_anew() {
    let world = World::new(shared()).await;
    let first = world.client().begin(V, "{}").await;
    assert_eq!(first.result("1", "count", "{}").await, "1");
    *world.host.exit.lock().unwrap() = Some(Exit::Over(Ending::Other("killed".into())));
    let _crash = first.call("2", "crash", "{}").await;
    // The process that was there had another end before it; the next one is killed.
    let _killed = first.call("3", "crash", "{}").await;
    world.host.names.lock().unwrap().clear();
    *world.host.exit.lock().unwrap() = None;
    while first.call("4", "count", "{}").await.status != 404 {}
    let again = world.client().begin(V, "{}").await;
    assert_eq!(again.result("1", "count", "{}").await, "1");
    world.end().await;
}

#[tokio::test]
async fn who_cannot_be_served_is_told_and_does_not_wait() {
    let world = World::new(shared()).await;
    *world.host.script.lock().unwrap() = Some(
        "read -r line; echo '{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-1,\"message\":\"no\"}}'; cat >/dev/null",
    );
    let initialize =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    let answer = world.client().post(initialize).await;
    assert!(answer.status >= 500, "{}", answer.status);
    world.end().await;
}

#[tokio::test]
async fn a_batch_is_answered_as_one_where_the_revision_has_them() {
    let world = World::new(settings()).await;
    let client = world.client().begin("2025-03-26", "{}").await;
    let told =
        r#"[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","method":"notifications/y"}]"#;
    assert_eq!(client.post(told).await.status, 202);
    let (one, two) = (call("1", "echo", "1"), call("2", "echo", "2"));
    let answer = client.post(&format!("[{one},{two}]")).await;
    assert_eq!(answer.status, 200);
    let text = answer.text().await;
    assert_eq!(text, r#"[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":2,"result":2}]"#);
    let progress = call("3", "progress", "{}");
    let mut stream = client.post(&format!("[{one},{progress}]")).await;
    let mut answered = Vec::new();
    while let Some(event) = stream.event().await {
        answered.extend(message(&event.data).result().map(str::to_owned));
    }
    assert_eq!(answered, ["1", "3"]);
    let begun =
        r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]"#;
    assert_eq!(client.post(begun).await.status, 400);
    world.end().await;
}

#[tokio::test]
async fn a_batch_waits_once_for_a_server_that_reads_nothing() {
    let (wait, patience) = (Duration::from_millis(100), Duration::from_hours(1));
    let times = Times { wait, patience, ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    *world.host.script.lock().unwrap() = Some(DEAF);
    let client = world.client().begin("2025-03-26", "{}").await;
    while !world.host.strays.lock().unwrap().iter().any(|line| line == "line deaf") {
        tokio::task::yield_now().await;
    }
    // More than is taken while it reads nothing, and than its mailbox holds.
    let mut all = vec![call("0", "echo", &format!("\"{}\"", "x".repeat(2 << 20)))];
    all.extend((1..100).map(|id| call(&id.to_string(), "echo", "{}")));
    let begun = tokio::time::Instant::now();
    let answer = client.post(&format!("[{}]", all.join(","))).await;
    // Where each is waited for, that takes 16 seconds.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(answer.status, 200);
    let answer = answer.text().await;
    assert_eq!(answer.matches("takes no more messages").count(), 100, "{answer}");
    world.end().await;
}

#[tokio::test]
async fn nothing_of_a_batch_is_done_that_cannot_be_answered() {
    // One may read one stream.
    let caps = Caps { streams: 2, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let client = world.client().begin("2025-03-26", "{}").await;
    let (one, two) = (call("1", "count", "{}"), call("2", "count", "{}"));
    assert_eq!(client.post(&format!("[{one},{two}]")).await.status, 503);
    let answer = client.post(&format!("[{one}]")).await.text().await;
    assert_eq!(answer, r#"[{"jsonrpc":"2.0","id":1,"result":1}]"#, "it is done once");
    world.end().await;
}

/// What a client does next.
#[derive(Debug, Clone, Copy)]
enum Step {
    Echo,
    Progress,
    Tell,
    Hang,
    Crash,
    Leave,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        8 => Just(Step::Echo),
        2 => Just(Step::Progress),
        1 => Just(Step::Tell),
        1 => Just(Step::Hang),
        1 => Just(Step::Crash),
        1 => Just(Step::Leave),
    ];
    (0..4_usize, step)
}

/// All clients act at once under the same few ids. Each answer names the client and the step that it is for.
async fn act(client: Client, who: usize, steps: Vec<Step>, isolation: bool) {
    let (mut gone, mut crashes) = (false, 0);
    for (number, step) in steps.into_iter().enumerate() {
        let id = (number % 2).to_string();
        let mark = format!(r#"{{"who":{who},"step":{number}}}"#);
        let tool = match step {
            Step::Echo => "echo",
            Step::Progress => "progress",
            Step::Tell => "tell",
            Step::Hang => "hang",
            Step::Crash => "crash",
            Step::Leave => {
                let status = client.request("DELETE", "").await.status;
                assert_eq!(status, if gone { 404 } else { 204 });
                gone = true;
                continue;
            }
        };
        let answer = client.call(&id, tool, &mark).await;
        if gone {
            assert_eq!(answer.status, 404);
            continue;
        }
        // A crash by another may have taken it; nothing else may.
        assert_eq!(answer.status, 200, "{step:?}");
        let mut answers = Vec::new();
        if answer.is_stream() {
            let mut answer = answer;
            while let Some(event) = answer.event().await {
                answers.extend((!event.data.is_empty()).then(|| message(&event.data)));
            }
            answers.retain(|message| message.method().is_none());
        } else {
            answers.push(answer.message().await);
        }
        assert_eq!(answers.len(), 1, "one answer, {step:?}");
        assert_eq!(answers[0].id_text(), Some(id.as_str()));
        let result = answers[0].result();
        if let (Step::Echo, Some(result)) = (step, result) {
            assert_eq!(result, mark);
        }
        match step {
            Step::Crash => crashes += 1,
            _ if result.is_some() => crashes = 0,
            // Nobody else's server is its own, and after a crash or two there is another one.
            Step::Echo => assert!(!isolation || crashes >= FAILED_STARTS_MAX, "{}", answers[0].text()),
            Step::Progress | Step::Tell | Step::Hang | Step::Leave => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn every_request_has_one_answer_and_it_is_its_own(
        steps in prop::collection::vec(step(), 0..60),
        isolation: bool,
        threads in 1..4_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (call, patience) = (Duration::from_millis(300), Duration::from_millis(20));
            let times = Times { call, patience, ..Times::default() };
            let world = World::new(Settings { isolation, times, ..settings() }).await;
            let mut acting = Vec::new();
            for who in 0..4 {
                let client = world.client().begin(V, "{}").await;
                let own = steps.iter().filter(|(of, _)| *of == who).map(|(_, step)| *step).collect();
                acting.push(tokio::spawn(act(client, who, own, isolation)));
            }
            for acting in acting {
                acting.await.unwrap();
            }
            world.end().await;
        });
    }
}
