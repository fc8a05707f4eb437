//! Clients, each with a connection of its own, and what they measure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Method;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::memory;

/// How many begin at once.
const AT_ONCE: usize = 16;
/// How many calls are made by all clients together where their rate is measured.
const CALLS: u32 = 4_000;
/// As many sessions are up when their memory is asked for.
const SESSIONS: u32 = 64;

/// Figures: what they are, and how large.
pub type Figures = Vec<(&'static str, f64)>;

/// Where something is served.
#[derive(Debug, Clone)]
pub struct Place {
    /// `127.0.0.1:40001`.
    pub authority: String,
    /// `/mcp`.
    pub path: String,
    /// Its process.
    pub pid: u32,
    /// What lets in.
    pub token: Option<String>,
}

impl Place {
    /// The place of this URL, served by this process.
    pub fn of(url: &str, pid: u32) -> Self {
        let (authority, path) = url.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        Self { authority: authority.to_owned(), path: format!("/{path}"), pid, token: None }
    }
}

/// One client.
struct Client {
    place: Place,
    sender: SendRequest<Full<Bytes>>,
    session: Option<String>,
}

impl Client {
    async fn connect(place: &Place) -> Self {
        let stream = TcpStream::connect(&place.authority).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { place: place.clone(), sender, session: None }
    }

    async fn send(&mut self, method: Method, body: Bytes) -> Bytes {
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(&self.place.path)
            .header("host", &self.place.authority)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(token) = &self.place.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        self.sender.ready().await.unwrap();
        let answer = self.sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap();
        let status = answer.status();
        let session = answer.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
        self.session = session.or(self.session.take());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(status.is_success(), "{status}: {}", body.escape_ascii());
        body
    }

    async fn post(&mut self, body: impl Into<Bytes>) -> Bytes {
        self.send(Method::POST, body.into()).await
    }

    /// A session that has answered a call, and how long its `initialize` took.
    async fn begin(place: &Place, version: &str) -> (Self, f64) {
        let mut client = Self::connect(place).await;
        let began = Instant::now();
        client.post(initialize(version)).await;
        let took = milliseconds(began.elapsed());
        client.post(INITIALIZED).await;
        client.post(call("1")).await;
        (client, took)
    }

    async fn end(mut self) {
        self.send(Method::DELETE, Bytes::new()).await;
    }
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn initialize(version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"bench","version":"{version}"}}}}}}"#
    )
}

fn call(arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    )
}

/// What no client was called before: the answer to it is in no cache.
fn unheard() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// The middle one.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One round before one of them.
pub async fn round(place: &Place) -> Figures {
    let mut figures = Vec::new();
    let (mut known, mut unknown, mut together) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..20 {
        let (client, took) = Client::begin(place, "1").await;
        known.push(took);
        client.end().await;
        let (client, took) = Client::begin(place, &unheard()).await;
        unknown.push(took);
        client.end().await;
    }
    for _ in 0..3 {
        let begin = |_| {
            let (place, version) = (place.clone(), unheard());
            tokio::spawn(async move { Client::begin(&place, &version).await })
        };
        for begun in (0..AT_ONCE).map(begin).collect::<Vec<_>>() {
            let (client, took) = begun.await.unwrap();
            together.push(took);
            client.end().await;
        }
    }
    figures.push(("initialize, asked before, p50, ms", median(&mut known)));
    figures.push(("initialize, never asked, p50, ms", median(&mut unknown)));
    figures.push(("initialize, 16 at a time, p50, ms", median(&mut together)));
    figures.extend(calls(place).await);
    figures.extend(rates(place).await);
    figures
}

async fn calls(place: &Place) -> Figures {
    let (mut client, _) = Client::begin(place, "1").await;
    let mut calls = Vec::new();
    for _ in 0..2_000 {
        let began = Instant::now();
        client.post(call("{}")).await;
        calls.push(milliseconds(began.elapsed()));
    }
    let p50 = median(&mut calls);
    let large = call(&format!("\"{}\"", "x".repeat(10_000_000)));
    let began = Instant::now();
    let answer = client.post(large).await;
    let took = milliseconds(began.elapsed());
    assert!(answer.len() > 10_000_000, "{}", answer.len());
    client.end().await;
    vec![
        ("call p50, ms", p50),
        ("call p99, ms", calls[calls.len() * 99 / 100]),
        ("10 MB there and back, ms", took),
    ]
}

/// The memory of one who has served a single session, and what each of many adds. Before anything large was sent.
pub async fn weigh(place: &Place) -> Figures {
    Client::begin(place, "1").await.0.end().await;
    let before = memory::of_tree(place.pid);
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        clients.push(Client::begin(place, "1").await.0);
    }
    let with = memory::of_tree(place.pid);
    for client in clients {
        client.end().await;
    }
    let each = |with: f64, before: f64| (with - before) / f64::from(SESSIONS);
    vec![
        ("memory of the process, MB", before.own / 1e3),
        ("… and for a session, kB", each(with.own, before.own)),
        ("… with all that keeps it, kB", each(with.all, before.all)),
    ]
}

/// How many calls a second.
async fn rates(place: &Place) -> Figures {
    let mut figures = Vec::new();
    for (name, sessions) in
        [("calls/s, 1 session", 1), ("calls/s, 16 sessions", 16), ("calls/s, 64 sessions", SESSIONS)]
    {
        let mut clients = Vec::new();
        for _ in 0..sessions {
            clients.push(Client::begin(place, "1").await.0);
        }
        let began = Instant::now();
        let calls = CALLS / sessions;
        let working = clients.into_iter().map(|mut client| {
            tokio::spawn(async move {
                for _ in 0..calls {
                    client.post(call("{}")).await;
                }
                client
            })
        });
        let working: Vec<_> = working.collect();
        let mut done = Vec::new();
        for working in working {
            done.push(working.await.unwrap());
        }
        figures.push((name, f64::from(calls * sessions) / began.elapsed().as_secs_f64()));
        for client in done {
            client.end().await;
        }
    }
    figures
}
