//! As much of HTTP/1.1 as an agent needs of its model: one request a connection, answered with JSON or with a stream of
//! events.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

/// The longest body that is read: a whole conversation, with the longest prompt in it.
const BODY_MAX: u64 = 64 << 20;

/// What was asked for.
pub(super) struct Request {
    pub(super) path: String,
    pub(super) body: Value,
}

/// The connection on which it is answered.
pub(super) struct Exchange {
    stream: BufReader<TcpStream>,
}

impl Exchange {
    /// Reads a request; `None` where there is none.
    pub(super) fn read(stream: TcpStream) -> io::Result<Option<(Request, Self)>> {
        let mut stream = BufReader::new(stream);
        let mut first = String::new();
        if stream.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let (mut length, mut chunked) = (0, false);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or_default();
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let body = if chunked { chunks(&mut stream)? } else { exactly(&mut stream, length)? };
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let request = Request { path, body: serde_json::from_slice(&body).unwrap_or_default() };
        Ok(Some((request, Self { stream })))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Answers with one value.
    pub(super) fn json(mut self, status: u16, value: &Value) -> io::Result<()> {
        let body = value.to_string();
        let head = format!(
            "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        self.write(format!("{head}{body}").as_bytes())
    }

    /// Begins a stream of events, which ends with the connection.
    pub(super) fn stream(&mut self) -> io::Result<()> {
        self.write(b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    }

    /// One event, named by its `type` as well.
    pub(super) fn event(&mut self, event: &Value) -> io::Result<()> {
        let name = event["type"].as_str().unwrap_or("message");
        self.write(format!("event: {name}\ndata: {event}\n\n").as_bytes())
    }

    /// One event without a name.
    pub(super) fn data(&mut self, event: &Value) -> io::Result<()> {
        self.write(format!("data: {event}\n\n").as_bytes())
    }

    /// Returns when the other side is gone.
    pub(super) fn hang(mut self) -> io::Result<()> {
        io::copy(&mut self.stream, &mut io::sink()).map(drop)
    }
}

fn exactly(stream: &mut BufReader<TcpStream>, length: u64) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    stream.take(length.min(BODY_MAX)).read_to_end(&mut body)?;
    Ok(body)
}

fn chunks(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        body.extend(exactly(stream, length)?);
        stream.read_line(&mut line)?;
        if length == 0 {
            return Ok(body);
        }
    }
}
