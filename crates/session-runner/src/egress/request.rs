//! What a client asks of the proxy. Nothing here reads or writes: a head goes in, and what it asks for comes out.

use std::fmt::Write as _;

use httparse::{EMPTY_HEADER, Header, Status};
use thiserror::Error;

use super::body::{Body, Chunks};
use super::target::Target;

/// The longest head, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most headers in one.
const HEADERS_MAX: usize = 128;
/// The port of plain HTTP.
const HTTP_PORT: u16 = 80;
/// Headers that concern one connection and not the next (RFC 9110, 7.6.1), and those that are written anew.
const NOT_PASSED_ON: [&str; 11] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "upgrade",
    "http2-settings",
    "proxy-authorization",
    "proxy-authenticate",
    "host",
    "content-length",
    "transfer-encoding",
];

/// A request that can be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// A connection to there, for whatever is said on it.
    Connect(Target),
    /// One request to be passed on.
    Forward(Forward),
}

/// A request of plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) target: Target,
    /// The head as the server gets it.
    pub(super) head: Vec<u8>,
    /// What follows it.
    pub(super) body: Body,
}

/// Why a request cannot be understood, or not without doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Malformed {
    #[error("this is no request of HTTP/1.1: {0}")]
    Head(&'static str),
    #[error("the request has more than {HEADERS_MAX} headers")]
    TooManyHeaders,
    #[error("the request names no host and port: {0}")]
    Target(&'static str),
    #[error("this is a proxy: it takes CONNECT host:port, and requests for http://host/path")]
    NotForAProxy,
    #[error("a proxy cannot speak TLS for its client: use CONNECT host:port for https")]
    Https,
    #[error("the length of the request's body is not clear: {0}")]
    Length(&'static str),
    #[error("the chunks of the request's body are malformed")]
    Chunks,
    /// The server must not get it: it may be meant for another.
    #[error("the request is followed by something else, and a connection carries one request")]
    Followed,
}

/// Where a head ends, if it does; `from` is how much was looked through before.
pub(super) fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    // The end may have begun with the last bytes of the time before.
    let start = from.saturating_sub(2);
    let rest = bytes.get(start..).unwrap_or_default();
    (0..rest.len()).find_map(|at| match rest.get(at..).unwrap_or_default() {
        [b'\n', b'\r', b'\n', ..] => Some(start + at + 3),
        [b'\n', b'\n', ..] => Some(start + at + 2),
        _ => None,
    })
}

/// Understands a whole head, with the empty line at its end.
pub(super) fn parse(head: &[u8]) -> Result<Request, Malformed> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(length)) if length == head.len() => {}
        Ok(Status::Complete(_) | Status::Partial) => return Err(Malformed::Head("it ends too early")),
        Err(error) => return Err(not_http(error)),
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let minor = request.version.unwrap_or_default();
    if method == "CONNECT" {
        return Target::parse(target, None).map(Request::Connect).map_err(Malformed::Target);
    }
    let scheme = |name: &str| target.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name));
    if scheme("https://") {
        return Err(Malformed::Https);
    }
    if !scheme("http://") {
        return Err(Malformed::NotForAProxy);
    }
    let url = target.get("http://".len()..).unwrap_or_default();
    forward(method, url, minor, request.headers).map(Request::Forward)
}

fn not_http(error: httparse::Error) -> Malformed {
    Malformed::Head(match error {
        httparse::Error::HeaderName => "a header has no proper name",
        httparse::Error::HeaderValue => "a header has no proper value",
        httparse::Error::NewLine => "a line has no proper end",
        httparse::Error::Status | httparse::Error::Token => "its first line is no request line",
        httparse::Error::TooManyHeaders => return Malformed::TooManyHeaders,
        httparse::Error::Version => "its version is another one",
    })
}

/// The request as its server gets it: in origin form, with its own `Host`, its length said once, and the connection
/// ended with the answer, so that no further request comes over it.
fn forward(method: &str, url: &str, minor: u8, headers: &[Header<'_>]) -> Result<Forward, Malformed> {
    let end = url.find(['/', '?']).unwrap_or(url.len());
    let (authority, path) = url.split_at(end);
    if url.contains('#') {
        return Err(Malformed::Target("a fragment is for the client alone"));
    }
    let target = Target::parse(authority, Some(HTTP_PORT)).map_err(Malformed::Target)?;
    let body = length(minor, headers)?;
    let path = match (path, method) {
        ("", "OPTIONS") => "*".to_owned(),
        (path, _) if path.starts_with('/') => path.to_owned(),
        (query, _) => format!("/{query}"),
    };
    let mut head =
        format!("{method} {path} HTTP/1.{minor}\r\nHost: {}\r\n", target.authority(HTTP_PORT)).into_bytes();
    let of_this_connection: Vec<String> = values(headers, "connection").collect();
    for header in headers {
        let name = header.name.to_ascii_lowercase();
        if !NOT_PASSED_ON.contains(&name.as_str()) && !of_this_connection.contains(&name) {
            head.extend_from_slice(header.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(header.value);
            head.extend_from_slice(b"\r\n");
        }
    }
    let mut last = String::new();
    // Writing to a string cannot fail.
    let _written = match body {
        Some(Body::Bytes(length)) => write!(last, "Content-Length: {length}\r\n"),
        Some(Body::Chunks(_)) => write!(last, "Transfer-Encoding: chunked\r\n"),
        Some(Body::Complete) => write!(last, "Content-Length: 0\r\n"),
        None => Ok(()),
    };
    last.push_str("Connection: close\r\n\r\n");
    head.extend_from_slice(last.as_bytes());
    Ok(Forward { target, head, body: body.unwrap_or(Body::Complete) })
}

/// The elements of a header that is a list, in lower case.
fn values<'h>(headers: &'h [Header<'h>], name: &'static str) -> impl Iterator<Item = String> + 'h {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.flat_map(|header| header.value.split(|byte| *byte == b',')).map(|element| {
        // What is not ASCII is compared with ASCII only.
        String::from_utf8_lossy(element.trim_ascii()).to_ascii_lowercase()
    })
}

/// What the head says about the body; `None` when it says nothing. Everything that two readers could understand in two
/// ways is refused (RFC 9112, 6.3).
fn length(minor: u8, headers: &[Header<'_>]) -> Result<Option<Body>, Malformed> {
    let codings: Vec<String> = values(headers, "transfer-encoding").collect();
    let lengths: Vec<String> = values(headers, "content-length").collect();
    match (codings.as_slice(), lengths.as_slice()) {
        ([], []) => Ok(None),
        ([], [length]) => {
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let bytes = digits.then(|| length.parse::<u64>().ok()).flatten();
            let bytes = bytes.ok_or(Malformed::Length("its Content-Length is no number"))?;
            Ok(Some(if bytes == 0 { Body::Complete } else { Body::Bytes(bytes) }))
        }
        ([], _) => Err(Malformed::Length("it has more than one Content-Length")),
        ([coding], []) if coding == "chunked" && minor == 1 => Ok(Some(Body::Chunks(Chunks::START))),
        (_, []) => Err(Malformed::Length("its Transfer-Encoding is not chunked alone, or not of HTTP/1.1")),
        (_, _) => Err(Malformed::Length("it has both Content-Length and Transfer-Encoding")),
    }
}

#[cfg(test)]
mod tests;
