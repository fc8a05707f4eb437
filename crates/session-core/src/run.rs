//! A run: one execution inside a session, and the second of the two state machines (SPEC section 2).
//!
//! `pending → claimed → starting → running → completed | failed | stopped | lost`. A claim is a lease with an
//! epoch; every later write carries both as a [`Fence`], and a stale one changes nothing.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::affinity::Affinity;
use crate::event::Payload;
use crate::ids::{CrewId, RunId, RunnerId, SessionId};
use crate::state::{InvalidTransition, code_enum};
use crate::turn::Turn;

/// One execution inside a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// The session it belongs to.
    pub session: SessionId,
    /// Whether it is the session's first run or continues it.
    pub kind: RunKind,
    /// What is executed.
    pub spec: RunSpec,
    /// Higher runs are claimed first; equal ones in the order in which they were enqueued.
    pub priority: i32,
    /// Which runner may claim it.
    pub affinity: Affinity,
    /// The crew that it was submitted with.
    pub crew: Option<CrewId>,
    /// How many runs must complete before this one can be claimed.
    pub waiting_for: u32,
    /// How often it was claimed.
    pub epoch: Epoch,
    /// Where it stands.
    pub state: RunState,
    /// Somebody asked for its end, and the runner has not reported it yet.
    pub stop: Option<StopOrder>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// Until when a runner must take it, unless one that matches is only busy; `None` for no such time.
    pub claim_by: Option<Timestamp>,
    /// When its executor was up.
    pub started_at: Option<Timestamp>,
    /// What the kernel really holds of its session's sandbox, as its runner found it: a JSON object. There once the
    /// executor was up.
    pub sandbox: Option<Payload>,
}

impl Run {
    /// The fence of the claim that holds this run now.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence { run: self.id, epoch: self.epoch }
    }

    /// When and how it ended.
    #[must_use]
    pub fn ended(&self) -> Option<(Timestamp, &Ending)> {
        match &self.state {
            RunState::Ended { at, ending } => Some((*at, ending)),
            RunState::Pending | RunState::Claimed(_) | RunState::Starting(_) | RunState::Running(_) => None,
        }
    }
}

code_enum! {
    /// Whether a run begins its session or continues it.
    RunKind ("kind of run") {
        /// The first run of a session.
        Start = "start",
        /// A later run of the same session.
        Resume = "resume",
    }
}

/// What is executed, as data: no part of it ever passes through a shell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunSpec {
    /// The program and its arguments; of an agent that brings its own program, only what it is given beside ours.
    pub argv: Vec<String>,
    /// The environment, complete but for what the workspace adds.
    pub env: Vec<(String, String)>,
    /// The longest wall time; `None` for no limit.
    pub timeout: Option<SignedDuration>,
    /// What the agent is asked for; `None` for a command.
    pub turn: Option<Turn>,
}

impl RunSpec {
    /// It begins a conversation of its own, whatever the session is bound to.
    #[must_use]
    pub fn is_from_history(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.from_history)
    }
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// In the queue.
    Pending,
    /// A runner has it and has not begun.
    Claimed(Lease),
    /// Workspace and executor are being made.
    Starting(Lease),
    /// The executor is up.
    Running(Lease),
    /// Over. Never changes again.
    Ended {
        /// When.
        at: Timestamp,
        /// How.
        ending: Ending,
    },
}

/// A runner's claim on a run, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub runner: RunnerId,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
}

/// How often a run has been claimed. Rises by one with each claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What every write of a runner carries: which claim it speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The run.
    pub run: RunId,
    /// The claim.
    pub epoch: Epoch,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Which of the four.
    pub kind: EndKind,
    /// Why, for every kind but `completed`.
    pub reason: Option<ReasonCode>,
    /// What the process left with, where there was one.
    pub exit: Option<Exit>,
    /// A sentence that a person can act on; empty for `completed`.
    pub message: String,
}

impl Ending {
    /// The executor did what it was asked to.
    #[must_use]
    pub fn completed(exit: Option<Exit>) -> Self {
        Self { kind: EndKind::Completed, reason: None, exit, message: String::new() }
    }

