//! What a command and the host of a data directory say to each other: JSON, one value a line.
//!
//! The host greets whoever connects; a command speaks only after that, so that a connection to a host that is just
//! leaving is noticed before anything was asked. One request, then its reply, or, for `follow`, replies until the end.

use camino::Utf8PathBuf;
use jiff::{SignedDuration, Timestamp};
use mcp_tools::context::Context as ToolContext;
use mcp_tools::desk::Answer as ToolAnswer;
use mcp_tools::refused::Refused;
use mcp_tools::tools::Call;
use serde::{Deserialize, Serialize};
use session_api::tokens::TokenCreated;
use session_core::ids::{ApprovalId, TokenId};
use session_core::{RunId, RunnerId, SessionId};

use crate::failure::{Failure, Kind};

mod task;

pub use task::{
    BudgetChangeWire, BudgetWire, Inherited, NewSessionWire, SandboxWire, SessionWire, Submit, TaskWire,
    TurnWire,
};

/// The longest line: a submission of many tasks with their environments fits.
pub const LINE_MAX: usize = 64 * 1024 * 1024;

/// The form of what is said here. Counted up with every change after which one side would not understand the other.
#[cfg(target_os = "linux")]
pub const PROTOCOL: u32 = 2;

/// The first line that the host says.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The host's version. Commands of another one are refused: they may mean something else.
    pub roomette: String,
    /// The form of what it says; 0 where that was not told yet. Builds of one version may differ in it.
    #[serde(default)]
    pub protocol: u32,
    /// The host's process.
    pub pid: u32,
    /// The store that it writes, without a password.
    pub store: String,
    /// New sessions may be executed on other machines.
    #[serde(default)]
    pub fleet: bool,
}

/// What a command asks of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Enqueue tasks.
    Submit(Submit),
    /// Tell what becomes of these runs, until all are over.
    Follow {
        /// The runs.
        runs: Vec<RunId>,
    },
    /// Tell each time that something was appended to this session's log, until nobody listens any more.
    Watch {
        /// The session.
        session: SessionId,
    },
    /// End what runs in these sessions; the sessions stay.
    Stop {
        /// The sessions.
        sessions: Vec<SessionId>,
        /// Without asking first.
        now: bool,
    },
    /// End these sessions for good.
    Kill {
        /// The sessions.
        sessions: Vec<SessionId>,
    },
    /// End every session of this owner, or of all, for good.
    KillAll {
        /// Whose; `None` for everybody's.
        principal: Option<String>,
    },
    /// Let go of what is alive behind these sessions.
    Suspend {
        /// The sessions.
        sessions: Vec<SessionId>,
    },
    /// Make a session that begins as a copy of another one's log.
    Fork {
        /// The other one.
        source: SessionId,
        /// Its last event that is copied; `None` for all.
        upto: Option<u64>,
        /// The label of the new one.
        label: Option<String>,
    },
    /// Change what a session may use up.
    Budget {
        /// The session.
        session: SessionId,
        /// How.
        change: BudgetChangeWire,
        /// Who asks for it.
        by: String,
    },
    /// Give a session another label, or none.
    Label {
        /// The session.
        session: SessionId,
        /// The label.
        label: Option<String>,
    },
    /// Answer an agent's question.
    Answer {
        /// The question.
        approval: ApprovalId,
        /// Yes or no.
        allow: bool,
        /// For the rest of the session.
        lasting: bool,
        /// What the agent is told with it.
        message: Option<String>,
        /// Who answers.
        by: String,
    },
    /// Issue a token.
    IssueToken(IssueToken),
    /// Revoke a token, and all that were issued with it.
    RevokeToken {
        /// The token.
        token: TokenId,
    },
    /// Remove old workspaces.
    Cleanup(Cleanup),
    /// Make a session of an exported one.
    Import {
        /// The lines of the export.
        lines: Vec<String>,
    },
    /// Make sessions of those of a legacy coordinator's database.
    ImportLegacy(LegacyWire),
    /// Have a runner take no more runs, or take some again.
    DrainRunner {
        /// Which one.
        runner: RunnerId,
        /// No more.
        draining: bool,
    },
    /// Forget a runner.
    ForgetRunner {
        /// Which one.
        runner: RunnerId,
    },
    /// Have a tool of the scribe do something.
    Tool(Box<ToolWire>),
    /// Say what was recovered when the host started.
    Recovered,
}

/// A call of a tool of the scribe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolWire {
    /// What the caller said of itself.
    pub context: ToolContext,
    /// What it asks for.
    pub call: Call,
}

