//! Questions of agents, and answers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use session_core::approval::{Approval, ApprovalState};
use session_core::approvals::CommandSignature;
use utoipa::{IntoParams, ToSchema};

/// Which questions a list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ApprovalQuery {
    /// Only those that wait for an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// Where the page begins: `next` of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The most questions of the page, 1 to 1000; 50 without it.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One page of questions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApprovalPage {
    /// The questions, newest first.
    pub items: Vec<ApprovalView>,
    /// Where the next page begins; nothing at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A question of an agent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    /// Its id.
    pub id: String,
    /// The session in which it was asked.
    pub session_id: String,
    /// The run that waits for the answer.
    pub run_id: String,
    /// The tool that the agent wants to call.
    pub tool: String,
    /// One line for a person.
    pub title: String,
    /// The command that the tool would run, where it runs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Where that would run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What it would call the tool with.
    #[schema(value_type = Object)]
    pub input: Box<RawValue>,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// When silence becomes a no; nothing for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What became of it: `open`, `allowed`, `denied`, `expired` or `withdrawn`.
    pub state: String,
    /// Since when it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// Who answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    /// The answer holds for the rest of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting: Option<bool>,
    /// What the agent was told with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// Yes or no.
    pub verdict: Verdict,
    /// It holds for the rest of the session: for this very command where there is one, else for the tool.
    #[serde(default)]
    pub lasting: bool,
    /// What the agent is told with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A question on behalf of a claim.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskRequest {
    /// The claim's epoch. A run's token says it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// A fresh id, by which a runner that asks again is known. With a run's token the service gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<String>,
    /// The tool that the agent wants to call.
    pub tool: String,
    /// One line for a person, of at most 2000 bytes.
    pub title: String,
    /// The command that the tool would run, where it runs one. Goes with `cwd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Where that would run: an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What it would call the tool with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input: Option<Box<RawValue>>,
    /// When silence is to be a no: whoever asks withdraws the question then. Nothing for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// A question is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WithdrawRequest {
    /// The claim's epoch. A run's token says it already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// Why.
    pub why: Withdrawal,
}

/// Why nobody waits for an answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawal {
    /// Its deadline passed: that is a no.
    Expired,
    /// The agent does not want to know any more.
    #[default]
    Withdrawn,
}

impl From<Withdrawal> for session_core::approval::Withdrawal {
    fn from(why: Withdrawal) -> Self {
        match why {
            Withdrawal::Expired => Self::Expired,
            Withdrawal::Withdrawn => Self::Withdrawn,
        }
    }
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may.
    Allow,
    /// It may not.
    Deny,
}

impl From<Verdict> for session_core::approvals::Verdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Deny => Self::Deny,
        }
    }
}

impl From<&Approval> for ApprovalView {
    fn from(approval: &Approval) -> Self {
        let question = &approval.question;
        let command = question.command.as_ref();
        let (closed_at, reply) = match &approval.state {
            ApprovalState::Open => (None, None),
            ApprovalState::Answered { at, reply } => (Some(*at), Some(reply)),
            ApprovalState::Withdrawn { at, .. } => (Some(*at), None),
        };
        let input = question.input.as_str();
        let raw = RawValue::from_string(input.into()).or_else(|_| serde_json::value::to_raw_value(input));
        Self {
            id: approval.id.to_string(),
            session_id: approval.session.to_string(),
            run_id: approval.run.to_string(),
            tool: question.tool.to_string(),
            title: question.title.clone(),
            command: command.map(|command| command.argv().to_vec()),
            cwd: command.map(CommandSignature::cwd).map(ToString::to_string),
            input: raw.unwrap_or_default(),
            asked_at: approval.asked_at,
            deadline: question.deadline,
            state: approval.state.phase().code().into(),
            closed_at,
            answered_by: reply.map(|reply| reply.by.to_string()),
            lasting: reply.map(|reply| reply.lasting),
            message: reply.and_then(|reply| reply.message.clone()),
        }
    }
}