    /// It ended another way, for this reason.
    #[must_use]
    pub fn because(
        kind: EndKind,
        reason: ReasonCode,
        exit: Option<Exit>,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, reason: Some(reason), exit, message: message.into() }
    }
}

code_enum! {
    /// The four ways to end.
    EndKind ("way to end") {
        /// It did what it was asked to.
        Completed = "completed",
        /// It tried, or could not even try.
        Failed = "failed",
        /// Somebody, or a limit, asked for its end.
        Stopped = "stopped",
        /// Nobody knows: its runner or its keeper went away.
        Lost = "lost",
    }
}

code_enum! {
    /// Why a run did not complete. The codes are stable.
    ReasonCode ("reason code") {
        /// The process left with another exit code than 0.
        ExitNonzero = "exit_nonzero",
        /// A signal from outside ended the process.
        Signalled = "signalled",
        /// The program was not found or may not be executed.
        SpawnFailed = "spawn_failed",
        /// The workspace could not be made.
        WorkspaceFailed = "workspace_failed",
        /// The executor said so.
        ExecutorError = "executor_error",
        /// No runner that matches took it in time.
        NoMatchingRunner = "no_matching_runner",
        /// It ran for longer than it may.
        Timeout = "timeout",
        /// Its session's budget is spent.
        BudgetExhausted = "budget_exhausted",
        /// Its runner went silent.
        LeaseExpired = "lease_expired",
        /// Its host went away, and its processes with it.
        HostLost = "host_lost",
        /// The sandbox that it needs is not to be had here.
        SandboxUnavailable = "sandbox_unavailable",
        /// It used up more memory or disk than it may.
        LimitExceeded = "limit_exceeded",
        /// A run that it waits for did not complete.
        DependencyFailed = "dependency_failed",
        /// Somebody asked for it.
        StoppedByUser = "stopped_by_user",
        /// Its session was terminated.
        SessionTerminated = "session_terminated",
    }
}

/// What a process left with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// An exit code, 0 to 255.
    Code(i32),
    /// The number of the signal that ended it.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Somebody asked for the end of a run. Stays until the runner reports the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StopOrder {
    /// How.
    pub mode: StopMode,
    /// Since when.
    pub at: Timestamp,
}

code_enum! {
    /// How a run is asked to end. A later order may only be harder than an earlier one.
    StopMode ("stop mode") {
        /// Ask first, force after a grace.
        Graceful = "graceful",
        /// At once.
        Kill = "kill",
    }
}

code_enum! {
    /// A run's state without what it carries: what is stored and shown as one word.
    RunPhase ("state of a run") {
        /// In the queue.
        Pending = "pending",
        /// A runner has it and has not begun.
        Claimed = "claimed",
        /// Workspace and executor are being made.
        Starting = "starting",
        /// The executor is up.
        Running = "running",
        /// It did what it was asked to.
        Completed = "completed",
        /// It tried, or could not even try.
        Failed = "failed",
        /// Somebody, or a limit, asked for its end.
        Stopped = "stopped",
        /// Nobody knows.
        Lost = "lost",
    }
}

