//! Where the API is to listen, as a person writes it.

use std::net::SocketAddr;
use std::str::FromStr;

use camino::Utf8PathBuf;

use crate::failure::Failure;

/// Where the API is to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListenAt {
    /// At an address of this machine.
    Tcp(SocketAddr),
    /// At a path.
    Unix(Utf8PathBuf),
}

impl FromStr for ListenAt {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Utf8PathBuf::from(path);
            if path.file_name().is_none() {
                return Err(Failure::usage(format!("{text:?} names no socket"))
                    .hint("give its path: unix:/run/user/1000/roomette.sock"));
            }
            return Ok(Self::Unix(path));
        }
        let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        numeric.as_deref().unwrap_or(text).parse().map(Self::Tcp).map_err(|_| {
            Failure::usage(format!("{text:?} is no address to listen at"))
                .hint("give an IP address and a port, such as 127.0.0.1:7777 or [::1]:7777, or unix:PATH")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_with_a_port_or_a_path() {
        let parse = |text: &str| text.parse::<ListenAt>();
        assert_eq!(parse("127.0.0.1:0"), Ok(ListenAt::Tcp("127.0.0.1:0".parse().unwrap())));
        assert_eq!(parse("localhost:80"), Ok(ListenAt::Tcp("127.0.0.1:80".parse().unwrap())));
        assert_eq!(parse("unix:a/b"), Ok(ListenAt::Unix("a/b".into())));
        for bad in [
            "",
            "7777",
            "localhost",
            "example.com:80",
            "127.0.0.1",
            "127.0.0.1:65536",
            "unix:",
            "unix:/",
            "unix:..",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
