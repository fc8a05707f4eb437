//! History: the conversation as a fold over the event log, repaired where a crash tore it.
//!
//! [`reconstruct_messages`] is [`fold`], which reads the events, and then [`repair`], which makes a valid transcript of
//! them. Both are pure. In a valid transcript
//!
//! * every message has parts, no text is empty, and no two messages in a row have one role;
//! * an assistant message with tool calls is followed by one tool message with exactly their results, in their order;
//!   the calls stand at its end, and the ids of all calls are distinct;
//! * there is nothing else of a tool: no result without its call, no call in another role's message.
//!
//! What the user wrote is never dropped, and never changed: what cannot be read is taken for the user's unless it says
//! otherwise. Every repair is reported.
//!
//! ```
//! use session_core::event::{Event, EventKind, NewEvent, Seq};
//! use session_core::history::{Part, Role, reconstruct_messages};
//! use serde_json::json;
//!
//! let entries = [
//!     (EventKind::Message, json!({ "role": "user", "text": "what time is it?" })),
//!     (EventKind::ToolCall, json!({ "id": "c1", "name": "clock", "input": {} })),
//!     // Here the host was killed; the result never came.
//!     (EventKind::Message, json!({ "role": "user", "text": "are you there?" })),
//! ];
//! let session = "ses_00000000000040008000000000000001".parse()?;
//! let event = |(seq, (kind, payload))| Event {
//!     session,
//!     seq: Seq(seq),
//!     at: jiff::Timestamp::UNIX_EPOCH,
//!     body: NewEvent::internal(kind, None, &payload),
//! };
//! let events: Vec<_> = (1..).zip(entries).map(event).collect();
//!
//! let history = reconstruct_messages(&events);
//! let roles: Vec<_> = history.messages.iter().map(|message| message.role).collect();
//! assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::User]);
//! let result = Part::ToolResult { id: "c1".into(), output: json!("interrupted"), is_error: true };
//! assert_eq!(history.messages[2].parts, [result]);
//! assert_eq!(history.repairs[0].to_string(), "event 2: call c1 has no result, \"interrupted\" stands for it");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fold;
mod repair;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value;

pub use fold::fold;
pub use repair::repair;

use crate::event::{Event, Seq};

/// The conversation that a log holds, as a valid transcript.
///
/// Events of other kinds than `message`, `thought`, `tool_call`, `tool_result` and `summary` are no part of it. The
/// events must be in order; what a summary stands for is left out.
#[must_use]
pub fn reconstruct_messages(events: &[Event]) -> History {
    repair(fold(events))
}

/// A conversation, and what had to be repaired in it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// The conversation, from its beginning.
    pub messages: Vec<Message>,
    /// What was repaired, in the order of the log.
    pub repairs: Vec<Repair>,
}

/// What one side said in one go.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The event with which it begins.
    pub seq: Seq,
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The person or program that the agent works for.
    User,
    /// The agent.
    Assistant,
    /// The tools that the agent called.
    Tool,
    /// The host: instructions, and summaries of what was said before.
    System,
}

/// One part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Plain text.
    Text(String),
    /// What the agent thought aloud.
    Thought(String),
    /// The agent calls a tool.
    ToolCall {
        /// The call's id, unique in the history.
        id: String,
        /// The tool.
        name: String,
        /// Its input.
        input: Value,
    },
    /// A tool answers.
    ToolResult {
        /// The call that it answers.
        id: String,
        /// The answer.
        output: Value,
        /// The tool failed.
        is_error: bool,
    },
}

/// Something that was not as it should be, and what was done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The event.
    pub seq: Seq,
    /// What was done.
    pub done: Mended,
}

/// What was done about something that was not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mended {
    /// A call had no result: an error result "interrupted" stands for it. The call's id.
    ResultInserted(String),
    /// A result had no call and was dropped. The id that it names.
    ResultDropped(String),
    /// A result came after something else and was put behind its call. The call's id.
    ResultMoved(String),
    /// A call was recorded twice and kept once. Its id.
    CallDropped(String),
    /// A call bore the id of an earlier one and got another.
    CallRenamed {
        /// Its id in the log.
        from: String,
        /// Its id in the history.
        to: String,
    },
    /// The input of a call was JSON within a JSON string and was decoded. The call's id.
    InputDecoded(String),
    /// The payload was JSON within a JSON string and was decoded.
    PayloadDecoded,
    /// The payload could not be read and was the agent's: dropped.
    UnreadableDropped,
    /// The payload could not be read and may be the user's: kept as text, as it is.
    UnreadableKept,
    /// A text was said by nobody who speaks in texts: dropped.
    StrayTextDropped,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}: {}", self.seq, self.done)
    }
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResultInserted(id) => write!(f, "call {id} has no result, \"interrupted\" stands for it"),
            Self::ResultDropped(id) => write!(f, "the result of {id} has no call and was dropped"),
            Self::ResultMoved(id) => write!(f, "the result of {id} came late and was put behind its call"),
            Self::CallDropped(id) => write!(f, "call {id} was recorded twice and kept once"),
            Self::CallRenamed { from, to } => write!(f, "a second call {from} is now called {to}"),
            Self::InputDecoded(id) => write!(f, "the input of call {id} was encoded twice and was decoded"),
            Self::PayloadDecoded => f.write_str("the entry was encoded twice and was decoded"),
            Self::UnreadableDropped => f.write_str("the entry cannot be read and was dropped"),
            Self::UnreadableKept => f.write_str("the entry cannot be read and was kept as the user's text"),
            Self::StrayTextDropped => f.write_str("a text that nobody can have said was dropped"),
        }
    }
}

/// The value that a JSON text in a string holds, however often it is wrapped: an object or an array, and nothing less.
fn decode_string(value: &Value) -> Option<Value> {
    let mut inner: Value = serde_json::from_str(value.as_str()?).ok()?;
    // Each step is shorter than the one before.
    while let Value::String(text) = &inner {
        inner = serde_json::from_str(text).ok()?;
    }
    (inner.is_object() || inner.is_array()).then_some(inner)
}
