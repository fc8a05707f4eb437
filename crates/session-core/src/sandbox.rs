//! What a session's processes may touch, reach and use up. Settled when the session is made, and never again: no port
//! changes it, so nothing widens it later.
//!
//! It says what was asked for. What the kernel really holds is found out on the runner's machine for each run and
//! recorded with it ([`Run::sandbox`](crate::run::Run::sandbox)).

mod within;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::within::Wider;
use crate::ids::excerpt;

/// How many directories of each kind, and how many endpoints, one session may name.
pub const NAMED_MAX: usize = 48;

/// A session's sandbox, as it was asked for. Its directories are real ones of the machine that has the session, unless they
/// are [pending](Self::pending).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSpec {
    /// How much the kernel must enforce.
    pub level: SandboxLevel,
    /// Paths of directories that it may read beyond its own.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub read: BTreeSet<Utf8PathBuf>,
    /// Paths of directories that it may change beyond its own.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub write: BTreeSet<Utf8PathBuf>,
    /// What it may reach.
    pub network: NetworkSpec,
    /// What each of its runs may use up.
    pub limits: ProcessLimits,
    /// Real path of the git repository of its project, as it was when the session was made: where objects, refs and
    /// configuration are. The host's git goes nowhere else for this session. `None` where there was none, and in records
    /// from before: then it is found anew, by the strict rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<Utf8PathBuf>,
    /// Said where any runner may execute the session: its directories are recorded by the names under which they were asked
    /// for, and the runner that opens the session first looks at them, once, on its machine. `None` where the paths are real.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

/// What must hold of directories that a runner is still to look at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pending {
    /// Each really lies in one of these; empty for anywhere. The runner's own bounds count beside them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub roots: BTreeSet<Utf8PathBuf>,
    /// No symbolic link is on the way to any. They were compared with those of a parent by name, and whoever may make a link
    /// there must not have them lead elsewhere.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub plain: bool,
}

/// How much the kernel must enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// The best that the machine offers, and never less than floor.
    #[default]
    Best,
    /// Namespaces, Landlock, a filter of system calls and no capabilities.
    Full,
    /// Landlock and a filter of system calls.
    Floor,
    /// Nothing.
    Off,
}

impl SandboxLevel {
    /// Every level.
    pub const ALL: [Self; 4] = [Self::Best, Self::Full, Self::Floor, Self::Off];

    /// The name in records, options and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Full => "full",
            Self::Floor => "floor",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for SandboxLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no level.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no sandbox level: best, full, floor or off")]
pub struct UnknownSandboxLevel(String);

impl FromStr for SandboxLevel {
    type Err = UnknownSandboxLevel;

    fn from_str(text: &str) -> Result<Self, UnknownSandboxLevel> {
        let found = Self::ALL.into_iter().find(|level| level.as_str() == text);
        found.ok_or_else(|| UnknownSandboxLevel(excerpt(text)))
    }
}

/// What a session may reach over a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkSpec {
    /// Whatever the machine reaches.
    #[default]
    Open,
    /// Nothing, not even itself.
    None,
    /// Itself alone.
    Loopback,
    /// Itself, and these endpoints through a proxy of the host.
    Allow(BTreeSet<Endpoint>),
}

impl NetworkSpec {
    /// The name in options and output.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::None => "none",
            Self::Loopback => "loopback",
            Self::Allow(_) => "allow",
        }
    }
}

/// What one run may use up, all its processes together where the kernel can hold that. `None` is without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessLimits {
    /// Memory in bytes: of each process, and where there is a cgroup of all together.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// The largest file that can be written, in bytes.
    pub file_size_bytes: Option<u64>,
    /// What may be written to disk in all, in bytes.
    pub write_bytes: Option<u64>,
}

impl ProcessLimits {
    /// No limit of ours.
    pub const NONE: Self =
        Self { memory_bytes: None, processes: None, file_size_bytes: None, write_bytes: None };
}

