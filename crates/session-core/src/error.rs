//! What a store answers when it cannot do what it was asked to.

use std::error::Error as StdError;

use thiserror::Error;

use crate::approval::{ApprovalPhase, OPEN_MAX};
use crate::budget::Exhausted;
use crate::event::{EventKind, Seq};
use crate::ids::{ApprovalId, RunId, RunnerId, SessionId, TokenId};
use crate::names::{ExecutorType, ExternalKey, IdempotencyKey, Principal};
use crate::run::{Epoch, RunPhase};
use crate::sandbox::Wider;
use crate::state::InvalidTransition;
use crate::token::Stronger;

/// The result of a port's method.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store did not do it. Nothing has changed when a method returns one of these, except where
/// [`StoreError::Unavailable`] comes from a commit whose answer was lost.
#[derive(Debug, Error)]
pub enum StoreError {
    /// No such session.
    #[error("there is no session {0}")]
    UnknownSession(SessionId),
    /// No such run.
    #[error("there is no run {0}")]
    UnknownRun(RunId),
    /// No such approval.
    #[error("there is no approval {0}")]
    UnknownApproval(ApprovalId),
    /// No such runner.
    #[error("there is no runner {0}")]
    UnknownRunner(RunnerId),
    /// No such token.
    #[error("there is no token {0}")]
    UnknownToken(TokenId),
    /// The session has a run that is not over.
    #[error("session {session} has run {run}, which is {phase}")]
    Busy {
        /// The session.
        session: SessionId,
        /// The run in its way.
        run: RunId,
        /// Where that run stands.
        phase: RunPhase,
    },
    /// The write speaks for a claim that is no longer the current one.
    #[error("run {run} is at epoch {held}, this write speaks for epoch {given}")]
    Fenced {
        /// The run.
        run: RunId,
        /// The current epoch.
        held: Epoch,
        /// The epoch of the write.
        given: Epoch,
    },
    /// The state machine has no such transition.
    #[error(transparent)]
    Transition(#[from] InvalidTransition),
    /// Something else is there already.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The session's budget has too little left.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// A row cannot be what it says it is.
    #[error("{table}.{column} of {row} cannot be read")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// Which row.
        row: String,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The database is out of reach, locked, full or read-only. Trying again may help.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The database refused a statement: a fault of the program.
    #[error("the store failed")]
    Backend(#[source] Box<dyn StdError + Send + Sync>),
}

impl StoreError {
    /// Whether the same may succeed if it is tried again, although nothing else has changed.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Backend(_) => true,
            Self::UnknownSession(_)
            | Self::UnknownRun(_)
            | Self::UnknownApproval(_)
            | Self::UnknownRunner(_)
            | Self::UnknownToken(_)
            | Self::Busy { .. }
            | Self::Fenced { .. }
            | Self::Transition(_)
            | Self::Conflict(_)
            | Self::Exhausted(_)
            | Self::Corrupt { .. } => false,
        }
    }
}

