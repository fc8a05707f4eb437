//! What a session wanted to reach and was not let through to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use super::address::Scope;
use super::target::Target;

/// How many different targets are told apart. What else is denied is counted together.
pub const DENIED_MAX: usize = 256;

/// A connection that was denied. Its text says what would allow it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.sentence())]
pub struct Denied {
    /// The host as it was asked for: a name in lower case, an address, an IPv6 address in brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Why.
    pub why: DeniedBecause,
}

/// Why a connection was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeniedBecause {
    /// No endpoint of the session's list admits it.
    NotListed,
    /// The name is listed, and all its addresses are such as a name must not lead to, and are not listed themselves; this
    /// is the first.
    Near(IpAddr, Scope),
    /// `localhost` is listed, and leads to another machine.
    NotThisMachine(IpAddr),
}

impl Denied {
    pub(super) fn new(target: &Target, why: DeniedBecause) -> Self {
        Self { host: target.host.to_string(), port: target.port, why }
    }

    fn sentence(&self) -> String {
        let Self { host, port, why } = self;
        match *why {
            DeniedBecause::NotListed => format!(
                "{host}:{port} is not on this session's list of endpoints: only a session that was started with \
                 --net-allow {host}:{port} may connect to it"
            ),
            DeniedBecause::Near(address, scope) => format!(
                "{host}:{port} leads to {address}, {scope}, where no name leads by itself: only a session that was \
                 started with --net-allow {} as well may connect to it",
                SocketAddr::new(address, *port)
            ),
            DeniedBecause::NotThisMachine(address) => {
                format!("{host}:{port} leads to {address}, which is not this machine")
            }
        }
    }
}

/// All that a session was denied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Denials {
    /// Each target once, as it was denied first, and how often; no more than [`DENIED_MAX`].
    pub each: Vec<(Denied, u64)>,
    /// How often others were denied after that.
    pub others: u64,
}

/// The count that they are taken from.
#[derive(Debug, Default)]
pub(super) struct DenialCount {
    each: BTreeMap<(String, u16), (Denied, u64)>,
    others: u64,
}

impl DenialCount {
    /// Counts one; whether it is the first to this target, and so to be told.
    pub(super) fn note(&mut self, denied: &Denied) -> bool {
        let key = (denied.host.clone(), denied.port);
        if let Some((_, times)) = self.each.get_mut(&key) {
            *times = times.saturating_add(1);
            return false;
        }
        if self.each.len() >= DENIED_MAX {
            self.others = self.others.saturating_add(1);
            return false;
        }
        self.each.insert(key, (denied.clone(), 1));
        true
    }

    pub(super) fn denials(&self) -> Denials {
        Denials { each: self.each.values().cloned().collect(), others: self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str) -> Denied {
        Denied { host: host.into(), port: 443, why: DeniedBecause::NotListed }
    }

    #[test]
    fn each_target_is_told_once_and_counted() {
        let mut count = DenialCount::default();
        assert!(count.note(&denied("a")) && count.note(&denied("b")));
        assert!(!count.note(&denied("a")) && !count.note(&denied("a")));
        assert!(count.note(&Denied { port: 80, ..denied("a") }), "another port is another target");
        let each = vec![(Denied { port: 80, ..denied("a") }, 1), (denied("a"), 3), (denied("b"), 1)];
        assert_eq!(count.denials(), Denials { each, others: 0 });
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let mut count = DenialCount::default();
        let told = (0..1000).filter(|number| count.note(&denied(&number.to_string()))).count();
        assert!(!count.note(&denied("0")));
        let denials = count.denials();
        assert_eq!((told, denials.each.len(), denials.others), (DENIED_MAX, DENIED_MAX, 744));
    }

    #[test]
    fn a_denial_says_what_would_allow_it() {
        let text = denied("api.example.com").to_string();
        assert!(text.contains("--net-allow api.example.com:443"), "{text}");
        let near = DeniedBecause::Near("fd00::1".parse().unwrap(), Scope::Private);
        let text = Denied { why: near, ..denied("api.example.com") }.to_string();
        assert!(text.contains("a private address") && text.contains("--net-allow [fd00::1]:443"), "{text}");
    }
}
