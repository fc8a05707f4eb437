//! Export and import: a session and its event log as JSON lines.
//!
//! The first line is the session, every further one an event. An import makes a new session under a fresh id: ids
//! are ours, never a file's.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use session_core::budget::Budget;
use session_core::event::{Origin, Payload};
use session_core::names::{AgentKey, Label, Principal, Producer};
use session_core::ports::{EventStore as _, SessionStore as _};
use session_core::session::{ManagedSession, NewSession};
use session_core::{Env, Event, NewEvent, RunId, SandboxSpec, Seq, SessionId, WorkspaceKind};
use session_store::SqlStore;

use crate::failure::{Failure, Kind, Outcome};
use crate::view::EventView;

/// The format's version, in the first line.
const FORMAT: u32 = 1;
/// How many events are read at once.
const PAGE: u32 = 1_000;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    roomette_export: u32,
    session: String,
    exported_at: Timestamp,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    metadata: Box<RawValue>,
    budget: BudgetLine,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetLine {
    tokens: u64,
    tool_calls: u64,
    turns: Option<u64>,
    cost_micros: Option<u64>,
}

/// Every further line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine {
    seq: u64,
    at: Timestamp,
    kind: String,
    run: Option<RunId>,
    payload: Box<RawValue>,
    producer: Option<String>,
    producer_seq: Option<u64>,
}

/// Writes a session and its log.
pub async fn export(
    store: &SqlStore,
    session: &ManagedSession,
    out: &mut impl Write,
    now: Timestamp,
) -> Outcome<()> {
    let metadata = RawValue::from_string(session.metadata.as_str().into())
        .map_err(|error| Failure::caused(Kind::Error, "the session's metadata is damaged", &error))?;
    let header = Header {
        roomette_export: FORMAT,
        session: session.id.to_string(),
        exported_at: now,
        created_at: session.created_at,
        label: session.label.as_ref().map(ToString::to_string),
        agent: session.agent.as_ref().map(ToString::to_string),
        metadata,
        budget: BudgetLine {
            tokens: session.budget.tokens_max,
            tool_calls: session.budget.tool_calls_max,
            turns: session.budget.turns_max,
            cost_micros: session.budget.cost_micros_max,
        },
    };
    line(out, &header)?;
    let mut after = Seq::START;
    loop {
        let page = store.read(session.id, after, PAGE).await?;
        for event in &page {
            line(out, &EventView::new(event))?;
            after = event.seq;
        }
        if page.len() < PAGE as usize {
            return Ok(());
        }
    }
}

fn line<T: Serialize>(out: &mut impl Write, value: &T) -> Outcome<()> {
    let write =
        serde_json::to_writer(&mut *out, value).map_err(io::Error::from).and_then(|()| out.write_all(b"\n"));
    write.map_err(|error| Failure::caused(Kind::Error, "the export cannot be written", &error))
}

/// Makes a session of an export: all of it or nothing.
pub async fn import(
    store: &SqlStore,
    lines: &[String],
    principal: Principal,
    sandbox: SandboxSpec,
    env: &Env,
) -> Outcome<SessionId> {
    let mut numbered = lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, first)) = numbered.next() else {
        return Err(Failure::usage("the import is empty"));
    };
    let header: Header = serde_json::from_str(first)
        .map_err(|error| Failure::caused(Kind::Usage, "line 1 is no export", &error))?;
    if header.roomette_export != FORMAT {
        let found = header.roomette_export;
        return Err(Failure::usage(format!(
            "the export has format {found}, this program reads format {FORMAT}"
        )));
    }
    let id = env.session_id();
    let mut events = Vec::new();
    for (index, line) in numbered {
        let fault = |reason: String| Failure::usage(format!("line {}: {reason}", index + 1));
        let event = parse(id, line).map_err(&fault)?;
        let expected = events.len() as u64 + 1;
        if event.seq != Seq(expected) {
            return Err(fault(format!("event {} where {expected} belongs", event.seq)));
        }
        events.push(event);
    }
    let fault = |reason: String| Failure::usage(format!("line 1: {reason}"));
    let new = NewSession {
        id,
        principal,
        key: None,
        label: header
            .label
            .as_deref()
            .map(Label::new)
            .transpose()
            .map_err(|error| fault(error.to_string()))?,
        agent: header
            .agent
            .as_deref()
            .map(AgentKey::new)
            .transpose()
            .map_err(|error| fault(error.to_string()))?,
        kind: WorkspaceKind::Scratch,
        project: None,
        // The installation's: a file grants nothing.
        sandbox,
        metadata: Payload::parse(header.metadata.get()).map_err(|error| fault(error.to_string()))?,
        budget: Budget {
            tokens_max: header.budget.tokens,
            tool_calls_max: header.budget.tool_calls,
            turns_max: header.budget.turns,
            cost_micros_max: header.budget.cost_micros,
        },
        parent: None,
    };
    let imported = json!({ "from": header.session, "exported_at": header.exported_at });
    store.import(new, events, Payload::from_value(&imported), env.now()).await?;
    Ok(id)
}

fn parse(session: SessionId, line: &str) -> Result<Event, String> {
    let line: EventLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let origin = match (line.producer, line.producer_seq) {
        (Some(producer), Some(seq)) => {
            Some(Origin { producer: Producer::new(&producer).map_err(|error| error.to_string())?, seq })
        }
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return Err("producer and producer_seq belong together".into()),
    };
    let kind = line.kind.parse().map_err(|error: session_core::names::NameError| error.to_string())?;
    let payload = Payload::of(&kind, line.payload.get()).map_err(|error| error.to_string())?;
    let body = NewEvent { run: line.run, kind, payload, origin };
    Ok(Event { session, seq: Seq(line.seq), at: line.at, body })
}