/// What is there already.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Conflict {
    /// The same origin was used for another content.
    #[error("event {seq} of producer {producer:?} was appended to {session} before, with another content")]
    Origin {
        /// The session.
        session: SessionId,
        /// The producer.
        producer: String,
        /// Its number.
        seq: u64,
    },
    /// The session is bound to another conversation.
    #[error("session {0} is bound to another conversation")]
    Bound(SessionId),
    /// The session is bound to no conversation yet.
    #[error("session {0} is bound to no conversation, so there is none that could be resumed")]
    Unbound(SessionId),
    /// A further run was to carry a conversation on with another executor than the one that holds it.
    #[error(
        "session {session} is bound to a conversation of {bound}, which {wanted} cannot carry on: go on with {bound}, \
         or begin a new conversation from its log with `--from-history`"
    )]
    Executor {
        /// The session.
        session: SessionId,
        /// The executor that holds its conversation.
        bound: ExecutorType,
        /// The one that was to carry it on.
        wanted: ExecutorType,
    },
    /// An id that was to be new is taken.
    #[error("{0} exists already")]
    Exists(String),
    /// The session that bears a key is otherwise than was asked for.
    #[error("session {session} bears this key already, with {what} of its own")]
    Otherwise {
        /// The session.
        session: SessionId,
        /// What is otherwise.
        what: String,
    },
    /// A log was to be taken up to an event that it does not have.
    #[error("session {session} has no event {seq}, its last one is {last}")]
    NoEvent {
        /// The session.
        session: SessionId,
        /// The event.
        seq: Seq,
        /// The last one that there is.
        last: Seq,
    },
    /// A run was to append an event of a kind that only the program itself writes.
    #[error("an event of the kind {0} is written by the program alone, a run cannot append one")]
    Reserved(EventKind),
    /// An approval is closed, and not by the same answer.
    #[error("approval {approval} is {phase} already, and stays so")]
    Answered {
        /// The approval.
        approval: ApprovalId,
        /// What became of it.
        phase: ApprovalPhase,
    },
    /// A session has as many open approvals as it may.
    #[error("session {0} has {OPEN_MAX} open approvals: answer some of them first")]
    ApprovalsFull(SessionId),
    /// Another process with a runner's id has registered since.
    #[error(
        "runner {runner} has registered again, as its instance {held}: instance {given} must end, or two processes \
         share one id"
    )]
    Superseded {
        /// The runner.
        runner: RunnerId,
        /// The instance that counts.
        held: Epoch,
        /// The one that spoke.
        given: Epoch,
    },
    /// A runner was to be forgotten that has work.
    #[error("runner {runner} holds {run}: drain it and wait, or stop its runs")]
    RunnerBusy {
        /// The runner.
        runner: RunnerId,
        /// One of its runs.
        run: RunId,
    },
    /// A family was to be deeper than it may.
    #[error("session {parent} is as deep in its family as a parent may be: children go down to depth {max}")]
    TooDeep {
        /// Whose child it was to be.
        parent: SessionId,
        /// The greatest depth.
        max: u32,
    },
    /// A session was to have more live children than it may.
    #[error("session {parent} has {max} live children, the most it may have: wait until some are over")]
    TooManyChildren {
        /// Whose child it was to be.
        parent: SessionId,
        /// The most.
        max: u32,
    },
    /// A child was to reach farther than its parent.
    #[error("a child of session {parent} cannot reach farther than its parent: {wider}")]
    Wider {
        /// Whose child it was to be.
        parent: SessionId,
        /// Where.
        wider: Wider,
    },
    /// A run was to deliver what is not there to be delivered to its session.
    #[error("the end of {0} was delivered before, or it is no run of a child that calls back")]
    NotDue(RunId),
    /// A token was to be issued with one that counts no more.
    #[error("nothing can be issued with token {0}: it is revoked, or its time is over")]
    TokenEnded(TokenId),
    /// A token was to be stronger than the one with which it was to be issued.
    #[error("the token cannot be issued with {parent}: {why}")]
    Stronger {
        /// The token with which it was to be issued.
        parent: TokenId,
        /// What of it is more.
        why: Stronger,
    },
    /// An idempotency key was used for another call.
    #[error("the idempotency key {0:?} was used for another request: repeat that one, or take a new key")]
    Reused(IdempotencyKey),
    /// Whoever keeps the records elsewhere refused it, in its own words.
    #[error("{0}")]
    Refused(String),
    /// Runs that were submitted together wait for each other in a circle, or for one that is not among them.
    #[error("the runs of a crew must wait only for earlier ones of the same crew")]
    Dependencies,
}

impl Conflict {
    /// A session was to be made under a key that a live session of the same owner has.
    #[must_use]
    pub fn key_taken(principal: &Principal, key: &ExternalKey) -> Self {
        Self::Exists(format!("a live session of {principal} with the key {key:?}"))
    }
}
