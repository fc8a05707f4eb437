//! Why the manager did not do what it was asked to: what happened, to which session, and what to do about it.

use std::time::Duration;

use session_core::SessionId;
use session_core::budget::{Exhausted, HourlyLimit};
use session_core::grants::GrantError;
use session_core::names::ExternalKey;
use session_core::ports::{EngineError, SinkError};
use session_core::state::TerminationReason;
use thiserror::Error;

use crate::options::OptionsError;
use crate::registry::Refused;

/// Why a manager cannot begin.
#[derive(Debug, Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// There is no runtime for its tasks.
    #[error("a session manager needs a tokio runtime: make it within one")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
}

/// Why no session was opened. None is left behind.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no room. The error says when there may be.
    #[error(transparent)]
    Capacity(#[from] Refused),
    /// Another session bears the key.
    #[error("session {session} bears the key {key} already: use that one, or end it first")]
    KeyTaken {
        /// The key.
        key: ExternalKey,
        /// The session that bears it.
        session: SessionId,
    },
    /// Its beginning could not be recorded.
    #[error("session {session} was not opened, because its record could not be written")]
    Record {
        /// The session that was to be.
        session: SessionId,
        /// Why.
        source: SinkError,
    },
    /// Its engine could not be made.
    #[error("session {session} was not opened, because its engine could not be made")]
    Engine {
        /// The session that was to be.
        session: SessionId,
        /// Why.
        source: EngineError,
    },
    /// Somebody ended it while it was being opened.
    #[error("session {session} was ended while it was being opened: {reason}")]
    Ended {
        /// The session that was to be.
        session: SessionId,
        /// Why.
        reason: TerminationReason,
    },
    /// The session that bears the key is on its way somewhere, for too long.
    #[error("session {session}, which bears the key, was not ready within {within:?}: try again")]
    NotReady {
        /// The session.
        session: SessionId,
        /// How long was waited.
        within: Duration,
    },
    /// The manager leaves.
    #[error("the session manager is shutting down: open the session elsewhere, or later")]
    Leaving,
}

/// Why a session was not resumed. It is suspended as before, unless the error says that it is over.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// There is no such session here.
    #[error("there is no session {0} here: it is over, or it is not known to this process")]
    Unknown(SessionId),
    /// It has an engine.
    #[error("session {0} is live: it can be used as it is")]
    AlreadyLive(SessionId),
    /// There is no room. The error says when there may be.
    #[error("session {session} stays suspended: {refused}")]
    Capacity {
        /// The session.
        session: SessionId,
        /// Why.
        refused: Refused,
    },
    /// A step could not be recorded.
    #[error("session {session} stays suspended, because its resume could not be recorded")]
    Record {
        /// The session.
        session: SessionId,
        /// Why.
        source: SinkError,
    },
    /// Its engine could not be made.
    #[error("session {session} stays suspended, because its engine could not be made")]
    Engine {
        /// The session.
        session: SessionId,
        /// Why.
        source: EngineError,
    },
    /// Somebody ended it while it was being resumed.
    #[error("session {session} was ended while it was being resumed: {reason}")]
    Ended {
        /// The session.
        session: SessionId,
        /// Why.
        reason: TerminationReason,
    },
    /// It is on its way somewhere, for too long.
    #[error("session {session} is being opened or suspended, which took longer than {within:?}: try again")]
    NotReady {
        /// The session.
        session: SessionId,
        /// How long was waited.
        within: Duration,
    },
    /// The manager leaves.
    #[error(
        "the session manager is shutting down: session {0} stays suspended, resume it elsewhere, or later"
    )]
    Leaving(SessionId),
}

