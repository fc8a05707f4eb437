//! The log of a legacy session, as ours: what was said and which tools were called, in order, each event at its own time.
//! Nothing is dropped: what has no meaning for us is kept under a name of its own.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use session_core::event::{Event, EventKind, NewEvent, Payload, Seq};
use session_core::ids::SessionId;

use super::EventRow;

/// The kind of an event of theirs that none of ours is.
const OTHER: &str = "legacy.event";
/// The longest text that is kept of an event that is larger than a payload may be, in bytes: quoting makes it longer, at worst
/// six times.
const CUT_BYTES: usize = Payload::MAX / 8;

/// What their columns say.
struct Theirs {
    number: i64,
    at: Option<Timestamp>,
    kind: String,
    fields: Map<String, Value>,
}

/// Their events as ours, numbered from 1. One without a time that can be read happened when the one before it did, the first
/// `since`.
pub(super) fn log(session: SessionId, rows: &[EventRow], since: Timestamp) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    // The calls that have no result yet: their ids and names.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut now = since;
    for row in rows {
        let theirs = Theirs::read(row);
        now = theirs.at.unwrap_or(now);
        for (kind, value) in theirs.ours(&mut open) {
            let seq = Seq(events.len() as u64 + 1);
            let body = NewEvent { run: None, kind, payload: bounded(&value), origin: None };
            events.push(Event { session, seq, at: now, body });
        }
    }
    events
}

