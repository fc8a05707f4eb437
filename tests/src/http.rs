//! `roomette serve` with its HTTP API, and a client that writes what it likes onto the wire.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use camino::Utf8PathBuf;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::home::Home;

/// Longer than anything takes here: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_mins(1);

/// A host that serves the API.
#[derive(Debug)]
pub struct Served {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Where it is: `127.0.0.1:40001`, or the path of a socket.
    pub address: String,
    /// What it said before it told where it is.
    pub said: Vec<String>,
    /// The token in its token file, with every verb.
    pub token: String,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    /// The body; text where it is no JSON.
    pub body: Value,
}

impl Served {
    /// Serves at a free port of loopback, with a token file of its own.
    #[must_use]
    pub fn start(home: &Home) -> Self {
        Self::with(home, &[])
    }

    /// The same with more arguments.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn with(home: &Home, more: &[&str]) -> Self {
        let file = home.path().join("token");
        let mut served = Self::listening(
            home,
            &[&["--listen", "127.0.0.1:0", "--token-file", file.as_str()], more].concat(),
        );
        let token = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        served.token = token.trim().into();
        served
    }

    /// Serves as these arguments say.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn listening(home: &Home, arguments: &[&str]) -> Self {
        let mut command = home.command(&[&["serve"], arguments].concat());
        let mut child =
            command.stderr(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("serve: {error}"));
        let stderr = child.stderr.take().unwrap_or_else(|| panic!("no pipe"));
        let (mut stderr, mut said) = (BufReader::new(stderr), Vec::new());
        let address = loop {
            let mut line = String::new();
            let read = stderr.read_line(&mut line).unwrap_or_else(|error| panic!("stderr: {error}"));
            assert!(read > 0, "it ended without serving: {said:#?}");
            let text = line.trim();
            let at = text.strip_prefix("the API is at ");
            if let Some(at) = at {
                let at = at.strip_prefix("http://").or_else(|| at.strip_prefix("unix:")).unwrap_or(at);
                break at.split(',').next().unwrap_or(at).to_owned();
            }
            said.push(text.to_owned());
        };
        Self { child, stderr, address, said, token: String::new() }
    }

    /// The next line that it says.
    ///
    /// # Panics
    ///
    /// When it says nothing more.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        let read = self.stderr.read_line(&mut line).unwrap_or_else(|error| panic!("stderr: {error}"));
        assert!(read > 0, "it says nothing more");
        line.trim().to_owned()
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap_or_else(|| panic!("no process"));
        kill_process(pid, signal).unwrap_or_else(|error| panic!("kill: {error}"));
    }

    /// Waits for its end; its exit code, `None` after a signal.
    ///
    /// # Panics
    ///
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap_or_else(|error| panic!("wait: {error}")).code()
    }

    /// A connection of its own, on which nothing was said yet.
    ///
    /// # Panics
    ///
    /// When nobody listens.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        let stream =
            TcpStream::connect(&self.address).unwrap_or_else(|error| panic!("{}: {error}", self.address));
        let set =
            stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        set.unwrap_or_else(|error| panic!("{error}"));
        stream
    }

    /// Reads, with the host's own token.
    #[must_use]
    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &self.token, "")
    }

    /// Sends, with the host's own token.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask("POST", path, &self.token, &body.to_string())
    }

    /// Asks with this token.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> Reply {
        let head = head(method, path, &self.address, token, body.len());
        self.raw(&[head.as_bytes(), body.as_bytes()].concat())
    }

    /// Writes these bytes onto a connection of their own, and reads the answer.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    #[must_use]
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // A server that refuses early may close before everything was sent: its answer counts.
        let _cut = stream.write_all(bytes);
        answer(stream)
    }

    /// Follows a session's log behind an event.
    ///
    /// # Panics
    ///
    /// When it is refused.
    #[must_use]
    pub fn follow(&self, session: &str, last: Option<u64>) -> Follower {
        let mut stream = self.connect();
        let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
        let request = format!(
            "GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: \
             text/event-stream\r\n{last}\r\n",
            self.address, self.token
        );
        stream.write_all(request.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let mut lines = BufReader::new(stream);
        let status = line(&mut lines);
        assert!(status.contains(" 200 "), "{status}");
        while !line(&mut lines).is_empty() {}
        Follower { body: BufReader::new(Chunks { source: lines, left: 0 }) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Asks whoever is at this address, if anybody is, and says so if no whole answer comes. With a key the same request again
/// has no further effect.
///
/// # Errors
///
/// When nobody listens, or the connection ends before the answer does.
pub fn ask_at(
    address: &str,
    method: &str,
    path: &str,
    token: &str,
    key: Option<&str>,
    body: &str,
) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let head = head(method, path, address, token, body.len());
    stream.write_all(format!("{}\r\n{key}\r\n{body}", head.trim_end()).as_bytes())?;
    read_answer(stream)
}

/// Asks over a Unix socket, without a token.
///
/// # Panics
///
/// When there is no answer.
#[must_use]
pub fn ask_unix(path: &Utf8PathBuf, method: &str, target: &str, body: &str) -> Reply {
    let mut stream = UnixStream::connect(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let bytes = head(method, target, "localhost", "", body.len()) + body;
    stream.write_all(bytes.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    answer(stream)
}

fn head(method: &str, path: &str, host: &str, token: &str, length: usize) -> String {
    let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let kind = if length == 0 { "" } else { "Content-Type: application/json\r\n" };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{token}{kind}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

fn answer(stream: impl Read) -> Reply {
    read_answer(stream).unwrap_or_else(|error| panic!("no answer: {error}"))
}

pub(crate) fn read_answer(stream: impl Read) -> io::Result<Reply> {
    let mut lines = BufReader::new(stream);
    let first = read_line(&mut lines)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, first))?;
    let mut head = String::new();
    loop {
        let next = read_line(&mut lines)?.to_ascii_lowercase();
        if next.is_empty() {
            break;
        }
        head = head + &next + "\n";
    }
    let mut text = Vec::new();
    let read = if head.contains("transfer-encoding: chunked") {
        Chunks { source: lines, left: 0 }.read_to_end(&mut text)
    } else {
        lines.read_to_end(&mut text)
    };
    match read {
        // After an early refusal the rest of what was sent resets the connection.
        Err(error)
            if !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) =>
        {
            return Err(error);
        }
        Ok(_) | Err(_) => {}
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Reply { status, head, body })
}

fn line(lines: &mut BufReader<impl Read>) -> String {
    read_line(lines).unwrap_or_else(|error| panic!("the connection: {error}"))
}

fn read_line(lines: &mut BufReader<impl Read>) -> io::Result<String> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

impl Reply {
    /// The same, after a check of its status.
    ///
    /// # Panics
    ///
    /// When it is another one.
    #[track_caller]
    #[expect(
        clippy::must_use_candidate,
        clippy::return_self_not_must_use,
        reason = "often nothing but the status counts"
    )]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.body);
        self
    }

    /// Checks that it is a problem with this status and code.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        assert!(self.body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{}", self.body);
    }

    /// The text at this place, such as `/items/0/id`.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    #[must_use]
    pub fn text(&self, at: &str) -> String {
        let found = self.body.pointer(at).and_then(Value::as_str);
        found.unwrap_or_else(|| panic!("nothing at {at} of {}", self.body)).to_owned()
    }
}

