//! Where a client wants to go, in one form.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use session_core::sandbox::Endpoint;

/// The longest name that DNS has.
const NAME_BYTES_MAX: usize = 253;
/// The longest part of one.
const LABEL_BYTES_MAX: usize = 63;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
}

/// A host as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    Address(IpAddr),
    /// In lower case, without a dot at the end.
    Name(String),
}

impl Target {
    /// Reads `host:port`; without a port it is `default_port`, if there is one.
    pub(super) fn parse(text: &str, default_port: Option<u16>) -> Result<Self, &'static str> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            Some(_) | None => (text, None),
        };
        let port = match port {
            Some(digits) => parse_port(digits),
            None => default_port,
        };
        let port = port.ok_or("the port is no number from 1 to 65535")?;
        Ok(Self { host: Host::parse(host)?, port })
    }

    /// Whether the list has it.
    pub(super) fn is_listed(&self, allow: &BTreeSet<Endpoint>) -> bool {
        let host = self.host.to_string();
        allow.iter().any(|endpoint| endpoint.admits(&host, self.port))
    }

    /// As an HTTP header names it: a port that goes without saying is left out.
    pub(super) fn authority(&self, default_port: u16) -> String {
        if self.port == default_port { self.host.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(bare) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let address = bare.parse::<Ipv6Addr>();
            return address
                .map(|address| Self::Address(address.into()))
                .map_err(|_| "there is no IPv6 address between the brackets");
        }
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => return Ok(Self::Address(address.into())),
            Ok(IpAddr::V6(_)) => return Err("an IPv6 address stands in brackets"),
            Err(_) => {}
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if is_name(&name) { Ok(Self::Name(name)) } else { Err("the host is neither a name nor an address") }
    }

    /// Whether it is the machine itself by the name that always means it (RFC 6761).
    pub(super) fn is_localhost(&self) -> bool {
        matches!(self, Self::Name(name) if name == "localhost")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Digits alone: the standard library would take a sign too.
fn parse_port(digits: &str) -> Option<u16> {
    let port = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    port.filter(|port| *port != 0)
}

/// Whether this can be the name of a host (RFC 1123, with the underscore that real names have).
fn is_name(name: &str) -> bool {
    let fits = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    // What a resolver would take for an address of an odd form: 10.0.0.1 with a dot after it, 127.1, 0x7f000001.
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    name.len() <= NAME_BYTES_MAX && name.split('.').all(fits) && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_into_one_form() {
        for (text, plain) in [
            ("API.Example.com:443", "api.example.com:443"),
            ("api.example.com.:443", "api.example.com:443"),
            ("192.0.2.7:80", "192.0.2.7:80"),
            ("[2001:DB8:0::1]:80", "[2001:db8::1]:80"),
            ("a_b-c:1", "a_b-c:1"),
            ("x", "x:80"),
            ("[::1]", "[::1]:80"),
        ] {
            assert_eq!(Target::parse(text, Some(80)).unwrap().to_string(), plain, "{text}");
        }
        let long = format!("{}:1", "a.".repeat(127));
        for text in [
            "",
            ":",
            ":80",
            "a:",
            "a:0",
            "a:65536",
            "a:+80",
            "a:8 0",
            "a b:1",
            "a/b:1",
            "a@b:1",
            "a..b:1",
            ".:1",
            "a:b:1",
            "::1:80",
            "[::1:80",
            "[::1]x:80",
            "[fe80::1%1]:80",
            "[1.2.3.4]:80",
            "é:1",
            "a\0:1",
            &long[1..],
            "10.0.0.1.:80",
            "127.1:80",
            "a.0x7f:80",
            "0X7f000001:80",
            "2130706433:80",
        ] {
            assert!(Target::parse(text, Some(80)).is_err(), "{text:?}");
        }
        assert!(Target::parse("a", None).is_err());
    }

    #[test]
    fn the_list_decides() {
        let allow =
            ["api.example.com:443", "*.example.org:443", "10.0.0.1:80", "[fd00::1]:80", "localhost:1"];
        let allow = allow.iter().map(|text| text.parse().unwrap()).collect();
        let check = |text: &str| Target::parse(text, None).unwrap().is_listed(&allow);
        for text in
            ["Api.example.com.:443", "a.example.org:443", "10.0.0.1:80", "[fd00:0::1]:80", "LOCALHOST:1"]
        {
            assert!(check(text), "{text}");
        }
        for text in
            ["api.example.com:80", "example.org:443", "[::ffff:10.0.0.1]:80", "127.0.0.1:1", "[::1]:1"]
        {
            assert!(!check(text), "{text}");
        }
    }
}
