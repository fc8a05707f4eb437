//! Sessions as they look outside.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use session_core::budget::Resource;
use session_core::session::{Binding, SessionSummary};
use session_core::{ManagedSession, SessionState};
use utoipa::{IntoParams, ToSchema};

use crate::runs::RunView;
use crate::sandbox::SandboxView;

/// Which sessions a list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionQuery {
    /// Only this owner's. Others' only with the verb `admin`, which without this sees everybody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Only those with this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Only children of this session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Only those with a run that is not over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<bool>,
    /// Leave out terminated ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<bool>,
    /// Where the page begins: `next` of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The most sessions of the page, 1 to 1000; 50 without it.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Which part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Where the page begins: `next` of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The most entries of the page, 1 to 1000; 50 without it.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One page of sessions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionPage {
    /// The sessions, newest first.
    pub items: Vec<SessionView>,
    /// Where the next page begins; nothing at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// One word for people: where its last run, or else the session itself, stands.
    pub status: String,
    /// Its residency: `active`, `idle`, `suspended` or `terminated`.
    pub state: String,
    /// Why it is terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated_because: Option<String>,
    /// Who owns it.
    pub principal: String,
    /// Free text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The agent that works in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The directory it works in.
    pub workspace: WorkspaceView,
    /// Whatever its creator wanted to remember.
    #[schema(value_type = Object)]
    pub metadata: Box<RawValue>,
    /// The session that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The session of its identity's generation before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The caller's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session whose log it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkView>,
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxView,
    /// What it may use up, and what it has used.
    pub budget: AccountView,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used.
    pub active_at: Timestamp,
    /// Since when it is idle, suspended or terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_since: Option<Timestamp>,
    /// When it is over if nobody comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Its last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunView>,
}

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceView {
    /// `scratch`, `worktree` or `in-place`.
    pub kind: String,
    /// The project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The runner on whose machine it lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// When a cleanup removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
}

/// Where a fork began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkView {
    /// The session.
    pub session: String,
    /// The last event that both have.
    pub at: u64,
}

/// What a session may use up, and what it has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountView {
    /// Tokens.
    pub tokens: ShareView,
    /// Tool calls.
    pub tool_calls: ShareView,
    /// Turns.
    pub turns: ShareView,
    /// Cost in millionths of a US dollar.
    pub cost_micros: ShareView,
}

/// One resource of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// Used up.
    pub used: u64,
    /// Set aside by work that has not ended.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserved: u64,
    /// Set aside for children that it started, until they are over.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub allotted: u64,
    /// The limit; nothing for none.
    pub max: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(amount: &u64) -> bool {
    *amount == 0
}

/// Where a session stands, in few words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// The session.
    pub session_id: String,
    /// One word for people: where its last run, or else the session itself, stands.
    pub status: String,
    /// Its residency.
    pub state: String,
    /// Its last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Whether that is over.
    pub over: bool,
}

/// What the last run of a session came to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ResultView {
    /// The session.
    pub session_id: String,
    /// Whether the run is over: before that there is no result.
    pub over: bool,
    /// The run.
    pub run: RunView,
    /// What it reported at its end, or the last result that is in the log of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The last thing that its agent said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// It is longer than is told here: `text` is the end of it, and the log has all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text_cut: bool,
}

/// Where a session can be resumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AffinityView {
    /// The session.
    pub session_id: String,
    /// The runner that holds its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// That machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The executor that holds its conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_type: Option<String>,
    /// The framework's own id for the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_session_id: Option<String>,
    /// The directory it was started in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dir: Option<String>,
    /// The framework has written something down, so that it can be resumed.
    pub resumable: bool,
}

/// Ties a session to a framework's own conversation, once, on behalf of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BindRequest {
    /// The run; may be left out with a run's own token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Its claim; may be left out with a run's own token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// The framework's own id for the conversation.
    pub executor_session_id: String,
    /// The machine's name. The runner itself is that of the claim.
    pub hostname: String,
    /// The executor.
    pub executor_type: String,
    /// The directory it was started in.
    pub project_dir: String,
}

impl AccountView {
    fn new(session: &ManagedSession) -> Self {
        let share = |resource| ShareView {
            used: session.usage.of(resource),
            reserved: session.reserved.of(resource),
            allotted: session.allotted.of(resource),
            max: Some(session.budget.limit(resource)).filter(|&limit| limit < u64::MAX),
        };
        Self {
            tokens: share(Resource::Tokens),
            tool_calls: share(Resource::ToolCalls),
            turns: share(Resource::Turns),
            cost_micros: share(Resource::Cost),
        }
    }
}

impl From<&SessionSummary> for SessionView {
    fn from(summary: &SessionSummary) -> Self {
        let session = &summary.session;
        let (terminated_because, state_since, expires_at) = match session.state {
            SessionState::Active => (None, None, None),
            SessionState::Idle { since } => (None, Some(since), None),
            SessionState::Suspended { since, expires_at } => (None, Some(since), Some(expires_at)),
            SessionState::Terminated { at, reason } => (Some(reason.code().to_owned()), Some(at), None),
        };
        let workspace = &session.workspace;
        Self {
            id: session.id.to_string(),
            status: summary.status().into(),
            state: session.state.name().into(),
            terminated_because,
            principal: session.principal.to_string(),
            label: session.label.as_ref().map(ToString::to_string),
            agent: session.agent.as_ref().map(ToString::to_string),
            workspace: WorkspaceView {
                kind: workspace.kind.as_str().into(),
                project: workspace.project.as_ref().map(ToString::to_string),
                runner: workspace.runner.map(|id| id.to_string()),
                removed_at: workspace.removed_at,
            },
            metadata: RawValue::from_string(session.metadata.as_str().into()).unwrap_or_default(),
            parent: session.parent.map(|id| id.to_string()),
            previous: session.generation.and_then(|generation| generation.previous).map(|id| id.to_string()),
            key: session.key.as_ref().map(ToString::to_string),
            forked_from: session
                .forked_from
                .map(|fork| ForkView { session: fork.source.to_string(), at: fork.upto.0 }),
            sandbox: SandboxView::from(&session.sandbox),
            budget: AccountView::new(session),
            created_at: session.created_at,
            active_at: session.active_at,
            state_since,
            expires_at: expires_at.filter(|&at| at < Timestamp::MAX),
            last_run: summary.last_run.as_ref().map(RunView::from),
        }
    }
}

impl From<&SessionSummary> for StatusView {
    fn from(summary: &SessionSummary) -> Self {
        let run = summary.last_run.as_ref();
        Self {
            session_id: summary.session.id.to_string(),
            status: summary.status().into(),
            state: summary.session.state.name().into(),
            run_id: run.map(|run| run.id.to_string()),
            over: run.is_none_or(|run| run.state.phase().is_ended()),
        }
    }
}

impl From<&ManagedSession> for AffinityView {
    fn from(session: &ManagedSession) -> Self {
        let binding: Option<&Binding> = session.binding.as_ref();
        let runner = binding.and_then(|binding| binding.runner).or(session.workspace.runner);
        Self {
            session_id: session.id.to_string(),
            runner: runner.map(|id| id.to_string()),
            hostname: binding.map(|binding| binding.hostname.to_string()),
            executor_type: binding.map(|binding| binding.executor.to_string()),
            executor_session_id: binding.map(|binding| binding.executor_session_id.to_string()),
            project_dir: binding.map(|binding| binding.project_dir.to_string()),
            resumable: binding.is_some_and(|binding| binding.resumable),
        }
    }
}
