//! `roomette bridge` before a small server, and clients of it that write what they like onto the wire.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::home::Home;
use crate::http::{Chunks, Reply, read_answer};

/// Longer than anything takes here: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_mins(1);
const SERVER: &str = include_str!("../fixtures/mcp/server.py");

/// A bridge that is up.
#[derive(Debug)]
pub struct Bridge {
    child: Child,
    /// Where it is: `127.0.0.1:40001`.
    pub address: String,
    /// What lets in.
    pub token: String,
    /// What it said of itself on stdout.
    pub said: Value,
}

/// The file of the server, in a directory of its own; made where it is not there.
///
/// # Panics
///
/// When it cannot be written.
#[must_use]
pub fn server(home: &Home) -> Utf8PathBuf {
    let place = home.path().join("server");
    fs::create_dir_all(&place).unwrap_or_else(|error| panic!("{place}: {error}"));
    let path = place.join("tries.py");
    fs::write(&path, SERVER).unwrap_or_else(|error| panic!("{path}: {error}"));
    path
}

/// Where it lies.
#[must_use]
pub fn directory(server: &Utf8Path) -> &str {
    server.parent().map_or("/", Utf8Path::as_str)
}

impl Bridge {
    /// Each client session with a process of its own.
    #[must_use]
    pub fn isolated(home: &Home, more: &[&str]) -> Self {
        Self::start(home, &[&["--session-isolation"], more].concat())
    }

    /// The server at a free port of loopback.
    #[must_use]
    pub fn start(home: &Home, more: &[&str]) -> Self {
        Self::at(home, "127.0.0.1:0", more)
    }

    /// The same at this address.
    #[must_use]
    pub fn at(home: &Home, address: &str, more: &[&str]) -> Self {
        let server = server(home);
        let first = ["--listen", address, "--allow-read", directory(&server)];
        Self::serving(home, &[&first, more, &["--", "python3", server.as_str()]].concat())
    }

