//! What a session's handle owns and no other session ever sees: its conversation, what was granted to it, its thread of
//! correlation, its tools.

use camino::Utf8PathBuf;
use serde_json::{Map, Value, json};

use crate::approvals::{Approvals, CommandSignature, Grant, Verdict};
use crate::correlation::CorrelationContext;
use crate::event::{Event, EventKind, NewEvent};
use crate::grants::{Access, DirectoryGrants};
use crate::history::{History, reconstruct_messages};
use crate::names::{AgentKey, Role, ToolName};
use crate::session::ManagedSession;
use crate::tools::ToolRegistry;

/// Everything of one session that is never shared. Not `Clone`, so that it cannot become another's.
#[derive(Debug)]
pub struct SessionContext {
    /// The conversation so far.
    pub history: History,
    /// What a person allowed or forbade in it.
    pub approvals: Approvals,
    /// The directories that it was let into.
    pub grants: DirectoryGrants,
    /// Who says what on whose behalf.
    pub correlation: CorrelationContext,
    /// The tools that its agent can call.
    pub tools: ToolRegistry,
}

impl SessionContext {
    /// The context of a session that has no past. Agent and role come from its record, `parent_agent` from whoever knows
    /// its parent's.
    #[must_use]
    pub fn new(session: &ManagedSession, parent_agent: Option<AgentKey>) -> Self {
        let correlation = CorrelationContext {
            agent: session.agent.clone(),
            parent_agent,
            role: role(session).map(|role| role.as_str().into()),
            ..CorrelationContext::new(session.id)
        };
        Self {
            history: History::default(),
            approvals: Approvals::default(),
            grants: DirectoryGrants::default(),
            correlation,
            tools: ToolRegistry::default(),
        }
    }

    /// Takes over what a log holds: the conversation as it can be reconstructed, and every grant. What is here already
    /// stays beside it, except the conversation, which is the log's.
    pub fn restore(&mut self, restored: Restored) {
        self.history = restored.history;
        for grant in restored.grants {
            // What was granted within the bounds is within them again.
            let _known = self.answer(grant);
        }
    }

    /// Takes over one grant. `false` when the session remembers as many as it may, or the grant is none.
    pub fn answer(&mut self, grant: Grant) -> bool {
        match grant {
            Grant::Tool { name, verdict } => self.approvals.answer_tool(name, verdict).is_ok(),
            Grant::Command { signature, verdict } => {
                self.approvals.answer_command(signature, verdict).is_ok()
            }
            Grant::Directory { path, access } => self.grants.grant(&path, access).is_ok(),
        }
    }
}

/// The role that a session's creator gave it: the text `role` of its metadata.
fn role(session: &ManagedSession) -> Option<Role> {
    let metadata = session.metadata.value().ok()?;
    Role::new(metadata.get("role")?.as_str()?).ok()
}

/// What a log holds of a session's context: the second of the three steps of a resume.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Restored {
    /// The conversation, repaired.
    pub history: History,
    /// What was granted, in order.
    pub grants: Vec<Grant>,
}

impl Restored {
    /// Reads a session's log, from its beginning and in order.
    ///
    /// What was granted before the session was forked or imported was granted to another one, and what a run says of
    /// itself grants nothing: both are left out.
    #[must_use]
    pub fn from_log(events: &[Event]) -> Self {
        let own = events.iter().rposition(begins_another).map_or(events, |place| &events[place + 1..]);
        let of_a_person = |event: &&Event| event.body.kind == EventKind::Grant && event.body.run.is_none();
        let grants = own.iter().filter(of_a_person).filter_map(read).collect();
        Self { history: reconstruct_messages(events), grants }
    }
}

impl Grant {
    /// The event that records it.
    #[must_use]
    pub fn event(&self) -> NewEvent {
        let payload = match self {
            Self::Tool { name, verdict } => {
                json!({ "scope": "tool", "tool": name, "verdict": verdict.code() })
            }
            Self::Command { signature, verdict } => json!({
                "scope": "command", "argv": signature.argv(), "cwd": signature.cwd(), "verdict": verdict.code(),
            }),
            Self::Directory { path, access } => {
                json!({ "scope": "directory", "path": path, "access": access.code() })
            }
        };
        NewEvent::internal(EventKind::Grant, None, &payload)
    }
}