impl Theirs {
    fn read(row: &EventRow) -> Self {
        let cells = [
            ("tool_name", &row.tool_name),
            ("tool_input", &row.tool_input),
            ("tool_output", &row.tool_output),
            ("error", &row.error),
            ("exit_code", &row.exit_code),
            ("reason", &row.reason),
            ("role", &row.role),
            ("content", &row.content),
        ];
        let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let value =
            |(name, cell): (&str, &super::Cell)| Some((name.to_owned(), lossy(cell.as_ref()?).into()));
        Self {
            number: row.number,
            at: row.timestamp.as_ref().map(lossy).and_then(|text| time(&text)),
            kind: row.event_type.as_ref().map(lossy).unwrap_or_default(),
            fields: cells.into_iter().filter_map(value).collect(),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// What was JSON in their column, or the text that it is.
    fn json(&self, name: &str) -> Value {
        let text = self.text(name).unwrap_or_default();
        serde_json::from_str(text).unwrap_or_else(|_| text.into())
    }

    fn ours(&self, open: &mut Vec<(String, String)>) -> Vec<(EventKind, Value)> {
        let id = format!("legacy-{}", self.number);
        match (self.kind.as_str(), self.text("tool_name")) {
            ("message", _) => match (self.text("role"), said(&self.json("content"))) {
                (Some(role @ ("user" | "assistant")), Some(text)) => {
                    vec![(EventKind::Message, json!({ "role": role, "text": text }))]
                }
                (Some(_) | None, _) => self.other(),
            },
            ("pre_tool", Some(name)) => {
                open.push((id.clone(), name.into()));
                vec![(
                    EventKind::ToolCall,
                    json!({ "id": id, "name": name, "input": self.json("tool_input") }),
                )]
            }
            ("post_tool", Some(name)) => {
                let mut events = Vec::new();
                let call = open.iter().position(|(_, called)| called == name);
                let id = if let Some(index) = call {
                    open.remove(index).0
                } else {
                    let call = json!({ "id": id, "name": name, "input": self.json("tool_input") });
                    events.push((EventKind::ToolCall, call));
                    id
                };
                events.push((
                    EventKind::ToolResult,
                    match self.text("error") {
                        Some(error) => json!({ "id": id, "output": error, "is_error": true }),
                        None => json!({ "id": id, "output": self.json("tool_output") }),
                    },
                ));
                events
            }
            (_, _) => self.other(),
        }
    }

    fn other(&self) -> Vec<(EventKind, Value)> {
        let value = json!({ "event_type": self.kind, "fields": self.fields });
        OTHER.parse().ok().map(|kind| (kind, value)).into_iter().collect()
    }
}

/// The text of a message: as it is, or of its blocks.
fn said(content: &Value) -> Option<String> {
    let text = match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        Value::Object(block) => block.get("text")?.as_str()?.to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// A payload that is not too large. Of one that would be, each text is cut to an equal share and says so.
fn bounded(value: &Value) -> Payload {
    let text = value.to_string();
    if let Ok(payload) = Payload::parse(&text) {
        return payload;
    }
    let Value::Object(fields) = value else { return Payload::from_value(&json!({ "cut": text.len() })) };
    let share = CUT_BYTES / fields.len().max(1);
    let mut cut = Map::new();
    for (name, value) in fields {
        let whole = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let kept = whole.get(..whole.floor_char_boundary(share)).unwrap_or_default();
        let is_whole = kept.len() == whole.len();
        cut.insert(name.clone(), if is_whole { value.clone() } else { kept.into() });
    }
    cut.insert("cut".into(), text.len().into());
    Payload::from_value(&cut.into())
}

/// A time in any of the spellings that are found: with an offset, or without one, which is UTC.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse().ok().or_else(|| {
        let local: DateTime = text.parse().ok()?;
        local.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(number: i64, kind: &str, cells: &[(&str, &str)]) -> EventRow {
        let cell = |name: &str| {
            cells.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_bytes().to_vec())
        };
        EventRow {
            number,
            event_type: Some(kind.as_bytes().to_vec()),
            timestamp: cell("timestamp"),
            tool_name: cell("tool_name"),
            tool_input: cell("tool_input"),
            tool_output: cell("tool_output"),
            error: cell("error"),
            exit_code: cell("exit_code"),
            reason: cell("reason"),
            role: cell("role"),
            content: cell("content"),
        }
    }

    fn session() -> SessionId {
        session_core::testing::env().0.session_id()
    }

    fn of(rows: &[EventRow]) -> Vec<(String, Value)> {
        let events = log(session(), rows, Timestamp::UNIX_EPOCH);
        events
            .into_iter()
            .map(|event| (event.body.kind.to_string(), event.body.payload.value().unwrap()))
            .collect()
    }

    #[test]
    fn what_was_said_and_called_becomes_ours() {
        let found = of(&[
            row(1, "session_start", &[]),
            row(2, "message", &[("role", "user"), ("content", r#"[{"type":"text","text":"fix it"}]"#)]),
            row(3, "pre_tool", &[("tool_name", "Bash"), ("tool_input", r#"{"command":"ls"}"#)]),
            row(4, "post_tool", &[("tool_name", "Bash"), ("tool_output", "a b")]),
            row(5, "post_tool", &[("tool_name", "Read"), ("tool_input", "{}"), ("error", "no such file")]),
            row(6, "message", &[("role", "assistant"), ("content", "done")]),
            row(7, "message", &[("role", "system"), ("content", "odd")]),
        ]);
        let expected = [
            ("legacy.event", json!({ "event_type": "session_start", "fields": {} })),
            ("message", json!({ "role": "user", "text": "fix it" })),
            ("tool_call", json!({ "id": "legacy-3", "name": "Bash", "input": { "command": "ls" } })),
            ("tool_result", json!({ "id": "legacy-3", "output": "a b" })),
            ("tool_call", json!({ "id": "legacy-5", "name": "Read", "input": {} })),
            ("tool_result", json!({ "id": "legacy-5", "output": "no such file", "is_error": true })),
            ("message", json!({ "role": "assistant", "text": "done" })),
            (
                "legacy.event",
                json!({ "event_type": "message", "fields": { "role": "system", "content": "odd" } }),
            ),
        ];
        assert_eq!(found, expected.map(|(kind, payload)| (kind.to_owned(), payload)));
    }

    #[test]
    fn times_are_read_in_every_spelling_and_what_is_too_large_is_cut() {
        let second = Timestamp::from_second(1_763_632_800).unwrap();
        for text in [
            "2025-11-20T10:00:00Z",
            "2025-11-20T11:00:00+01:00",
            "2025-11-20T10:00:00",
            "2025-11-20 10:00:00",
        ] {
            assert_eq!(time(text), Some(second), "{text}");
        }
        assert_eq!(time("yesterday"), None);
        let long = "\u{1}".repeat(2 << 20);
        let found = of(&[row(1, "message", &[("role", "user"), ("content", &long)])]);
        assert!(found[0].1["cut"].as_u64() > Some(2 << 20) && found[0].1["role"] == "user");
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_kept_in_order(
            kinds in proptest::collection::vec("(message|pre_tool|post_tool|[a-z]{0,4})", 0..20),
            text in ".{0,20}",
        ) {
            let cells = [("role", "user"), ("content", text.as_str()), ("tool_name", "T"), ("tool_input", text.as_str())];
            let rows: Vec<_> = kinds.iter().zip(1..).map(|(kind, number)| row(number, kind, &cells)).collect();
            let events = log(session(), &rows, Timestamp::UNIX_EPOCH);
            prop_assert!(events.len() >= rows.len());
            prop_assert!(events.iter().zip(1..).all(|(event, number)| event.seq == Seq(number)));
        }
    }
}
