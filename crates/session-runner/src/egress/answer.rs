//! What the proxy itself says to a client: that the way is open, or why not.

use std::io;
use std::net::IpAddr;

use thiserror::Error;

use super::CONNECTIONS_MAX;
use super::denied::{Denied, DeniedBecause};
use super::reach::WAIT_MAX;
use super::request::{HEAD_BYTES_MAX, Malformed};
use super::server::HEAD_WAIT;

/// The way is open; from here on the connection is the client's.
pub(super) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// Why a client gets no connection.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the head of the request is longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    #[error("the head of the request was not complete after {} seconds", HEAD_WAIT.as_secs())]
    HeadTooSlow,
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("this session has {CONNECTIONS_MAX} connections open already: close some, and try again")]
    Full,
    #[error("no address was found for {name}: {source}")]
    NotFound { name: String, source: io::Error },
    #[error("{address} does not take connections on port {port}: {source}")]
    Unreachable { address: IpAddr, port: u16, source: io::Error },
    #[error("{address} does not answer on port {port}")]
    NoAnswer { address: IpAddr, port: u16 },
    #[error("{target} could not be reached within {} seconds", WAIT_MAX.as_secs())]
    TooSlow { target: String },
}

impl Refusal {
    /// The status, and the type of error of RFC 9209.
    fn kind(&self) -> (u16, &'static str) {
        match self {
            Self::Malformed(_) => (400, "http_request_error"),
            Self::HeadTooLong => (431, "http_request_error"),
            Self::HeadTooSlow => (408, "http_request_error"),
            Self::Denied(denied) => match denied.why {
                DeniedBecause::NotListed => (403, "http_request_denied"),
                DeniedBecause::Near(..) | DeniedBecause::NotThisMachine(_) => {
                    (403, "destination_ip_prohibited")
                }
            },
            Self::Full => (503, "connection_limit_reached"),
            Self::NotFound { .. } => (502, "dns_error"),
            Self::Unreachable { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                (502, "connection_refused")
            }
            Self::Unreachable { .. } => (502, "destination_unavailable"),
            Self::NoAnswer { .. } | Self::TooSlow { .. } => (504, "connection_timeout"),
        }
    }

    /// The whole answer. The sentence stands in the status line too: most clients show a person nothing else of an answer
    /// to CONNECT.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (status, error) = self.kind();
        // The system's words may be of any language.
        let plain = |character: char| if matches!(character, ' '..='~') { character } else { '?' };
        let sentence: String = self.to_string().chars().map(plain).collect();
        format!(
            "HTTP/1.1 {status} {sentence}\r\n\
             Proxy-Status: roomette; error={error}\r\n\
             Content-Type: text/plain\r\n\
             Content-Length: {}\r\n\
             Connection: close\r\n\r\n\
             {sentence}\n",
            sentence.len() + 1
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_http_and_says_why() {
        let refusal = Refusal::NotFound { name: "a.b".into(), source: io::Error::other("größer\r\nX: y") };
        let bytes = refusal.to_bytes();
        let mut headers = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut headers);
        let head = response.parse(&bytes).unwrap().unwrap();
        let sentence = "no address was found for a.b: gr??er??X: y";
        assert_eq!((response.code, response.reason), (Some(502), Some(sentence)));
        let length = response.headers.iter().find(|header| header.name == "Content-Length").unwrap();
        assert_eq!(length.value, (bytes.len() - head).to_string().as_bytes());
        assert_eq!(&bytes[head..], format!("{sentence}\n").as_bytes());
    }
}
