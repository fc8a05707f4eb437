//! Input that is wrong, and servers that are.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

async fn status(client: &Client, body: impl Into<axum::body::Bytes>) -> u16 {
    client.request("POST", body).await.status
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    let world = World::new(settings()).await;
    let client = world.client().begin(V, "{}").await;
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\"x\"",
        b"\xff\xfe",
        b"{}",
        br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"ping","result":1}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        br#"{"jsonrpc":"2.0","id":99,"result":{}}"#,
        br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
    ] {
        assert_eq!(status(&client, body).await, 400, "{}", String::from_utf8_lossy(body));
    }
    // And the session goes on, with ids of every kind.
    for id in ["0", r#""0""#, "1.5", "-1", "123456789012345678901234567890", r#""""#] {
        assert_eq!(client.result(id, "echo", "{}").await, "{}");
    }
    let answer = client.call("1.0", "echo", "{}").await.message().await;
    assert_eq!(answer.id_text(), Some("1.0"), "letter for letter");
    world.end().await;
}

#[tokio::test]
async fn headers_are_what_they_may_be() {
    let world = World::new(settings()).await;
    let client = world.client().begin(V, "{}").await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (name, value, expected) in [
        ("accept", None, 406),
        ("accept", Some("application/json"), 406),
        ("accept", Some("text/event-stream"), 406),
        ("content-type", None, 415),
        ("content-type", Some("text/plain"), 415),
        ("mcp-session-id", None, 400),
        ("mcp-session-id", Some("ses_00000000000000000000000000000001"), 404),
        ("mcp-session-id", Some("x"), 404),
        ("mcp-protocol-version", Some("1999-01-01"), 400),
        ("mcp-protocol-version", Some(""), 400),
        ("mcp-protocol-version", None, 200),
        ("mcp-protocol-version", Some("2025-06-18"), 200),
        ("host", Some("evil.com"), 403),
        ("origin", Some("http://evil.com"), 403),
        ("origin", Some("null"), 403),
    ] {
        assert_eq!(status(&client.set(name, value), ping).await, expected, "{name}: {value:?}");
    }
    // In another form than ours, an id is none.
    let upper = client.session().to_uppercase().replace("SES", "ses");
    if upper != client.session() {
        assert_eq!(status(&client.set("mcp-session-id", Some(&upper)), ping).await, 404);
    }
    let mut twice = client.clone();
    twice.headers.push(("mcp-session-id".into(), client.session().into()));
    assert_eq!(status(&twice, ping).await, 400);
    for (method, path, expected) in [
        ("PUT", "/mcp", 405),
        ("PATCH", "/mcp", 405),
        ("GET", "/", 404),
        ("POST", "/other/mcp", 404),
        ("POST", "/fake/mcp/a/b", 404),
        ("POST", "/fake", 404),
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
    ] {
        assert_eq!(client.at(path).request(method, ping).await.status, expected, "{method} {path}");
    }
    assert_eq!(status(&client.at("/fake/mcp"), ping).await, 200);
    assert_eq!(client.set("accept", Some("application/json")).get().await.status, 406);
    assert_eq!(client.set("mcp-session-id", None).get().await.status, 400);
    assert_eq!(client.set("last-event-id", Some("nonsense")).get().await.status, 400);
    let initialize =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    assert_eq!(status(&client, initialize).await, 400, "a session begins once");
    for bad in ["{}", r#"{"protocolVersion":7}"#, "[]"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{bad}}}"#);
        assert_eq!(status(&world.client(), body).await, 400, "{bad}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_body_is_bounded() {
    let caps = Caps { message: 100_000, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    let large = call("1", "echo", &format!("\"{}\"", "x".repeat(100_000)));
    assert_eq!(status(&client, large).await, 413);
    let fits = format!("\"{}\"", "x".repeat(90_000));
    assert_eq!(client.result("1", "echo", &fits).await, fits);
    world.end().await;
}

#[tokio::test]
async fn how_a_client_begins_is_short() {
    let world = World::new(settings()).await;
    let long = "x".repeat(70_000);
    let initialize = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","x":"{long}"}}}}"#
    );
    assert_eq!(status(&world.client(), initialize).await, 413);
    let client = world.client().initialize(V, "{}").await;
    let told =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/initialized","params":{{"x":"{long}"}}}}"#);
    assert_eq!(status(&client, told).await, 413);
    let twice =
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":1},"_meta":{}}}"#;
    assert_eq!(status(&client, twice).await, 400);
    world.end().await;
}

#[tokio::test]
async fn what_waits_in_memory_is_bounded_for_one_and_for_all() {
    // One may have half.
    let caps = Caps { waiting: 100_000, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let client = world.client().initialize(V, "{}").await;
    let large = format!("\"{}\"", "x".repeat(40_000));
    // They wait for their client to go on: one of them can.
    let calls = ["1", "2"].map(|id| {
        let (client, large) = (client.clone(), large.clone());
        Box::pin(async move { client.call(id, "echo", &large).await.status })
    });
    let (refused, _, mut left) = futures_util::future::select_all(calls).await;
    assert_eq!(refused, 503);
    assert_eq!(client.post(crate::testing::INITIALIZED).await.status, 202);
    assert_eq!(left.pop().unwrap().await, 200);
    assert_eq!(client.result("3", "echo", &large).await, large, "it was given back");
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_is_lost_is_told_at_once() {
    let caps = Caps { message: 50_000, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    let error = client.result("1", "big", "100000").await;
    assert!(error.contains("cannot be passed on") && error.contains("too long"), "{error}");
    assert_eq!(client.result("1", "echo", "{}").await, "{}");
    world.end().await;
}

#[tokio::test]
async fn a_question_that_nobody_answers_does_not_keep_a_process() {
    let times =
        Times { idle: Duration::from_millis(50), call: Duration::from_millis(200), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    let error = client.result("1", "ask", "{}").await;
    assert!(error.contains("too long") || error.contains("refused"), "{error}");
    world.host.until_alive(0).await;
    world.end().await;
}

#[tokio::test]
async fn who_rests_gives_way_to_who_waits_for_room() {
    let times = Times { rest: Duration::ZERO, room: Duration::from_secs(20), ..Times::default() };
    let caps = Caps { processes: 1, ..Caps::default() };
    let world = World::new(Settings { times, caps, ..settings() }).await;
    let first = world.client().in_root("/a").await;
    assert_eq!(first.result("1", "count", "{}").await, "1");
    let second = world.client().in_root("/b").await;
    assert_eq!(second.result("1", "scope", "{}").await, r#""/b""#);
    assert_eq!(world.host.alive(), 1);
    assert_eq!(first.result("2", "scope", "{}").await, r#""/a""#, "it came back, in its own directory");
    world.end().await;
}

#[tokio::test]
async fn what_is_over_before_it_began_is_never_begun() {
    let caps = Caps { processes: 1, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let first = world.client().in_root("/a").await;
    let hanging = first.clone();
    let hanging = tokio::spawn(async move { hanging.call("1", "hang", "{}").await.status });
    while first.result("2", "hangs", "{}").await != "1" {}
    // It waits for room, which is never had.
    let second = world.client().in_root("/b").await;
    assert_eq!(second.request("DELETE", "").await.status, 204);
    assert_eq!(first.request("DELETE", "").await.status, 204);
    assert_eq!(hanging.await.unwrap(), 200);
    world.host.until_alive(0).await;
    assert_eq!(world.host.opened(), 1);
    let recorded = world.host.records.lock().unwrap().keys().any(|id| id.to_string() == second.session());
    assert!(!recorded, "nothing is known of it");
    world.end().await;
}

#[tokio::test]
async fn a_stream_ends_with_the_token_with_which_it_is_read() {
    let times = Times { heartbeat: Duration::from_millis(20), ..Times::default() };
    let world = World::with(Arc::new(TestHost::default()), Settings { times, ..settings() }, true).await;
    let of = |name: &str| world.client().set("authorization", Some(&format!("Bearer t-{name}")));
    let (ada, bob) = (of("ada").begin("2025-06-18", "{}").await, of("bob").begin("2025-06-18", "{}").await);
    let (mut hers, mut his) = (ada.get().await, bob.get().await);
    world.revoked.lock().unwrap().push("ada".into());
    assert_eq!(hers.event().await, None);
    assert_eq!(ada.call("1", "tell", "{}").await.status, 401);
    assert_eq!(bob.result("1", "tell", "{}").await, r#""told""#);
    assert!(his.event().await.unwrap().data.contains("list_changed"));
    world.end().await;
}

#[tokio::test]
async fn who_reads_no_stream_is_asked_for_roots_where_it_waits() {
    let times = Times { patience: Duration::from_millis(1), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().begin(V, r#"{"roots":{}}"#).await;
    let mut answer = client.call("1", "scope", "{}").await;
    assert!(answer.is_stream());
    assert_eq!(answer.event().await.unwrap().data, "", "primed");
    let asked = message(&answer.event().await.unwrap().data);
    assert_eq!(asked.method(), Some("roots/list"));
    let id = asked.id_text().unwrap();
    let roots = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[{{"uri":"file:///a"}}]}}}}"#);
    assert_eq!(client.post(&roots).await.status, 202);
    assert_eq!(answer.message().await.result(), Some(r#""/a""#));
    world.end().await;
}

#[tokio::test]
async fn who_was_asked_for_roots_on_a_connection_that_broke_is_asked_on_the_next() {
    let times = Times { patience: Duration::from_millis(1), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().begin(V, r#"{"roots":{}}"#).await;
    for broken in ["1", "2"] {
        let mut answer = client.call(broken, "scope", "{}").await;
        assert_eq!(answer.event().await.unwrap().data, "", "primed");
        assert_eq!(message(&answer.event().await.unwrap().data).method(), Some("roots/list"));
    }
    let mut answer = client.call("3", "scope", "{}").await;
    assert_eq!(answer.event().await.unwrap().data, "", "primed");
    let asked = message(&answer.event().await.unwrap().data);
    let id = asked.id_text().unwrap();
    let roots = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[{{"uri":"file:///a"}}]}}}}"#);
    assert_eq!(client.post(&roots).await.status, 202);
    assert_eq!(answer.message().await.result(), Some(r#""/a""#));
    world.end().await;
}

#[tokio::test]
async fn two_calls_under_one_id_do_not_meet() {
    let world = World::new(settings()).await;
    let client = world.client().begin(V, "{}").await;
    let hanging = client.clone();
    let hanging = tokio::spawn(async move { hanging.call("1", "hang", "{}").await });
    while client.result("2", "hangs", "{}").await != "1" {}
    assert_eq!(status(&client, call("1", "echo", "{}")).await, 400);
    assert_eq!(client.result(r#""1""#, "echo", "{}").await, "{}", "a text is another id");
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(status(&client, cancel).await, 202);
    hanging.abort();
    world.end().await;
}

#[tokio::test]
async fn a_server_that_prints_and_babbles_is_borne() {
    let caps = Caps { message: 50_000, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    assert_eq!(client.result("1", "noise", "{}").await, r#""done""#);
    let strays = world.host.strays.lock().unwrap().clone();
    assert_eq!(strays, ["line starting up…", "long 100001", "unasked", "unasked"]);
    world.end().await;
}

#[tokio::test]
async fn large_messages_pass_both_ways() {
    let world = World::new(settings()).await;
    let client = world.client().begin(V, "{}").await;
    let large = format!("\"{}\"", "x".repeat(10_000_000));
    assert_eq!(client.result("1", "echo", &large).await.len(), large.len());
    world.end().await;
}

/// A body of a hundred megabytes in pieces, as far as it is taken. Returns what it was answered with.
async fn pours(world: &World, session: &str, framing: &str) -> String {
    let (mut from, mut into) = tokio::net::TcpStream::connect(world.address).await.unwrap().into_split();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nAccept: application/json, text/event-stream\r\n\
         Content-Type: application/json\r\nMcp-Session-Id: {session}\r\n{framing}\r\n\r\n",
        world.address
    );
    let pouring = tokio::spawn(async move {
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
        into.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..100 {
            // It is refused somewhere on the way.
            if into.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
    });
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert!(from.read_buf(&mut answer).await.unwrap() > 0, "no answer");
    }
    pouring.abort();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn at_the_usual_limits_too_much_is_refused_and_the_session_goes_on() {
    let world = World::new(settings()).await;
    let client = world.client().begin(V, "{}").await;
    for framing in ["Content-Length: 104857600", "Transfer-Encoding: chunked"] {
        let answer = pours(&world, client.session(), framing).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{framing}: {answer}");
    }
    let error = client.result("1", "big", "50000000").await;
    assert!(error.contains("cannot be passed on") && error.contains("too long"), "{error}");
    assert_eq!(client.result("1", "echo", "{}").await, "{}");
    world.end().await;
}

#[tokio::test]
async fn nobody_sees_what_is_anothers() {
    let world = World::with(Arc::new(TestHost::default()), settings(), true).await;
    let of = |client: &Client, name: &str| client.set("authorization", Some(&format!("Bearer t-{name}")));
    let nobody = world.client();
    let refused = nobody.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await;
    assert_eq!(refused.status, 401);
    let challenge = refused.headers["www-authenticate"].to_str().unwrap().to_owned();
    let metadata = challenge.split('"').nth(1).unwrap();
    let path = metadata.strip_prefix(&format!("http://{}", world.address)).unwrap();
    let document = nobody.at(path).get().await;
    assert_eq!(document.status, 200);
    let document = document.text().await;
    assert!(document.contains("https://issuer.example") && document.contains("/mcp\""), "{document}");
    assert_eq!(nobody.at("/metrics").get().await.status, 401);
    assert_eq!(of(&nobody, "ada").at("/metrics").get().await.status, 200);
    assert_eq!(status(&nobody.set("authorization", Some("Bearer wrong")), "{}").await, 401);
    assert_eq!(status(&nobody.set("authorization", Some("Basic t-ada")), "{}").await, 401);

    let ada = of(&nobody, "ada").in_root("/a").await;
    assert_eq!(ada.result("1", "count", "{}").await, "1");
    let bob = of(&ada, "bob");
    for method in ["POST", "GET", "DELETE"] {
        assert_eq!(bob.request(method, call("1", "count", "{}")).await.status, 404, "{method}");
    }
    assert_eq!(ada.result("1", "count", "{}").await, "2");
    world.end().await;
}

/// Answers the handshake, prints a log line, and ends in the middle of a line at the first call.
const HALF: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    case "$line" in
        *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{}}}' ;;
        *'"tools/call"'*) echo 'log line'; printf '{"jsonrpc":"2.0","id":'$id',"resu'; exit 3 ;;
    esac
done"#;

/// Answers the handshake, and writes without an end from the first call on.
const FLOOD: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    case "$line" in
        *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{}}}' ;;
        *'"tools/call"'*) exec yes ;;
    esac
done"#;

#[tokio::test]
async fn a_server_that_never_stops_writing_stops_no_clock() {
    let patience = Duration::from_millis(20);
    let times = Times { patience, call: Duration::from_millis(200), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    *world.host.script.lock().unwrap() = Some(FLOOD);
    let client = world.client().begin(V, "{}").await;
    let answer = client.call("1", "x", "{}").await;
    assert!(answer.is_stream(), "its client sees that somebody works on it");
    let error = answer.message().await;
    assert!(error.text().contains("took too long"), "{}", error.text());
    assert_eq!(client.request("DELETE", "").await.status, 204);
    world.host.until_alive(0).await;
    world.end().await;
}

#[tokio::test]
async fn a_process_that_ends_in_the_middle_of_a_line_is_a_crash() {
    let world = World::new(settings()).await;
    *world.host.script.lock().unwrap() = Some(HALF);
    let client = world.client().begin(V, "{}").await;
    let error = client.result("1", "x", "{}").await;
    assert!(error.contains("exit status: 3"), "{error}");
    let strays = world.host.strays.lock().unwrap().clone();
    assert_eq!(strays[0], "line log line");
    assert!(strays[1].starts_with("half {"), "{strays:?}");
    world.end().await;
}

#[tokio::test]
async fn a_server_that_cannot_begin_is_no_session() {
    for (script, expected) in [
        ("exit 7", 502),
        ("read -r line; echo '{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}'; cat >/dev/null", 502),
        (
            "read -r line; echo '{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-1,\"message\":\"no\"}}'; cat",
            200,
        ),
        ("cat >/dev/null", 504),
    ] {
        let times = Times { handshake: Duration::from_millis(500), ..Times::default() };
        let world = World::new(Settings { times, ..settings() }).await;
        *world.host.script.lock().unwrap() = Some(script);
        let body =
            r#"{"jsonrpc":"2.0","id":"x","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
        let answer = world.client().post(body).await;
        assert_eq!(answer.status, expected, "{script}");
        assert!(!answer.headers.contains_key("mcp-session-id"));
        let message = answer.message().await;
        assert_eq!(message.id_text(), Some(r#""x""#));
        assert!(message.result().is_none());
        world.host.until_alive(0).await;
        world.end().await;
    }
}