impl RunPhase {
    /// A runner holds it.
    #[must_use]
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Claimed | Self::Starting | Self::Running)
    }

    /// It is over.
    #[must_use]
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped | Self::Lost)
    }

    /// The phase after `step`, or why there is none. Total: every pair is decided here.
    pub fn on(self, step: RunStep) -> Result<Self, InvalidTransition> {
        let ended = |kind: EndKind| match kind {
            EndKind::Completed => Self::Completed,
            EndKind::Failed => Self::Failed,
            EndKind::Stopped => Self::Stopped,
            EndKind::Lost => Self::Lost,
        };
        match (self, step) {
            (Self::Pending, RunStep::Claim) => Ok(Self::Claimed),
            (Self::Claimed, RunStep::Start) => Ok(Self::Starting),
            (Self::Starting, RunStep::Ready) => Ok(Self::Running),
            (Self::Claimed | Self::Starting | Self::Running, RunStep::Requeue) => Ok(Self::Pending),
            (Self::Pending, RunStep::End(kind @ (EndKind::Failed | EndKind::Stopped)))
            | (
                Self::Claimed | Self::Starting,
                RunStep::End(kind @ (EndKind::Failed | EndKind::Stopped | EndKind::Lost)),
            )
            | (Self::Running, RunStep::End(kind)) => Ok(ended(kind)),
            (
                Self::Pending,
                RunStep::Start
                | RunStep::Ready
                | RunStep::Requeue
                | RunStep::End(EndKind::Completed | EndKind::Lost),
            )
            | (Self::Claimed, RunStep::Claim | RunStep::Ready | RunStep::End(EndKind::Completed))
            | (Self::Starting, RunStep::Claim | RunStep::Start | RunStep::End(EndKind::Completed))
            | (Self::Running, RunStep::Claim | RunStep::Start | RunStep::Ready)
            | (Self::Completed | Self::Failed | Self::Stopped | Self::Lost, _) => {
                Err(InvalidTransition { machine: "run", from: self.code(), trigger: step.name() })
            }
        }
    }

    /// The phases from which `step` is possible: what a compare-and-set compares with.
    pub fn sources(step: RunStep) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |phase| phase.on(step).is_ok())
    }
}

/// What can happen to a run, without what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStep {
    /// A runner takes it from the queue.
    Claim,
    /// Its runner begins.
    Start,
    /// Its executor is up.
    Ready,
    /// It goes back to the queue.
    Requeue,
    /// It ends.
    End(EndKind),
}

impl RunStep {
    /// The step's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Start => "start",
            Self::Ready => "ready",
            Self::Requeue => "requeue",
            Self::End(EndKind::Completed) => "end: completed",
            Self::End(EndKind::Failed) => "end: failed",
            Self::End(EndKind::Stopped) => "end: stopped",
            Self::End(EndKind::Lost) => "end: lost",
        }
    }
}

impl RunState {
    /// The state as one word.
    #[must_use]
    pub fn phase(&self) -> RunPhase {
        match self {
            Self::Pending => RunPhase::Pending,
            Self::Claimed(_) => RunPhase::Claimed,
            Self::Starting(_) => RunPhase::Starting,
            Self::Running(_) => RunPhase::Running,
            Self::Ended { ending, .. } => match ending.kind {
                EndKind::Completed => RunPhase::Completed,
                EndKind::Failed => RunPhase::Failed,
                EndKind::Stopped => RunPhase::Stopped,
                EndKind::Lost => RunPhase::Lost,
            },
        }
    }

    /// The lease, while a runner holds the run.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        match self {
            Self::Claimed(lease) | Self::Starting(lease) | Self::Running(lease) => Some(*lease),
            Self::Pending | Self::Ended { .. } => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const STEPS: [RunStep; 8] = [
        RunStep::Claim,
        RunStep::Start,
        RunStep::Ready,
        RunStep::Requeue,
        RunStep::End(EndKind::Completed),
        RunStep::End(EndKind::Failed),
        RunStep::End(EndKind::Stopped),
        RunStep::End(EndKind::Lost),
    ];

    pub(crate) fn matrix() -> String {
        let names: Vec<_> = RunPhase::ALL.iter().map(|phase| phase.code()).collect();
        crate::golden::matrix(&names, &STEPS.map(RunStep::name), |row, column| {
            RunPhase::ALL[row].on(STEPS[column]).ok().map(RunPhase::code)
        })
    }

    #[test]
    fn terminal_states_never_change_and_success_comes_only_from_running() {
        for phase in RunPhase::ALL.iter().copied().filter(|phase| phase.is_ended()) {
            for step in STEPS {
                assert!(phase.on(step).is_err(), "{phase} took {}", step.name());
            }
        }
        let sources: Vec<_> = RunPhase::sources(RunStep::End(EndKind::Completed)).collect();
        assert_eq!(sources, [RunPhase::Running]);
    }

    #[test]
    fn codes_are_parsed_back() {
        for reason in ReasonCode::ALL {
            assert_eq!(reason.code().parse(), Ok(*reason));
        }
        assert_eq!(
            "finished".parse::<RunPhase>().unwrap_err().to_string(),
            "\"finished\" is no state of a run"
        );
    }
}
