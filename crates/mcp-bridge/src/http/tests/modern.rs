//! Clients of the revision without sessions, before servers of both kinds.

use std::sync::atomic::Ordering;

use super::*;
use crate::envelope::member;
use crate::testing::Answer;

const META: &str = r#""_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"sampling":{}}}"#;

/// Sends a request with the headers that it needs. More parameters come first, with a comma behind them.
async fn send(client: &Client, id: &str, method: &str, params: &str) -> Answer {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}{META}}}}}"#);
    let name = member(message(&body).params().unwrap(), "name").map(|name| name.trim_matches('"').to_owned());
    let client = client.set("mcp-protocol-version", Some("2026-07-28")).set("mcp-method", Some(method));
    client.set("mcp-name", name.as_deref()).post(&body).await
}

async fn tool(client: &Client, id: &str, tool: &str, arguments: &str) -> Answer {
    send(client, id, "tools/call", &format!(r#""name":"{tool}","arguments":{arguments},"#)).await
}

async fn world(is_plain: bool) -> World {
    let world = World::new(settings()).await;
    world.host.plain.store(is_plain, Ordering::SeqCst);
    world
}

#[tokio::test]
async fn a_server_with_a_handshake_is_spoken_for() {
    let world = world(false).await;
    let client = world.client();
    let found = send(&client, "1", "server/discover", "").await.message().await;
    let result = found.result().unwrap();
    assert_eq!(member(result, "supportedVersions"), Some(r#"["2026-07-28"]"#));
    assert_eq!(member(result, "capabilities"), Some(r#"{"tools":{}}"#));
    let list = send(&client, "2", "tools/list", "").await.message().await;
    let expected = r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name""#;
    assert!(list.id_text() == Some("2") && list.result().unwrap().starts_with(expected));
    let echoed = tool(&client, "3", "echo", r#"{"x":1e1}"#).await.message().await;
    assert_eq!(echoed.result(), Some(r#"{"resultType":"complete","x":1e1}"#));
    let mut progress = tool(&client, "4", "progress", "{}").await;
    for _ in 0..3 {
        let told = message(&progress.event().await.unwrap().data);
        assert_eq!(told.param("progressToken"), Some(r#""p""#));
    }
    assert_eq!(message(&progress.event().await.unwrap().data).id_text(), Some("4"));
    for method in ["ping", "initialize", "logging/setLevel"] {
        assert_eq!(send(&client, "5", method, "").await.status, 404, "{method}");
    }
    assert_eq!((world.host.opened(), world.host.alive()), (1, 1), "one process for all requests");
    world.end().await;
}

#[tokio::test]
async fn who_does_not_ask_for_an_older_servers_log_does_not_hear_it() {
    let world = world(false).await;
    for (level, hears) in [(None, false), (Some("info"), true), (Some("error"), false), (Some("loud"), false)]
    {
        let level = level.map_or_else(String::new, |level| {
            format!(r#""_meta":{{"io.modelcontextprotocol/logLevel":"{level}","#)
        });
        let params = r#""name":"log","arguments":{},"#;
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params}{META}}}}}"#);
        let body = if level.is_empty() { body } else { body.replacen(r#""_meta":{"#, &level, 1) };
        let client = world.client().set("mcp-protocol-version", Some("2026-07-28"));
        let client = client.set("mcp-method", Some("tools/call")).set("mcp-name", Some("log"));
        let answer = client.post(&body).await.text().await;
        assert_eq!(answer.contains("notifications/message"), hears, "{level}: {answer}");
        assert!(answer.contains(r#""result":1"#), "{answer}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_session_is_named_by_the_path_and_by_whose_it_is() {
    let world = World::with(Arc::new(TestHost::default()), settings(), true).await;
    let of = |name: &str, path: &str| {
        world.client().set("authorization", Some(&format!("Bearer t-{name}"))).at(path)
    };
    let count = async |client: Client| tool(&client, "1", "count", "{}").await.message().await.into_text();
    for (name, path, expected) in [
        ("ada", "/mcp", "1"),
        ("ada", "/mcp", "2"),
        ("ada", "/mcp/work", "1"),
        ("bob", "/mcp", "1"),
        ("bob", "/fake/mcp/work", "1"),
        ("ada", "/fake/mcp/work", "2"),
    ] {
        let answer = count(of(name, path)).await;
        assert!(answer.contains(&format!("\"result\":{expected}")), "{name} {path}: {answer}");
    }
    assert_eq!(of("ada", "/mcp/a b").path, "/mcp/a b");
    world.end().await;
}

#[tokio::test]
async fn a_question_is_a_round_of_its_own() {
    let world = World::with(Arc::new(TestHost::default()), settings(), true).await;
    let ada = world.client().set("authorization", Some("Bearer t-ada"));
    let asked = tool(&ada, "1", "ask", "{}").await.message().await;
    let result = asked.result().unwrap();
    assert_eq!(member(result, "resultType"), Some(r#""input_required""#));
    let state = member(result, "requestState").unwrap();
    let requests = member(result, "inputRequests").unwrap();
    let key = state.trim_matches('"');
    let request = member(requests, key).unwrap();
    assert_eq!(request, r#"{"method":"sampling/createMessage","params":{"a":1e1}}"#);
    let again = format!(
        r#""name":"ask","arguments":{{}},"requestState":{state},"inputResponses":{{"{key}":{{"y":2.0}}}},"#
    );
    let bob = world.client().set("authorization", Some("Bearer t-bob"));
    assert_eq!(send(&bob, "2", "tools/call", &again).await.status, 400, "it is another's");
    let answer = send(&ada, "2", "tools/call", &again).await.message().await;
    assert_eq!(answer.id_text(), Some("2"));
    assert_eq!(answer.result(), Some(r#"{"resultType":"complete","y":2.0}"#));
    assert_eq!(send(&ada, "3", "tools/call", &again).await.status, 400, "once");
    world.end().await;
}

#[tokio::test]
async fn who_is_asked_again_and_again_leaves_nothing_behind() {
    let world = world(false).await;
    let client = world.client();
    for _ in 0..8 {
        let asked = tool(&client, "1", "ask", "{}").await.message().await;
        let state = member(asked.result().unwrap(), "requestState").unwrap().to_owned();
        let key = state.trim_matches('"');
        let again = format!(
            r#""name":"ask","arguments":{{}},"requestState":{state},"inputResponses":{{"{key}":{{}}}},"#
        );
        let answer = send(&client, "2", "tools/call", &again).await.message().await;
        assert_eq!(answer.result(), Some(r#"{"resultType":"complete"}"#));
    }
    // The one task that is left is the session's.
    let is_left = async || client.at("/metrics").get().await.text().await;
    while !is_left().await.contains("roomette_bridge_tasks 1\n") {}
    world.end().await;
}

#[tokio::test]
async fn who_hangs_up_cancels() {
    for is_plain in [false, true] {
        let world = world(is_plain).await;
        let client = world.client();
        let hanging = client.clone();
        let hanging = tokio::spawn(async move { tool(&hanging, "1", "hang", "{}").await });
        let is_hanging = async || {
            let answer = tool(&client, "1", "hangs", "{}").await.message().await;
            answer.text().contains("\"result\":1")
        };
        while !is_hanging().await {}
        hanging.abort();
        let is_cancelled = async || {
            let answer = tool(&client, "2", "cancelled", "{}").await.message().await;
            !answer.text().contains("\"result\":[]")
        };
        while !is_cancelled().await {}
        world.end().await;
    }
}

/// Answers the handshake, and reads nothing more after it.
pub(super) const DEAF: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    case "$line" in
        *'"server/discover"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
        *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{}}}' ;;
        *'"notifications/initialized"'*) echo deaf; exec sleep 1000 ;;
    esac
done"#;

#[tokio::test]
async fn nobody_waits_for_ever_for_a_server_that_reads_nothing() {
    let (wait, patience) = (Duration::from_millis(100), Duration::from_hours(1));
    let times = Times { wait, patience, ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    *world.host.script.lock().unwrap() = Some(DEAF);
    let client = world.client();
    // The server is there for who listens, and nothing else waits until it is.
    let _listening = send(&client, "0", "subscriptions/listen", r#""notifications":{},"#).await;
    while !world.host.strays.lock().unwrap().iter().any(|line| line == "line deaf") {
        tokio::task::yield_now().await;
    }
    let first = client.clone();
    let first = tokio::spawn(async move { send(&first, "1", "resources/list", "").await.status });
    let large = format!(r#""uri":"{}","#, "x".repeat(2 << 20));
    assert_eq!(send(&client, "2", "resources/list", &large).await.status, 503);
    // More than its mailbox holds.
    let others = (0..70).map(|_| send(&client, "3", "resources/list", ""));
    let others = futures_util::future::join_all(others).await;
    assert_eq!(first.await.unwrap(), 503);
    assert!(others.iter().all(|answer| answer.status == 503));
    world.end().await;
}

#[tokio::test]
async fn what_changes_is_heard_by_who_listens() {
    for is_plain in [false, true] {
        let world = world(is_plain).await;
        let client = world.client();
        let wanted = r#""notifications":{"toolsListChanged":true},"#;
        let mut stream = send(&client, r#""l""#, "subscriptions/listen", wanted).await;
        assert!(stream.is_stream());
        if !is_plain {
            let first = message(&stream.event().await.unwrap().data);
            assert_eq!(first.method(), Some("notifications/subscriptions/acknowledged"));
            let _told = tool(&client, "1", "tell", "{}").await;
        }
        let changed = message(&stream.event().await.unwrap().data);
        assert_eq!(changed.method(), Some("notifications/tools/list_changed"));
        let id = member(changed.param("_meta").unwrap(), "io.modelcontextprotocol/subscriptionId");
        assert_eq!(id, Some(r#""l""#), "plain: {is_plain}");
        world.end().await;
    }
}

#[tokio::test]
async fn who_listens_hears_the_end_when_nobody_is_to_be_heard_and_has_a_server_when_it_listens_again() {
    let world = world(false).await;
    let client = world.client();
    let listen = async || {
        let mut stream =
            send(&client, "7", "subscriptions/listen", r#""notifications":{"toolsListChanged":true},"#).await;
        assert!(stream.event().await.unwrap().data.contains("acknowledged"));
        stream
    };
    // How it is spoken to is known, and now it cannot be started.
    assert_eq!(send(&client, "1", "server/discover", "").await.status, 200);
    *world.host.refuse.lock().unwrap() = Some(HostError::Other("no room".into()));
    assert_eq!(listen().await.event().await, None);
    let mut stream = listen().await;
    assert!(tool(&client, "1", "tell", "{}").await.message().await.text().contains("told"));
    assert!(stream.event().await.unwrap().data.contains("list_changed"));
    // One that crashes comes back by itself. The next one is taken away.
    *world.host.exit.lock().unwrap() = Some(Exit::Suspended);
    for _ in 0..2 {
        let _crash = tool(&client, "2", "crash", "{}").await;
    }
    assert_eq!(stream.event().await, None);
    assert_eq!((world.host.opened(), world.host.alive()), (3, 0));
    let _again = listen().await;
    world.host.until_alive(1).await;
    world.end().await;
}

#[tokio::test]
async fn who_waits_when_the_session_is_over_has_an_answer_that_says_so() {
    for is_plain in [false, true] {
        let world = world(is_plain).await;
        *world.host.exit.lock().unwrap() = Some(Exit::Over(Ending::Other("by_hand".into())));
        let answer = tool(&world.client(), "1", "crash", "{}").await;
        assert_eq!(answer.status, 200, "404 is for a method that there is not");
        let answer = answer.message().await;
        assert!(answer.id_text() == Some("1") && answer.error().is_some(), "{}", answer.text());
        world.end().await;
    }
}

#[tokio::test]
async fn who_listens_may_hear_nothing_for_longer_than_a_call_may_last() {
    let times = Times { patience: Duration::from_millis(1), ..Times::default() };
    // Each call but the one that hangs is answered within this.
    let (call, whole_call) = (Duration::from_secs(2), Duration::from_secs(2));
    let world = World::new(Settings { times: Times { call, whole_call, ..times }, ..settings() }).await;
    world.host.plain.store(true, Ordering::SeqCst);
    let client = world.client();
    let wanted = r#""notifications":{"toolsListChanged":true},"#;
    let mut stream = send(&client, "7", "subscriptions/listen", wanted).await;
    assert!(stream.event().await.unwrap().data.contains("list_changed"));
    // A call that began later was given up, and nothing else.
    let error = tool(&client, "1", "hang", "{}").await.message().await;
    assert!(error.text().contains("took too long"), "{}", error.text());
    assert_eq!(tool(&client, "2", "change", "{}").await.message().await.result(), Some("1"));
    assert!(stream.event().await.unwrap().data.contains("list_changed"), "it still listens");
    let cancelled = tool(&client, "3", "cancelled", "{}").await.message().await;
    assert!(!cancelled.result().unwrap().contains(','), "{}", cancelled.text());
    world.end().await;
}

#[tokio::test]
async fn headers_must_say_what_the_body_says() {
    let world = world(true).await;
    let client = world.client().set("mcp-protocol-version", Some("2026-07-28"));
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{{META}}}}}"#);
    let good = client.set("mcp-method", Some("tools/list"));
    assert_eq!(good.post(&body).await.status, 200);
    for (client, code) in [
        (client.clone(), "-32020"),
        (good.set("mcp-method", Some("tools/call")), "-32020"),
        (good.set("mcp-protocol-version", None), "-32020"),
        (good.set("mcp-protocol-version", Some("2025-11-25")), "-32020"),
    ] {
        let answer = client.post(&body).await;
        assert_eq!(answer.status, 400);
        let answer = answer.text().await;
        assert!(answer.contains(code) && answer.contains("\"id\":1"), "{answer}");
    }
    let future = body.replace("2026-07-28", "2031-01-01");
    let answer = good.set("mcp-protocol-version", Some("2031-01-01")).post(&future).await;
    assert_eq!(answer.status, 400);
    let answer = answer.text().await;
    assert!(answer.contains("-32022") && answer.contains(r#""supported":["2026-07-28"]"#), "{answer}");
    for method in ["GET", "DELETE"] {
        assert_eq!(good.request(method, "").await.status, 405, "{method}");
    }
    world.end().await;
}

#[tokio::test]
async fn an_argument_that_belongs_in_a_header_is_the_same_there() {
    for is_plain in [false, true] {
        let world = world(is_plain).await;
        let client = world.client();
        for (arguments, header, status) in [
            (r#"{"who":"ada"}"#, Some("ada"), 200),
            (r#"{"who":"ada"}"#, Some("bob"), 400),
            (r#"{"who":"ada"}"#, None, 400),
            ("{}", None, 200),
            ("{}", Some("ada"), 400),
        ] {
            let client = client.set("mcp-param-who", header);
            let answer = tool(&client, "1", "echo", arguments).await;
            assert_eq!(answer.status, status, "{arguments} {header:?}");
            let answer = answer.text().await;
            assert_eq!(answer.contains("-32020"), status == 400, "{answer}");
        }
        let undeclared = client.set("mcp-param-who", Some("ada"));
        assert_eq!(tool(&undeclared, "1", "count", "{}").await.status, 200);
        world.end().await;
    }
}
