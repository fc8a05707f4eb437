//! What is measured: each in a process of its own, so that its memory is its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use mcp_bridge::host::{Child, Ending, Exit, Host, HostError, Recalled, Record, ServerName, Stray};
use mcp_bridge::http::access::{Access, Door};
use mcp_bridge::http::{Configuration, Running, router};
use mcp_bridge::settings::{Caps, Settings};
use session_core::SessionId;
use session_core::env::Env;
use session_core::names::Principal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{ChildStdin, ChildStdout};
use tokio_util::sync::CancellationToken;

use crate::start;

/// The least program that passes bodies on.
pub const FLOOR: &str = "floor";
/// The bridge, before a host that starts processes and does nothing else.
pub const BRIDGE: &str = "bridge";

/// Serves one of them until stdin is at its end; its address is the one line on stdout.
pub async fn serve(what: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    println!("http://{address}/mcp");
    let (router, running) = match what {
        FLOOR => (Router::new().fallback(floor).with_state(Arc::<Floor>::default()), None),
        BRIDGE => {
            let drain = CancellationToken::new();
            let (router, running) = bridge(address, drain.clone());
            (router, Some((drain, running)))
        }
        other => panic!("{other} is not served here"),
    };
    let serving = tokio::spawn(accept(listener, router));
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .await
        .unwrap()
        .unwrap();
    serving.abort();
    if let Some((drain, running)) = running {
        drain.cancel();
        running.closed().await;
    }
}

async fn accept(listener: TcpListener, router: Router) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let server = hyper::server::conn::http1::Builder::new();
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

fn bridge(address: SocketAddr, drain: CancellationToken) -> (Router, Running) {
    let owner: Principal = "bench".parse().unwrap();
    let access = Access {
        hosts: vec![address.to_string()],
        origins: Vec::new(),
        door: Door::Open(owner.clone()),
        issuers: Vec::new(),
        url: None,
    };
    let many = 100_000;
    let caps = Caps { sessions: many, sessions_per_principal: many, processes: many, ..Caps::default() };
    let settings = Settings { caps, ..Settings::default() };
    let servers = vec!["echo".parse().unwrap()];
    let configuration = Configuration { servers, access, owner, settings };
    router(Arc::new(Processes(Env::system())), configuration, drain)
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
    if let (&Method::DELETE, Some(session)) = (request.method(), &session) {
        drop(floor.sessions.lock().unwrap().remove(session));
        return Response::new(Body::empty());
    }
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