    /// A bridge with these arguments, which name its server.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn serving(home: &Home, arguments: &[&str]) -> Self {
        Self::of(home, &[&["bridge"], arguments].concat())
    }

    /// The bridge of what this command makes a host.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn of(home: &Home, arguments: &[&str]) -> Self {
        let mut command = home.command(&[&["--json"], arguments].concat());
        let mut child =
            command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("bridge: {error}"));
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("no pipe"));
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        assert!(read.is_ok_and(|read| read > 0), "it ended without serving");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let address = said["address"].as_str().unwrap_or_default().to_owned();
        let token = said["token_file"].as_str().map(|file| fs::read_to_string(file).unwrap_or_default());
        Self { child, address, token: token.unwrap_or_default().trim().to_owned(), said }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or_default()
    }

    /// Sends it a signal, and waits for its end: its exit code, `None` after a signal.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn end_by(mut self, signal: Signal) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.unwrap_or_else(|| panic!("no process"));
        kill_process(pid, signal).unwrap_or_else(|error| panic!("kill: {error}"));
        self.child.wait().unwrap_or_else(|error| panic!("wait: {error}")).code()
    }

    /// A client that has not begun.
    #[must_use]
    pub fn client(&self) -> Client {
        Client {
            address: self.address.clone(),
            token: self.token.clone(),
            session: String::new(),
            listening: None,
            asked: 0,
        }
    }

    /// A client that opens these directories.
    #[must_use]
    pub fn opens(&self, roots: &[&Utf8Path]) -> Client {
        let mut client = self.client();
        client.begin(Some(roots));
        client
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A client of a bridge.
#[derive(Debug)]
pub struct Client {
    /// Where the bridge is.
    pub address: String,
    /// What it shows.
    pub token: String,
    /// Its `Mcp-Session-Id`, which is the session's; empty before it has begun.
    pub session: String,
    listening: Option<BufReader<Chunks<BufReader<TcpStream>>>>,
    asked: u64,
}

impl Client {
    /// One request of its own, and the answer.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, method: &str, body: &str) -> Reply {
        Self::answer(self.begins_to_ask(method, body))
    }

    /// What comes on a connection on which something was asked.
    ///
    /// # Panics
    ///
    /// When nothing does.
    #[must_use]
    pub fn answer(stream: TcpStream) -> Reply {
        read_answer(stream).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// The same without waiting for an answer: the connection on which it comes.
    ///
    /// # Panics
    ///
    /// When nobody takes it.
    #[must_use]
    pub fn begins_to_ask(&self, method: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let head = self.head(method, body.len(), "application/json, text/event-stream");
        stream
            .write_all(&[head.as_bytes(), body.as_bytes()].concat())
            .unwrap_or_else(|error| panic!("{error}"));
        stream
    }

    /// Begins: says which directories it opens if it is asked; without them it cannot say.
    ///
    /// # Panics
    ///
    /// When the bridge does not answer as it should.
    pub fn begin(&mut self, roots: Option<&[&Utf8Path]>) {
        let capabilities = roots.map_or(json!({}), |_| json!({"roots": {"listChanged": true}}));
        let begun = self.send(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert_eq!(begun.status, 200, "{}", begun.body);
        let id = begun.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        id.unwrap_or_else(|| panic!("no id: {}", begun.head)).clone_into(&mut self.session);
        let Some(roots) = roots else {
            self.tell("notifications/initialized");
            return;
        };
        self.listen();
        self.tell("notifications/initialized");
        let asked = self.hears();
        assert_eq!(asked["method"], json!("roots/list"));
        let uris: Vec<_> = roots.iter().map(|root| json!({"uri": format!("file://{root}")})).collect();
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": uris}});
        assert_eq!(self.ask("POST", &answer.to_string()).status, 202);
    }

    /// A notification, which is taken.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub fn tell(&self, method: &str) {
        let told = self.ask("POST", &json!({"jsonrpc": "2.0", "method": method}).to_string());
        assert_eq!(told.status, 202, "{}", told.body);
    }

    /// A request of the protocol, as it is answered over HTTP.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    #[must_use]
    pub fn send(&mut self, method: &str, params: &Value) -> Reply {
        self.asked += 1;
        let reply = self.send_as(self.asked, method, params);
        assert!(!reply.body.is_string(), "no answer in {:?}", reply.body);
        reply
    }

    /// The same under this id, beside others; where the stream ends without an answer it is all that came.
    #[must_use]
    pub fn send_as(&self, id: u64, method: &str, params: &Value) -> Reply {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut reply = self.ask("POST", &request.to_string());
        if let Value::String(events) = &reply.body {
            let messages = events.lines().filter_map(|line| line.strip_prefix("data: "));
            let mut messages = messages.filter_map(|text| serde_json::from_str::<Value>(text).ok());
            if let Some(answer) = messages.find(|message| message["id"] == json!(id)) {
                reply.body = answer;
            }
        }
        reply
    }

    /// Calls a tool: what it says, or what went wrong.
    #[must_use]
    pub fn call(&mut self, tool: &str, arguments: &Value) -> String {
        let reply = self.send("tools/call", &json!({"name": tool, "arguments": arguments}));
        let text = reply.body["result"]["content"][0]["text"].as_str();
        text.map_or_else(|| format!("{} {}", reply.status, reply.body["error"]["message"]), str::to_owned)
    }

    /// Reads a file.
    #[must_use]
    pub fn read(&mut self, path: &Utf8Path) -> String {
        self.call("read", &json!({"path": path}))
    }

    fn connect(&self) -> TcpStream {
        let stream =
            TcpStream::connect(&self.address).unwrap_or_else(|error| panic!("{}: {error}", self.address));
        stream.set_read_timeout(Some(PATIENCE)).unwrap_or_else(|error| panic!("{error}"));
        stream
    }

    fn head(&self, method: &str, length: usize, accept: &str) -> String {
        let (mut token, mut session) = (String::new(), String::new());
        if !self.token.is_empty() {
            token = format!("Authorization: Bearer {}\r\n", self.token);
        }
        if !self.session.is_empty() {
            session = format!("Mcp-Session-Id: {}\r\nMCP-Protocol-Version: 2025-11-25\r\n", self.session);
        }
        format!(
            "{method} /mcp HTTP/1.1\r\nHost: {}\r\nAccept: {accept}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n{token}{session}\r\n",
            self.address
        )
    }

    fn listen(&mut self) {
        let mut stream = self.connect();
        let head = self.head("GET", 0, "text/event-stream");
        stream.write_all(head.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let mut lines = BufReader::new(stream);
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap_or_else(|error| panic!("{error}"));
            if line.trim().is_empty() {
                break;
            }
        }
        self.listening = Some(BufReader::new(Chunks { source: lines, left: 0 }));
    }

    /// The next message on its stream.
    fn hears(&mut self) -> Value {
        let stream = self.listening.as_mut().unwrap_or_else(|| panic!("it does not listen"));
        loop {
            let mut line = String::new();
            let read = stream.read_line(&mut line).unwrap_or_else(|error| panic!("the stream: {error}"));
            assert!(read > 0, "the stream has ended");
            let data = line.strip_prefix("data: ").and_then(|text| serde_json::from_str(text).ok());
            if let Some(message) = data {
                return message;
            }
        }
    }
}
