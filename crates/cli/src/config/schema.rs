//! Every setting, its default and its range.

use camino::Utf8PathBuf;
use jiff::SignedDuration;
use jiff::fmt::serde::duration::friendly::compact as friendly;
use serde::{Deserialize, Serialize};
use session_core::family::{CHILDREN_MAX, DEPTH_MAX};
use session_core::sandbox::{Endpoint, ProcessLimits, SandboxLevel};

use crate::duration;

/// Every setting, with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where sessions, runs and events are kept.
    pub store: StoreConfig,
    /// The process that supervises the runs of one data directory.
    pub host: HostConfig,
    /// What every run gets unless it says otherwise.
    pub run: RunConfig,
    /// How many sessions there may be, for how long, and what each may use up.
    pub limits: LimitsConfig,
    /// What the processes of a new session may touch, reach and use up, unless it says otherwise.
    pub sandbox: SandboxConfig,
    /// The logs of sessions.
    pub log: LogConfig,
    /// The removal of old workspaces.
    pub cleanup: CleanupConfig,
    /// The HTTP API of a host that is started with `roomette serve`.
    pub serve: ServeConfig,
    /// The MCP bridge of a host that is started with `roomette serve`.
    pub bridge: BridgeConfig,
    /// The MCP tools by which agents find their own session again.
    pub scribe: ScribeConfig,
}

/// The MCP bridge of a host that is started with `roomette serve`: what `roomette bridge` is told by its flags of the same names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeConfig {
    /// The file with the servers (`mcpServers`), as an absolute path; empty for no bridge.
    pub config: Utf8PathBuf,
    /// Where it listens: an IP address and a port.
    pub listen: String,
    /// Whether every client session has a process of its own, confined to the directories that its client names.
    pub session_isolation: bool,
    /// The directories of a session whose client names none, and of all clients without `session_isolation`.
    pub sandbox_scope: Vec<Utf8PathBuf>,
    /// Clients may name directories below these, and nowhere else; nothing for anywhere.
    pub allow_root: Vec<Utf8PathBuf>,
    /// Directories that every session may read.
    pub allow_read: Vec<Utf8PathBuf>,
    /// How many servers run at once, beside the runs of the host; 1 to 1000.
    pub sessions: u32,
}

/// The MCP tools by which agents find their own session again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScribeConfig {
    /// Whether an agent that does not name itself is refused. It is `default` otherwise.
    pub require_agent: bool,
    /// Whether an agent that names no execution is refused. It is `standing` otherwise.
    pub require_execution: bool,
    /// For how long after its last use a session is found again.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub ttl: SignedDuration,
    /// For how long after its creation it may be found at the most; nothing for as long as it is used.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "friendly::optional",
        deserialize_with = "duration::deserialize_some"
    )]
    pub lifetime: Option<SignedDuration>,
    /// Whose paths agents speak of: hosts with one file system and one store say the same; empty for this installation's own.
    pub machine: String,
}

/// The HTTP API of a host that is started with `roomette serve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeConfig {
    /// Where it listens: `127.0.0.1:7777`, or `unix:PATH`; empty for nowhere.
    pub listen: String,
    /// Further names by which it answers, each as a `Host` header says it: `roomette.example.com`.
    pub hosts: Vec<String>,
    /// Whether everybody who reaches a loopback address is let in without a token, as the user whose host it is.
    pub without_token: bool,
    /// The largest body in bytes; at least 65536.
    pub body_bytes: u64,
    /// How many requests are worked on at once; at least 1.
    pub requests: u32,
    /// How many streams of events are open at once, half of them at the most of one principal.
    pub readers: u32,
    /// How long a request may take, and its body to come; streams have no end.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub request_timeout: SignedDuration,
}

/// Where sessions, runs and events are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// `sqlite:PATH` or `postgres://…`; empty for `roomette.db` in the data directory.
    pub url: String,
    /// When a write counts as done on SQLite.
    pub synchronous: Synchronous,
}