/// A token to issue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssueToken {
    /// What people call it.
    pub name: String,
    /// Whose it is.
    pub principal: String,
    /// What it is for.
    pub verbs: String,
    /// From when on it counts no more; `None` for never.
    pub expires_at: Option<Timestamp>,
}

/// Which workspaces to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleanup {
    /// Only these sessions'; nothing for all.
    pub sessions: Vec<SessionId>,
    /// Whose last run ended at least so long ago.
    pub older_than: SignedDuration,
    /// Also worktrees with work that is nowhere else.
    pub force: bool,
    /// Keep an archive of each.
    pub archive: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// The import of a legacy coordinator's database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacyWire {
    /// The database, as an absolute path.
    pub file: Utf8PathBuf,
    /// What it is called.
    pub source: String,
    /// The machine of the sessions that name none; nothing for this one.
    pub hostname: Option<String>,
    /// The executor of the sessions that name none.
    pub executor: String,
    /// What the caller's environment gives: tools that its `PATH` names can be run in the sessions.
    pub base_env: Vec<(String, String)>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What became of a session of a legacy coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacySession {
    /// Its framework's id.
    pub executor_session_id: String,
    /// Its name there.
    pub name: Option<String>,
    /// `imported`, `known` or `refused`.
    pub result: String,
    /// The session here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was taken otherwise than it stood there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What the host answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// What was enqueued, in the order of the tasks.
    Submitted(Vec<Enqueued>),
    /// Where a run stands now.
    Update(Update),
    /// Something may have been appended to the log that is watched.
    Changed,
    /// Nothing more comes of this `follow`.
    Over,
    /// What was asked to end, and how many runs that were.
    Stopped {
        /// Runs that were not over yet.
        runs: usize,
        /// Their sessions: those that were named, or below one that was.
        #[serde(default)]
        sessions: Vec<SessionId>,
    },
    /// It was done.
    Done,
    /// These sessions were ended: those that were named, and those below them.
    Killed(Vec<SessionId>),
    /// The session that a fork made.
    Forked(SessionId),
    /// What became of each workspace.
    Cleaned(Vec<Cleaned>),
    /// The session that an import made.
    Imported(SessionId),
    /// The token that was issued, with its secret.
    Issued(Box<TokenCreated>),
    /// What became of each session of a legacy database.
    LegacyImported(Vec<LegacySession>),
    /// The live sessions that were bound to the runner or have their files there.
    Forgotten(Vec<SessionId>),
    /// What a tool answered.
    Answered(ToolAnswer),
    /// A tool did nothing.
    Refused(Refused),
    /// What the host found when it started.
    Recovered(Vec<Recovered>),
    /// It was not done.
    Failed(Failure),
}

impl Reply {
    /// The failure of a host that answered something else than it was asked for.
    pub fn unexpected() -> Failure {
        Failure::new(Kind::Error, "the host answered something else than it was asked for")
    }

    /// The failure that the host answered, or that it answered something else than it was asked for.
    #[cfg(target_os = "linux")]
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Submitted(_)
            | Self::Update(_)
            | Self::Changed
            | Self::Over
            | Self::Stopped { .. }
            | Self::Done
            | Self::Killed(_)
            | Self::Forked(_)
            | Self::Cleaned(_)
            | Self::Imported(_)
            | Self::Issued(_)
            | Self::LegacyImported(_)
            | Self::Forgotten(_)
            | Self::Answered(_)
            | Self::Refused(_)
            | Self::Recovered(_) => Self::unexpected(),
        }
    }
}

/// A run that was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// Its session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// Nothing confines it: its session wants no sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfined: bool,
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// Its session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// Its state.
    pub state: String,
    /// When its executor was up.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Why it did not complete.
    pub reason: Option<String>,
    /// What the process left with.
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// A sentence about it.
    pub message: Option<String>,
    /// The last line of its output.
    pub last_line: Option<String>,
}

impl Update {
    /// What the run waits for, before it begins or until its end is recorded. Said in the place of its last line.
    pub fn waits(&self) -> Option<&str> {
        self.last_line.as_deref().filter(|line| !self.ended() && line.starts_with("(waiting for "))
    }

    /// Whether the run is over.
    pub fn ended(&self) -> bool {
        self.ended_at.is_some()
    }
}

/// What became of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaned {
    /// The session.
    pub session: SessionId,
    /// Its label.
    pub label: Option<String>,
    /// Whether it was, or would be, removed.
    pub removed: bool,
    /// Why it was kept.
    pub kept_because: Option<String>,
    /// The archive that was made.
    pub archive: Option<String>,
}

/// What became of a run whose host went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// Its session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// Its state now.
    pub state: String,
    /// A sentence about it.
    pub message: String,
}
