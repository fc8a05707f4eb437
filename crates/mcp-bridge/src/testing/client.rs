//! A client that says exactly what it is told to.

use std::net::SocketAddr;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::envelope::Message;

pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Whoever speaks to a bridge.
#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

/// What a request was answered with.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    read: Vec<u8>,
}

/// An event of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) data: String,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let headers =
            [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Self { address, path: "/mcp".into(), headers }
    }

    /// The same with another header instead, or without it.
    pub(crate) fn set(&self, name: &str, value: Option<&str>) -> Self {
        let mut client = self.clone();
        client.headers.retain(|(of, _)| of != name);
        client.headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        client
    }

    pub(crate) fn at(&self, path: &str) -> Self {
        Self { path: path.into(), ..self.clone() }
    }

    pub(crate) async fn request(&self, method: &str, body: impl Into<Bytes>) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(&self.path);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            request = request.header("host", self.address.to_string());
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let answer = sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body, read: Vec::new() }
    }

    pub(crate) async fn post(&self, body: &str) -> Answer {
        self.request("POST", body.to_owned()).await
    }

    /// The GET stream.
    pub(crate) async fn get(&self) -> Answer {
        self.request("GET", "").await
    }

    /// Begins a session with these capabilities, and says that it has.
    pub(crate) async fn begin(&self, version: &str, capabilities: &str) -> Self {
        let client = self.initialize(version, capabilities).await;
        assert_eq!(client.post(INITIALIZED).await.status, 202);
        client
    }

    pub(crate) async fn initialize(&self, version: &str, capabilities: &str) -> Self {
        let initialize = format!(
            r#"{{"jsonrpc":"2.0","id":"first","method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{capabilities},"clientInfo":{{"name":"test","version":"1"}}}}}}"#
        );
        let answer = self.post(&initialize).await;
        assert_eq!(answer.status, 200);
        let session = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let message = answer.message().await;
        assert_eq!(message.id_text(), Some(r#""first""#));
        self.set("mcp-session-id", Some(&session)).set("mcp-protocol-version", Some(version))
    }

    /// A session in this directory.
    pub(crate) async fn in_root(&self, root: &str) -> Self {
        let client = self.begin("2025-11-25", r#"{"roots":{}}"#).await;
        let mut stream = client.get().await;
        let asked = loop {
            let event = stream.event().await.unwrap();
            if !event.data.is_empty() {
                break message(&event.data);
            }
        };
        assert_eq!(asked.method(), Some("roots/list"));
        let id = asked.id_text().unwrap();
        let answer =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[{{"uri":"file://{root}"}}]}}}}"#);
        assert_eq!(client.post(&answer).await.status, 202);
        client
    }

    pub(crate) fn session(&self) -> &str {
        self.headers
            .iter()
            .find(|(name, _)| name == "mcp-session-id")
            .map(|(_, value)| value.as_str())
            .unwrap()
    }

    /// Calls a tool. The answer is whatever comes.
    pub(crate) async fn call(&self, id: &str, tool: &str, arguments: &str) -> Answer {
        self.post(&call(id, tool, arguments)).await
    }

    /// Calls a tool. Returns the result, or the error, letter for letter.
    pub(crate) async fn result(&self, id: &str, tool: &str, arguments: &str) -> String {
        let answer = self.call(id, tool, arguments).await;
        assert_eq!(answer.status, 200);
        let message = answer.message().await;
        assert_eq!(message.id_text(), Some(id));
        message.result().map_or_else(|| message.text().to_owned(), str::to_owned)
    }
}

pub(crate) fn call(id: &str, tool: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{{"progressToken":"p"}}}}}}"#
    )
}

pub(crate) fn message(text: &str) -> Message {
    Message::parse(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

impl Answer {
    pub(crate) fn is_stream(&self) -> bool {
        self.headers.get("content-type").is_some_and(|of| of.as_bytes().starts_with(b"text/event-stream"))
    }

    pub(crate) async fn text(self) -> String {
        let body = self.body.collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// The one message that it is, or the last of its stream.
    pub(crate) async fn message(mut self) -> Message {
        if !self.is_stream() {
            return message(&self.text().await);
        }
        let mut last = None;
        while let Some(event) = self.event().await {
            last = Some(event);
        }
        message(&last.unwrap().data)
    }

    /// The next event; `None` at the end.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.read.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).unwrap();
                let field = |name: &str| {
                    let value = frame.lines().find_map(|line| line.strip_prefix(name));
                    value.map(|value| value.trim_start().to_owned())
                };
                if let Some(data) = field("data:") {
                    return Some(Event { id: field("id:").unwrap_or_default(), data });
                }
                continue;
            }
            let piece = self.body.frame().await?.ok()?;
            self.read.extend_from_slice(piece.data_ref()?);
        }
    }
}
