//! Events: the entries of a session's append-only log, numbered 1, 2, 3 … without a gap.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::ids::{RunId, SessionId};
use crate::names::{NameError, Producer};

/// One entry of a session's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The session.
    pub session: SessionId,
    /// Its number in the session's log.
    pub seq: Seq,
    /// When it was appended.
    pub at: Timestamp,
    /// What was appended.
    pub body: NewEvent,
}

/// An event before it has a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// The run that it belongs to.
    pub run: Option<RunId>,
    /// What kind of thing happened.
    pub kind: EventKind,
    /// What happened, as JSON.
    pub payload: Payload,
    /// The producer's own number for it: makes a retry a no-op.
    pub origin: Option<Origin>,
}

impl NewEvent {
    /// An event of the program itself, which is written together with what it tells of and needs no origin.
    #[must_use]
    pub fn internal(kind: EventKind, run: Option<RunId>, payload: &serde_json::Value) -> Self {
        Self { run, kind, payload: Payload::from_value(payload), origin: None }
    }
}

/// A place in a session's log. 0 stands before the first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Before the first event.
    pub const START: Self = Self(0);

    /// The next place.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Who appended an event, and as its how-manieth. The same origin with the same content is the same event; with
/// another content it is a conflict.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The producer.
    pub producer: Producer,
    /// Its number, chosen by the producer.
    pub seq: u64,
}

/// JSON text, kept byte for byte as it came.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(String);

impl Payload {
    /// The largest payload in bytes: 1 MiB.
    pub const MAX: usize = 1 << 20;

    /// The largest payload of an entry in bytes, 1.5 MiB: a text of 1 MiB fits in, whatever is in it.
    pub const ENTRY_MAX: usize = 3 << 19;

    /// Checks that the text is JSON and not too large, and keeps it as it is.
    pub fn parse(text: &str) -> Result<Self, PayloadError> {
        Self::within(text, Self::MAX)
    }

    /// The same for an event of this kind: an entry may be larger.
    pub fn of(kind: &EventKind, text: &str) -> Result<Self, PayloadError> {
        let max = if *kind == EventKind::Entry { Self::ENTRY_MAX } else { Self::MAX };
        Self::within(text, max)
    }

    fn within(text: &str, max: usize) -> Result<Self, PayloadError> {
        if text.len() > max {
            return Err(PayloadError::TooLarge { bytes: text.len(), max });
        }
        // Through a borrowed raw value: validated without building anything.
        serde_json::from_str::<&RawValue>(text)?;
        Ok(Self(text.into()))
    }

