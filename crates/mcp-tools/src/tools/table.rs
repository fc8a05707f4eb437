//! The table of tools: one row each, from which clients are told what there is.

use std::sync::Arc;

use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::answers::{
    Appended, Entries, ProjectView, SessionList, SessionResult, SessionSummaryView, StartedView, StoppedView,
    WhoAmI,
};
use super::arguments::{
    AppendArguments, ListArguments, NoArguments, ProjectArguments, ReadArguments, ResultArguments,
    SendArguments, StartArguments, StatusArguments, StopArguments,
};

/// What a tool does to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It adds something; the same again adds nothing more.
    AddsOnce,
    /// It adds something, each time unless it has a key.
    Adds,
    /// It ends something.
    Ends,
}

/// A tool.
#[derive(Debug, Clone, Copy)]
pub struct ToolRow {
    /// Its name.
    pub name: &'static str,
    title: &'static str,
    description: &'static str,
    effect: Effect,
    input: fn() -> Value,
    output: fn() -> Arc<JsonObject>,
}

/// Who one is and which work it is about. Each tool takes it beside its own arguments.
#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is used: the arguments are taken out by their names")]
struct ContextArguments {
    /// Who you are: a name that stays the same in all your calls. Agents that share a connection each say their own.
    agent: Option<String>,
    /// The repository that you work in, the whole path of its directory.
    repo_root: Option<String>,
    /// `project`, or `sentinel` for standing watch with one session a day.
    mode: Option<String>,
    /// Your name for this piece of work, the same until it is done: another one begins a session of its own.
    execution_id: Option<String>,
}

fn input<T: JsonSchema + 'static>() -> Value {
    let own = schema_for_input::<T>().map(|schema| schema.as_ref().clone()).unwrap_or_default();
    let context =
        schema_for_input::<ContextArguments>().map(|schema| schema.as_ref().clone()).unwrap_or_default();
    let mut properties = object(own.get("properties"));
    properties.extend(object(context.get("properties")));
    let mut schema = own;
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    schema.insert("additionalProperties".into(), false.into());
    Value::Object(schema)
}

fn object(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Every tool, in the order in which clients are shown them.
pub const TOOLS: &[ToolRow] = &[
    ToolRow {
        name: "set_project",
        title: "Set project",
        description: "Say what you work on. It stays with your session until you say something else, also over restarts.",
        effect: Effect::AddsOnce,
        input: input::<ProjectArguments>,
        output: schema_for_output::<ProjectView>,
    },
    ToolRow {
        name: "get_project",
        title: "Get project",
        description: "Read again what you said that you work on.",
        effect: Effect::Reads,
        input: input::<NoArguments>,
        output: schema_for_output::<ProjectView>,
    },
    ToolRow {
        name: "append_entry",
        title: "Append entry",
        description: "Keep something for yourself: a decision, a finding, where you stand. Only you read it again, with read_recent.",
        effect: Effect::Adds,
        input: input::<AppendArguments>,
        output: schema_for_output::<Appended>,
    },
    ToolRow {
        name: "read_recent",
        title: "Read recent entries",
        description: "Read again what you kept with append_entry: the last entries, oldest first.",
        effect: Effect::Reads,
        input: input::<ReadArguments>,
        output: schema_for_output::<Entries>,
    },
    ToolRow {
        name: "whoami",
        title: "Who am I",
        description: "The identity by which your session is found, where each part of it was said, and the session's id once there is one.",
        effect: Effect::Reads,
        input: input::<NoArguments>,
        output: schema_for_output::<WhoAmI>,
    },
    ToolRow {
        name: "list_sessions",
        title: "List sessions",
        description: "Your own session and those that it started.",
        effect: Effect::Reads,
        input: input::<ListArguments>,
        output: schema_for_output::<SessionList>,
    },
    ToolRow {
        name: "session_status",
        title: "Session status",
        description: "Where your own session, or one that it started, stands.",
        effect: Effect::Reads,
        input: input::<StatusArguments>,
        output: schema_for_output::<SessionSummaryView>,
    },
    ToolRow {
        name: "start_session",
        title: "Start a session",
        description: "Start an agent or a program in a session of its own, below yours. Answers at once; get_result has the result later.",
        effect: Effect::Adds,
        input: input::<StartArguments>,
        output: schema_for_output::<StartedView>,
    },
    ToolRow {
        name: "send",
        title: "Send to a session",
        description: "Ask a session that you started for something more, when its last run is over. Answers at once.",
        effect: Effect::Adds,
        input: input::<SendArguments>,
        output: schema_for_output::<StartedView>,
    },
    ToolRow {
        name: "get_result",
        title: "Get result",
        description: "What the last run of a session that you started came to. `over` says whether it has ended.",
        effect: Effect::Reads,
        input: input::<ResultArguments>,
        output: schema_for_output::<SessionResult>,
    },
    ToolRow {
        name: "stop_session",
        title: "Stop a session",
        description: "End what runs in a session that you started. The session stays, with what it has.",
        effect: Effect::Ends,
        input: input::<StopArguments>,
        output: schema_for_output::<StoppedView>,
    },
];

impl ToolRow {
    /// The schema of what it takes.
    #[must_use]
    pub fn input(&self) -> Value {
        (self.input)()
    }

    /// The tool as clients are told of it.
    #[must_use]
    pub fn tool(&self) -> Tool {
        let input = match self.input() {
            Value::Object(schema) => schema,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Map::new()
            }
        };
        let annotations = ToolAnnotations::new()
            .read_only(self.effect == Effect::Reads)
            .destructive(self.effect == Effect::Ends)
            .idempotent(matches!(self.effect, Effect::Reads | Effect::AddsOnce | Effect::Ends))
            .open_world(matches!(self.name, "start_session" | "send"));
        Tool::new(self.name, self.description, input)
            .with_title(self.title)
            .with_raw_output_schema((self.output)())
            .with_annotations(annotations)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_tool_has_schemas_and_annotations() {
        let mut names = BTreeSet::new();
        for row in TOOLS {
            let tool = row.tool();
            assert!(names.insert(row.name), "{} stands there twice", row.name);
            for name in ["agent", "repo_root", "mode", "execution_id"] {
                assert!(tool.input_schema["properties"].get(name).is_some(), "{} lacks {name}", row.name);
            }
            let required = tool.input_schema.get("required").cloned().unwrap_or_default();
            assert!(!required.to_string().contains("agent"), "{}: {required}", row.name);
            assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object", "{}", row.name);
            assert!(tool.annotations.unwrap().read_only_hint.is_some());
            let properties = tool.input_schema["properties"].as_object().unwrap();
            assert!(
                properties.values().all(|property| property.get("description").is_some()),
                "{}",
                row.name
            );
        }
        assert_eq!(names.len(), 11);
    }
}
