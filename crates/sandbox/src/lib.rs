//! A scope that the kernel enforces.

#![forbid(unsafe_code)]

pub mod guard;
mod launch;
pub mod launcher;
mod level;
#[cfg(target_os = "linux")]
mod linux;
mod policy;
mod seal;
mod wire;

pub use launch::{ANSWER_WAIT_MAX, Confined, LaunchError};
pub use level::{
    Gap, Holder, Level, Offer, Refusal, RefusalCode, Report, Support, Unavailable, Wanted, gaps,
};
pub use policy::{
    Field, Limits, MEMORY_BYTES_MIN, Network, OPEN_FILES_MIN, PATH_BYTES_MAX, PATHS_MAX, PROCESSES_MIN,
    PathReason, Policy, PolicyError, VARIABLES_MAX,
};
pub use seal::SealedPolicy;
