//! The server on a real socket: heads, readers that stop, and the end.

use std::time::Duration;

use serde_json::{Value, json};
use session_api::sse::Decoder;
use session_server::serve::{Bounds, Listening, hosts, serve};
use session_server::state::{Access, Limits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::world::World;

struct Served {
    world: World,
    address: std::net::SocketAddr,
    task: JoinHandle<()>,
}

async fn served(bounds: Bounds) -> Served {
    let access = Access { without_token: None, hosts: Vec::new() };
    let listening = Listening::tcp("127.0.0.1:0".parse().unwrap(), &access).await.unwrap();
    let address = listening.address().unwrap();
    let names = hosts(Some(address)).into_iter().chain(["localhost".into()]).collect();
    let world = World::with(Limits::default(), names);
    let task = tokio::spawn(serve(listening, world.router.clone(), bounds, world.drain.clone()));
    Served { world, address, task }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// All that comes back until the connection ends.
    async fn ask(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        // A head that is refused before its end is not taken whole, and what was not taken resets the connection.
        let _refused = stream.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn end(self) {
        self.world.drain.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn heads_are_bounded_in_size_number_and_time() {
    let bounds = Bounds { head_time: Duration::from_millis(50), ..Bounds::default() };
    let served = served(bounds).await;
    let head =
        |more: &str| format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    assert!(served.ask(&head("")).await.starts_with("HTTP/1.1 200"));
    assert!(
        served.ask("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").await.starts_with("HTTP/1.1 400")
    );
    assert!(
        served
            .ask("GET /healthz HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 403")
    );
    let many: String = (0..100).flat_map(|n| [format!("x-{n}: y\r\n")]).collect();
    assert!(served.ask(&head(&many)).await.starts_with("HTTP/1.1 431"));
    let long = format!("x: {}\r\n", "y".repeat(400_000));
    let refused = served.ask(&head(&long)).await;
    assert!(refused.starts_with("HTTP/1.1 431") || refused.is_empty(), "{refused}");
    // It sends no end of its head: the server does not wait for it.
    let late = served.ask("GET /healthz HTTP/1.1\r\nHost: loc").await;
    assert!(late.is_empty() || late.starts_with("HTTP/1.1 408"), "{late}");
    served.end().await;
}

#[tokio::test]
async fn a_reader_that_stops_costs_a_page_and_loses_nothing() {
    const EVENTS: u64 = 320;
    const BYTES: usize = 64 * 1024;
    let served = served(Bounds::default()).await;
    let world = &served.world;
    let alice = world.token("alice", "all").await;
    let (session, _) = world.start(&alice).await;
    let path = format!("/v1/sessions/{session}/events");
    let mut stream = served.connect().await;
    let ask = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {alice}\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let filler = "x".repeat(BYTES);
    for batch in 0..EVENTS / 20 {
        let events: Vec<Value> = (0..20)
            .map(|n| json!({"kind": "note", "payload": {"n": batch * 20 + n, "filler": filler}}))
            .collect();
        world.post(&alice, &path, &json!({ "events": events })).await.is(201);
    }
    // Nobody reads: what left the store is what the sockets' buffers hold, and a page.
    let metrics = world.get(&alice, "/metrics").await.is(200).body;
    let sent =
        metrics.as_str().unwrap().lines().find_map(|line| line.strip_prefix("roomette_events_sent_total "));
    let sent: u64 = sent.unwrap().parse().unwrap();
    assert!(sent < EVENTS / 2, "{sent} events of {BYTES} bytes were taken for a reader that takes none");
    let (mut decoder, mut found, mut piece) = (Decoder::default(), Vec::new(), vec![0; 256 * 1024]);
    let mut raw = Vec::new();
    while found.len() as u64 != EVENTS + 2 {
        let read = stream.read(&mut piece).await.unwrap();
        assert_ne!(read, 0, "the stream ended");
        raw.extend_from_slice(&piece[..read]);
        for chunk in chunks(&mut raw) {
            found.extend(decoder.feed(&chunk).unwrap().into_iter().map(|frame| frame.id.unwrap()));
        }
    }
    assert_eq!(found, (1..=EVENTS + 2).map(|seq| seq.to_string()).collect::<Vec<_>>());
    drop(stream);
    served.end().await;
}

/// The whole chunks at the beginning of a chunked body; its head is one that is skipped.
fn chunks(raw: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    loop {
        if raw.starts_with(b"HTTP/") {
            let Some(end) = raw.windows(4).position(|four| four == b"\r\n\r\n") else { return found };
            raw.drain(..end + 4);
        }
        let Some(end) = raw.windows(2).position(|two| two == b"\r\n") else { return found };
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).unwrap(), 16).unwrap();
        if raw.len() < end + 2 + size + 2 {
            return found;
        }
        found.push(raw[end + 2..end + 2 + size].to_vec());
        raw.drain(..end + 2 + size + 2);
    }
}

#[tokio::test]
async fn the_end_lets_what_is_answered_come_to_its_end() {
    let bounds = Bounds { drain: Duration::from_mins(1), ..Bounds::default() };
    let served = served(bounds).await;
    let alice = served.world.token("alice", "all").await;
    let (session, _) = served.world.start(&alice).await;
    let mut stream = served.connect().await;
    let ask = format!(
        "GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {alice}\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"));
    let address = served.address;
    served.end().await;
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("event: reconnect") && rest.ends_with("0\r\n\r\n"), "{rest}");
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let directory = std::env::temp_dir().join(format!("roomette-api-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("api.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let world = World::with(Limits::default(), hosts(None));
    let serving = serve(
        Listening::Unix { listener, owner: None },
        world.router.clone(),
        Bounds::default(),
        world.drain.clone(),
    );
    let task = tokio::spawn(serving);
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ready\n"), "{answer}");
    world.drain.cancel();
    task.await.unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_body_that_is_far_too_large_is_told_so_also_to_who_sends_it_to_its_end() {
    let served = served(Bounds::default()).await;
    let alice = served.world.token("alice", "all").await;
    let mut stream = served.connect().await;
    let bytes = 100 * 1024 * 1024;
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {alice}\r\n\
         Content-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..100 {
        stream.write_all(&vec![b' '; bytes / 100]).await.unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
    drop(stream);
    served.end().await;
}

#[tokio::test]
async fn who_takes_no_answer_is_cut_off_and_makes_room() {
    let bounds = Bounds { connections: 1, write_time: Duration::from_millis(200), ..Bounds::default() };
    let served = served(bounds).await;
    let mut greedy = served.connect().await;
    let ask = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500);
    greedy.write_all(ask.as_bytes()).await.unwrap();
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = tokio::time::timeout(Duration::from_mins(1), served.ask(head)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(greedy);
    served.end().await;
}

#[tokio::test]
async fn a_connection_that_asks_for_nothing_more_ends() {
    let bounds = Bounds { head_time: Duration::from_millis(50), ..Bounds::default() };
    let served = served(bounds).await;
    let answer = served.ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    served.end().await;
}
