//! A session's sandbox outside: what was asked for, what the kernel held of it, and the words for what it did not.

use sandbox::Gap;
use serde::Serialize;
use serde_json::Value;
use session_core::sandbox::{NetworkSpec, SandboxSpec};

use crate::size;

/// What a session's processes may touch, reach and use up.
#[derive(Debug, Serialize)]
pub struct SandboxView {
    /// How much the kernel must enforce: `best`, `full`, `floor` or `off`.
    pub level: &'static str,
    /// `open`, `none`, `loopback` or `allow`.
    pub net: &'static str,
    /// What it may reach through the host's proxy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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

impl SandboxView {
    /// Of a session.
    pub fn new(spec: &SandboxSpec) -> Self {
        let SandboxSpec { level, read, write, network, limits, repository: _, pending: _ } = spec;
        let net_allow = match network {
            NetworkSpec::Allow(endpoints) => endpoints.iter().map(ToString::to_string).collect(),
            NetworkSpec::Open | NetworkSpec::None | NetworkSpec::Loopback => Vec::new(),
        };
        Self {
            level: level.as_str(),
            net: network.as_str(),
            net_allow,
            allow_read: read.iter().map(ToString::to_string).collect(),
            allow_write: write.iter().map(ToString::to_string).collect(),
            memory_bytes: limits.memory_bytes,
            processes: limits.processes,
            file_size_bytes: limits.file_size_bytes,
            write_bytes: limits.write_bytes,
        }
    }

    /// Name and value of each line that tells about it.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        if self.level == "off" {
            return vec![("sandbox", "off: nothing confines its runs".into())];
        }
        let mut net = self.net.to_owned();
        if !self.net_allow.is_empty() {
            net = format!("{} and itself", self.net_allow.join(", "));
        }
        let limit = |limit: Option<u64>, show: fn(u64) -> String| limit.map_or_else(|| "any".into(), show);
        let limits = format!(
            "memory {}, processes {}, file {}, writes {}",
            limit(self.memory_bytes, size::show),
            limit(self.processes, |count| count.to_string()),
            limit(self.file_size_bytes, size::show),
            limit(self.write_bytes, size::show),
        );
        let mut lines = vec![("sandbox", format!("{}, network: {net}", self.level))];
        for (name, paths) in [("may read", &self.allow_read), ("may change", &self.allow_write)] {
            if !paths.is_empty() {
                lines.push((name, paths.join(" ")));
            }
        }
        lines.push(("limits", limits));
        lines
    }
}

/// What a run's record says that the kernel held, in one line: the level, the policy, and what is left open.
pub fn held(report: &Value) -> Vec<(&'static str, String)> {
    let level = report["level"].as_str().unwrap_or("unknown");
    let mut first = level.to_owned();
    if let Some(digest) = report["policy"].as_str() {
        first = format!("{first}, policy {}", digest.get(..12).unwrap_or(digest));
    }
    let mut lines = vec![("sandbox", first)];
    // Told where the session's own record has but names.
    let project = report["project"].as_str().map(ToOwned::to_owned);
    lines.extend(project.map(|project| ("works on", project)));
    for (name, field) in [("may read", "read"), ("may change", "write")] {
        let paths: Vec<_> = texts(&report[field]).collect();
        if !paths.is_empty() {
            lines.push((name, paths.join(" ")));
        }
    }
    let gaps: Vec<String> = texts(&report["gaps"]).map(said).collect();
    if !gaps.is_empty() {
        lines.push(("not held", gaps.join("; ")));
    }
    let unprotected: Vec<&str> = texts(&report["unprotected"]).collect();
    if !unprotected.is_empty() {
        lines.push(("unguarded", unprotected.join(" ")));
    }
    for (name, limit) in
        [("memory", &report["limits"]["memory"]), ("processes", &report["limits"]["processes"])]
    {
        if let Some(why) = limit["why"].as_str() {
            lines.push(("no cgroup", format!("for {name}: {why}")));
        }
    }
    lines
}

/// The codes or sentences of a list.
fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// A gap by its code, in words; anything else as it stands.
fn said(text: &str) -> String {
    let gap: Option<Gap> = serde_json::from_value(Value::String(text.into())).ok();
    gap.map_or_else(|| text.to_owned(), |gap| gap.sentence().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sandbox_is_told_in_a_few_lines() {
        let spec: SandboxSpec = serde_json::from_value(json!({
            "level": "full", "read": ["/opt/x"], "network": {"allow": ["a.example.com"]},
            "limits": {"memory_bytes": 1_073_741_824, "processes": null, "file_size_bytes": null, "write_bytes": 5},
        }))
        .unwrap();
        assert_eq!(
            SandboxView::new(&spec).lines(),
            [
                ("sandbox", "full, network: a.example.com:443 and itself".to_owned()),
                ("may read", "/opt/x".to_owned()),
                ("limits", "memory 1G, processes any, file any, writes 5".to_owned()),
            ]
        );
    }

    #[test]
    fn what_was_not_held_is_said_in_words() {
        let report = json!({
            "level": "floor", "policy": "0123456789abcdef", "gaps": ["orphans", "from the future"],
            "limits": {"memory": {"hold": "missing", "why": "there is none"}, "processes": {"hold": "not_asked"}},
        });
        assert_eq!(
            held(&report),
            [
                ("sandbox", "floor, policy 0123456789ab".to_owned()),
                ("not held", "processes can outlive the program; from the future".to_owned()),
                ("no cgroup", "for memory: there is none".to_owned()),
            ]
        );
        assert_eq!(held(&json!({})), [("sandbox", "unknown".to_owned())]);
        let settled =
            json!({ "level": "full", "project": "/srv/p", "read": ["/opt/a", "/opt/b"], "write": [] });
        let expected = [("sandbox", "full"), ("works on", "/srv/p"), ("may read", "/opt/a /opt/b")];
        assert_eq!(held(&settled), expected.map(|(name, value)| (name, value.to_owned())));
    }
}
