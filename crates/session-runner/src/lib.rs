//! Workspaces and processes of one machine: the directory of every session, and the process tree of every run.
//!
//! This crate must never know the store or HTTP. [`process`] starts programs under a keeper and ends whole
//! trees; [`workspace`] makes, describes and removes the directories of sessions.

#![forbid(unsafe_code)]

pub mod process;
pub mod workspace;
