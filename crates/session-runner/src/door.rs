//! How executions get into their sessions, and orders to them past the store.

use std::fmt;

use async_trait::async_trait;
use jiff::SignedDuration;
use session_core::SessionId;
use session_core::run::StopMode;
use session_manager::InFlight;
use thiserror::Error;
use tokio::sync::watch;

use crate::Rooms;

/// An order to end what runs in a session here, past the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectOrder {
    /// The session.
    pub session: SessionId,
    /// How.
    pub mode: StopMode,
}

/// How an execution gets into its session. The composition root resumes the session where that is needed: only it knows
/// both the manager and the store.
#[async_trait]
pub trait Door: Send + Sync + fmt::Debug + 'static {
    /// The session, with an engine and in use until the guard is dropped.
    async fn enter(&self, session: SessionId) -> Result<InFlight<Rooms>, Refusal>;

    /// Becomes ready with each change that may have made room for one more session.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Why an execution did not get into its session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There is no room. Its run waits for some.
    #[error("{message}")]
    Full {
        /// What is full.
        message: String,
        /// When to try again; `None` when it would not help.
        retry_after: Option<SignedDuration>,
    },
    /// The session is over.
    #[error("the session is over: {0}")]
    Over(String),
    /// The records are out of reach. Trying again may help.
    #[error("{0}")]
    Passing(String),
    /// It could not be opened.
    #[error("the session could not be opened: {0}")]
    Failed(String),
}
