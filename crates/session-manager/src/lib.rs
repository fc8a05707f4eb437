//! Dispatch of runs over the ports of `session-core`: what is checked before a run is enqueued, who may have it, and
//! what becomes of it when its host goes away.
//!
//! This crate decides and coordinates. It never knows a database, a process or a network: a store comes in as
//! `Arc<dyn Store>`, and what is alive on a machine is told to it by the runner.
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

pub use dispatch::{Coordinator, DispatchError, DispatchOptions, Draft, Submission, Task, TaskSession};
pub use error::{
    ChangeError, OpenError, ResumeError, SpendError, StartError, StateError, TrackError, UseError,
};
pub use guards::{InFlight, Resuming};
pub use handle::SessionHandle;
pub use manager::{Keyed, Parting, SessionManager, SessionRequest, SessionView, ShutdownReport, Terminated};
pub use options::ManagerOptions;
pub use spending::Spending;
pub use sweeper::SweepReport;