/// Whether what lies before this event is the past of another session. What a run says of that makes nothing forgotten.
fn begins_another(event: &Event) -> bool {
    event.body.run.is_none() && matches!(event.body.kind.as_str(), "session.forked" | "session.imported")
}

/// The grant that an event records; `None` for what grants nothing that could be understood.
fn read(event: &Event) -> Option<Grant> {
    let Value::Object(fields) = event.body.payload.value().ok()? else { return None };
    let verdict = || text(&fields, "verdict")?.parse::<Verdict>().ok();
    match text(&fields, "scope")? {
        "tool" => {
            Some(Grant::Tool { name: ToolName::new(text(&fields, "tool")?).ok()?, verdict: verdict()? })
        }
        "command" => {
            let argv = fields.get("argv")?.as_array()?;
            let argv =
                argv.iter().map(|argument| argument.as_str().map(Into::into)).collect::<Option<Vec<_>>>()?;
            let signature = CommandSignature::new(argv, text(&fields, "cwd")?.into());
            Some(Grant::Command { signature, verdict: verdict()? })
        }
        "directory" => Some(Grant::Directory {
            path: Utf8PathBuf::from(text(&fields, "path")?),
            access: text(&fields, "access")?.parse::<Access>().ok()?,
        }),
        _ => None,
    }
}

fn text<'f>(fields: &'f Map<String, Value>, name: &str) -> Option<&'f str> {
    fields.get(name)?.as_str()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::event::Seq;
    use crate::ids::SessionId;

    fn log(bodies: Vec<NewEvent>) -> Vec<Event> {
        let session = SessionId::from_uuid(uuid::Uuid::from_u128(1)).unwrap();
        let events = (1..).zip(bodies);
        events.map(|(seq, body)| Event { session, seq: Seq(seq), at: Timestamp::UNIX_EPOCH, body }).collect()
    }

    #[test]
    fn every_grant_is_read_back_as_it_was_given() {
        let grants = vec![
            Grant::Tool { name: ToolName::new("write \"it\"").unwrap(), verdict: Verdict::Deny },
            Grant::Command {
                signature: CommandSignature::new(
                    vec!["sh".into(), "-c".into(), "a\n'b'".into()],
                    "/p".into(),
                ),
                verdict: Verdict::Allow,
            },
            Grant::Directory { path: "/srv/data".into(), access: Access::Write },
        ];
        let restored = Restored::from_log(&log(grants.iter().map(Grant::event).collect()));
        assert_eq!(restored.grants, grants);
        assert!(restored.history.messages.is_empty());
    }

    #[test]
    fn what_was_granted_to_another_session_or_by_a_run_to_itself_grants_nothing() {
        let grant = |name| Grant::Tool { name: ToolName::new(name).unwrap(), verdict: Verdict::Allow };
        let marker = |kind: &str| NewEvent::internal(kind.parse().unwrap(), None, &json!({}));
        for kind in ["session.forked", "session.imported"] {
            let events = log(vec![grant("old").event(), marker(kind), grant("own").event()]);
            assert_eq!(Restored::from_log(&events).grants, [grant("own")], "{kind}");
        }
        let run = crate::ids::RunId::from_uuid(uuid::Uuid::from_u128(7));
        let of_a_run = NewEvent { run, ..grant("own").event() };
        assert!(Restored::from_log(&log(vec![of_a_run])).grants.is_empty());
        for kind in ["session.forked", "session.imported"] {
            let events = log(vec![grant("own").event(), NewEvent { run, ..marker(kind) }]);
            assert_eq!(
                Restored::from_log(&events).grants,
                [grant("own")],
                "a run makes nothing forgotten: {kind}"
            );
        }
    }

    #[test]
    fn what_grants_nothing_that_could_be_understood_grants_nothing() {
        let bad = [
            json!("allow everything"),
            json!({ "scope": "tool", "tool": "write", "verdict": "perhaps" }),
            json!({ "scope": "tool", "tool": "", "verdict": "allow" }),
            json!({ "scope": "command", "argv": ["a", 1], "cwd": "/", "verdict": "allow" }),
            json!({ "scope": "everything", "verdict": "allow" }),
            json!({ "scope": "directory", "path": "/srv" }),
        ];
        let events = bad.iter().map(|payload| NewEvent::internal(EventKind::Grant, None, payload)).collect();
        assert!(Restored::from_log(&log(events)).grants.is_empty());
    }
}
