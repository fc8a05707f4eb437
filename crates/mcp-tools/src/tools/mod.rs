//! The tools: what each takes and answers, and how it is described to agents.

mod answers;
mod arguments;
mod table;

pub use answers::{
    Appended, Entries, EntryView, LogView, ProjectView, SessionList, SessionResult, SessionSummaryView,
    StartedView, StoppedView, WhoAmI,
};
pub use arguments::{
    AppendArguments, ENTRY_MAX, ListArguments, LogArguments, NoArguments, ProjectArguments, ReadArguments,
    ResultArguments, SendArguments, StartArguments, StatusArguments, StopArguments,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::table::{Effect, TOOLS, ToolRow};
use crate::refused::{Code, Refused};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tool", content = "arguments", rename_all = "snake_case")]
pub enum Call {
    /// Say what one works on.
    SetProject(ProjectArguments),
    /// Read it again.
    GetProject(NoArguments),
    /// Keep something.
    AppendEntry(AppendArguments),
    /// Read again what was kept.
    ReadRecent(ReadArguments),
    /// Who one is, and why.
    Whoami(NoArguments),
    /// One's own session and those that it started.
    ListSessions(ListArguments),
    /// Where one of them stands.
    SessionStatus(StatusArguments),
    /// Start another one.
    StartSession(StartArguments),
    /// Have one do something more.
    Send(SendArguments),
    /// What the last run of one came to.
    GetResult(ResultArguments),
    /// End what runs in one.
    StopSession(StopArguments),
    /// The end of the log of one. No tool: a resource.
    ReadLog(LogArguments),
    /// One's own session and those that it started, if there is one yet. No tool: the list of resources.
    ListResources(NoArguments),
}

impl Call {
    /// The call of the tool with this name. Everything of the context was taken out of the arguments before.
    pub fn parse(name: &str, arguments: Map<String, Value>) -> Result<Self, Refused> {
        let call = match name {
            "set_project" => Self::SetProject(typed(arguments)?),
            "get_project" => Self::GetProject(typed(arguments)?),
            "append_entry" => Self::AppendEntry(typed(arguments)?),
            "read_recent" => Self::ReadRecent(typed(arguments)?),
            "whoami" => Self::Whoami(typed(arguments)?),
            "list_sessions" => Self::ListSessions(typed(arguments)?),
            "session_status" => Self::SessionStatus(typed(arguments)?),
            "start_session" => Self::StartSession(typed(arguments)?),
            "send" => Self::Send(typed(arguments)?),
            "get_result" => Self::GetResult(typed(arguments)?),
            "stop_session" => Self::StopSession(typed(arguments)?),
            "read_log" => Self::ReadLog(typed(arguments)?),
            "list_resources" => Self::ListResources(typed(arguments)?),
            other => {
                let name = other.chars().take(80).collect::<String>();
                return Err(Refused::new(Code::InvalidArgument, format!("there is no tool {name:?}")));
            }
        };
        call.check()?;
        Ok(call)
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::SetProject(_) => "set_project",
            Self::GetProject(_) => "get_project",
            Self::AppendEntry(_) => "append_entry",
            Self::ReadRecent(_) => "read_recent",
            Self::Whoami(_) => "whoami",
            Self::ListSessions(_) => "list_sessions",
            Self::SessionStatus(_) => "session_status",
            Self::StartSession(_) => "start_session",
            Self::Send(_) => "send",
            Self::GetResult(_) => "get_result",
            Self::StopSession(_) => "stop_session",
            Self::ReadLog(_) => "read_log",
            Self::ListResources(_) => "list_resources",
        }
    }

    /// Its arguments as an object.
    pub fn arguments(&self) -> Result<Map<String, Value>, Refused> {
        let value = serde_json::to_value(self).map_err(|error| Refused::internal(&error))?;
        Ok(value.get("arguments").and_then(Value::as_object).cloned().unwrap_or_default())
    }

    /// Refuses values that are not valid, before anything is sent anywhere.
    pub fn check(&self) -> Result<(), Refused> {
        match self {
            Self::SetProject(arguments) => arguments.check(),
            Self::AppendEntry(arguments) => arguments.check(),
            Self::ReadRecent(arguments) => arguments.part().map(drop),
            Self::ListSessions(arguments) => arguments.page().map(drop),
            Self::SessionStatus(arguments) => arguments.session().map(drop),
            Self::StartSession(arguments) => arguments.check(),
            Self::Send(arguments) => arguments.check(),
            Self::GetResult(arguments) => arguments.session().map(drop),
            Self::StopSession(arguments) => arguments.session().map(drop),
            Self::ReadLog(arguments) => arguments.session().map(drop),
            Self::GetProject(_) | Self::Whoami(_) | Self::ListResources(_) => Ok(()),
        }
    }
}

fn typed<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, Refused> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        // It may repeat what was given.
        let reason: String = error.to_string().chars().take(200).collect();
        Refused::new(Code::InvalidArgument, reason).hint("the tool's schema names its arguments")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(name: &str, arguments: &Value) -> Result<Call, Refused> {
        Call::parse(name, arguments.as_object().unwrap().clone())
    }

    #[test]
    fn every_tool_is_parsed_by_its_name_and_sent_on_as_it_was() {
        let session = "ses_00000000000040008000000000000001";
        let arguments = json!({
            "name": "n", "text": "t", "session_id": session, "prompt": "p",
        });
        for row in TOOLS {
            let wanted = row.input();
            let known = wanted["properties"].as_object().unwrap();
            let given: Map<_, _> = arguments
                .as_object()
                .unwrap()
                .clone()
                .into_iter()
                .filter(|(name, _)| known.contains_key(name))
                .collect();
            let call = Call::parse(row.name, given).unwrap();
            assert_eq!(call.name(), row.name);
            assert_eq!(Call::parse(row.name, call.arguments().unwrap()).unwrap(), call);
            let text = serde_json::to_string(&call).unwrap();
            assert_eq!(serde_json::from_str::<Call>(&text).unwrap(), call);
        }
    }

    #[test]
    fn bad_arguments_are_refused_before_anything_is_sent() {
        let large = "x".repeat(10 << 20);
        for (name, arguments) in [
            ("append_entry", json!({})),
            ("append_entry", json!({ "text": "" })),
            ("append_entry", json!({ "text": 7 })),
            ("append_entry", json!({ "text": "nul\u{0}" })),
            ("append_entry", json!({ "text": large })),
            ("append_entry", json!({ "text": "t", "key": "" })),
            ("append_entry", json!({ "text": "t", "session_id": "ses_1" })),
            ("read_recent", json!({ "limit": 0 })),
            ("read_recent", json!({ "limit": 201 })),
            ("read_recent", json!({ "since": "yesterday" })),
            ("read_recent", json!({ "since": "+999999-01-01T00:00:00Z" })),
            ("read_recent", json!({ "before": -1 })),
            ("set_project", json!({ "name": "" })),
            ("set_project", json!({ "name": "two\nlines" })),
            ("session_status", json!({ "session_id": "../etc" })),
            ("start_session", json!({})),
            ("start_session", json!({ "prompt": "p", "unknown": 1 })),
            ("stop_session", json!({})),
            ("delete_everything", json!({})),
        ] {
            let refused = parse(name, &arguments).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{name}");
            assert!(refused.message.len() < 400, "{name}: {refused}");
        }
        assert!(parse("append_entry", &json!({ "text": "\u{1b}[31mred\u{1b}[0m, \"quoted\", ü" })).is_ok());
    }
}
