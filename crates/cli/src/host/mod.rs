//! The host of a data directory: the one process that writes its store and supervises its runs.
//!
//! A command either talks to it, starts it, or is it for a moment ([`link`]). Reading needs no host. Where no run can be
//! started, which is everywhere but on Linux, none stays.

mod asked;
mod cleanup;
mod legacy;
mod lifecycle;
pub mod lock;
pub mod operations;
pub mod protocol;
pub mod runner_id;
mod scope;
mod submit;
mod tokens;

#[cfg(target_os = "linux")]
pub mod bridge;
#[cfg(target_os = "linux")]
mod follow;
#[cfg(target_os = "linux")]
pub mod http;
#[cfg(target_os = "linux")]
mod lines;
#[cfg(target_os = "linux")]
pub mod link;
#[cfg(not(target_os = "linux"))]
pub mod link_elsewhere;
#[cfg(target_os = "linux")]
pub mod server;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod tending;
#[cfg(target_os = "linux")]
mod tools;

#[cfg(not(target_os = "linux"))]
pub use link_elsewhere as link;
