//! Reading the events: one message each, whatever they hold.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{History, Mended, Message, Part, Repair, Role, decode_string};
use crate::event::{Event, EventKind, Seq};
use crate::ids::RunId;

/// Reads the conversation out of a log, one message an event, as it stands there: not yet a valid transcript. What an
/// agent said in one go is one message, however often it was recorded while it was being said.
///
/// The summary that covers the most stands, as the system's first message, for all that it covers. One without a text or
/// without a place in the log stands for nothing.
#[must_use]
pub fn fold(events: &[Event]) -> History {
    let mut history = History::default();
    let mut tails = Tails::new();
    let summary = events.iter().filter_map(Summary::read).max_by_key(|summary| (summary.upto, summary.seq));
    let behind = summary.as_ref().map_or(Seq::START, |summary| summary.upto);
    if let Some(Summary { seq, text, .. }) = summary {
        history.messages.push(Message { seq, role: Role::System, parts: vec![Part::Text(text)] });
    }
    for event in events.iter().filter(|event| event.seq > behind) {
        let (role, part) = match &event.body.kind {
            EventKind::Message => message(event, &mut history.repairs),
            EventKind::Thought => {
                part(event, &mut history.repairs, |fields| Some(Part::Thought(text(fields)?)))
            }
            EventKind::ToolCall => part(event, &mut history.repairs, tool_call),
            EventKind::ToolResult => part(event, &mut history.repairs, tool_result),
            EventKind::Summary => {
                if Summary::read(event).is_none() {
                    history.repairs.push(Repair { seq: event.seq, done: Mended::UnreadableDropped });
                }
                continue;
            }
            EventKind::SessionCreated
            | EventKind::SessionState
            | EventKind::SessionLabel
            | EventKind::SessionBudget
            | EventKind::SessionForked
            | EventKind::RunState
            | EventKind::RunSandbox
            | EventKind::ChildEnded
            | EventKind::Bound
            | EventKind::Plan
            | EventKind::Usage
            | EventKind::Permission
            | EventKind::PermissionAnswered
            | EventKind::PermissionWithdrawn
            | EventKind::Error
            | EventKind::Result
            | EventKind::Warning
            | EventKind::SessionResume
            | EventKind::Grant
            | EventKind::Entry
            | EventKind::Project
            | EventKind::Other(_) => continue,
        };
        if let Some(part) = part {
            if !goes_on(&part, role) {
                history.messages.push(Message { seq: event.seq, role, parts: vec![part] });
            } else if says(event, "abandoned") {
                // It is said anew from its beginning.
                if says(event, "continues") {
                    give_up(&mut history.messages, &tails, event, &part);
                }
            } else {
                say(&mut history.messages, &mut tails, event, part);
            }
        }
    }
    history
}

/// How the agent's messages end, by their place.
type Tails = HashMap<Seq, Tail>;

/// How a message of the agent ends as far as it was read.
struct Tail {
    run: Option<RunId>,
    /// It was told while it was being said, and more was to come.
    unfinished: bool,
    /// It goes on from another one, with something in between.
    continued: bool,
}

/// Puts what the agent said behind what it goes on from.
fn say(messages: &mut Vec<Message>, tails: &mut Tails, event: &Event, part: Part) {
    let (run, unfinished, continued) = (event.body.run, says(event, "unfinished"), says(event, "continues"));
    let part = match messages.last_mut().filter(|last| continued && last.role == Role::Assistant) {
        None => part,
        Some(last) => {
            let begun = last.seq;
            let Some(part) = joined(last, part) else {
                if let Some(tail) = tails.get_mut(&begun) {
                    (tail.run, tail.unfinished) = (run, unfinished);
                }
                return;
            };
            part
        }
    };
    tails.insert(event.seq, Tail { run, unfinished, continued });
    messages.push(Message { seq: event.seq, role: Role::Assistant, parts: vec![part] });
}

/// Takes back what the agent was saying, whatever others said meanwhile. What was said to its end stays, and so does what
/// another run said.
fn give_up(messages: &mut Vec<Message>, tails: &Tails, event: &Event, part: &Part) {
    loop {
        let Some(last) = messages.iter().rposition(|message| message.role == Role::Assistant) else { return };
        let Some(message) = messages.get(last).filter(|message| ends_like(message, part)) else { return };
        let tail = tails.get(&message.seq).filter(|tail| tail.unfinished && tail.run == event.body.run);
        let Some(tail) = tail else { return };
        messages.remove(last);
        if !tail.continued {
            return;
        }
    }
}

/// Whether an agent says this by the word.
fn goes_on(part: &Part, role: Role) -> bool {
    role == Role::Assistant && matches!(part, Part::Text(_) | Part::Thought(_))
}

/// Whether an entry says this of itself: `continues`, that it goes on where the one before it ended, `unfinished`, that more was
/// to come, or `abandoned`, that this was given up.
fn says(event: &Event, what: &str) -> bool {
    // Most do not, and are not read twice for it.
    event.body.payload.as_str().contains(what)
        && fields(event).is_some_and(|(fields, _)| fields.get(what) == Some(&Value::Bool(true)))
}

