//! Workspaces: the directory of a session, and all that lies in it (SPEC section 4).
//!
//! [`prepare`] makes one or finds it again, [`environment`] says what its programs see of the world, [`log`] is
//! written by the keeper and read by everyone, [`cleanup`] decides what goes and [`remove`] does it.

#[cfg(target_os = "linux")]
pub(crate) mod agent_state;
mod archive;
pub mod cleanup;
#[cfg(target_os = "linux")]
pub(crate) mod conversation;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
pub mod environment;
mod error;
pub(crate) mod file;
mod git;
mod home;
mod layout;
pub mod log;
#[cfg(target_os = "linux")]
pub mod metadata;
mod prepare;
mod remove;
#[cfg(target_os = "linux")]
mod tree;
mod worktree;

#[cfg(not(target_os = "linux"))]
use elsewhere as tree;

pub use environment::{HostEnvironment, RunPlace, child_environment};
pub use error::WorkspaceError;
pub use git::Git;
pub use layout::{Layout, SessionDir};
#[cfg(target_os = "linux")]
pub use metadata::SessionMetadata;
pub use prepare::{Workspace, WorkspaceRequest, check_repository, prepare, was_made};
pub use remove::{Removal, Removed, finish_removals, remove};
#[cfg(target_os = "linux")]
pub(crate) use worktree::Noted;
pub use worktree::{BranchFate, WorktreeState, inspect as inspect_worktree};
