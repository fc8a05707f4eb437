//! Workspaces and processes of one machine: the directory of every session, and the process tree of every run.
//!
//! This crate must never know the store or the host's own HTTP. [`process`] starts programs under a keeper and ends
//! whole trees; [`workspace`] makes, describes and removes the directories of sessions; [`egress`] is the way out of those
//! that may reach a list of endpoints only. [`Runner`] claims runs and has each executed; [`recover`] deals with what a
//! lost host left.

#![forbid(unsafe_code)]

mod confinement;
pub mod doctor;
pub mod egress;
mod executors;
mod held;
pub mod process;
mod progress;
mod recover;
mod room;
mod runner;
pub mod scope;
mod slots;
pub mod workspace;

pub use confinement::Launcher;
pub use progress::Progress;
pub use recover::{Adopted, Recovery, recover};
pub use room::{Door, Refusal, Room, Rooms};
pub use runner::{DirectOrder, Runner, RunnerOptions};