/// Whether the agent's last message is of the kind of this part.
fn ends_like(message: &Message, part: &Part) -> bool {
    let kind = std::mem::discriminant(part);
    message.role == Role::Assistant
        && message.parts.last().is_some_and(|last| std::mem::discriminant(last) == kind)
}

/// Puts a part behind the one that it goes on from; gives it back where that is another one.
fn joined(message: &mut Message, part: Part) -> Option<Part> {
    match (message.parts.last_mut(), part) {
        (Some(Part::Text(said)), Part::Text(more)) | (Some(Part::Thought(said)), Part::Thought(more)) => {
            said.push_str(&more);
            None
        }
        (_, part) => Some(part),
    }
}

/// A summary that can stand for what it covers.
struct Summary {
    seq: Seq,
    upto: Seq,
    text: String,
}

impl Summary {
    fn read(event: &Event) -> Option<Self> {
        if event.body.kind != EventKind::Summary {
            return None;
        }
        let (fields, _) = fields(event)?;
        let upto = Seq(fields.get("upto")?.as_u64()?);
        let text = text(&fields).filter(|text| !text.is_empty())?;
        // What comes after the summary cannot have been summed up.
        Some(Self { seq: event.seq, upto: upto.min(Seq(event.seq.0.saturating_sub(1))), text })
    }
}

/// The fields of an event's payload, and whether it was encoded twice.
fn fields(event: &Event) -> Option<(Map<String, Value>, bool)> {
    let value = event.body.payload.value().ok()?;
    let inner = decode_string(&value);
    let decoded = inner.is_some();
    match inner.unwrap_or(value) {
        Value::Object(fields) => Some((fields, decoded)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
    }
}

fn text(fields: &Map<String, Value>) -> Option<String> {
    Some(fields.get("text")?.as_str()?.into())
}

/// An entry of the agent: what cannot be read is dropped.
fn part(
    event: &Event,
    repairs: &mut Vec<Repair>,
    read: impl FnOnce(&Map<String, Value>) -> Option<Part>,
) -> (Role, Option<Part>) {
    let read = fields(event).and_then(|(fields, decoded)| Some((read(&fields)?, decoded)));
    let done = match read {
        Some((_, false)) => None,
        Some((_, true)) => Some(Mended::PayloadDecoded),
        None => Some(Mended::UnreadableDropped),
    };
    repairs.extend(done.map(|done| Repair { seq: event.seq, done }));
    let part = read.map(|(part, _)| part);
    (if matches!(part, Some(Part::ToolResult { .. })) { Role::Tool } else { Role::Assistant }, part)
}

fn tool_call(fields: &Map<String, Value>) -> Option<Part> {
    let name = fields.get("name")?.as_str().filter(|name| !name.is_empty())?.into();
    let input = fields.get("input").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    Some(Part::ToolCall { id: id(fields)?, name, input })
}

fn tool_result(fields: &Map<String, Value>) -> Option<Part> {
    let output = fields.get("output").cloned().unwrap_or_default();
    let is_error = fields.get("is_error").and_then(Value::as_bool).unwrap_or_default();
    Some(Part::ToolResult { id: id(fields)?, output, is_error })
}

/// Frameworks number their calls too.
fn id(fields: &Map<String, Value>) -> Option<String> {
    match fields.get("id")? {
        Value::String(id) if !id.is_empty() => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Something that was said: what cannot be read is the user's, unless it says otherwise.
fn message(event: &Event, repairs: &mut Vec<Repair>) -> (Role, Option<Part>) {
    let raw = event.body.payload.as_str();
    let mut mended = |done| repairs.push(Repair { seq: event.seq, done });
    let Some((fields, decoded)) = fields(event) else {
        if raw.is_empty() || torn_of_another(raw) {
            mended(Mended::UnreadableDropped);
            return (Role::Assistant, None);
        }
        mended(Mended::UnreadableKept);
        return (Role::User, Some(Part::Text(raw.into())));
    };
    let (role, known) = match fields.get("role").and_then(Value::as_str) {
        Some("user") => (Role::User, true),
        Some("assistant") => (Role::Assistant, true),
        Some("system") => (Role::System, true),
        Some("tool") => (Role::Tool, true),
        Some(_) | None => (Role::User, false),
    };
    match text(&fields) {
        Some(text) => {
            if decoded {
                mended(Mended::PayloadDecoded);
            }
            if !known {
                mended(Mended::UnreadableKept);
            }
            (role, Some(Part::Text(text)))
        }
        None if role == Role::User => {
            mended(Mended::UnreadableKept);
            (role, Some(Part::Text(raw.into())))
        }
        None => {
            mended(Mended::UnreadableDropped);
            (role, None)
        }
    }
}

/// Whether a torn payload begins by saying that it is not the user's.
fn torn_of_another(raw: &str) -> bool {
    fn behind<'t>(text: &'t str, token: &str) -> Option<&'t str> {
        text.trim_start().strip_prefix(token)
    }
    let role = behind(raw, "{").and_then(|rest| behind(rest, "\"role\"")).and_then(|rest| behind(rest, ":"));
    let others = ["\"assistant\"", "\"system\"", "\"tool\""];
    role.is_some_and(|rest| others.iter().any(|other| behind(rest, other).is_some()))
}
