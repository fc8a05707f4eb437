//! How sessions, runs and events look outside: the JSON that scripts read, and the words and columns for people.
//!
//! These types are the contract; the types of `session-core` may change behind them.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use session_core::budget::Resource;
use session_core::run::{Exit, Run};
use session_core::session::SessionSummary;
use session_core::state::SessionState;
use session_core::{Event, ManagedSession};

use crate::host::protocol::Update;
use crate::money;

pub mod approval;
pub mod binding;
pub mod sandbox;

use binding::BindingView;
use sandbox::SandboxView;

/// A session.
#[derive(Debug, Serialize)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// One word for people: where its last run, or else the session itself, stands.
    pub status: &'static str,
    /// Its residency.
    pub state: &'static str,
    /// Why it is terminated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated_because: Option<&'static str>,
    /// Who owns it.
    pub principal: String,
    /// Free text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The agent that works in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What executes its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The agent's own conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingView>,
    /// The directory it works in.
    pub workspace: WorkspaceView,
    /// Whatever its creator wanted to remember.
    pub metadata: Box<RawValue>,
    /// The session that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How many sessions lie above it.
    pub depth: u32,
    /// The session of its identity's generation before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The caller's own name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session whose log it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkView>,
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxView,
    /// What it may use up, and what it has used.
    pub budget: AccountView,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used.
    pub active_at: Timestamp,
    /// Since when it is idle or suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_since: Option<Timestamp>,
    /// When it is over if nobody comes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Its last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunView>,
}

/// A workspace.
#[derive(Debug, Serialize)]
pub struct WorkspaceView {
    /// `scratch`, `worktree` or `in-place`.
    pub kind: &'static str,
    /// The project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The session's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The runner on whose machine it lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// When a cleanup removed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
}

/// Where a fork began.
#[derive(Debug, Serialize)]
pub struct ForkView {
    /// The session.
    pub session: String,
    /// The last event that both have.
    pub at: u64,
}

/// What a session may use up, and what it has used.
#[derive(Debug, Serialize)]
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
#[derive(Debug, Serialize)]
pub struct ShareView {
    /// Used up.
    pub used: u64,
    /// Set aside by work that has not ended.
    #[serde(skip_serializing_if = "is_nothing")]
    pub reserved: u64,
    /// Set aside for children.
    #[serde(skip_serializing_if = "is_nothing")]
    pub allotted: u64,
    /// The limit; nothing for none.
    pub max: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(amount: &u64) -> bool {
    *amount == 0
}

impl AccountView {
    /// Of this session.
    pub fn new(session: &ManagedSession) -> Self {
        let share = |resource| ShareView {
            used: session.usage.of(resource),
            reserved: session.reserved.of(resource),
            allotted: session.allotted.of(resource),
            max: limit(session, resource),
        };
        Self {
            tokens: share(Resource::Tokens),
            tool_calls: share(Resource::ToolCalls),
            turns: share(Resource::Turns),
            cost_micros: share(Resource::Cost),
        }
    }

    /// What was used, of what may be, and what is set aside for children.
    pub fn in_one_line(&self) -> String {
        let share = |resource: Resource, share: &ShareView| {
            let used = amount(resource, share.used);
            let name = if resource == Resource::Cost { "" } else { resource.code() };
            let of = share.max.map(|max| format!(" of {}", amount(resource, max))).unwrap_or_default();
            let text = format!("{used}{of} {}", name.replace('_', " ")).trim_end().to_owned();
            match share.allotted {
                0 => text,
                children => format!("{text} ({} for children)", amount(resource, children)),
            }
        };
        let shares = [
            (Resource::Tokens, &self.tokens),
            (Resource::ToolCalls, &self.tool_calls),
            (Resource::Turns, &self.turns),
            (Resource::Cost, &self.cost_micros),
        ];
        shares.map(|(resource, view)| share(resource, view)).join(", ")
    }
}

/// The limit of a resource, if it has one.
pub fn limit(session: &ManagedSession, resource: Resource) -> Option<u64> {
    Some(session.budget.limit(resource)).filter(|&limit| limit < u64::MAX)
}

/// An amount of a resource for people.
pub fn amount(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Cost => money::show(amount),
        Resource::Tokens | Resource::ToolCalls | Resource::Turns => amount.to_string(),
    }
}

