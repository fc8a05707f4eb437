//! What a runner reports of the runs that it holds and of their sessions, and what it asks about them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use session_core::budget::{Exhausted, Resource};
use session_core::event::{Event, NewEvent, Origin, Payload};
use session_core::{RunId, Seq, SessionId};
use utoipa::ToSchema;

use crate::approvals::ApprovalView;
use crate::claims::{Amounts, BindingView, ClaimedSession, EndingView, Unreadable, raw, read, read_any};
use crate::events::EventView;

/// What a runner reports.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunnerReport {
    /// The run for which it speaks.
    pub run_id: String,
    /// Its claim.
    pub epoch: u32,
    /// What happened.
    pub what: Report,
}

/// What happened in a run, or in its session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// Workspace and executor are being made.
    Starting,
    /// The executor is up.
    Running {
        /// What the kernel holds of the session's sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<Object>)]
        sandbox: Option<Box<RawValue>>,
    },
    /// The session is bound to a conversation.
    Bound(BindingView),
    /// That conversation can be resumed.
    Resumable,
    /// Events of the session's log, each with producer and number.
    Appended(Vec<ReportedEvent>),
    /// The run is over.
    Ended(Ended),
    /// It has not begun, and goes back to its place in the queue.
    GivenBack,
    /// A person is to be asked.
    Asked(Asked),
    /// Nobody wants to know any more: the question, and `expired` or `withdrawn`.
    Withdrawn(String, String),
}

/// What a runner reports of a session that lives on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionReport {
    /// The session: the runner holds a run of it, or its directory lies there.
    pub session_id: String,
    /// What happened.
    pub what: SessionChange,
}

/// What happened to a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionChange {
    /// It went through its state machine.
    Moved(Move),
    /// A resume of it has come this far: `opened`, `reconstructed`, `restored` or `rolled_back`.
    Resuming(String),
    /// A part of its budget is to be set aside.
    Reserve(Amounts),
    /// What it has set aside counts as used.
    Forfeit,
}

/// How a session moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// It is used.
    Activity,
    /// It was not used for a while.
    IdleTimeout,
    /// It is suspended, and may stay so for so many milliseconds.
    Suspended(i64),
    /// It was idle for so long that it is suspended, and may stay so for so many milliseconds.
    GraceElapsed(i64),
    /// It is used again.
    Resume,
}

/// The end of a run, with what it used up.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// How.
    pub ending: EndingView,
    /// What it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Box<RawValue>>,
    /// What was set aside for it, and what it used. Settled with the end, and once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settlement>,
}

/// What was set aside, and what was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// Set aside before.
    pub worst: Amounts,
    /// Used.
    pub actual: Amounts,
}

/// A question for a person.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// A fresh id: `apr_…`.
    pub id: String,
    /// The tool that the agent wants to call.
    pub tool: String,
    /// One line for a person.
    pub title: String,
    /// The command that the tool would run, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<(Vec<String>, String)>,
    /// What it would call the tool with.
    #[schema(value_type = Object)]
    pub input: Box<RawValue>,
    /// When silence becomes a no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// An event that a runner reports.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportedEvent {
    /// What kind of thing happened.
    pub kind: String,
    /// What happened.
    #[schema(value_type = Object)]
    pub payload: Box<RawValue>,
    /// Who says so.
    pub producer: String,
    /// Its own number for it: the same again is not appended again.
    pub producer_seq: u64,
}

impl ReportedEvent {
    /// The event, if it has an origin.
    #[must_use]
    pub fn new(event: &NewEvent) -> Option<Self> {
        let origin = event.origin.as_ref()?;
        Some(Self {
            kind: event.kind.to_string(),
            payload: raw(&event.payload),
            producer: origin.producer.to_string(),
            producer_seq: origin.seq,
        })
    }

    /// What it says, of this run.
    pub fn read(&self, run: RunId) -> Result<NewEvent, Unreadable> {
        let producer = read("producer", &self.producer)?;
        Ok(NewEvent {
            run: Some(run),
            kind: read("kind", &self.kind)?,
            payload: Payload::parse(self.payload.get()).map_err(Unreadable::at("payload"))?,
            origin: Some(Origin { producer, seq: self.producer_seq }),
        })
    }
}

/// What came of a report. Only what was asked for is in it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Reported {
    /// Too little is left of the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<ExhaustedView>,
    /// The question, as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalView>,
    /// The record of the session says otherwise, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded: Option<String>,
    /// Somebody waits to use the session, which does not rest now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<String>,
}

/// Too little is left of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExhaustedView {
    /// Of what: `tokens`, `tool_calls`, `turns` or `cost`.
    pub resource: String,
    /// The limit.
    pub limit: u64,
    /// Used up so far.
    pub used: u64,
    /// Held by others that have not settled yet.
    pub reserved: u64,
    /// Asked for.
    pub asked: u64,
}

impl From<&Exhausted> for ExhaustedView {
    fn from(exhausted: &Exhausted) -> Self {
        let Exhausted { resource, limit, used, reserved, asked } = exhausted;
        Self {
            resource: resource.to_string(),
            limit: *limit,
            used: *used,
            reserved: *reserved,
            asked: *asked,
        }
    }
}

impl TryFrom<&ExhaustedView> for Exhausted {
    type Error = Unreadable;

    fn try_from(view: &ExhaustedView) -> Result<Self, Unreadable> {
        let resource = Resource::ALL.iter().copied().find(|one| one.to_string() == view.resource);
        let resource = resource.ok_or_else(|| Unreadable {
            field: "exhausted.resource",
            reason: format!("{:?} is none", view.resource),
        })?;
        let ExhaustedView { resource: _, limit, used, reserved, asked } = *view;
        Ok(Self { resource, limit, used, reserved, asked })
    }
}

/// A runner waits for the answer to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerWait {
    /// The run that asked.
    pub run_id: String,
    /// The question.
    pub approval_id: String,
    /// For how long it waits, in milliseconds.
    #[serde(default)]
    pub wait_ms: u64,
}

/// A question, if there is one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Answered {
    /// As it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalView>,
}

/// A runner reads a session in which it holds a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// The session.
    pub session_id: String,
    /// The events of its log behind this number as well, a page of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// A session, with a page of its log where that was asked for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionRead {
    /// It.
    pub session: ClaimedSession,
    /// Of its log; none means that there are no more.
    pub events: Vec<EventView>,
}

impl EventView {
    /// The event of this session that it shows.
    pub fn read(&self, session: SessionId) -> Result<Event, Unreadable> {
        let origin = match (&self.producer, self.producer_seq) {
            (Some(producer), Some(seq)) => Some(Origin { producer: read("event.producer", producer)?, seq }),
            (Some(_) | None, _) => None,
        };
        Ok(Event {
            session,
            seq: Seq(self.seq),
            at: self.at,
            body: NewEvent {
                run: read_any("event.run", self.run.as_ref())?,
                kind: read("event.kind", &self.kind)?,
                payload: Payload::from_record(self.payload.get().into()),
                origin,
            },
        })
    }
}
