//! A claimed run with its session, as a runner needs them: whole, and read back into what they were.
//!
//! Only a runner gets this: it has the values of the run's environment. A sandbox and a turn are in the form in which the
//! store keeps them, so that nothing of what holds a session is lost on the way.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use session_core::budget::{Budget, Usage};
use session_core::event::Payload;
use session_core::ports::ClaimedRun;
use session_core::session::{Binding, ForkPoint, WorkspaceSpec};
use session_core::state::SessionState;
use session_core::{ManagedSession, Seq};
use thiserror::Error;
use utoipa::ToSchema;

pub use crate::held_runs::{EndingView, HeldRun};

/// What came is not what a coordinator of this version says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field} cannot be understood: {reason}")]
pub struct Unreadable {
    /// Which part.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl Unreadable {
    pub(crate) fn at<E: std::fmt::Display>(field: &'static str) -> impl Fn(E) -> Self {
        move |error| Self { field, reason: error.to_string() }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self { field, reason: "it is missing".into() }
    }
}

/// A text as the id, name or code that it is.
pub(crate) fn read<T>(field: &'static str, text: &str) -> Result<T, Unreadable>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(Unreadable::at(field))
}

/// The same where it may be missing.
pub(crate) fn read_any<T>(field: &'static str, text: Option<&String>) -> Result<Option<T>, Unreadable>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.map(|text| read(field, text)).transpose()
}

/// A payload as raw JSON; what a damaged record holds instead as text.
pub(crate) fn raw(payload: &Payload) -> Box<RawValue> {
    let text = payload.as_str();
    let raw = RawValue::from_string(text.into()).or_else(|_| serde_json::value::to_raw_value(text));
    raw.unwrap_or_default()
}

/// A run that a runner holds.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimView {
    /// Its session.
    pub session: ClaimedSession,
    /// It.
    pub run: HeldRun,
    /// The token of this claim, for the run's own processes. With a new claim alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for ClaimView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimView").field("run", &self.run).finish_non_exhaustive()
    }
}

/// Numbers of a budget, or of what is used up of one. What is missing has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Amounts {
    /// Tokens.
    pub tokens: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Cost in millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

impl From<Usage> for Amounts {
    fn from(usage: Usage) -> Self {
        let Usage { tokens, tool_calls, turns, cost_micros } = usage;
        Self { tokens, tool_calls, turns: Some(turns), cost_micros: Some(cost_micros) }
    }
}

impl From<Amounts> for Usage {
    fn from(amounts: Amounts) -> Self {
        let Amounts { tokens, tool_calls, turns, cost_micros } = amounts;
        Self {
            tokens,
            tool_calls,
            turns: turns.unwrap_or_default(),
            cost_micros: cost_micros.unwrap_or_default(),
        }
    }
}

impl From<Budget> for Amounts {
    fn from(budget: Budget) -> Self {
        let Budget { tokens_max, tool_calls_max, turns_max, cost_micros_max } = budget;
        Self {
            tokens: tokens_max,
            tool_calls: tool_calls_max,
            turns: turns_max,
            cost_micros: cost_micros_max,
        }
    }
}

impl From<Amounts> for Budget {
    fn from(amounts: Amounts) -> Self {
        let Amounts { tokens, tool_calls, turns, cost_micros } = amounts;
        Self {
            tokens_max: tokens,
            tool_calls_max: tool_calls,
            turns_max: turns,
            cost_micros_max: cost_micros,
        }
    }
}

/// A session as its runner needs it. What only the coordinator looks at (its key, its identity) is not in it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedSession {
    /// Its id.
    pub id: String,
    /// Who owns it.
    pub principal: String,
    /// `active`, `idle`, `suspended` or `terminated`.
    pub state: String,
    /// Since when it is in a state other than `active`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When a suspended one is terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Why it is terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Free text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The agent that works in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `scratch`, `worktree` or `in-place`.
    pub workspace: String,
    /// The project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dir: Option<String>,
    /// The runner on whose machine its directory lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// When a cleanup removed that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
    /// What its processes may touch, reach and use up.
    #[schema(value_type = Object)]
    pub sandbox: Value,
    /// Whatever its creator wants to remember.
    #[schema(value_type = Object)]
    pub metadata: Box<RawValue>,
    /// What it may use up.
    pub budget: Amounts,
    /// What it used up.
    pub usage: Amounts,
    /// What is set aside.
    pub reserved: Amounts,
    /// What is set aside for children, where something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allotted: Option<Amounts>,
    /// The session that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How many sessions lie above it.
    pub depth: u32,
    /// Its parent is to hear of the end of each of its runs.
    pub callback: bool,
    /// The session from whose log it was forked, and the last event that it took along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<(String, u64)>,
    /// The framework's own conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingView>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used.
    pub active_at: Timestamp,
}

/// What ties a session to a framework's own conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingView {
    /// The runner that holds the framework's files; none where only its machine's name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Its machine's name.
    pub hostname: String,
    /// The executor.
    pub executor: String,
    /// The framework's id for the conversation.
    pub executor_session_id: String,
    /// The directory it was started in.
    pub project_dir: String,
    /// It can be resumed.
    pub resumable: bool,
}

impl From<&Binding> for BindingView {
    fn from(binding: &Binding) -> Self {
        Self {
            runner: binding.runner.map(|runner| runner.to_string()),
            hostname: binding.hostname.to_string(),
            executor: binding.executor.to_string(),
            executor_session_id: binding.executor_session_id.to_string(),
            project_dir: binding.project_dir.to_string(),
            resumable: binding.resumable,
        }
    }
}

