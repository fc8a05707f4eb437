//! How a question of an agent looks outside.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use session_core::approval::{Approval, ApprovalState};

/// A question, and what became of it.
#[derive(Debug, Serialize)]
pub struct ApprovalView {
    /// Its id.
    pub id: String,
    /// The session in which it was asked.
    pub session: String,
    /// The run that waits for the answer.
    pub run: String,
    /// `open`, `allowed`, `denied`, `expired` or `withdrawn`.
    pub state: &'static str,
    /// The tool that the agent wants to call.
    pub tool: String,
    /// One line for people.
    pub title: String,
    /// The command that the tool would run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// What it would call the tool with.
    pub input: Box<RawValue>,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// When silence becomes a no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// When it was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// Who answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The answer holds for the rest of the session.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lasting: bool,
    /// What the agent was told with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ApprovalView {
    /// The view of it.
    pub fn new(approval: &Approval) -> Self {
        let question = &approval.question;
        let (closed_at, reply) = match &approval.state {
            ApprovalState::Open => (None, None),
            ApprovalState::Answered { at, reply } => (Some(*at), Some(reply)),
            ApprovalState::Withdrawn { at, .. } => (Some(*at), None),
        };
        Self {
            id: approval.id.to_string(),
            session: approval.session.to_string(),
            run: approval.run.to_string(),
            state: approval.state.phase().code(),
            tool: question.tool.to_string(),
            title: question.title.clone(),
            command: question.command.as_ref().map(|command| command.argv().to_vec()),
            input: RawValue::from_string(question.input.as_str().into()).unwrap_or_default(),
            asked_at: approval.asked_at,
            deadline: question.deadline,
            closed_at,
            by: reply.map(|reply| reply.by.to_string()),
            lasting: reply.is_some_and(|reply| reply.lasting),
            message: reply.and_then(|reply| reply.message.clone()),
        }
    }
}
