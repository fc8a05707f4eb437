//! Whatever is alive behind a session, and who makes it.

use async_trait::async_trait;
use thiserror::Error;

use crate::context::Restored;
use crate::session::ManagedSession;
use crate::state::TerminationReason;

/// Whatever is alive behind a session and dies with it: an agent's process, the child of a bridge, a model loop.
///
/// One session has at most one engine at a time, and its manager lets go of each exactly once.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Writes out whatever is still to be written, before the session is suspended. The engine stays usable: if the
    /// session is used meanwhile, this fails, or its record does not let it be suspended, it simply goes on. If the session is ended meanwhile, the future is dropped
    /// and `shutdown` follows.
    async fn suspend(&self) -> Result<(), EngineError>;

    /// Ends everything, and returns when nothing of it is left. Called exactly once, and never while
    /// [`suspend`](Self::suspend) is under way; its manager calls nothing else afterwards.
    async fn shutdown(&self, why: Release);
}

/// Why an engine is let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Release {
    /// Its session is suspended, and may come back with another engine.
    Suspended,
    /// Its session is over.
    Terminated(TerminationReason),
    /// Its session never opened: the creation or the resume was not completed.
    Abandoned,
    /// The process leaves; the session stays as it is recorded, and goes on in another process.
    HostLeaves,
}

/// An engine that takes a conversation over.
#[async_trait]
pub trait Orchestrator: Engine {
    /// Whether the conversation has to come from our log. An engine that keeps its own (a framework with files of its
    /// own, a command without any) says no, and the log is not read for it.
    fn wants_history(&self) -> bool;

    /// Goes on where the log stands: the third of the three steps of a resume.
    async fn restore_history(&self, restored: &Restored) -> Result<(), EngineError>;
}

/// Makes the engines of sessions.
#[async_trait]
pub trait SessionFactory: Send + Sync + 'static {
    /// What it makes.
    type Engine: Engine;

    /// Makes the engine of this session, new or resumed. Nothing mutable may be shared between two engines.
    async fn create(&self, session: &ManagedSession) -> Result<Self::Engine, EngineError>;
}

/// Why an engine did not do it.
#[derive(Debug, Error)]
pub enum EngineError {
    /// It said why.
    #[error("{0}")]
    Failed(String),
    /// It failed, and this is what lies behind it.
    #[error("{what}")]
    Caused {
        /// What failed.
        what: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It did not answer within the time it has.
    #[error("it did not answer within {0:?}")]
    TimedOut(std::time::Duration),
    /// It panicked: a fault of its program.
    #[error("it panicked: {0}")]
    Panicked(String),
}
