//! Workspaces: the directory of a session, and all that lies in it.

pub mod environment;
pub(crate) mod file;
pub mod log;