impl TryFrom<&BindingView> for Binding {
    type Error = Unreadable;

    fn try_from(view: &BindingView) -> Result<Self, Unreadable> {
        Ok(Self {
            runner: read_any("binding.runner", view.runner.as_ref())?,
            hostname: read("binding.hostname", &view.hostname)?,
            executor: read("binding.executor", &view.executor)?,
            executor_session_id: read("binding.executor_session_id", &view.executor_session_id)?,
            project_dir: view.project_dir.clone().into(),
            resumable: view.resumable,
        })
    }
}

impl From<&ManagedSession> for ClaimedSession {
    fn from(session: &ManagedSession) -> Self {
        let (since, expires_at, reason) = match session.state {
            SessionState::Active => (None, None, None),
            SessionState::Idle { since } => (Some(since), None, None),
            SessionState::Suspended { since, expires_at } => (Some(since), Some(expires_at), None),
            SessionState::Terminated { at, reason } => (Some(at), None, Some(reason.code().to_owned())),
        };
        let workspace = &session.workspace;
        Self {
            id: session.id.to_string(),
            principal: session.principal.to_string(),
            state: session.state.name().into(),
            since,
            expires_at,
            reason,
            label: session.label.as_ref().map(ToString::to_string),
            agent: session.agent.as_ref().map(ToString::to_string),
            workspace: workspace.kind.as_str().into(),
            project_dir: workspace.project.as_ref().map(ToString::to_string),
            runner: workspace.runner.map(|runner| runner.to_string()),
            removed_at: workspace.removed_at,
            sandbox: serde_json::to_value(&session.sandbox).unwrap_or_default(),
            metadata: raw(&session.metadata),
            budget: session.budget.into(),
            usage: session.usage.into(),
            reserved: session.reserved.into(),
            allotted: Some(session.allotted).filter(|any| *any != Usage::NONE).map(Amounts::from),
            parent: session.parent.map(|parent| parent.to_string()),
            depth: session.depth,
            callback: session.callback,
            forked_from: session.forked_from.map(|fork| (fork.source.to_string(), fork.upto.0)),
            binding: session.binding.as_ref().map(BindingView::from),
            created_at: session.created_at,
            active_at: session.active_at,
        }
    }
}

impl ClaimedSession {
    fn state(&self) -> Result<SessionState, Unreadable> {
        let since = || self.since.ok_or_else(|| Unreadable::missing("session.since"));
        match self.state.as_str() {
            "active" => Ok(SessionState::Active),
            "idle" => Ok(SessionState::Idle { since: since()? }),
            "suspended" => {
                let expires_at = self.expires_at.ok_or_else(|| Unreadable::missing("session.expires_at"))?;
                Ok(SessionState::Suspended { since: since()?, expires_at })
            }
            "terminated" => {
                let reason = self.reason.as_ref().ok_or_else(|| Unreadable::missing("session.reason"))?;
                Ok(SessionState::Terminated { at: since()?, reason: read("session.reason", reason)? })
            }
            other => Err(Unreadable { field: "session.state", reason: format!("{other:?} is none") }),
        }
    }
}

impl TryFrom<&ClaimedSession> for ManagedSession {
    type Error = Unreadable;

    fn try_from(view: &ClaimedSession) -> Result<Self, Unreadable> {
        let forked_from = match &view.forked_from {
            None => None,
            Some((source, upto)) => {
                Some(ForkPoint { source: read("session.forked_from", source)?, upto: Seq(*upto) })
            }
        };
        Ok(Self {
            id: read("session.id", &view.id)?,
            principal: read("session.principal", &view.principal)?,
            state: view.state()?,
            key: None,
            label: read_any("session.label", view.label.as_ref())?,
            agent: read_any("session.agent", view.agent.as_ref())?,
            workspace: WorkspaceSpec {
                kind: read("session.workspace", &view.workspace)?,
                project: view.project_dir.clone().map(Into::into),
                runner: read_any("session.runner", view.runner.as_ref())?,
                removed_at: view.removed_at,
            },
            sandbox: serde_json::from_value(view.sandbox.clone())
                .map_err(Unreadable::at("session.sandbox"))?,
            metadata: Payload::parse(view.metadata.get()).map_err(Unreadable::at("session.metadata"))?,
            budget: view.budget.into(),
            usage: view.usage.into(),
            reserved: view.reserved.into(),
            allotted: view.allotted.map_or(Usage::NONE, Usage::from),
            parent: read_any("session.parent", view.parent.as_ref())?,
            depth: view.depth,
            callback: view.callback,
            forked_from,
            generation: None,
            binding: view.binding.as_ref().map(Binding::try_from).transpose()?,
            created_at: view.created_at,
            active_at: view.active_at,
        })
    }
}

impl From<&ClaimedRun> for ClaimView {
    fn from(claimed: &ClaimedRun) -> Self {
        Self { session: (&claimed.session).into(), run: (&claimed.run).into(), token: None }
    }
}

impl TryFrom<&ClaimView> for ClaimedRun {
    type Error = Unreadable;

    fn try_from(view: &ClaimView) -> Result<Self, Unreadable> {
        Ok(Self { session: (&view.session).try_into()?, run: (&view.run).try_into()? })
    }
}
