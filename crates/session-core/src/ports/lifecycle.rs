//! How whoever keeps the records learns what the manager of sessions does, without the manager knowing who that is.

use async_trait::async_trait;
use thiserror::Error;

use crate::approvals::Grant;
use crate::budget::{Account, BudgetChange, Exhausted, Usage};
use crate::ids::{RunId, SessionId};
use crate::names::Principal;
use crate::session::NewSession;
use crate::state::Trigger;

/// One change of a session, to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifecycleEvent {
    /// A session is made. Reported before anything is alive behind it, so that nothing lives without a record.
    Created(Box<NewSession>),
    /// A session went through its state machine.
    Moved {
        /// The session.
        session: SessionId,
        /// By what.
        trigger: Trigger,
    },
    /// A resume has come this far.
    Resuming {
        /// The session.
        session: SessionId,
        /// How far.
        step: ResumeStep,
    },
    /// A part of a session's budget is set aside. Reported before it is spent.
    Reserved {
        /// The session.
        session: SessionId,
        /// The most that may be used.
        worst: Usage,
    },
    /// What was set aside is settled.
    Settled {
        /// The session.
        session: SessionId,
        /// The run that used it.
        run: Option<RunId>,
        /// What was set aside.
        worst: Usage,
        /// What was used.
        actual: Usage,
    },
    /// A session's limits are changed.
    BudgetChanged {
        /// The session.
        session: SessionId,
        /// How.
        change: BudgetChange,
        /// By whom.
        by: Principal,
    },
    /// A person gave an answer that holds for the rest of the session.
    Granted {
        /// The session.
        session: SessionId,
        /// The answer.
        grant: Grant,
    },
}

impl LifecycleEvent {
    /// The session that it is about.
    #[must_use]
    pub fn session(&self) -> SessionId {
        match self {
            Self::Created(new) => new.id,
            Self::Moved { session, .. }
            | Self::Resuming { session, .. }
            | Self::Reserved { session, .. }
            | Self::Settled { session, .. }
            | Self::BudgetChanged { session, .. }
            | Self::Granted { session, .. } => *session,
        }
    }
}

crate::state::code_enum! {
    /// The recorded steps of a resume. The session is active after the third, and not before.
    ResumeStep ("step of a resume") {
        /// The session has an engine again, under its own id.
        Opened = "opened",
        /// The conversation was reconstructed from the log.
        Reconstructed = "reconstructed",
        /// The engine took the conversation over.
        Restored = "restored",
        /// It was given up, and the session is suspended again.
        RolledBack = "rolled_back",
    }
}

/// Keeps the records of what a manager does.
#[async_trait]
pub trait LifecycleSink: Send + Sync + 'static {
    /// Records one change. An error means that it is not recorded; whether it happens all the same is told by the method
    /// of the manager that reports it. A move to where the record is already is no error: it was reported before, and
    /// the answer was lost. A suspension is reported before the engine is let go of, an end before it is shut down.
    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError>;

    /// What the record says of a session's budget by now: asked when the manager's own count would refuse, because somebody
    /// else may have raised the limits. `None` where nobody else can.
    async fn account(&self, _session: SessionId) -> Result<Option<Account>, SinkError> {
        Ok(None)
    }
}

/// Keeps no records: for programs whose sessions end with them.
#[async_trait]
impl LifecycleSink for () {
    async fn on(&self, _event: &LifecycleEvent) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Why a change was not recorded.
#[derive(Debug, Error)]
pub enum SinkError {
    /// The record says something else: another process changed or ended the session.
    #[error("the record of the session says otherwise: {0}")]
    Superseded(String),
    /// Not now: somebody waits to use the session, and its record is unchanged. Said of a move that would leave it alone (it
    /// is idle, it is suspended), which is not made then.
    #[error("the session is busy: {0}")]
    Busy(String),
    /// The record's budget has too little left.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// The records are out of reach. Trying again may help.
    #[error("the session's record cannot be written")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
