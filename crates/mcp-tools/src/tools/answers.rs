//! What each tool answers. The comments are what agents read of it. Times are RFC 3339.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::Part;

/// What one works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectView {
    /// Your session; there is none before you keep something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The project's name, once it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_at: Option<String>,
}

/// An entry that was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Appended {
    /// Your session.
    pub session_id: String,
    /// The entry's number.
    pub seq: u64,
}

/// A page of entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entries {
    /// Your session; there is none before you keep something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The entries, oldest first.
    pub entries: Vec<EntryView>,
    /// There are earlier ones: ask with this as `before`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntryView {
    /// Its number.
    pub seq: u64,
    /// When it was kept.
    pub at: String,
    /// Its text.
    pub text: String,
    /// Your own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Who one is, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoAmI {
    /// Your session; there is none before you keep something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Who owns it.
    pub principal: String,
    /// Which session of this identity it is, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// The one before it, which is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// Until when it is found without being used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Which agent you are, and where that was said.
    pub agent: Part,
    /// The repository, and where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_root: Option<Part>,
    /// `project` or `sentinel`, and where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Part>,
    /// The execution, or a sentinel's day, and where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Part>,
    /// Whose paths these are, and where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Part>,
    /// The run that you are, where roomette started you.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

/// A page of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionList {
    /// Your own session first, and behind it those that it started, newest first.
    pub sessions: Vec<SessionSummaryView>,
    /// There are more: ask with this as `cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A session in few words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionSummaryView {
    /// Its id.
    pub session_id: String,
    /// `own`, or `child` of your own.
    pub relation: String,
    /// One word: where its last run, or else the session itself, stands.
    pub status: String,
    /// `active`, `idle`, `suspended` or `terminated`.
    pub state: String,
    /// Free text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The agent that works in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Its last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Why that did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was created.
    pub created_at: String,
    /// When it was last used.
    pub active_at: String,
}

/// A run that was enqueued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartedView {
    /// Its session: ask `session_status` and `get_result` with this.
    pub session_id: String,
    /// The run.
    pub run_id: String,
}

/// What a session's last run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionResult {
    /// The session.
    pub session_id: String,
    /// The run.
    pub run_id: String,
    /// Whether it is over: before that there is no result.
    pub over: bool,
    /// Where it stands: `pending`, `claimed`, `starting`, `running`, `completed`, `failed`, `stopped` or `lost`.
    pub state: String,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The last thing that its agent said, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What it reported at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// What was asked to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoppedView {
    /// The session, which stays.
    pub session_id: String,
    /// The runs whose end was asked for; none where nothing ran.
    pub run_ids: Vec<String>,
}

/// The end of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogView {
    /// The session.
    pub session_id: String,
    /// The events, one JSON object a line, oldest first.
    pub lines: String,
}
