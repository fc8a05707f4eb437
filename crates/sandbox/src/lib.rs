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
pub use level::{Gap, Holder, Level, Offer, Refusal, RefusalCode, Report, Support, Unavailable, Wanted, gaps};
pub use policy::{Field, Limits, Network, PathReason, Policy, PolicyError};
pub use seal::SealedPolicy;