    /// The text of a JSON value.
    #[must_use]
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self(value.to_string())
    }

    /// What a record holds, unchecked: a log that was damaged must still be readable.
    #[must_use]
    pub fn from_record(text: String) -> Self {
        Self(text)
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The JSON value; an error for what a damaged log may hold.
    pub fn value(&self) -> Result<serde_json::Value, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no payload.
#[derive(Debug, Error)]
pub enum PayloadError {
    /// More bytes than one of its kind may have.
    #[error("the payload is {bytes} bytes long, {max} are allowed")]
    TooLarge {
        /// So many.
        bytes: usize,
        /// So many are allowed.
        max: usize,
    },
    /// Not JSON.
    #[error("the payload is not JSON")]
    NotJson(#[from] serde_json::Error),
}

/// What kind of thing happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The session was made. `{workspace, project?, sandbox, budget, key?, label?, agent?, parent?, generation?, previous?}`
    SessionCreated,
    /// The session changed its state. `{from, to, reason?}`
    SessionState,
    /// The session got another label. `{label}`
    SessionLabel,
    /// The session's limits were changed. `{from: {tokens, tool_calls, turns?, cost_micros?}, to: {…}, by}`; a resource
    /// without a limit is left out.
    SessionBudget,
    /// The session began as a copy of another one's log, which ends here. `{source, upto}`
    SessionForked,
    /// A run changed its state. `{from, to, reason?, exit_code?, signal?, message?}`
    RunState,
    /// What the kernel holds of the session's sandbox in this run. `{level, policy, network, gaps, …}`
    RunSandbox,
    /// A run of a child ended. `{child, run, state, reason?, message?, text?: {by: "child", said, cut?}}`: what is in `text`
    /// are the child's own words, whatever they say; all else is the program's.
    ChildEnded,
    /// An executor bound itself to the session. `{executor, executor_session_id, runner?, hostname, project_dir}`
    Bound,
    /// Somebody said something. `{role, text, continues?, unfinished?, abandoned?}`: `unfinished: true` where it was recorded while
    /// it was being said, `continues: true` where it goes on, within the word, from where the one before it ended, and with
    /// `abandoned: true` beside it where that one does not count: it was broken off, unfinished, and the same run says it anew.
    Message,
    /// The agent thought aloud. `{text, continues?, unfinished?, abandoned?}`
    Thought,
    /// The agent calls a tool. `{id, name, input}`
    ToolCall,
    /// A tool answered. `{id, output, is_error?}`
    ToolResult,
    /// The agent's plan.
    Plan,
    /// What was used up: `{tokens?, tool_calls?, turns?, cost_micros?, unsettled?}`, only what is not nothing;
    /// `unsettled: true` where it was not measured, and everything that was set aside counts.
    Usage,
    /// The agent asks for leave. `{approval, tool, title, command?, cwd?, input, deadline?}`
    Permission,
    /// Somebody gave it or refused it. `{approval, verdict, lasting, by, message?}`
    PermissionAnswered,
    /// Nobody waits for an answer any more. `{approval, why}`
    PermissionWithdrawn,
    /// Something went wrong, and the run went on.
    Error,
    /// What a run came to. `{last_line?, stdout_bytes, stderr_bytes, changed?, …}; `changed` are names in the workspace that
    /// run code elsewhere and are not as they were.`
    Result,
    /// A summary that stands for the events up to number `upto`. `{text, upto}`
    Summary,
    /// A budget is nearly spent. `{resource, used, limit, percent}`
    Warning,
    /// A resume came this far. `{step}`
    SessionResume,
    /// A person gave an answer that holds for the rest of the session. `{scope, …}`; see
    /// [`Grant`](crate::approvals::Grant).
    Grant,
    /// The agent keeps something for itself. `{text, key?}`, or `{base64, key?}` where that would grow too long by being quoted
    Entry,
    /// The agent says what it works on. `{name, description?}`; the last one counts.
    Project,
    /// Anything else, named by who appends it.
    Other(OtherKind),
}

impl EventKind {
    /// The kind's name in rows, files and output.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::SessionCreated => "session.created",
            Self::SessionState => "session.state",
            Self::SessionLabel => "session.label",
            Self::SessionBudget => "session.budget",
            Self::SessionForked => "session.forked",
            Self::RunState => "run.state",
            Self::RunSandbox => "run.sandbox",
            Self::ChildEnded => "child.ended",
            Self::Bound => "bound",
            Self::Message => "message",
            Self::Thought => "thought",
            Self::ToolCall => "tool_call",
            Self::ToolResult => "tool_result",
            Self::Plan => "plan",
            Self::Usage => "usage",
            Self::Permission => "permission",
            Self::PermissionAnswered => "permission.answered",
            Self::PermissionWithdrawn => "permission.withdrawn",
            Self::Error => "error",
            Self::Result => "result",
            Self::Summary => "summary",
            Self::Warning => "warning",
            Self::SessionResume => "session.resume",
            Self::Grant => "grant",
            Self::Entry => "entry",
            Self::Project => "project",
            Self::Other(other) => other.as_str(),
        }
    }

    /// Whether only the program itself says such a thing, of what it did: never a run.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        match self {
            Self::SessionCreated
            | Self::SessionState
            | Self::SessionLabel
            | Self::SessionBudget
            | Self::SessionForked
            | Self::SessionResume
            | Self::RunState
            | Self::RunSandbox
            | Self::ChildEnded
            | Self::Bound
            | Self::Usage
            | Self::Permission
            | Self::PermissionAnswered
            | Self::PermissionWithdrawn
            | Self::Warning
            | Self::Grant => true,
            Self::Message
            | Self::Thought
            | Self::ToolCall
            | Self::ToolResult
            | Self::Plan
            | Self::Error
            | Self::Result
            | Self::Summary
            | Self::Entry
            | Self::Project => false,
            Self::Other(other) => other.as_str().starts_with("session."),
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EventKind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Ok(match text {
            "session.created" => Self::SessionCreated,
            "session.state" => Self::SessionState,
            "session.label" => Self::SessionLabel,
            "session.budget" => Self::SessionBudget,
            "session.forked" => Self::SessionForked,
            "run.state" => Self::RunState,
            "run.sandbox" => Self::RunSandbox,
            "child.ended" => Self::ChildEnded,
            "bound" => Self::Bound,
            "message" => Self::Message,
            "thought" => Self::Thought,
            "tool_call" => Self::ToolCall,
            "tool_result" => Self::ToolResult,
            "plan" => Self::Plan,
            "usage" => Self::Usage,
            "permission" => Self::Permission,
            "permission.answered" => Self::PermissionAnswered,
            "permission.withdrawn" => Self::PermissionWithdrawn,
            "error" => Self::Error,
            "result" => Self::Result,
            "summary" => Self::Summary,
            "warning" => Self::Warning,
            "session.resume" => Self::SessionResume,
            "grant" => Self::Grant,
            "entry" => Self::Entry,
            "project" => Self::Project,
            other => Self::Other(OtherKind(Producer::new(other)?)),
        })
    }
}

