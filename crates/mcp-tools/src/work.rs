//! What the process around a desk does: it gives new sessions a room, and makes others work.

use async_trait::async_trait;
use session_core::budget::Budget;
use session_core::names::Principal;
use session_core::run::StopMode;
use session_core::token::Bearer;
use session_core::{ManagedSession, RunId, SandboxSpec, SessionId};

use crate::refused::Refused;
use crate::tools::{SendArguments, SessionResult, StartArguments};

/// What the process around a desk does. Whether the caller sees the session is known before any of it is asked.
#[async_trait]
pub trait Work: Send + Sync {
    /// What a new session of this owner may touch and use up, in which an agent only keeps notes.
    fn room(&self, principal: &Principal) -> (SandboxSpec, Budget);

    /// Starts a child of `parent`. The same call under the same key starts nothing more.
    async fn start(
        &self,
        bearer: &Bearer,
        parent: SessionId,
        arguments: StartArguments,
    ) -> Result<Started, Refused>;

    /// Has a child that rests do something more.
    async fn send(
        &self,
        bearer: &Bearer,
        child: &ManagedSession,
        arguments: SendArguments,
    ) -> Result<Started, Refused>;

    /// What the last run of a session came to; `None` where it never ran.
    async fn result(&self, session: &ManagedSession) -> Result<Option<SessionResult>, Refused>;

    /// Ends what runs in a session; the session stays. Returns the runs whose end was asked for.
    async fn stop(&self, session: &ManagedSession, mode: StopMode) -> Result<Vec<RunId>, Refused>;
}

/// A run that was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Its session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
}
