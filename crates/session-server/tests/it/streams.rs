//! A log followed as a stream: each event once, in order, whatever happens to the connection.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use session_api::sse::{Decoder, Frame};
use session_server::state::Limits;
use tower::ServiceExt as _;

use crate::world::{World, request};

/// A reader of a stream.
struct Reader {
    body: Body,
    decoder: Decoder,
}

impl Reader {
    async fn open(world: &World, token: &str, session: &str, last: Option<u64>) -> Self {
        let path = format!("/v1/sessions/{session}/events");
        let mut request = request("GET", token, &path).header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = world.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), decoder: Decoder::default() }
    }

    /// What the next piece of the stream completes; `None` at its end.
    async fn next(&mut self) -> Option<Vec<Frame>> {
        let piece = self.body.frame().await?.unwrap().into_data().unwrap();
        Some(self.decoder.feed(&piece).unwrap())
    }
}

async fn append(world: &World, token: &str, session: &str, numbers: std::ops::Range<u64>) {
    let events: Vec<Value> = numbers.map(|n| json!({"kind": "note", "payload": {"n": n}})).collect();
    let body = json!({ "events": events });
    world.post(token, &format!("/v1/sessions/{session}/events"), &body).await.is(201);
}

#[tokio::test]
async fn a_reader_that_is_cut_off_again_and_again_misses_nothing_and_gets_nothing_twice() {
    const EVENTS: u64 = 1_000;
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, _) = world.start(&alice).await;
    let (mut found, mut last) = (Vec::new(), None);
    let writing = async {
        for n in 0..EVENTS / 10 {
            append(&world, &alice, &session, n * 10..n * 10 + 10).await;
            tokio::task::yield_now().await;
        }
    };
    let reading = async {
        let mut cuts = 0;
        while last != Some(EVENTS + 2) {
            let mut reader = Reader::open(&world, &alice, &session, last).await;
            // Cut off after every piece for twenty times, then not any more.
            loop {
                for frame in reader.next().await.unwrap() {
                    let event: Value = serde_json::from_str(&frame.data).unwrap();
                    assert_eq!(frame.id.unwrap(), event["seq"].to_string());
                    last = event["seq"].as_u64();
                    found.push(event);
                }
                if cuts < 20 || last == Some(EVENTS + 2) {
                    cuts += 1;
                    break;
                }
            }
        }
        assert!(cuts >= 20);
    };
    tokio::join!(writing, reading);
    let seqs: Vec<_> = found.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=EVENTS + 2).collect::<Vec<_>>());
    let numbers: Vec<_> = found[2..].iter().map(|event| event["payload"]["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..EVENTS).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_lives_and_a_server_that_ends_asks_its_readers_back() {
    let world = World::new();
    let alice = world.token("alice", "run read control").await;
    let (session, _) = world.start(&alice).await;
    let mut reader = Reader::open(&world, &alice, &session, Some(2)).await;
    assert_eq!(reader.next().await.unwrap(), [], "a comment, after a while");
    append(&world, &alice, &session, 0..1).await;
    assert_eq!(reader.next().await.unwrap()[0].id.as_deref(), Some("3"));
    world.drain.cancel();
    let end = reader.next().await.unwrap();
    assert_eq!(
        (end[0].event.as_deref(), end[0].retry_ms, end[0].id.as_deref()),
        (Some("reconnect"), Some(1_000), None)
    );
    assert!(reader.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_token_that_opened_it() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    let made = world.post(&alice, "/v1/tokens", &json!({"name": "x", "verbs": ["read"]})).await.is(201);
    let mut reader = Reader::open(&world, &made.text("/secret"), &session, Some(2)).await;
    assert_eq!(reader.next().await.unwrap(), []);
    world.delete(&alice, &format!("/v1/tokens/{}", made.text("/token/id"))).await.is(200);
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn so_many_readers_have_room_and_one_that_leaves_makes_some() {
    let limits = Limits { readers: 1, heartbeat: Duration::from_hours(1), ..Limits::default() };
    let world = World::with(limits, vec!["localhost".into()]);
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    let path = format!("/v1/sessions/{session}/events");
    let ask =
        || request("GET", &alice, &path).header("accept", "text/event-stream").body(Body::empty()).unwrap();
    let reader = Reader::open(&world, &alice, &session, None).await;
    world.send(ask()).await.refused(503, "overloaded");
    let text = world.get(&alice, "/metrics").await.is(200).body.to_string();
    assert!(text.contains("roomette_event_readers 1"), "{text}");
    drop(reader);
    Reader::open(&world, &alice, &session, None).await;
    let bad =
        request("GET", &alice, &path).header("accept", "text/event-stream").header("last-event-id", "x");
    let field = world.send(bad.body(Body::empty()).unwrap()).await.refused(422, "invalid");
    assert_eq!(field.as_deref(), Some("Last-Event-ID"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_token_also_while_there_is_much_to_read() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    for n in 0..4 {
        append(&world, &alice, &session, n * 200..n * 200 + 200).await;
    }
    let made = world.post(&alice, "/v1/tokens", &json!({"name": "x", "verbs": ["read"]})).await.is(201);
    let mut reader = Reader::open(&world, &made.text("/secret"), &session, None).await;
    assert!(!reader.next().await.unwrap().is_empty());
    world.delete(&alice, &format!("/v1/tokens/{}", made.text("/token/id"))).await.is(200);
    tokio::time::advance(Limits::default().heartbeat).await;
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn a_piece_of_a_stream_is_bounded_also_where_large_events_follow_small_ones() {
    const LARGE: usize = 256 * 1024;
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    append(&world, &alice, &session, 0..600).await;
    let path = format!("/v1/sessions/{session}/events");
    let filler = "x".repeat(LARGE);
    for _ in 0..4 {
        let events: Vec<Value> = (0..20).map(|_| json!({"kind": "note", "payload": filler})).collect();
        world.post(&alice, &path, &json!({ "events": events })).await.is(201);
    }
    let mut reader = Reader::open(&world, &alice, &session, None).await;
    let mut seen = 0;
    while seen < 600 + 80 + 2 {
        let piece = reader.body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(piece.len() < 1024 * 1024 + 2 * LARGE, "{} bytes", piece.len());
        seen += reader.decoder.feed(&piece).unwrap().len();
    }
    assert_eq!(seen, 600 + 80 + 2);
}

#[tokio::test]
async fn an_event_of_nothing_but_lines_can_be_read() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    let payload = format!("{{\"a\":{}1}}", "\n\r".repeat(400_000));
    let body = format!("{{\"events\": [{{\"kind\": \"note\", \"payload\": {payload}}}]}}");
    let path = format!("/v1/sessions/{session}/events");
    let request = request("POST", &alice, &path).header("content-type", "application/json");
    world.send(request.body(Body::from(body)).unwrap()).await.is(201);
    let mut reader = Reader::open(&world, &alice, &session, Some(2)).await;
    let frames = reader.next().await.unwrap();
    let event: Value = serde_json::from_str(&frames[0].data).unwrap();
    assert_eq!((&event["seq"], &event["payload"]), (&json!(3), &json!({"a": 1})));
}
