//! A run as the runner that holds it needs it, and how one ended.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use session_core::Run;
use session_core::affinity::{Affinity, Place};
use session_core::run::{EndKind, Ending, Epoch, Exit, Lease, RunPhase, RunSpec, RunState, StopOrder};
use utoipa::ToSchema;

use crate::claims::{Unreadable, read, read_any};

/// A run as its runner needs it.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct HeldRun {
    /// Its id.
    pub id: String,
    /// Its session.
    pub session_id: String,
    /// `start` or `resume`.
    pub kind: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment: names and values.
    pub env: Vec<(String, String)>,
    /// The longest wall time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// What the agent is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub turn: Option<Value>,
    /// Higher ones first.
    pub priority: i32,
    /// With what it is executed.
    pub executor: String,
    /// Only by this runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Only on a machine of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Only with this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dir: Option<String>,
    /// The crew that it was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crew: Option<String>,
    /// The claim.
    pub epoch: u32,
    /// `claimed`, `starting` or `running`; or how it ended.
    pub state: String,
    /// Who holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Until when, unless the claim is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// How.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<EndingView>,
    /// How its end was asked for: `graceful` or `kill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When its executor was up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

/// Without the values of its environment, among which there may be keys.
impl std::fmt::Debug for HeldRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldRun").field("id", &self.id).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndingView {
    /// `completed`, `failed`, `stopped` or `lost`.
    pub kind: String,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the process left with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The signal that ended the process, 1 to 64. Not with `exit_code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// A sentence that a person can act on, of at most 4000 bytes.
    #[serde(default)]
    pub message: String,
}

impl From<&Ending> for EndingView {
    fn from(ending: &Ending) -> Self {
        let (exit_code, signal) = match ending.exit {
            Some(Exit::Code(code)) => (u8::try_from(code).ok(), None),
            Some(Exit::Signal(signal)) => (None, u8::try_from(signal).ok()),
            None => (None, None),
        };
        let longest = ending.message.floor_char_boundary(crate::reports::MESSAGE_MAX);
        Self {
            kind: ending.kind.code().into(),
            reason: ending.reason.map(|reason| reason.code().to_owned()),
            exit_code,
            signal,
            message: ending.message.get(..longest).unwrap_or_default().replace('\0', " "),
        }
    }
}

impl TryFrom<&EndingView> for Ending {
    type Error = Unreadable;

    fn try_from(view: &EndingView) -> Result<Self, Unreadable> {
        let kind = read("kind", &view.kind)?;
        let reason = read_any("reason", view.reason.as_ref())?;
        if reason.is_none() && kind != EndKind::Completed {
            return Err(Unreadable::missing("reason"));
        }
        let exit = match (view.exit_code, view.signal) {
            (Some(code), None) => Some(Exit::Code(code.into())),
            (None, Some(signal @ 1..=64)) => Some(Exit::Signal(signal.into())),
            (None, None) => None,
            (Some(_) | None, Some(_)) => {
                let reason = "it is 1 to 64, and not beside an exit code".into();
                return Err(Unreadable { field: "signal", reason });
            }
        };
        if view.message.len() > crate::reports::MESSAGE_MAX || view.message.contains('\0') {
            let reason = format!("it has at most {} bytes and no NUL", crate::reports::MESSAGE_MAX);
            return Err(Unreadable { field: "message", reason });
        }
        Ok(Self { kind, reason, exit, message: view.message.clone() })
    }
}

impl From<&Run> for HeldRun {
    fn from(run: &Run) -> Self {
        let lease = run.state.lease();
        let (runner, hostname) = match &run.affinity.place {
            Place::Anywhere => (None, None),
            Place::Runner(id) => (Some(id.to_string()), None),
            Place::Hostname(name) => (None, Some(name.to_string())),
        };
        let timeout = run.spec.timeout;
        Self {
            id: run.id.to_string(),
            session_id: run.session.to_string(),
            kind: run.kind.code().into(),
            argv: run.spec.argv.clone(),
            env: run.spec.env.clone(),
            timeout_ms: timeout.map(|timeout| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)),
            turn: run.spec.turn.as_ref().map(|turn| serde_json::to_value(turn).unwrap_or_default()),
            priority: run.priority,
            executor: run.affinity.executor.to_string(),
            runner,
            hostname,
            project_dir: run.affinity.project_dir.as_ref().map(ToString::to_string),
            crew: run.crew.map(|crew| crew.to_string()),
            epoch: run.epoch.0,
            state: run.state.phase().code().into(),
            held_by: lease.map(|lease| lease.runner.to_string()),
            until: lease.map(|lease| lease.until),
            ended_at: run.ended().map(|(at, _)| at),
            ending: run.ended().map(|(_, ending)| EndingView::from(ending)),
            stop: run.stop.map(|stop| stop.mode.code().to_owned()),
            stop_at: run.stop.map(|stop| stop.at),
            created_at: run.created_at,
            started_at: run.started_at,
        }
    }
}

impl HeldRun {
    fn state(&self) -> Result<RunState, Unreadable> {
        let lease = || {
            let runner = self.held_by.as_ref().ok_or_else(|| Unreadable::missing("run.held_by"))?;
            let until = self.until.ok_or_else(|| Unreadable::missing("run.until"))?;
            Ok(Lease { runner: read("run.held_by", runner)?, until })
        };
        match read("run.state", &self.state)? {
            RunPhase::Pending => Ok(RunState::Pending),
            RunPhase::Claimed => lease().map(RunState::Claimed),
            RunPhase::Starting => lease().map(RunState::Starting),
            RunPhase::Running => lease().map(RunState::Running),
            RunPhase::Completed | RunPhase::Failed | RunPhase::Stopped | RunPhase::Lost => {
                let ending = self.ending.as_ref().ok_or_else(|| Unreadable::missing("run.ending"))?;
                let at = self.ended_at.ok_or_else(|| Unreadable::missing("run.ended_at"))?;
                Ok(RunState::Ended { at, ending: ending.try_into()? })
            }
        }
    }
}

impl TryFrom<&HeldRun> for Run {
    type Error = Unreadable;

    fn try_from(view: &HeldRun) -> Result<Self, Unreadable> {
        let place = match (&view.runner, &view.hostname) {
            (Some(runner), _) => Place::Runner(read("run.runner", runner)?),
            (None, Some(name)) => Place::Hostname(read("run.hostname", name)?),
            (None, None) => Place::Anywhere,
        };
        let turn = view.turn.clone().map(serde_json::from_value).transpose();
        let stop = match (&view.stop, view.stop_at) {
            (Some(mode), Some(at)) => Some(StopOrder { mode: read("run.stop", mode)?, at }),
            (Some(_) | None, _) => None,
        };
        Ok(Self {
            id: read("run.id", &view.id)?,
            session: read("run.session_id", &view.session_id)?,
            kind: read("run.kind", &view.kind)?,
            spec: RunSpec {
                argv: view.argv.clone(),
                env: view.env.clone(),
                timeout: view.timeout_ms.map(SignedDuration::from_millis),
                turn: turn.map_err(Unreadable::at("run.turn"))?,
            },
            priority: view.priority,
            affinity: Affinity {
                place,
                executor: read("run.executor", &view.executor)?,
                project_dir: view.project_dir.clone().map(Into::into),
            },
            crew: read_any("run.crew", view.crew.as_ref())?,
            waiting_for: 0,
            epoch: Epoch(view.epoch),
            state: view.state()?,
            stop,
            created_at: view.created_at,
            claim_by: None,
            started_at: view.started_at,
            sandbox: None,
        })
    }
}