/// A reader of a stream of events.
#[derive(Debug)]
pub struct Follower {
    body: BufReader<Chunks<BufReader<TcpStream>>>,
}

/// One frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// Its id.
    pub id: Option<u64>,
    /// What kind it is; nothing for an event of the log.
    pub event: Option<String>,
    /// What it says.
    pub data: Value,
}

impl Follower {
    /// The next frame; `None` at the end of the stream, in whatever way it ended.
    pub fn frame(&mut self) -> Option<Frame> {
        let mut frame = Frame::default();
        loop {
            let mut line = String::new();
            if self.body.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end().split_once(':') {
                Some(("id", id)) => frame.id = id.trim().parse().ok(),
                Some(("event", event)) => frame.event = Some(event.trim().into()),
                Some(("data", data)) => frame.data = serde_json::from_str(data.trim()).unwrap_or_default(),
                None if frame != Frame::default() => return Some(frame),
                Some(_) | None => {}
            }
        }
    }

    /// Cuts the connection off.
    pub fn cut(self) {
        let _gone = self.body.into_inner().source.into_inner().shutdown(Shutdown::Both);
    }
}

/// A body in chunks.
#[derive(Debug)]
pub(crate) struct Chunks<R> {
    pub(crate) source: R,
    pub(crate) left: usize,
}

impl<R: io::BufRead> Read for Chunks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut size = String::new();
            self.source.read_line(&mut size)?;
            if size.trim().is_empty() {
                size.clear();
                self.source.read_line(&mut size)?;
            }
            let size = size.trim();
            if size.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.left = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            if self.left == 0 {
                return Ok(0);
            }
        }
        let most = buffer.len().min(self.left);
        let read = self.source.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read;
        Ok(read)
    }
}

/// The memory of a process that lies in RAM and is in no file, in bytes.
///
/// # Panics
///
/// When there is no such process.
#[must_use]
pub fn resident(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no RssAnon in {path}")) * 1024
}