/// Why a session cannot be used.
#[derive(Debug, Error)]
pub enum UseError {
    /// There is no such session here.
    #[error("there is no session {0} here: it is over, or it is not known to this process")]
    Unknown(SessionId),
    /// It has no engine.
    #[error("session {0} is suspended: resume it and go on")]
    Suspended(SessionId),
    /// It is on its way somewhere, for too long.
    #[error(
        "session {session} is being opened, suspended or ended, which took longer than {within:?}: try again"
    )]
    NotReady {
        /// The session.
        session: SessionId,
        /// How long was waited.
        within: Duration,
    },
    /// Its record says that it is over, or goes on in another process. It is let go of here.
    #[error("session {session} cannot be used here any more")]
    Elsewhere {
        /// The session.
        session: SessionId,
        /// What the record says.
        source: SinkError,
    },
    /// The manager leaves.
    #[error("the session manager is shutting down: session {0} takes nothing new here")]
    Leaving(SessionId),
}

/// What went wrong when a session was to be suspended or ended.
#[derive(Debug, Error)]
pub enum StateError {
    /// There is no such session here.
    #[error("there is no session {0} here: it is over, or it is not known to this process")]
    Unknown(SessionId),
    /// It has a run in flight, was used while its engine wrote out what was left, or its record says that somebody waits to
    /// use it. It goes on.
    #[error("session {0} is in use: suspend it when its run has ended, or terminate it")]
    InUse(SessionId),
    /// Somebody ended it meanwhile.
    #[error("session {0} was ended meanwhile")]
    Ended(SessionId),
    /// It is on its way somewhere, for too long.
    #[error(
        "session {session} is being opened, suspended or ended, which took longer than {within:?}: try again"
    )]
    NotReady {
        /// The session.
        session: SessionId,
        /// How long was waited.
        within: Duration,
    },
    /// Its engine could not write out what was left. The session goes on, and is tried again later.
    #[error("session {session} was not suspended, because its engine could not write out what is left")]
    Flush {
        /// The session.
        session: SessionId,
        /// Why.
        source: EngineError,
    },
    /// Its engine did not shut down. The session is suspended or over all the same; something of its engine may be left.
    #[error("the engine of session {session} was given up, and something of it may be left")]
    Shutdown {
        /// The session.
        session: SessionId,
        /// Why.
        source: EngineError,
    },
    /// It happened, and is not recorded.
    #[error("session {session} is no longer live here, but that could not be recorded")]
    Record {
        /// The session.
        session: SessionId,
        /// Why.
        source: SinkError,
    },
}

/// Why a part of a budget is not set aside. Nothing is then.
#[derive(Debug, Error)]
pub enum SpendError {
    /// The session's budget has too little left.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// All sessions together used what they may in an hour. The error says when there is room again.
    #[error(transparent)]
    Hourly(#[from] HourlyLimit),
    /// The session is being ended.
    #[error("session {0} is being ended: it spends nothing more")]
    Ended(SessionId),
    /// It could not be recorded.
    #[error(
        "nothing is set aside of the budget of session {session}, because its record could not be written"
    )]
    Record {
        /// The session.
        session: SessionId,
        /// Why.
        source: SinkError,
    },
}

/// Why what holds for a session was not changed.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// There is no such session here.
    #[error("there is no session {0} here: it is over, or it is not known to this process")]
    Unknown(SessionId),
    /// The directory cannot be granted to anybody.
    #[error("session {session} is not let into the directory")]
    Directory {
        /// The session.
        session: SessionId,
        /// Why.
        source: GrantError,
    },
    /// The session remembers as many answers of this kind as it may.
    #[error("session {0} remembers as many answers as it may: it asks again instead")]
    Full(SessionId),
    /// It could not be recorded.
    #[error("nothing was changed for session {session}, because its record could not be written")]
    Record {
        /// The session.
        session: SessionId,
        /// Why.
        source: SinkError,
    },
}

/// Why a session that is recorded elsewhere is not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TrackError {
    /// It is over.
    #[error("session {0} is over: start another one")]
    Over(SessionId),
    /// It is live here, or being opened, suspended or ended.
    #[error("session {0} is in use here already")]
    Known(SessionId),
    /// The manager leaves.
    #[error("the session manager is shutting down: session {0} is not taken in")]
    Leaving(SessionId),
}
