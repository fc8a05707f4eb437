//! Entries of the session's log, made of what an agent says: within the bounds of a payload, whatever it says.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use session_core::event::{EventKind, Payload};
use session_core::names::ToolName;

use super::said::Said;

/// The longest field of an entry, in bytes of JSON. Three of them and the raw line are less than a payload may be.
pub(super) const FIELD_MAX: usize = 256 << 10;
/// The longest line of an agent that an entry keeps whole, in bytes.
pub(super) const RAW_MAX: usize = 64 << 10;
/// The most characters of a line of progress.
pub(super) const PROGRESS_CHARS: usize = 200;
/// The longest title of a question, in bytes.
pub(super) const TITLE_MAX: usize = 1_000;
/// The kind of what an agent says that has no other kind.
pub(super) const RAW_KIND: &str = "agent.raw";

/// One entry in the making.
pub(super) struct Entry {
    kind: EventKind,
    fields: Map<String, Value>,
    cut: Map<String, Value>,
}

impl Entry {
    pub(super) fn new(kind: EventKind) -> Self {
        Self { kind, fields: Map::new(), cut: Map::new() }
    }

    /// A short field, of our own making.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// A field of the agent's making. What is longer than [`FIELD_MAX`] is cut, kept as text, and its length told.
    pub(super) fn given(mut self, name: &str, value: &Value) -> Self {
        let text = value.to_string();
        if text.len() <= FIELD_MAX {
            return self.with(name, value.clone());
        }
        self.cut.insert(name.into(), text.len().into());
        // Quoting makes text longer, at worst six times.
        let kept = match value {
            Value::String(whole) => head(whole, FIELD_MAX / 6),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                head(&text, FIELD_MAX / 6)
            }
        };
        self.with(name, kept)
    }

    /// The entry, with the line that it was made of.
    pub(super) fn of_line(mut self, line: &str) -> Said {
        if line.len() > RAW_MAX {
            self.cut.insert("raw".into(), line.len().into());
            self.fields.insert("raw".into(), head(line, RAW_MAX / 6).into());
            return self.done();
        }
        if let Ok(raw) = serde_json::from_str::<&RawValue>(line) {
            return self.finish(Some(raw));
        }
        self.fields.insert("raw".into(), line.into());
        self.done()
    }

    /// The entry, made of no line in particular.
    pub(super) fn done(self) -> Said {
        self.finish(None)
    }

    fn finish(mut self, raw: Option<&RawValue>) -> Said {
        if !self.cut.is_empty() {
            let cut = std::mem::take(&mut self.cut);
            self.fields.insert("cut".into(), cut.into());
        }
        let text = serde_json::to_string(&Framed { fields: &self.fields, raw });
        // Too large only if something was not bounded as it should be: then what it is, without what it says.
        let payload = text.ok().and_then(|text| Payload::parse(&text).ok());
        let payload = payload.unwrap_or_else(|| Payload::from_value(&json!({ "cut": "all of it" })));
        Said::Event { kind: self.kind, payload }
    }
}

/// The fields of an entry, and the agent's own line byte for byte.
#[derive(Serialize)]
struct Framed<'a> {
    #[serde(flatten)]
    fields: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a RawValue>,
}

/// Where a text stands in what was said in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Joint {
    /// It goes on where the entry before it ended.
    pub(super) continues: bool,
    /// It is told while it is being said: more may come.
    pub(super) unfinished: bool,
}

/// What the agent said, or thought, in one go, and a line of progress.
pub(super) fn words(kind: &EventKind, text: &str, line: Option<&str>) -> Vec<Said> {
    let mut said = told(kind, text, line, Joint::default());
    if *kind == EventKind::Message {
        said.extend(progress(text));
    }
    said
}

/// What the agent said, or thought: as many entries as it takes, none of them cut. The line goes with the first.
pub(super) fn told(kind: &EventKind, text: &str, line: Option<&str>, joint: Joint) -> Vec<Said> {
    let parts = parts(text, FIELD_MAX / 6);
    let last = parts.len().saturating_sub(1);
    let mut said = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut entry = spoken(kind, part);
        if index > 0 || joint.continues {
            entry = entry.with("continues", true);
        }
        if index < last || joint.unfinished {
            entry = entry.with("unfinished", true);
        }
        said.push(match line.filter(|_| index == 0) {
            Some(line) => entry.of_line(line),
            None => entry.done(),
        });
    }
    said
}

/// The end of what was told as far as it went, with the line that says all of it.
pub(super) fn ended(kind: &EventKind, line: &str) -> Said {
    spoken(kind, "").with("continues", true).of_line(line)
}

/// What was told of this kind as far as it went does not count: it is said anew.
pub(super) fn given_up(kind: &EventKind) -> Said {
    spoken(kind, "").with("continues", true).with("abandoned", true).done()
}

/// What the agent said, or thought.
fn spoken(kind: &EventKind, text: &str) -> Entry {
    let entry = Entry::new(kind.clone());
    let entry = if *kind == EventKind::Message { entry.with("role", "assistant") } else { entry };
    entry.with("text", text)
}

/// A call of a tool, and a line that says so.
pub(super) fn tool_call(id: &str, name: &str, input: &Value, line: &str) -> Vec<Said> {
    let entry = Entry::new(EventKind::ToolCall).with("id", id).with("name", name).given("input", input);
    let shown = shown(input).map_or_else(|| name.into(), |shown| format!("{name}: {shown}"));
    std::iter::once(entry.of_line(line)).chain(progress(&shown)).collect()
}

