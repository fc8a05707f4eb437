//! A session as a value: what is stored of it, apart from whatever is alive behind it.

use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use jiff::Timestamp;
use thiserror::Error;

use crate::budget::{Account, Budget, Usage};
use crate::error::Conflict;
use crate::event::{Payload, Seq};
use crate::family::Parent;
use crate::identity::{IdentityKey, SessionIdentity};
use crate::ids::{RunId, RunnerId, SessionId};
use crate::names::{AgentKey, ExecutorSessionId, ExecutorType, ExternalKey, Hostname, Label, Principal};
use crate::run::{Run, RunPhase};
use crate::sandbox::SandboxSpec;
use crate::state::{InvalidTransition, SessionState};

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedSession {
    /// Its id.
    pub id: SessionId,
    /// Who owns it.
    pub principal: Principal,
    /// Where it is in its life.
    pub state: SessionState,
    /// Its owner's name for it. A terminated session keeps it for the record, and no longer holds it.
    pub key: Option<ExternalKey>,
    /// Free text for people.
    pub label: Option<Label>,
    /// The agent that works in it.
    pub agent: Option<AgentKey>,
    /// The directory it works in.
    pub workspace: WorkspaceSpec,
    /// What its processes may touch, reach and use up. Never changes.
    pub sandbox: SandboxSpec,
    /// Whatever its creator wants to remember, a JSON object.
    pub metadata: Payload,
    /// What it may use up.
    pub budget: Budget,
    /// What it used up so far.
    pub usage: Usage,
    /// What is set aside by work that has not settled.
    pub reserved: Usage,
    /// What is set aside for children that it started.
    pub allotted: Usage,
    /// The session that started it.
    pub parent: Option<SessionId>,
    /// How many sessions lie above it: 0 without a parent.
    pub depth: u32,
    /// Its parent is to hear of the end of each of its runs.
    pub callback: bool,
    /// The place in another session's log at which this one began.
    pub forked_from: Option<ForkPoint>,
    /// The identity that leads to it, and which generation of that identity it is.
    pub generation: Option<Generation>,
    /// The executor's own conversation, once it is known.
    pub binding: Option<Binding>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used.
    pub active_at: Timestamp,
}

impl ManagedSession {
    /// What it may use up, what it used up, and what is set aside.
    #[must_use]
    pub fn account(&self) -> Account {
        Account { budget: self.budget, used: self.usage, reserved: self.reserved, allotted: self.allotted }
    }

    /// Puts an account in the place of the one that [`account`](Self::account) gave.
    pub fn set_account(&mut self, account: Account) {
        let Account { budget, used, reserved, allotted } = account;
        (self.budget, self.usage, self.reserved, self.allotted) = (budget, used, reserved, allotted);
    }

    /// Refuses a step that a terminated session does not take.
    pub fn must_live(&self, step: &'static str) -> Result<(), InvalidTransition> {
        if self.state.is_terminated() {
            return Err(InvalidTransition { machine: "session", from: self.state.name(), trigger: step });
        }
        Ok(())
    }
}

/// A place in a session's log at which another one began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ForkPoint {
    /// The session.
    pub source: SessionId,
    /// The last of its events that the other one has too.
    pub upto: Seq,
}

/// The directory that a session works in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceSpec {
    /// What kind.
    pub kind: WorkspaceKind,
    /// The project, for every kind but `scratch`.
    pub project: Option<Utf8PathBuf>,
    /// The runner on whose machine it lies, once a run ran in it; before that, the one that tried last.
    pub runner: Option<RunnerId>,
    /// When a cleanup removed it.
    pub removed_at: Option<Timestamp>,
}

/// Which session in the line of one identity this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// The identity's key.
    pub key: IdentityKey,
    /// Counted from 1; a new one begins when the one before it has expired.
    pub number: u32,
    /// The session of the generation before.
    pub previous: Option<SessionId>,
}

/// What ties a session to a framework's own conversation. Written once; only a run that begins a new conversation from
/// the session's log puts another one in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The runner that holds the framework's files. Of an imported session only its machine's name is known, until a runner
    /// there has carried the conversation on.
    pub runner: Option<RunnerId>,
    /// The name of the machine that has them.
    pub hostname: Hostname,
    /// The executor.
    pub executor: ExecutorType,
    /// The framework's id for the conversation.
    pub executor_session_id: ExecutorSessionId,
    /// The directory it was started in.
    pub project_dir: Utf8PathBuf,
    /// The framework has written something of it down, so that it can be resumed. Not so yet when it is bound.
    pub resumable: bool,
}

