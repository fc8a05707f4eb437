//! Many sessions in one process, live and governed: [`SessionManager`]. And the dispatch of runs over the ports of
//! `session-core`: [`Coordinator`].
//!
//! This crate decides and coordinates. It never knows a database, a process or a network: what is alive behind a session
//! comes from a [`SessionFactory`](session_core::ports::SessionFactory), what happens to it is reported to a
//! [`LifecycleSink`](session_core::ports::LifecycleSink), and a store comes in as `Arc<dyn Store>`.
//!
//! # A session's life
//!
//! ```text
//!           create           nothing for the idle timeout
//!   (none) ────────▶ active ───────────────────────────────▶ idle
//!                     ▲    ◀─────────── any use ───────────── │
//!                     │                                       │ nothing for twice as long again,
//!                     │ the last step of a resume             │ `suspend`, or somebody needs the place
//!                     │                                       ▼
//!                     └────────────────────────────────── suspended ──▶ (none)
//!                                                             suspended for too long
//! ```
//!
//! Whatever has an engine takes one of the places ([`Limits`](options::Limits)); from everywhere
//! [`terminate`](SessionManager::terminate) leads to the end. Each engine is let go of exactly once. A session in which a run
//! is in flight ([`InFlight`]) is neither idle nor suspended, and never gives way. A suspended one comes back in three steps
//! ([`Resuming`]), and is not open before the third.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use session_core::names::Principal;
//! use session_core::ports::{Engine, EngineError, Release, SessionFactory};
//! use session_core::{Env, ManagedSession, TerminationReason};
//! use session_manager::{ManagerOptions, Parting, SessionManager, SessionRequest};
//!
//! struct Echo;
//!
//! #[async_trait::async_trait]
//! impl Engine for Echo {
//!     async fn suspend(&self) -> Result<(), EngineError> { Ok(()) }
//!     async fn shutdown(&self, _why: Release) {}
//! }
//!
//! struct Echoes;
//!
//! #[async_trait::async_trait]
//! impl SessionFactory for Echoes {
//!     type Engine = Echo;
//!     async fn create(&self, _session: &ManagedSession) -> Result<Echo, EngineError> { Ok(Echo) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = SessionManager::new(Env::system(), ManagerOptions::default(), Echoes, Arc::new(()))?;
//! let session = manager.create(SessionRequest::new(Principal::new("me")?)).await?.id();
//! {
//!     let run = manager.acquire(session).await?; // the session stays until this is dropped
//!     assert_eq!(run.handle().id(), session);
//! }
//! manager.suspend(session).await?; // or later by itself, where `run_sweeper` runs
//!
//! let resuming = manager.begin_resume(session).await?; // 1. an engine again, under the same id
//! // 2. reconstruct the conversation from a log, 3. have the engine take it over, and:
//! resuming.complete().await?;
//!
//! let over = Parting::Terminate(TerminationReason::Stopped);
//! assert!(manager.shutdown(over, Duration::from_secs(10)).await.joined);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed.rs` is a whole program with a log of its own.
//!
//! # A run's life
//!
//! ```text
//! Submission ──▶ Coordinator::submit ──▶ queue ──▶ claim ──▶ advance … renew … finish
//!                                                   ▲                        │
//!                                  recovery::decide ┴── host lost ◀──────────┘
//! ```

#![forbid(unsafe_code)]

pub mod crew;
pub mod dispatch;
pub mod error;
pub mod eviction;
mod guards;
mod handle;
pub mod manager;
pub mod options;
mod recorded;
pub mod recovery;
pub mod registry;
mod spending;
mod steady;
mod sweeper;

pub use dispatch::{
    Coordinator, DispatchError, DispatchOptions, Dispatcher, Draft, Heard, Holding, Submission, Task,
    TaskSession,
};
pub use error::{
    ChangeError, OpenError, ResumeError, SpendError, StartError, StateError, TrackError, UseError,
};
pub use guards::{InFlight, Resuming};
pub use handle::SessionHandle;
pub use manager::{Keyed, Parting, SessionManager, SessionRequest, SessionView, ShutdownReport, Terminated};
pub use options::ManagerOptions;
pub use spending::Spending;
pub use sweeper::SweepReport;
