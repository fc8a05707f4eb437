//! Types, state machines and ports of roomette.

#![forbid(unsafe_code)]

pub mod env;
pub mod ids;
pub mod session;

pub use env::{Clock, Env, IdSource};
pub use ids::{CrewId, Id, IdError, RunId, RunnerId, SessionId, SessionRef};
pub use session::WorkspaceKind;