/// What an agent keeps for itself in its session's log, and finds again by reading the log from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Note {
    /// Events of the kind [`EventKind::Entry`].
    Entry,
    /// Events of the kind [`EventKind::Project`].
    Project,
}

impl Note {
    /// The kind of its events.
    #[must_use]
    pub fn kind(self) -> EventKind {
        match self {
            Self::Entry => EventKind::Entry,
            Self::Project => EventKind::Project,
        }
    }
}

/// The name of a kind that the program does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OtherKind(Producer);

impl OtherKind {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_keep_their_bytes() {
        let odd = "{ \"b\" : 1.0 , \"a\":\"\\u00e9\"}";
        assert_eq!(Payload::parse(odd).unwrap().as_str(), odd);
        for bad in ["", "{", "nul\0", "{} {}"] {
            assert!(Payload::parse(bad).is_err(), "{bad:?}");
        }
        assert!(matches!(Payload::parse(&"1".repeat(Payload::MAX + 1)), Err(PayloadError::TooLarge { .. })));
    }

    #[test]
    fn kinds_are_parsed_back() {
        let known = "session.created session.state session.label session.budget session.forked run.state run.sandbox bound message thought tool_call tool_result plan usage permission permission.answered permission.withdrawn error result summary warning session.resume grant entry project";
        for name in known.split(' ') {
            let kind: EventKind = name.parse().unwrap();
            assert!(!matches!(kind, EventKind::Other(_)), "{name}");
            assert_eq!(kind.as_str(), name);
        }
        assert_eq!("vendor.thing".parse::<EventKind>().unwrap().as_str(), "vendor.thing");
        assert!("".parse::<EventKind>().is_err());
    }

    #[test]
    fn what_the_program_did_only_the_program_says() {
        let reserved = "session.created session.state session.label session.budget session.forked session.resume session.imported session.thing run.state run.sandbox child.ended bound usage permission permission.answered permission.withdrawn warning grant";
        let free = "message thought tool_call tool_result plan error result summary entry project vendor.thing sessions permission.thing";
        for (names, expected) in [(reserved, true), (free, false)] {
            for name in names.split(' ') {
                assert_eq!(name.parse::<EventKind>().unwrap().is_reserved(), expected, "{name}");
            }
        }
    }
}