/// When a write counts as done on SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchronous {
    /// When it is on the disk.
    Full,
    /// When the system has it: faster, and the last moments may be lost when the power fails.
    Normal,
}

/// The process that supervises the runs of one data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// How many runs execute at once, up to 1000; 0 for a coordinator that executes nothing itself.
    pub runs_at_once: u32,
    /// How long a run waits for a runner that matches before it fails with `no_matching_runner`. With this, or with
    /// `runs_at_once = 0`, the host has a fleet: what is bound to no place goes to any runner. Nothing for this machine alone.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "friendly::optional",
        deserialize_with = "duration::deserialize_some"
    )]
    pub claim_within: Option<SignedDuration>,
    /// How long a claim on a run holds without a sign of life: 5 seconds to a day, and the same for every host of a store.
    /// Runners on other machines that are silent for so long lose what they hold, and what one takes with it that never comes back
    /// waits for so long. Runners hear of a change when they register the next time.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub lease: SignedDuration,
    /// For how long a host in the background stays when it has nothing left to do.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub linger: SignedDuration,
    /// What becomes of running processes when their host goes away.
    pub on_host_loss: HostLoss,
}

/// What becomes of running processes when their host goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostLoss {
    /// They are ended, and their runs are `lost`.
    End,
    /// They go on, and the next host takes them over.
    Adopt,
}

/// What every run gets unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Between asking a process to end and forcing it.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub grace: SignedDuration,
    /// The longest wall time; nothing for no limit.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "friendly::optional",
        deserialize_with = "duration::deserialize_some"
    )]
    pub timeout: Option<SignedDuration>,
    /// How long a further run of a session waits for the runner that has its files, or for any that may take it; `0s` for as
    /// long as it takes.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub resume_within: SignedDuration,
    /// Variables that are passed on from the caller's environment, beside the built-in allow-list.
    pub pass_env: Vec<String>,
}

/// How many sessions there may be, for how long, and what each may use up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// How many sessions are active at once, with something alive behind them.
    pub active_sessions: u32,
    /// How many of them one owner may have; nothing for no limit of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_per_principal: Option<u32>,
    /// Who gives way at the limit.
    pub eviction: Eviction,
    /// After how long without use a session is idle; three times as long, and it is suspended. `0s` for never.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub idle_timeout: SignedDuration,
    /// For how long a suspended session is kept before it is over for good. `0s` for as long as it likes.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub suspended_ttl: SignedDuration,
    /// Tokens that a session may use.
    pub tokens: u64,
    /// Tool calls that a session may make.
    pub tool_calls: u64,
    /// Turns that a session may take; nothing for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// What a session may cost, in millionths of a US dollar; nothing for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Tokens that all sessions of this host together may use in any hour.
    pub tokens_per_hour: u64,
    /// How deep children of children go, where a session without a parent has depth 0. 0 for no children at all.
    pub children_depth: u32,
    /// How many live children one session may have.
    pub children_width: u32,
}

/// Who gives way at the limit of active sessions. Never one that runs something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    /// The session that was left alone longest is suspended.
    SuspendOldestIdle,
    /// Nobody: what is new waits.
    RejectNew,
    /// The oldest session of the same owner is terminated.
    TerminateOldest,
}

/// What the processes of a new session may touch, reach and use up, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxConfig {
    /// `best` for what the machine offers and never less than floor, `full`, `floor`, or `off`.
    pub level: SandboxLevel,
    /// `open`, `none`, `loopback`, or `allow` for `net_allow` alone.
    pub net: Net,
    /// What sessions reach through the host's proxy with `net = "allow"`: `HOST:PORT`, `*.DOMAIN:PORT`.
    pub net_allow: Vec<Endpoint>,
    /// Directories that every session may read beyond its own.
    pub allow_read: Vec<Utf8PathBuf>,
    /// Directories that every session may change beyond its own.
    pub allow_write: Vec<Utf8PathBuf>,
    /// Where projects and further directories of sessions may lie; nothing for anywhere.
    pub roots: Vec<Utf8PathBuf>,
    /// Memory of a run in bytes; 0 for no limit.
    pub memory_bytes: u64,
    /// Processes and threads of a run at once; 0 for no limit.
    pub processes: u64,
    /// The largest file that a run may write, in bytes; 0 for no limit.
    pub file_size_bytes: u64,
    /// What a run may write to disk in all, in bytes; 0 for no limit.
    pub write_bytes: u64,
}