impl Default for ProcessLimits {
    /// Room for a large build, and an end for a runaway.
    fn default() -> Self {
        Self {
            memory_bytes: Some(16 << 30),
            processes: Some(2048),
            file_size_bytes: Some(16 << 30),
            write_bytes: Some(256 << 30),
        }
    }
}

/// Somewhere that a session may connect to: a host, or all hosts below a domain, and a TCP port.
///
/// As text `api.example.com:443`, `*.example.com:443`, `192.0.2.7:8080` or `[2001:db8::1]:443`; without a port it
/// is 443.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    host: HostPattern,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum HostPattern {
    Address(IpAddr),
    /// In lower case.
    Name(String),
    /// Whatever ends in this, which begins with a dot, in lower case.
    Below(String),
}

/// What an endpoint without a port means.
const DEFAULT_PORT: u16 = 443;
/// The longest name that DNS has.
const NAME_BYTES_MAX: usize = 253;
/// The longest part of one.
const LABEL_BYTES_MAX: usize = 63;

impl Endpoint {
    /// Whether a connection to this host, as its client wrote it, and this port is meant. Names are compared without
    /// regard to case and to a dot at the end; an address is never a name.
    #[must_use]
    pub fn admits(&self, host: &str, port: u16) -> bool {
        if port != self.port {
            return false;
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match (&self.host, bare.parse::<IpAddr>()) {
            (HostPattern::Address(address), Ok(wanted)) => *address == wanted,
            (HostPattern::Address(_), Err(_)) | (HostPattern::Name(_) | HostPattern::Below(_), Ok(_)) => {
                false
            }
            (HostPattern::Name(name), Err(_)) => plain(host) == *name,
            (HostPattern::Below(domain), Err(_)) => {
                let host = plain(host);
                host.len() > domain.len() && host.ends_with(domain)
            }
        }
    }

    /// Whether it is an address, so that whoever named it meant exactly that machine.
    #[must_use]
    pub fn is_address(&self) -> bool {
        matches!(self.host, HostPattern::Address(_))
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            HostPattern::Address(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            HostPattern::Name(name) => write!(f, "{name}:{}", self.port),
            HostPattern::Below(domain) => write!(f, "*{domain}:{}", self.port),
        }
    }
}

/// The text names no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} names no endpoint ({why}): write HOST:PORT, such as api.example.com:443 or *.example.com:443"
)]
pub struct EndpointError {
    text: String,
    why: &'static str,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = |why| EndpointError { text: excerpt(text), why };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { host: HostPattern::Address(address), port: DEFAULT_PORT });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((_, rest)) if rest.ends_with(']') => (text, DEFAULT_PORT),
            Some((host, port)) => match port.parse() {
                Ok(0) | Err(_) => return Err(wrong("its port is no number from 1 to 65535")),
                Ok(port) => (host, port),
            },
            None => (text, DEFAULT_PORT),
        };
        if let Some(bare) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            let address = bare.parse().map_err(|_| wrong("there is no IPv6 address between the brackets"))?;
            return Ok(Self { host: HostPattern::Address(IpAddr::V6(address)), port });
        }
        if let Ok(address) = host.parse() {
            return Ok(Self { host: HostPattern::Address(IpAddr::V4(address)), port });
        }
        let (below, name) = match host.strip_prefix("*.") {
            Some(domain) => (true, plain(domain)),
            None => (false, plain(host)),
        };
        check_name(&name).map_err(wrong)?;
        if below && !name.contains('.') {
            return Err(wrong("it would allow a whole top-level domain"));
        }
        let host = if below { HostPattern::Below(format!(".{name}")) } else { HostPattern::Name(name) };
        Ok(Self { host, port })
    }
}

