//! Resources: the log and the output of one's own session and of those that it started.

use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use serde_json::{Map, Value, json};
use session_core::SessionId;

use crate::desk::Answer;
use crate::refused::{Code, Refused};

const SCHEME: &str = "roomette://session/";
const LINES: &str = "application/x-ndjson";

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// The end of a session's log.
    Log(SessionId),
    /// What its last run came to, in words.
    Output(SessionId),
}

impl Read {
    /// The call that reads it.
    pub(super) fn tool(self) -> &'static str {
        match self {
            Self::Log(_) => "read_log",
            Self::Output(_) => "get_result",
        }
    }

    pub(super) fn arguments(self) -> Map<String, Value> {
        let (Self::Log(session) | Self::Output(session)) = self;
        Map::from_iter([("session_id".to_owned(), json!(session))])
    }

    /// What was read, of what the call answered.
    pub(super) fn contents(self, uri: &str, answer: &Answer) -> ResourceContents {
        let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        match self {
            Self::Log(_) => ResourceContents::text(text("lines"), uri).with_mime_type(LINES),
            Self::Output(_) => {
                let last_line = answer.get("result").and_then(|result| result["last_line"].as_str());
                let said = answer.get("text").and_then(Value::as_str).or(last_line);
                ResourceContents::text(said.unwrap_or_default(), uri)
            }
        }
    }
}

/// What a URI names.
pub(super) fn parse(uri: &str) -> Result<Read, Refused> {
    let named = uri.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
    let read = named.and_then(|(id, what)| {
        let id = id.parse().ok()?;
        match what {
            "log" => Some(Read::Log(id)),
            "output" => Some(Read::Output(id)),
            _ => None,
        }
    });
    read.ok_or_else(|| {
        let uri: String = uri.chars().take(120).collect();
        Refused::new(Code::NotFound, format!("there is no resource {uri:?}"))
            .hint(format!("{SCHEME}SESSION/log and {SCHEME}SESSION/output are what there is"))
    })
}

/// The resources of the sessions of a list.
pub(super) fn of(listed: &Answer) -> Vec<Resource> {
    let sessions = listed.get("sessions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut resources = Vec::with_capacity(sessions.len() * 2);
    for session in sessions {
        let Some(id) = session["session_id"].as_str() else { continue };
        let name = session["label"].as_str().unwrap_or(id);
        let log = Resource::new(format!("{SCHEME}{id}/log"), format!("log of {name}"));
        resources.push(log.with_description("The end of the session's event log").with_mime_type(LINES));
        if session.get("run_id").is_some() {
            let output = Resource::new(format!("{SCHEME}{id}/output"), format!("output of {name}"));
            let output = output.with_description("What the session's last run came to, in words");
            resources.push(output.with_mime_type("text/plain"));
        }
    }
    resources
}

pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(format!("{SCHEME}{{session_id}}/log"), "log")
            .with_description("The end of a session's event log: your own, or one that you started")
            .with_mime_type(LINES),
        ResourceTemplate::new(format!("{SCHEME}{{session_id}}/output"), "output")
            .with_description("What the last run of a session that you started came to, in words")
            .with_mime_type("text/plain"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_session_and_what_of_it() {
        let id = "ses_00000000000040008000000000000001";
        assert!(matches!(parse(&format!("{SCHEME}{id}/log")), Ok(Read::Log(_))));
        assert!(matches!(parse(&format!("{SCHEME}{id}/output")), Ok(Read::Output(_))));
        let long = "x".repeat(10_000);
        for wrong in
            ["", "file:///etc/passwd", "roomette://session/../log", &format!("{SCHEME}{id}/work"), &long]
        {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.code == Code::NotFound && refused.text().len() < 500, "{wrong}");
        }
    }
}