/// What a session may reach over a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Net {
    /// Whatever the machine reaches.
    Open,
    /// Nothing, not even itself.
    None,
    /// Itself alone.
    Loopback,
    /// Itself, and what is named, through the host's proxy.
    #[value(skip)]
    Allow,
}

/// The logs of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// The largest size of one file in bytes; at least 65536.
    pub max_bytes: u64,
    /// How many files are kept, the current one included; 1 to 100.
    pub files: u32,
}

/// The removal of old workspaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CleanupConfig {
    /// How long after its last run ended a session's workspace is kept.
    #[serde(serialize_with = "friendly::required", deserialize_with = "duration::deserialize")]
    pub older_than: SignedDuration,
    /// Whether a removed workspace is kept as an archive.
    pub archive: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: StoreConfig { url: String::new(), synchronous: Synchronous::Full },
            host: HostConfig {
                runs_at_once: 8,
                claim_within: None,
                lease: SignedDuration::from_secs(90),
                linger: SignedDuration::from_secs(3),
                on_host_loss: HostLoss::End,
            },
            run: RunConfig {
                grace: SignedDuration::from_secs(10),
                timeout: None,
                resume_within: SignedDuration::from_mins(10),
                pass_env: Vec::new(),
            },
            limits: LimitsConfig {
                active_sessions: 10,
                active_per_principal: None,
                eviction: Eviction::SuspendOldestIdle,
                idle_timeout: SignedDuration::from_mins(15),
                suspended_ttl: SignedDuration::from_hours(24),
                tokens: 200_000,
                tool_calls: 100,
                turns: None,
                cost_micros: None,
                tokens_per_hour: 1_000_000,
                children_depth: DEPTH_MAX,
                children_width: CHILDREN_MAX,
            },
            sandbox: SandboxConfig::default(),
            log: LogConfig { max_bytes: 16 * 1024 * 1024, files: 4 },
            cleanup: CleanupConfig { older_than: SignedDuration::from_hours(24), archive: false },
            serve: ServeConfig {
                listen: String::new(),
                hosts: Vec::new(),
                without_token: false,
                body_bytes: 8 * 1024 * 1024,
                requests: 512,
                readers: 4_096,
                request_timeout: SignedDuration::from_secs(30),
            },
            bridge: BridgeConfig {
                config: Utf8PathBuf::new(),
                listen: "127.0.0.1:8808".into(),
                session_isolation: true,
                sandbox_scope: Vec::new(),
                allow_root: Vec::new(),
                allow_read: Vec::new(),
                sessions: 64,
            },
            scribe: ScribeConfig {
                require_agent: false,
                require_execution: false,
                ttl: SignedDuration::from_hours(24),
                lifetime: None,
                machine: String::new(),
            },
        }
    }
}

impl Default for SandboxConfig {
    fn default() -> Self {
        let ProcessLimits { memory_bytes, processes, file_size_bytes, write_bytes } =
            ProcessLimits::default();
        Self {
            level: SandboxLevel::Best,
            net: Net::Open,
            net_allow: Vec::new(),
            allow_read: Vec::new(),
            allow_write: Vec::new(),
            roots: Vec::new(),
            memory_bytes: memory_bytes.unwrap_or(0),
            processes: processes.unwrap_or(0),
            file_size_bytes: file_size_bytes.unwrap_or(0),
            write_bytes: write_bytes.unwrap_or(0),
        }
    }
}

