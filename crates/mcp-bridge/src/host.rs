//! What the bridge needs of the program around it: processes that are born inside a scope, and a record of the sessions that
//! outlives the bridge. The bridge itself starts nothing and keeps nothing on disk.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use session_core::SessionId;
use session_core::names::Principal;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::gate::{Refusal, Scope};
use crate::revision::Revision;

/// A server as its operator calls it: 1 to 64 of `A-Z a-z 0-9 _ . -`, as it stands in a path. Not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerName(String);

/// The longest name of a server in bytes.
pub const SERVER_NAME_MAX: usize = 64;

/// Why a text is no name of a server.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no name of a server: take 1 to {SERVER_NAME_MAX} of A-Z a-z 0-9 _ . - and not . or ..")]
pub struct BadServerName(pub String);

impl FromStr for ServerName {
    type Err = BadServerName;

    fn from_str(text: &str) -> Result<Self, BadServerName> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let fits = (1..=SERVER_NAME_MAX).contains(&text.len()) && text.bytes().all(plain);
        if !fits || matches!(text, "." | "..") {
            return Err(BadServerName(text.chars().take(SERVER_NAME_MAX).collect()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl ServerName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a session began: what every process that is started for it is told first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The client's `initialize`, letter for letter, on one line.
    pub initialize: String,
    /// Its `notifications/initialized`.
    pub initialized: String,
    /// What the two came to.
    pub revision: Revision,
}

/// All that must be known of a session to go on with it. It never changes once a session has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which server.
    pub server: ServerName,
    /// Whose session it is.
    pub principal: Principal,
    /// What its process may touch.
    pub scope: Scope,
    /// How it began.
    pub handshake: Handshake,
}

/// A session that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recalled {
    /// What is known of it.
    pub record: Record,
    /// Why it is over, if it is.
    pub ended: Option<Ending>,
}

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The client ended it.
    Deleted,
    /// It named other directories than those that it began with: whoever comes with this id is told so.
    RootsChanged,
    /// It lasted as long as one may, was killed by a person, or ended in another way, which this names in a word or two.
    Other(String),
}

impl Ending {
    /// The reason, as programs read and store it. [`Ending::named`] leads back.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Deleted => "deleted",
            Self::RootsChanged => Refusal::Changed.code(),
            Self::Other(code) => code,
        }
    }

    /// The reason of this code.
    #[must_use]
    pub fn named(code: &str) -> Self {
        match code {
            "deleted" => Self::Deleted,
            code if code == Refusal::Changed.code() => Self::RootsChanged,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// A server process, with the three ends of it that the bridge holds. Its stderr is the host's to read.
pub struct Child {
    /// Where it reads. Closing it is the first step of ending it.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Where it writes.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Comes when the whole tree of processes is gone, and says how. It is awaited whether or not `stop` was asked for.
    pub ended: BoxFuture<'static, Exit>,
    /// Cancelled by the bridge when the process is to end. By then stdin is closed; the host gives it a moment, then
    /// TERM, then KILL. It is cancelled as well when the bridge itself ends.
    pub stop: CancellationToken,
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// By itself, or because it was stopped: a fragment such as `exit status 1` or `signal 9`. If the bridge did not ask
    /// for it, it is a crash.
    Ended(String),
    /// The host needed its room: the session sleeps, and its next request brings it back.
    Suspended,
    /// With its session, which is over for this reason.
    Over(Ending),
}

/// Why the host did not do it. Each is a sentence that a person can act on, and nothing of the inside of the host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostError {
    /// As many sessions work as may; answered with 503 and `Retry-After`.
    #[error("{message}")]
    Limit {
        /// Which limit.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// What the scope names cannot be had: the session ends.
    #[error("{code}: {message}")]
    Scope {
        /// As programs read it, such as `root_not_allowed`.
        code: String,
        /// Which directory, and why.
        message: String,
    },
    /// This machine cannot confine the process, so it is not started.
    #[error("sandbox_unavailable: {0}")]
    Sandbox(String),
    /// The session has used up what it may.
    #[error("budget_exhausted: {0}")]
    Budget(String),
    /// The server cannot be started as its operator has set it up, such as a program that there is not: the next time is no
    /// better.
    #[error("{0}")]
    Broken(String),
    /// The session is over.
    #[error("the session is over: {}", .0.code())]
    Over(Ending),
    /// Anything else. It may go better the next time.
    #[error("{0}")]
    Other(String),
}

/// Something that a process wrote to its stdout and that is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stray<'l> {
    /// A line, or the beginning of one, that is no JSON-RPC message, and why.
    Line(&'l [u8], &'l str),
    /// A line of more bytes than a message may have: this many.
    Long(u64),
    /// The last line had no end.
    Half(&'l [u8]),
    /// A message for nobody: an answer to what nobody asked or to what is over, or news of that.
    Unasked,
}

/// The program around the bridge. All of it may be asked at once, for different sessions.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// A fresh id, which nobody can guess.
    fn session_id(&self) -> SessionId;

    /// The session that this one calls by this name, where clients have no sessions of their own. The same id every time,
    /// also after a restart, as long as that session is not over.
    async fn named(
        &self,
        principal: &Principal,
        server: &ServerName,
        name: &str,
    ) -> Result<SessionId, HostError>;

    /// A process of this server that may touch nothing but private directories of its own, and of which nothing is left when
    /// it is stopped: it is only asked how it answers `initialize`.
    async fn provisional(&self, principal: &Principal, server: &ServerName) -> Result<Child, HostError>;

    /// A process for this session, inside its scope before its first instruction. The session is recorded before the
    /// process is started; where it is recorded already, what is recorded counts. One session has one process at a time: the
    /// one before has ended.
    async fn open(&self, session: SessionId, record: &Record) -> Result<Child, HostError>;

    /// What was recorded of a session; `None` where nothing was.
    async fn recall(&self, session: SessionId) -> Result<Option<Recalled>, HostError>;

    /// The session is over. Its process, if it has one, is gone within a second. What is over already stays as it is, and what
    /// was never recorded is nothing to end: neither is an error.
    async fn end(&self, session: SessionId, ending: &Ending) -> Result<(), HostError>;

    /// A client has ended its session, which had no process of its own and was never recorded. From now on it is recorded that it
    /// is over, so that [`recall`](Self::recall) tells of it.
    async fn bury(
        &self,
        session: SessionId,
        principal: &Principal,
        server: &ServerName,
    ) -> Result<(), HostError>;

    /// The session was used just now. Cheap and never waits; called at most once a second for each session.
    fn touch(&self, session: SessionId);

    /// Something for the session's log. Cheap and never waits; called at most 100 times for each process.
    fn stray(&self, session: SessionId, stray: Stray<'_>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_what_stands_in_a_path() {
        for name in ["a", "git", "Files_2.0-x", "...", &"n".repeat(SERVER_NAME_MAX)] {
            assert_eq!(name.parse::<ServerName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "a/b", "a b", "ä", "a%2f", &"n".repeat(SERVER_NAME_MAX + 1)] {
            assert!(name.parse::<ServerName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_code_leads_back_to_its_ending() {
        for ending in [Ending::Deleted, Ending::RootsChanged, Ending::Other("ttl".into())] {
            assert_eq!(Ending::named(ending.code()), ending);
        }
        assert_eq!(Ending::RootsChanged.code(), "roots_change_rejected");
    }
}