/// What is wrong with a host's name, if anything (RFC 1123, with the underscore that real names have).
fn check_name(name: &str) -> Result<(), &'static str> {
    let fits = |label: &str| {
        !label.is_empty()
            && label.len() <= LABEL_BYTES_MAX
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if name.is_empty() {
        return Err("it has no host");
    }
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(fits) {
        return Err("its host is no name");
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    // What a resolver would take for an address of an odd form: 127.1, 0x7f000001.
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
        return Err("its host is neither a name nor a whole address");
    }
    Ok(())
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn endpoints_are_written_in_one_form() {
        for (text, plain) in [
            ("API.Example.com:443", "api.example.com:443"),
            ("api.example.com", "api.example.com:443"),
            ("*.example.com.:8443", "*.example.com:8443"),
            ("192.0.2.7:80", "192.0.2.7:80"),
            ("192.0.2.7", "192.0.2.7:443"),
            ("[2001:DB8::1]:80", "[2001:db8::1]:80"),
            ("[2001:db8::1]", "[2001:db8::1]:443"),
            ("2001:db8::1", "[2001:db8::1]:443"),
            ("localhost:11434", "localhost:11434"),
        ] {
            assert_eq!(endpoint(text).to_string(), plain, "{text}");
        }
        for text in [
            "",
            ":443",
            "a:0",
            "a:65536",
            "a:b",
            "*:443",
            "*.com:443",
            "a..b:1",
            "-a:1",
            "a b:1",
            "http://a:1",
            "a/b",
            "127.1:80",
            "0x7f000001:80",
            "[::1:80",
            "a:1\n",
            "[nonsense]:1",
            "*.*.example.com:443",
            "999.1.1.1:1",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_endpoint_admits_what_it_names_and_nothing_else() {
        let named = endpoint("api.example.com:443");
        assert!(named.admits("API.example.com.", 443));
        for (host, port) in [
            ("api.example.com", 80),
            ("example.com", 443),
            ("x.api.example.com", 443),
            ("api.example.com.evil.org", 443),
            ("xapi.example.com", 443),
            ("", 443),
        ] {
            assert!(!named.admits(host, port), "{host}:{port}");
        }
        let below = endpoint("*.example.com:443");
        assert!(below.admits("a.example.com", 443) && below.admits("a.b.example.com", 443));
        assert!(!below.admits("example.com", 443) && !below.admits("evilexample.com", 443));
        let address = endpoint("[::1]:80");
        assert!(
            address.admits("[::1]", 80)
                && address.admits("0:0:0:0:0:0:0:1", 80)
                && !address.admits("localhost", 80)
        );
        assert!(!endpoint("localhost:80").admits("127.0.0.1", 80));
    }

    #[test]
    fn what_older_records_lack_is_the_default() {
        let spec: SandboxSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, SandboxSpec::default());
        assert_eq!(spec.level, SandboxLevel::Best);
        assert_eq!(spec.network, NetworkSpec::Open);
        assert!(serde_json::from_str::<SandboxSpec>(r#"{"levle":"off"}"#).is_err());
    }

    #[test]
    fn a_spec_survives_its_record() {
        let spec = SandboxSpec {
            level: SandboxLevel::Full,
            read: BTreeSet::from(["/opt/tools".into()]),
            write: BTreeSet::from(["/srv/data".into()]),
            network: NetworkSpec::Allow(BTreeSet::from([endpoint("api.example.com:443")])),
            limits: ProcessLimits { processes: Some(64), ..ProcessLimits::NONE },
            repository: Some("/srv/project/.git".into()),
            pending: None,
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(
            text,
            r#"{"level":"full","read":["/opt/tools"],"write":["/srv/data"],"network":{"allow":["api.example.com:443"]},"limits":{"memory_bytes":null,"processes":64,"file_size_bytes":null,"write_bytes":null},"repository":"/srv/project/.git"}"#
        );
        assert_eq!(serde_json::from_str::<SandboxSpec>(&text).unwrap(), spec);
        for (pending, as_text) in [
            (Pending::default(), "{}"),
            (Pending { roots: ["/srv".into()].into(), plain: true }, r#"{"roots":["/srv"],"plain":true}"#),
        ] {
            let spec = SandboxSpec { pending: Some(pending), ..SandboxSpec::default() };
            let text = serde_json::to_string(&spec).unwrap();
            assert!(text.ends_with(&format!(r#","pending":{as_text}}}"#)), "{text}");
            assert_eq!(serde_json::from_str::<SandboxSpec>(&text).unwrap(), spec);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC*|[a-z0-9.*:\\[\\]-]{0,40}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}