impl HostConfig {
    /// For a fleet: how long a run waits for a runner that matches.
    pub fn fleet(&self) -> Option<SignedDuration> {
        const USUAL: SignedDuration = SignedDuration::from_mins(10);
        self.claim_within.or((self.runs_at_once == 0).then_some(USUAL))
    }
}

impl BridgeConfig {
    fn check(&self, runs_at_once: u32) -> Result<(), String> {
        if !(1..=1_000).contains(&self.sessions) {
            return Err(format!("bridge.sessions is {}, 1 to 1000 are allowed", self.sessions));
        }
        if self.config.as_str().is_empty() {
            return Ok(());
        }
        if runs_at_once == 0 {
            return Err("bridge.config wants a host that executes runs, and host.runs_at_once is 0".into());
        }
        let paths = [&self.sandbox_scope, &self.allow_root, &self.allow_read].into_iter().flatten();
        match paths.chain([&self.config]).find(|path| !path.is_absolute()) {
            Some(path) => Err(format!("bridge: {path} is relative, give the whole path")),
            None => Ok(()),
        }
    }
}

impl Config {
    /// The first setting that is out of its range, and the range.
    pub fn check(&self) -> Result<(), String> {
        let positive = |name: &str, value: SignedDuration| {
            if value.is_negative() { Err(format!("{name} is negative")) } else { Ok(()) }
        };
        if self.host.runs_at_once > 1_000 {
            return Err(format!("host.runs_at_once is {}, 0 to 1000 are allowed", self.host.runs_at_once));
        }
        if self.host.claim_within.is_some_and(|within| within <= SignedDuration::ZERO) {
            return Err("host.claim_within must be longer than nothing".into());
        }
        if !(SignedDuration::from_secs(5)..=SignedDuration::from_hours(24)).contains(&self.host.lease) {
            return Err(format!("host.lease is {:#}, 5s to 24h are allowed", self.host.lease));
        }
        if self.log.max_bytes < 65_536 {
            return Err(format!("log.max_bytes is {}, at least 65536 is needed", self.log.max_bytes));
        }
        if !(1..=100).contains(&self.log.files) {
            return Err(format!("log.files is {}, 1 to 100 are allowed", self.log.files));
        }
        if self.run.timeout.is_some_and(|timeout| timeout <= SignedDuration::ZERO) {
            return Err("run.timeout must be longer than nothing".into());
        }
        if self.limits.active_sessions == 0 || self.limits.active_per_principal == Some(0) {
            return Err("limits: with no active session allowed nothing could ever run".into());
        }
        if self.sandbox.net == Net::Allow && self.sandbox.net_allow.is_empty() {
            return Err("sandbox.net is \"allow\", and sandbox.net_allow names nothing".into());
        }
        if let Some(root) = self.sandbox.roots.iter().find(|root| !root.is_absolute()) {
            return Err(format!("sandbox.roots: {root} is relative, give the whole path"));
        }
        if self.serve.body_bytes < 65_536 || self.serve.requests == 0 {
            return Err("serve: body_bytes must be at least 65536, and requests at least 1".into());
        }
        if self.serve.request_timeout <= SignedDuration::ZERO {
            return Err("serve.request_timeout must be longer than nothing".into());
        }
        self.bridge.check(self.host.runs_at_once)?;
        let nothing = |time: SignedDuration| time <= SignedDuration::ZERO;
        if nothing(self.scribe.ttl) || self.scribe.lifetime.is_some_and(nothing) {
            return Err("scribe: ttl and lifetime must be longer than nothing".into());
        }
        positive("limits.idle_timeout", self.limits.idle_timeout)?;
        positive("limits.suspended_ttl", self.limits.suspended_ttl)?;
        positive("host.linger", self.host.linger)?;
        positive("run.grace", self.run.grace)?;
        positive("run.resume_within", self.run.resume_within)?;
        positive("cleanup.older_than", self.cleanup.older_than)
    }
}
