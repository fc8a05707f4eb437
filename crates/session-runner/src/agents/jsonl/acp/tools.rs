//! The calls of tools, as they come to be: an agent announces a call, says bit by bit what it is, and then its end.
//!
//! The log has one entry for a call and one for its result. So a call is told when all of it is known: when leave is asked
//! for it, when it runs or ends, when the agent speaks of something else, or of nothing for a moment.

use serde_json::{Value, json};

use super::super::protocol::text;
use crate::agents::entry;
use crate::agents::said::Said;

/// The most calls that are remembered; of more, only results are told.
const CALLS_MAX: usize = 256;

/// The calls that have not ended.
#[derive(Debug, Default)]
pub(super) struct Tools {
    open: Vec<Call>,
}

/// A call, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Call {
    id: String,
    name: String,
    pub(super) title: String,
    kind: String,
    pub(super) input: Value,
    content: Value,
    output: Value,
    /// The line that it was announced by.
    line: String,
    told: bool,
}

impl Call {
    /// What the tool is called: by its name, or else by what kind it is.
    pub(super) fn tool(&self) -> &str {
        let names = [&self.name, &self.kind, &self.title];
        names.into_iter().map(String::as_str).find(|name| !name.is_empty()).unwrap_or_default()
    }

    fn tell(&mut self) -> Vec<Said> {
        if std::mem::replace(&mut self.told, true) {
            return Vec::new();
        }
        let input = if self.input.is_null() { json!({ "title": self.title }) } else { self.input.clone() };
        entry::tool_call(&self.id, self.tool(), &input, &self.line)
    }

    fn learn(&mut self, update: &Value) {
        let named = text(update, "name");
        let named = if named.is_empty() { meta_name(update) } else { named };
        for (field, value) in [
            (&mut self.name, named),
            (&mut self.title, text(update, "title")),
            (&mut self.kind, text(update, "kind")),
        ] {
            if !value.is_empty() && value != "other" {
                entry::head(value, entry::RAW_MAX).clone_into(field);
            }
        }
        for (field, name) in
            [(&mut self.input, "rawInput"), (&mut self.content, "content"), (&mut self.output, "rawOutput")]
        {
            if let Some(value) = update.get(name).filter(|value| !is_nothing(value)) {
                *field = value.clone();
            }
        }
    }

    /// What came of it: the tool's own words, or what the agent shows of them.
    fn result(self) -> Value {
        if is_nothing(&self.output) { self.content } else { self.output }
    }
}

/// Where agents say a tool's name that do not say it in its field.
const NAMES: &[&str] = &["/_meta/claudeCode/toolName", "/_meta/goose/toolCall/toolName"];

fn meta_name(update: &Value) -> &str {
    NAMES.iter().find_map(|place| update.pointer(place)?.as_str()).unwrap_or_default()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

impl Tools {
    /// News of a call.
    pub(super) fn update(&mut self, update: &Value, line: &str) -> Vec<Said> {
        let id = text(update, "toolCallId");
        if id.is_empty() {
            return entry::raw(line).into_iter().collect();
        }
        let at = match self.open.iter().position(|call| call.id == id) {
            Some(at) => at,
            None if self.open.len() < CALLS_MAX => {
                self.open.push(Call { id: id.into(), line: line.into(), ..Call::default() });
                self.open.len() - 1
            }
            None => return entry::raw(line).into_iter().collect(),
        };
        let call = &mut self.open[at];
        call.learn(update);
        match text(update, "status") {
            "in_progress" if !is_nothing(&call.input) => call.tell(),
            status @ ("completed" | "failed") => {
                let mut said = call.tell();
                let call = self.open.swap_remove(at);
                said.push(entry::tool_result(id, &call.result(), status == "failed", line));
                said
            }
            _ => Vec::new(),
        }
    }

    /// All of this call is known.
    pub(super) fn tell(&mut self, id: &str, line: &str) -> Vec<Said> {
        match self.open.iter_mut().find(|call| call.id == id) {
            Some(call) => {
                if !call.told {
                    line.clone_into(&mut call.line);
                }
                call.tell()
            }
            None => Vec::new(),
        }
    }

    /// The agent speaks of something else: all is known of the calls but this one.
    pub(super) fn tell_others(&mut self, id: &str) -> Vec<Said> {
        let others = self.open.iter_mut().filter(|call| call.id != id && !is_nothing(&call.input));
        others.flat_map(Call::tell).collect()
    }

    /// How many calls could be told and were not.
    pub(super) fn untold(&self) -> usize {
        self.open.iter().filter(|call| !call.told && !is_nothing(&call.input)).count()
    }

    /// Nothing more will be known of any.
    pub(super) fn tell_all(&mut self) -> Vec<Said> {
        self.open.iter_mut().flat_map(Call::tell).collect()
    }

    /// What is known of a call.
    pub(super) fn known(&self, id: &str) -> Option<&Call> {
        self.open.iter().find(|call| call.id == id)
    }
}