/// How much of a budget is used or set aside, for children too, by the resource of which most is: `[##...] 41%`. Nothing while nothing is. Of a
/// resource that it has none of, all is used.
pub fn budget_bar(session: &ManagedSession) -> Option<String> {
    const CELLS: u64 = 5;
    let percent = |&resource: &Resource| {
        let limit = limit(session, resource)?;
        let used = session.usage.plus(session.reserved).plus(session.allotted).of(resource);
        match (used, limit) {
            (_, 0) => Some(100),
            (0, _) => None,
            _ => u64::try_from(u128::from(used) * 100 / u128::from(limit)).ok(),
        }
    };
    let most = Resource::ALL.iter().filter_map(percent).max()?;
    let full = (most.saturating_mul(CELLS) / 100).clamp(u64::from(most > 0), CELLS);
    let bar: String = (0..CELLS).map(|cell| if cell < full { '#' } else { '.' }).collect();
    Some(format!("[{bar}] {}%", most.min(999)))
}

impl SessionView {
    /// A session with its last run; `directory` is where its workspace lies on this machine.
    pub fn new(summary: &SessionSummary, directory: Option<String>) -> Self {
        let session: &ManagedSession = &summary.session;
        let metadata = RawValue::from_string(session.metadata.as_str().into());
        Self {
            id: session.id.to_string(),
            status: summary.status(),
            state: session.state.name(),
            terminated_because: match session.state {
                SessionState::Terminated { reason, .. } => Some(reason.code()),
                SessionState::Active | SessionState::Idle { .. } | SessionState::Suspended { .. } => None,
            },
            principal: session.principal.to_string(),
            label: session.label.as_ref().map(ToString::to_string),
            agent: session.agent.as_ref().map(ToString::to_string),
            executor: binding::executor(summary),
            binding: session.binding.as_ref().map(BindingView::new),
            workspace: WorkspaceView {
                kind: session.workspace.kind.as_str(),
                project: session.workspace.project.as_ref().map(ToString::to_string),
                path: directory,
                runner: session.workspace.runner.map(|id| id.to_string()),
                removed_at: session.workspace.removed_at,
            },
            metadata: metadata.unwrap_or_default(),
            parent: session.parent.map(|id| id.to_string()),
            depth: session.depth,
            previous: session.generation.and_then(|generation| generation.previous).map(|id| id.to_string()),
            key: session.key.as_ref().map(ToString::to_string),
            forked_from: session
                .forked_from
                .map(|fork| ForkView { session: fork.source.to_string(), at: fork.upto.0 }),
            sandbox: SandboxView::new(&session.sandbox),
            budget: AccountView::new(session),
            created_at: session.created_at,
            active_at: session.active_at,
            state_since: match session.state {
                SessionState::Active => None,
                SessionState::Idle { since } | SessionState::Suspended { since, .. } => Some(since),
                SessionState::Terminated { at, .. } => Some(at),
            },
            expires_at: match session.state {
                SessionState::Suspended { expires_at, .. } => {
                    Some(expires_at).filter(|&at| at < Timestamp::MAX)
                }
                SessionState::Active | SessionState::Idle { .. } | SessionState::Terminated { .. } => None,
            },
            last_run: summary.last_run.as_ref().map(RunView::new),
        }
    }
}

