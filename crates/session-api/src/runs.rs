//! Runs: what is to be executed, and what became of it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use session_core::Run;
use session_core::run::{Exit, ReasonCode};
use utoipa::{IntoParams, ToSchema};

use crate::sandbox::SandboxRequest;

/// What is to be executed, and in which session. Fields of a new session are refused where the session is there already.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRun {
    /// A new session's first run, or a further one.
    #[serde(rename = "type")]
    pub kind: RunType,
    /// The session that is to be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The caller's own name for the session: it is found by this, or made. For `start` only, and not with a run's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What an agent is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The program and its arguments. Of an agent what it is given beside ours. A further run without it takes that of the
    /// session's last run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// With what it is executed: `command`, or an agent such as `claude-code`. Without it `command`, or that of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The agent's model, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// It begins a conversation of its own that is primed from the session's log.
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_history: bool,
    /// The tools that need no leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_tools: Vec<String>,
    /// What becomes of a question about any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Ask>,
    /// Variables of its environment. Never shown again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The longest wall time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// For how long in seconds it may wait for a runner that may take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_within_s: Option<f64>,
    /// Higher ones first.
    #[serde(default)]
    pub priority: i32,
    /// Of a new session: free text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Of a new session: the agent that works in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Of a new session: `scratch`, `worktree` or `in-place`. Without it `worktree` where there is a project, else `scratch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Of a new session: the project, an absolute path on the runner's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dir: Option<String>,
    /// Of a new session: whatever its creator wants to remember, at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Of a new session: what it may use up. With a run's token at most what that run's session has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRequest>,
    /// Of a new session: what its processes may touch, reach and use up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
    /// Of a new session: its parent is to hear of the end of each of its runs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub callback: bool,
    /// Of a new session: the session that starts it. A run's token is for its own session alone, and that is also what it means without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session_id: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Whether a run begins a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunType {
    /// The first of a new session, or of the one with this key.
    #[default]
    Start,
    /// A further one of a session that is there.
    Resume,
}

/// What becomes of an agent's question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// A person is asked, and the run waits however long it takes.
    Wait,
    /// Nobody is asked: it is denied at once.
    Never,
    /// A person is asked, and it is denied when there is no answer after so many milliseconds.
    ForMs(u64),
}

/// What a session may use up; what is not given is the installation's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetRequest {
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Cost in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

/// A run is in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCreated {
    /// The run.
    pub run_id: String,
    /// Its session.
    pub session_id: String,
}

/// Which runs a list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunQuery {
    /// The runs of this session, newest first. Without it the last run of each session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Where the page begins: `next` of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The most runs of the page, 1 to 1000; 50 without it.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One page of runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunPage {
    /// The runs, newest first.
    pub items: Vec<RunView>,
    /// Where the next page begins; nothing at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// How something is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StopRequest {
    /// How.
    pub mode: StopMode,
}

/// How a run is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// Ask first, force after a grace.
    #[default]
    Graceful,
    /// At once.
    Kill,
}

impl From<StopMode> for session_core::run::StopMode {
    fn from(mode: StopMode) -> Self {
        match mode {
            StopMode::Graceful => Self::Graceful,
            StopMode::Kill => Self::Kill,
        }
    }
}

/// The runs whose end was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stopping {
    /// Their ids.
    pub runs: Vec<String>,
}

/// A run. Values of its environment are never shown.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Its id.
    pub id: String,
    /// Its session.
    pub session_id: String,
    /// `start` or `resume`.
    pub kind: String,
    /// Where it stands: `pending`, `claimed`, `starting`, `running`, `completed`, `failed`, `stopped` or `lost`.
    pub state: String,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the process left with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// A sentence about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its end was asked for.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stopping: bool,
    /// With what it is executed.
    pub executor: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// What the agent was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The agent's model, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// It began a conversation of its own that was primed from the session's log.
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_history: bool,
    /// The tools that needed no leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_tools: Vec<String>,
    /// The names of the variables that it was given.
    pub env: Vec<String>,
    /// What the kernel held of its session's sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub sandbox: Option<Box<RawValue>>,
    /// The longest wall time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Higher ones first.
    pub priority: i32,
    /// How many runs it waits for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting_for: u32,
    /// How often it was claimed.
    pub epoch: u32,
    /// The runner that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When its executor was up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<&Run> for RunView {
    fn from(run: &Run) -> Self {
        let ended = run.ended();
        let (exit_code, signal) = match ended.and_then(|(_, ending)| ending.exit) {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let (sandbox, turn) = (run.sandbox.as_ref(), run.spec.turn.as_ref());
        let allowed = turn.map(|turn| turn.permissions.allow.as_slice()).unwrap_or_default();
        Self {
            id: run.id.to_string(),
            session_id: run.session.to_string(),
            kind: run.kind.code().into(),
            state: run.state.phase().code().into(),
            reason: ended.and_then(|(_, ending)| ending.reason).map(ReasonCode::code).map(Into::into),
            exit_code,
            signal,
            message: ended.map(|(_, ending)| ending.message.clone()).filter(|message| !message.is_empty()),
            stopping: run.stop.is_some() && ended.is_none(),
            executor: run.affinity.executor.to_string(),
            argv: run.spec.argv.clone(),
            prompt: turn.map(|turn| turn.prompt.clone()),
            model: turn.and_then(|turn| turn.model.clone()),
            from_history: run.spec.is_from_history(),
            allow_tools: allowed.iter().map(ToString::to_string).collect(),
            env: run.spec.env.iter().map(|(name, _)| name.clone()).collect(),
            sandbox: sandbox.and_then(|report| RawValue::from_string(report.as_str().into()).ok()),
            timeout_s: run.spec.timeout.map(|timeout| timeout.as_secs_f64()),
            priority: run.priority,
            waiting_for: run.waiting_for,
            epoch: run.epoch.0,
            runner: run.state.lease().map(|lease| lease.runner.to_string()),
            created_at: run.created_at,
            started_at: run.started_at,
            ended_at: ended.map(|(at, _)| at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_little_and_refuses_what_it_does_not_know() {
        let run: CreateRun =
            serde_json::from_str(r#"{"type": "start", "argv": ["true"], "label": "a"}"#).unwrap();
        assert_eq!((run.kind, run.label.as_deref()), (RunType::Start, Some("a")));
        assert_eq!(
            serde_json::to_string(&run).unwrap(),
            r#"{"type":"start","argv":["true"],"priority":0,"label":"a"}"#
        );
        for bad in [r#"{"argv":["true"]}"#, r#"{"type":"again"}"#, r#"{"type":"start","colour":1}"#, "[]"] {
            assert!(serde_json::from_str::<CreateRun>(bad).is_err(), "{bad}");
        }
        for (text, ask) in
            [("\"wait\"", Ask::Wait), ("\"never\"", Ask::Never), (r#"{"for_ms":5}"#, Ask::ForMs(5))]
        {
            assert_eq!(serde_json::from_str::<Ask>(text).unwrap(), ask);
        }
    }
}