/// What a tool answered.
pub(super) fn tool_result(id: &str, output: &Value, is_error: bool, line: &str) -> Said {
    let entry = Entry::new(EventKind::ToolResult).with("id", id).given("output", output);
    if is_error { entry.with("is_error", true) } else { entry }.of_line(line)
}

/// The agent's plan, as it is now.
pub(super) fn plan(entries: &Value, line: &str) -> Said {
    Entry::new(EventKind::Plan).given("entries", entries).of_line(line)
}

/// Something that went wrong, by the agent's account.
pub(super) fn trouble(message: &str, line: &str) -> Said {
    Entry::new(EventKind::Error).given("message", &message.into()).of_line(line)
}

/// Something that went wrong between the agent and us.
pub(super) fn complaint(message: &str) -> Said {
    Entry::new(EventKind::Error).with("message", message).done()
}

/// A line that has no meaning for us.
pub(super) fn raw(line: &str) -> Option<Said> {
    Some(Entry::new(RAW_KIND.parse().ok()?).of_line(line))
}

/// The last line of a text that is not empty, as a line of progress.
pub(super) fn progress(text: &str) -> Option<Said> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(Said::Progress(line.chars().filter(|c| !c.is_control()).take(PROGRESS_CHARS).collect()))
}

/// A tool's name that may be asked about: what an agent calls it, without what no name has.
pub(super) fn tool_name(given: &str) -> Option<ToolName> {
    let clean: String = given.chars().filter(|c| !c.is_control()).collect();
    ToolName::new(head(&clean, ToolName::MAX)).or_else(|_| ToolName::new("unnamed tool")).ok()
}

/// JSON as a payload; what is too large is cut and kept as text.
pub(super) fn payload(value: &Value) -> Payload {
    let text = value.to_string();
    if text.len() <= Payload::MAX / 2 {
        return Payload::from_value(value);
    }
    Payload::from_value(&json!({ "cut": text.len(), "head": head(&text, FIELD_MAX / 6) }))
}

/// What a person wants to see of a tool's input first.
pub(super) fn shown(input: &Value) -> Option<String> {
    let fields = ["command", "file_path", "path", "url", "pattern", "query", "description"];
    fields.into_iter().find_map(|field| match input.get(field)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
            .filter(|text| !text.is_empty()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    })
}

/// The command in a tool's input: an argv, or a line for a shell.
pub(super) fn command(input: &Value) -> Option<Vec<String>> {
    match input.get("command").or_else(|| input.get("cmd"))? {
        Value::String(line) => Some(vec![line.clone()]),
        Value::Array(argv) => argv.iter().map(|part| part.as_str().map(str::to_owned)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// As much of the beginning of a text as fits, in whole characters.
pub(super) fn head(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// A text in pieces of whole characters.
fn parts(mut text: &str, bytes_max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let (part, rest) = text.split_at(text.floor_char_boundary(bytes_max));
        parts.push(part);
        text = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(said: &Said) -> Value {
        match said {
            Said::Event { payload, .. } => payload.value().unwrap(),
            Said::Bound(_) | Said::Resumable | Said::Usage(_) | Said::Degraded(_) | Said::Progress(_) => {
                panic!("no entry: {said:?}")
            }
        }
    }

    #[test]
    fn the_line_of_an_agent_is_kept_byte_for_byte() {
        let line = r#"{ "b" : 1.0,"a":"é" }"#;
        let Said::Event { payload, .. } = trouble("no", line) else { panic!("no entry") };
        assert_eq!(payload.as_str(), format!(r#"{{"message":"no","raw":{line}}}"#));
        assert_eq!(value(&trouble("no", "plain text"))["raw"], "plain text");
    }

    #[test]
    fn what_is_too_long_is_cut_and_says_so() {
        let long = "\u{1}".repeat(2 << 20);
        let entry = tool_result("1", &json!({ "text": long }), false, &json!([long]).to_string());
        let told = value(&entry);
        assert!(told["cut"]["output"].as_u64() > Some(2 << 20), "{}", told["cut"]);
        assert!(told["cut"]["raw"].as_u64() > Some(2 << 20), "{}", told["cut"]);
        assert!(told["output"].as_str().unwrap().starts_with(r#"{"text":""#));
    }

    #[test]
    fn what_an_agent_says_is_never_cut() {
        let long = "é\u{1}".repeat(300 << 10);
        let said = words(&EventKind::Message, &long, Some("{}"));
        let texts: String = said
            .iter()
            .filter(|said| matches!(said, Said::Event { .. }))
            .map(|said| value(said)["text"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(texts, long);
        assert!(
            said.len() > 10 && value(&said[0]).get("raw").is_some() && value(&said[1]).get("raw").is_none()
        );
    }

    #[test]
    fn odd_names_of_tools_are_made_names() {
        for (given, expected) in
            [("Bash", "Bash"), ("a\nb", "ab"), ("", "unnamed tool"), (" \u{7}", "unnamed tool")]
        {
            assert_eq!(tool_name(given).unwrap().as_str(), expected);
        }
        assert_eq!(tool_name(&"é".repeat(300)).unwrap().as_str().len(), 200);
    }

    #[test]
    fn commands_are_an_argv_or_a_line() {
        assert_eq!(command(&json!({ "command": "a | b" })), Some(vec!["a | b".into()]));
        assert_eq!(command(&json!({ "command": ["a", "b c"] })), Some(vec!["a".into(), "b c".into()]));
        assert_eq!(command(&json!({ "command": ["a", 1] })), None);
        assert_eq!(command(&json!("a")), None);
        assert_eq!(shown(&json!({ "path": "x" })).as_deref(), Some("x"));
    }
}