/// A run. Values of its environment are never shown.
#[derive(Debug, Serialize)]
pub struct RunView {
    /// Its id.
    pub id: String,
    /// `start` or `resume`.
    pub kind: &'static str,
    /// What executes it.
    pub executor: String,
    /// Where it stands.
    pub state: &'static str,
    /// Why it did not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// What the process left with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// A sentence about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The names of the variables that it was given.
    pub env: Vec<String>,
    /// What the kernel held of its session's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<RawValue>>,
    /// The longest wall time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Higher ones first.
    pub priority: i32,
    /// How many runs it waits for.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting_for: u32,
    /// How often it was claimed.
    pub epoch: u32,
    /// The runner that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When its executor was up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl RunView {
    /// A run.
    pub fn new(run: &Run) -> Self {
        let ended = run.ended();
        let exit = ended.and_then(|(_, ending)| ending.exit);
        Self {
            id: run.id.to_string(),
            kind: run.kind.code(),
            executor: run.affinity.executor.to_string(),
            state: run.state.phase().code(),
            reason: ended.and_then(|(_, ending)| ending.reason).map(session_core::run::ReasonCode::code),
            exit_code: exit.and_then(code),
            signal: exit.and_then(signal),
            message: ended.map(|(_, ending)| ending.message.clone()).filter(|message| !message.is_empty()),
            argv: run.spec.argv.clone(),
            env: run.spec.env.iter().map(|(name, _)| name.clone()).collect(),
            sandbox: run
                .sandbox
                .as_ref()
                .and_then(|report| RawValue::from_string(report.as_str().into()).ok()),
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

/// A run as those who follow it are told.
pub fn update(run: &Run, last_line: Option<String>) -> Update {
    let ended = run.ended();
    let exit = ended.and_then(|(_, ending)| ending.exit);
    Update {
        session: run.session,
        run: run.id,
        state: run.state.phase().code().into(),
        started_at: run.started_at,
        ended_at: ended.map(|(at, _)| at),
        reason: ended.and_then(|(_, ending)| ending.reason).map(|reason| reason.code().into()),
        exit_code: exit.and_then(code),
        signal: exit.and_then(signal),
        message: ended.map(|(_, ending)| ending.message.clone()).filter(|message| !message.is_empty()),
        last_line,
    }
}

fn code(exit: Exit) -> Option<i32> {
    match exit {
        Exit::Code(code) => Some(code),
        Exit::Signal(_) => None,
    }
}

fn signal(exit: Exit) -> Option<i32> {
    match exit {
        Exit::Signal(signal) => Some(signal),
        Exit::Code(_) => None,
    }
}

/// An event. What a damaged log holds instead of JSON is shown as text.
#[derive(Debug, Serialize)]
pub struct EventView {
    /// Its number.
    pub seq: u64,
    /// When it was appended.
    pub at: Timestamp,
    /// What kind of thing happened.
    pub kind: String,
    /// The run that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What happened.
    pub payload: Box<RawValue>,
    /// Who appended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The producer's own number for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer_seq: Option<u64>,
}

impl EventView {
    /// An event.
    pub fn new(event: &Event) -> Self {
        let text = event.body.payload.as_str();
        let payload = RawValue::from_string(text.into()).or_else(|_| serde_json::value::to_raw_value(text));
        let origin = event.body.origin.as_ref();
        Self {
            seq: event.seq.0,
            at: event.at,
            kind: event.body.kind.to_string(),
            run: event.body.run.map(|run| run.to_string()),
            payload: payload.unwrap_or_default(),
            producer: origin.map(|origin| origin.producer.to_string()),
            producer_seq: origin.map(|origin| origin.seq),
        }
    }
}

/// The beginning of an id that people read and type.
pub fn short(id: &str) -> &str {
    const DIGITS: usize = 12;
    id.get(..id.find('_').map_or(DIGITS, |prefix| prefix + 1 + DIGITS)).unwrap_or(id)
}

/// A duration as people say it: `0.4s`, `12s`, `3m 5s`, `2h 7m`, `3d 4h`.
pub fn duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit} {small}{small_unit}") }
    };
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64().max(0.0)),
        10..60 => format!("{seconds}s"),
        60..3_600 => two(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// How long a run took, or has taken so far.
pub fn elapsed(
    started: Option<Timestamp>,
    ended: Option<Timestamp>,
    now: Timestamp,
) -> Option<SignedDuration> {
    started.map(|started| ended.unwrap_or(now).duration_since(started))
}

/// For how long nothing was done in a session: nothing while something is, or when it is over.
pub fn idle(summary: &SessionSummary, now: Timestamp) -> Option<SignedDuration> {
    let busy = summary.last_run.as_ref().is_some_and(|run| !run.state.phase().is_ended());
    let over = summary.session.state.is_terminated();
    (!busy && !over).then(|| now.duration_since(summary.session.active_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_at_a_glance() {
        let check =
            |milliseconds, text| assert_eq!(duration(SignedDuration::from_millis(milliseconds)), text);
        check(-5, "0.0s");
        check(420, "0.4s");
        check(12_900, "12s");
        check(185_000, "3m 5s");
        check(7_620_000, "2h 7m");
        check(7_200_000, "2h");
        check(273_600_000, "3d 4h");
    }

    #[test]
    fn short_ids_keep_their_prefix() {
        assert_eq!(short("ses_0123456789abcdef0123456789abcdef"), "ses_0123456789ab");
        assert_eq!(short("x"), "x");
    }
}
