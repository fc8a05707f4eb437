//! A session's sandbox: what is asked for, and what it is.

use serde::{Deserialize, Serialize};
use session_core::sandbox::{NetworkSpec, SandboxSpec};
use utoipa::ToSchema;

/// What a new session's processes may touch, reach and use up. What is not given is the installation's setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxRequest {
    /// How much the kernel must enforce: `best`, `full`, `floor` or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// `open`, `none`, `loopback` or `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// What they may reach through the host's proxy, as `HOST:PORT`; without `net` it means `allow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_allow: Vec<String>,
    /// Directories that they may read, beyond those of the installation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_read: Vec<String>,
    /// Directories that they may change, beyond those of the installation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_write: Vec<String>,
    /// Memory in bytes; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// The largest file in bytes; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// What may be written to disk in all, in bytes; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
}

/// What a session's processes may touch, reach and use up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxView {
    /// How much the kernel must enforce: `best`, `full`, `floor` or `off`.
    pub level: String,
    /// `open`, `none`, `loopback` or `allow`.
    pub net: String,
    /// What it may reach through the host's proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net_allow: Vec<String>,
    /// Directories that it may read beyond its own.
    pub allow_read: Vec<String>,
    /// Directories that it may change beyond its own.
    pub allow_write: Vec<String>,
    /// Memory of each run in bytes; nothing for no limit.
    pub memory_bytes: Option<u64>,
    /// Processes and threads of each run at once; nothing for no limit.
    pub processes: Option<u64>,
    /// The largest file in bytes; nothing for no limit.
    pub file_size_bytes: Option<u64>,
    /// What each run may write to disk in all, in bytes; nothing for no limit.
    pub write_bytes: Option<u64>,
}

impl From<&SandboxSpec> for SandboxView {
    fn from(spec: &SandboxSpec) -> Self {
        let SandboxSpec { level, read, write, network, limits, repository: _, pending: _ } = spec;
        let net_allow = match network {
            NetworkSpec::Allow(endpoints) => endpoints.iter().map(ToString::to_string).collect(),
            NetworkSpec::Open | NetworkSpec::None | NetworkSpec::Loopback => Vec::new(),
        };
        Self {
            level: level.as_str().into(),
            net: network.as_str().into(),
            net_allow,
            allow_read: read.iter().map(ToString::to_string).collect(),
            allow_write: write.iter().map(ToString::to_string).collect(),
            memory_bytes: limits.memory_bytes,
            processes: limits.processes,
            file_size_bytes: limits.file_size_bytes,
            write_bytes: limits.write_bytes,
        }
    }
}