impl Binding {
    /// Whether this is the same conversation in the same place, resumable or not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { runner, hostname, executor, executor_session_id, project_dir, resumable: _ } = self;
        *runner == other.runner
            && *hostname == other.hostname
            && *executor == other.executor
            && *executor_session_id == other.executor_session_id
            && *project_dir == other.project_dir
    }

    /// What a bind comes to where the session holds `held`, which the run `by` made: `Some` is the binding to write, `None`
    /// says that it is there already.
    ///
    /// What was imported, and is carried on where its files are, is completed by the runner that does so, and stays resumable.
    /// A run that begins a new conversation replaces, once, what an earlier one made: because it was asked to, or because the
    /// framework has nothing of the earlier one. Otherwise the first binding stays.
    pub fn bind(
        self,
        session: SessionId,
        held: Option<(&Self, Option<RunId>)>,
        run: &Run,
    ) -> Result<Option<Self>, Conflict> {
        match held {
            Some((_, by)) if run.spec.is_from_history() && by != Some(run.id) => {}
            Some((held, _)) if held.is_same(&self) => return Ok(None),
            Some((held, _))
                if held.runner.is_none() && held.is_same(&Self { runner: None, ..self.clone() }) =>
            {
                return Ok(Some(Self { resumable: held.resumable, ..self }));
            }
            Some((held, by)) if !held.resumable && by != Some(run.id) => {}
            Some(_) => return Err(Conflict::Bound(session)),
            None => {}
        }
        Ok(Some(Self { resumable: false, ..self }))
    }
}

/// What a session is made of, before the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// A fresh id, not taken from a caller.
    pub id: SessionId,
    /// Who owns it.
    pub principal: Principal,
    /// Its owner's name for it, which no other live session of the same owner may have.
    pub key: Option<ExternalKey>,
    /// Free text for people.
    pub label: Option<Label>,
    /// The agent that works in it.
    pub agent: Option<AgentKey>,
    /// The kind of directory it works in.
    pub kind: WorkspaceKind,
    /// The project, for every kind but `scratch`.
    pub project: Option<Utf8PathBuf>,
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxSpec,
    /// Whatever its creator wants to remember, a JSON object.
    pub metadata: Payload,
    /// What it may use up.
    pub budget: Budget,
    /// The session that starts it, and how far that may go.
    pub parent: Option<Parent>,
}

/// A get-or-create by identity: the session that it finds, or the one that it would make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// By what to find it.
    pub identity: SessionIdentity,
    /// What to make if there is none.
    pub new: NewSession,
    /// For how long after its last use an identity stays valid.
    pub ttl: jiff::SignedDuration,
    /// For how long after its creation it may stay valid at the most.
    pub lifetime: Option<jiff::SignedDuration>,
}

/// How long an identity stays valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// For how long after its last use.
    pub ttl: jiff::SignedDuration,
    /// For how long after its creation at the most.
    pub lifetime: Option<jiff::SignedDuration>,
}

impl Validity {
    /// Until when an identity that was made at `created` is valid after a use at `now`.
    #[must_use]
    pub fn until(&self, created: Timestamp, now: Timestamp) -> Timestamp {
        let used = now.saturating_add(self.ttl).unwrap_or(Timestamp::MAX);
        let oldest = self.lifetime.and_then(|lifetime| created.saturating_add(lifetime).ok());
        oldest.map_or(used, |oldest| oldest.min(used))
    }
}

impl OpenSession {
    /// How long its identity stays valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        Validity { ttl: self.ttl, lifetime: self.lifetime }
    }
}

/// What a get-or-create came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The session.
    pub session: SessionId,
    /// Which generation of the identity it is.
    pub generation: u32,
    /// The session of the generation before.
    pub previous: Option<SessionId>,
    /// It was made by this call.
    pub created: bool,
    /// The stamp of its last use was written now: it is made, or was not used for a while.
    pub stamped: bool,
    /// Until when the identity is valid without further use.
    pub expires_at: Timestamp,
}

/// What a get-or-create by key came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyed {
    /// The session.
    pub session: ManagedSession,
    /// It was made by this call.
    pub created: bool,
}

/// A session with its last run, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSummary {
    /// The session.
    pub session: ManagedSession,
    /// Its last run.
    pub last_run: Option<Run>,
}

impl SessionSummary {
    /// One word for people: computed from the session's state and its last run, and stored nowhere.
    #[must_use]
    pub fn status(&self) -> &'static str {
        match (&self.session.state, self.last_run.as_ref().map(|run| run.state.phase())) {
            (_, Some(phase)) if phase.is_in_flight() || phase == RunPhase::Pending => phase.code(),
            (SessionState::Terminated { .. }, _) => "terminated",
            (_, Some(phase)) => phase.code(),
            (state, None) => state.name(),
        }
    }
}

/// What kind of directory a session works in (SPEC section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkspaceKind {
    /// A fresh, empty directory.
    Scratch,
    /// A git worktree of the project, on a branch of its own.
    Worktree,
    /// The project directory itself.
    InPlace,
}

impl WorkspaceKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Scratch, Self::Worktree, Self::InPlace];

    /// The name in files, rows and options.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scratch => "scratch",
            Self::Worktree => "worktree",
            Self::InPlace => "in-place",
        }
    }
}

impl fmt::Display for WorkspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no kind of workspace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no kind of workspace: scratch, worktree or in-place")]
pub struct UnknownWorkspaceKind(String);

impl FromStr for WorkspaceKind {
    type Err = UnknownWorkspaceKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownWorkspaceKind(crate::ids::excerpt(text)))
    }
}
