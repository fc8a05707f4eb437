//! Workspaces and processes of one machine: the directory of every session, and the process tree of every run.
//!
//! This crate must never know the store or the host's own HTTP. [`process`] starts programs under a keeper and ends
//! whole trees; [`workspace`] makes, describes and removes the directories of sessions; `egress` is the way out of those
//! that may reach a list of endpoints only. `Runner` claims runs and has each executed; [`recover`] deals with what a
//! lost host left.
//!
//! Runs are executed on Linux alone: what a keeper promises wants its pidfds, its sandbox and its `/proc`. On other systems
//! there is no `Runner`, no engine is made for a session, and no other program is started.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod agents;
mod door;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
pub mod private;
#[cfg(target_os = "linux")]
pub mod remote;
pub mod scope;
pub mod workspace;

#[cfg(target_os = "linux")]
mod confinement;
#[cfg(target_os = "linux")]
pub mod doctor;
#[cfg(target_os = "linux")]
pub mod egress;
#[cfg(target_os = "linux")]
mod executors;
#[cfg(target_os = "linux")]
mod held;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
mod progress;
#[cfg(target_os = "linux")]
mod recover;
#[cfg(target_os = "linux")]
mod room;
#[cfg(target_os = "linux")]
mod runner;
#[cfg(target_os = "linux")]
mod slots;
#[cfg(target_os = "linux")]
mod tally;
#[cfg(target_os = "linux")]
mod under_way;
#[cfg(target_os = "linux")]
mod wires;

pub use door::{DirectOrder, Door, Refusal};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{
    doctor, process,
    recover::{Adopted, Recovery, recover},
    refusal::{Launcher, Room, Rooms},
};
#[cfg(target_os = "linux")]
pub use {
    agents::{Cancelling, Capabilities, Framework, Handover, NotCarried, Support, UsageQuality},
    confinement::Launcher,
    progress::Progress,
    recover::{Adopted, Recovery, recover},
    room::{Room, Rooms},
    runner::{Runner, RunnerOptions},
    wires::{Unwanted, Wire, Wires},
};
