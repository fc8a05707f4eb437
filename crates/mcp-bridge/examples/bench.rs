//! What the bridge costs, beside a floor: the least program that passes bodies to one process for each session and back.
//! `bench [ROUNDS]` prints medians of interleaved rounds, and how many times the floor each is.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for the command line")]

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use mcp_bridge::host::{Child, Ending, Exit, Host, HostError, Recalled, Record, ServerName, Stray};
use mcp_bridge::http::access::{Access, Door};
use mcp_bridge::http::{Configuration, router};
use mcp_bridge::settings::{Caps, Settings};
use session_core::SessionId;
use session_core::env::Env;
use session_core::names::Principal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const CHILD: &str = "--child";
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some(CHILD) {
        return echo();
    }
    let rounds = argument.and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure(rounds));
}

/// The server: it answers with what it was asked.
fn echo() {
    let (stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    for line in stdin.lines() {
        let line = line.unwrap();
        let Some(id) = line.split(r#""id":"#).nth(1).and_then(|rest| rest.split([',', '}']).next()) else {
            continue;
        };
        let result = match line.split(r#""arguments":"#).nth(1) {
            Some(arguments) => &arguments[..arguments.len() - 2],
            None => r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#,
        };
        writeln!(stdout, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).unwrap();
        stdout.flush().unwrap();
    }
}

fn start() -> tokio::process::Child {
    #[expect(clippy::disallowed_methods, reason = "a bench starts its own processes")]
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

struct Processes(Env);

#[async_trait]
impl Host for Processes {
    fn session_id(&self) -> SessionId {
        self.0.session_id()
    }

    async fn named(&self, _: &Principal, _: &ServerName, _: &str) -> Result<SessionId, HostError> {
        Ok(self.0.session_id())
    }

    async fn provisional(&self, _: &Principal, _: &ServerName) -> Result<Child, HostError> {
        let mut child = start();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let ended = Box::pin(async move {
            tokio::select! {
                _ = child.wait() => {}
                () = stopped.cancelled() => drop(child.kill().await),
            }
            Exit::Ended("it ended".into())
        });
        Ok(Child { stdin: Box::new(stdin), stdout: Box::new(stdout), ended, stop })
    }

    async fn open(&self, _: SessionId, record: &Record) -> Result<Child, HostError> {
        self.provisional(&record.principal, &record.server).await
    }

    async fn recall(&self, _: SessionId) -> Result<Option<Recalled>, HostError> {
        Ok(None)
    }

    async fn end(&self, _: SessionId, _: &Ending) -> Result<(), HostError> {
        Ok(())
    }

    async fn bury(&self, _: SessionId, _: &Principal, _: &ServerName) -> Result<(), HostError> {
        Ok(())
    }

    fn touch(&self, _: SessionId) {}

    fn stray(&self, _: SessionId, _: Stray<'_>) {}
}

type Pipe = (tokio::process::Child, ChildStdin, BufReader<ChildStdout>);

#[derive(Default)]
struct Floor {
    sessions: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Pipe>>>>,
}

async fn floor(State(floor): State<Arc<Floor>>, request: Request) -> Response {
    let session = request.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let id = session.clone().unwrap_or_else(|| Env::system().session_id().to_string());
    let pipe = if session.is_some() {
        Arc::clone(&floor.sessions.lock().unwrap()[&id])
    } else {
        let mut child = start();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let pipe = Arc::new(tokio::sync::Mutex::new((child, stdin, BufReader::new(stdout))));
        floor.sessions.lock().unwrap().insert(id.clone(), Arc::clone(&pipe));
        pipe
    };
    let mut pipe = pipe.lock().await;
    pipe.1.write_all(&[&body[..], b"\n"].concat()).await.unwrap();
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert("mcp-session-id", id.try_into().unwrap());
    if body.windows(5).any(|part| part == br#""id":"#) {
        let mut line = String::new();
        pipe.2.read_line(&mut line).await.unwrap();
        *response.body_mut() = Body::from(line);
    }
    response
}

async fn serve(listener: TcpListener, router: Router) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let server = hyper::server::conn::http1::Builder::new();
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

/// One client with a connection of its own.
struct Client {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    session: Option<String>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { address, sender, session: None }
    }

    async fn post(&mut self, body: impl Into<Bytes>) -> Bytes {
        let mut request = hyper::Request::post("/mcp")
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        self.sender.ready().await.unwrap();
        let answer = self.sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        if let Some(session) = answer.headers().get("mcp-session-id") {
            self.session = Some(session.to_str().unwrap().to_owned());
        }
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    async fn begin(address: SocketAddr) -> (Self, Duration) {
        let mut client = Self::connect(address).await;
        let began = Instant::now();
        client.post(INITIALIZE).await;
        let took = began.elapsed();
        client.post(INITIALIZED).await;
        client.post(call("1")).await;
        (client, took)
    }
}

fn call(arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    )
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Figures of one round: what they are, and how large.
async fn round(address: SocketAddr) -> Vec<(&'static str, f64)> {
    let mut figures = Vec::new();
    let mut opened = Vec::new();
    for _ in 0..20 {
        let (client, took) = Client::begin(address).await;
        opened.push(took.as_secs_f64() * 1e3);
        drop(client);
    }
    figures.push(("initialize p50, ms", median(&mut opened)));
    let (mut client, _) = Client::begin(address).await;
    let mut calls = Vec::new();
    for _ in 0..2_000 {
        let began = Instant::now();
        client.post(call("{}")).await;
        calls.push(began.elapsed().as_secs_f64() * 1e3);
    }
    figures.push(("call p50, ms", median(&mut calls)));
    figures.push(("call p99, ms", calls[calls.len() * 99 / 100]));
    for (name, sessions) in
        [("calls/s, 1 session", 1), ("calls/s, 16 sessions", 16), ("calls/s, 64 sessions", 64)]
    {
        let mut clients = Vec::new();
        for _ in 0..sessions {
            clients.push(Client::begin(address).await.0);
        }
        let began = Instant::now();
        let each = 4_000 / sessions;
        let working = clients.into_iter().map(|mut client| {
            tokio::spawn(async move {
                for _ in 0..each {
                    client.post(call("{}")).await;
                }
            })
        });
        for working in working.collect::<Vec<_>>() {
            working.await.unwrap();
        }
        figures.push((name, f64::from(each * sessions) / began.elapsed().as_secs_f64()));
    }
    let large = call(&format!("\"{}\"", "x".repeat(10_000_000)));
    let began = Instant::now();
    client.post(large).await;
    figures.push(("10 MB there and back, ms", began.elapsed().as_secs_f64() * 1e3));
    figures
}

async fn measure(rounds: usize) {
    let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (floor_at, bridge_at) = (listen().await, listen().await);
    let (floor_address, address) = (floor_at.local_addr().unwrap(), bridge_at.local_addr().unwrap());
    let owner: Principal = "bench".parse().unwrap();
    let access = Access {
        hosts: vec![address.to_string()],
        origins: Vec::new(),
        door: Door::Open(owner.clone()),
        issuers: Vec::new(),
        url: None,
    };
    let caps =
        Caps { sessions: 100_000, sessions_per_principal: 100_000, processes: 100_000, ..Caps::default() };
    let settings = Settings { caps, ..Settings::default() };
    let servers = vec!["echo".parse().unwrap()];
    let configuration = Configuration { servers, access, owner, settings };
    let drain = CancellationToken::new();
    let (bridge, running) = router(Arc::new(Processes(Env::system())), configuration, drain.clone());
    tokio::spawn(serve(bridge_at, bridge));
    let router = Router::new().fallback(floor).with_state(Arc::<Floor>::default());
    tokio::spawn(serve(floor_at, router));
    let (mut floors, mut bridges) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        floors.push(round(floor_address).await);
        bridges.push(round(address).await);
    }
    for (index, (name, _)) in floors[0].iter().enumerate() {
        let of =
            |all: &[Vec<(&str, f64)>]| median(&mut all.iter().map(|one| one[index].1).collect::<Vec<_>>());
        let (floor, bridge) = (of(&floors), of(&bridges));
        println!("{name:26} floor {floor:10.3}  bridge {bridge:10.3}  ratio {:6.2}", bridge / floor);
    }
    drain.cancel();
    running.closed().await;
}
