//! The HTTP API over the ports of `session-core`: routes, authentication, streams of events, and the server that bounds
//! its connections.
//!
//! [`router`] is the whole API as a value; [`serve::serve`] puts it on a socket. What the process around it does with what
//! is asked for (settling a sandbox, ending what is alive) comes in through [`state::Host`].
//!
//! Rules that hold for every route: what is refused is a problem with a code (RFC 9457); what is another principal's is
//! answered as if it did not exist; bodies, waits, pages and readers are bounded by [`state::Limits`].

#![forbid(unsafe_code)]

mod auth;
mod extract;
mod guard;
mod metrics;
mod openapi;
mod pages;
mod problem;
mod readers;
mod remembered;
mod routes;
pub mod serve;
mod sse;
mod stall;
pub mod state;

pub use openapi::document;
pub use routes::{Acting, router, router_with};
