//! The host of a data directory: the one process that writes its store and supervises its runs.
//!
//! A command either talks to it, starts it, or is it for a moment ([`link`]). Reading needs no host.

mod cleanup;
mod follow;
mod lifecycle;
mod lines;
pub mod link;
pub mod lock;
pub mod operations;
pub mod protocol;
pub mod runner_id;
mod scope;
pub mod server;
mod socket;
mod submit;
