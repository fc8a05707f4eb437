//! Any stdio MCP server over HTTP, one confined process for each client session.
//!
//! What decides is pure: what a message is ([`envelope`]), which directories a client may open ([`roots`]), when a session's
//! scope is locked ([`gate`]), whose message is whose ([`router`]), and what a session does about all of it ([`talk`]). What
//! acts is a task for each server process, and [`http`] before them. Processes and records come from a [`host::Host`].

#![forbid(unsafe_code)]

mod answers;
mod board;
mod bridge;
mod commons;
mod conversation;
pub mod envelope;
pub mod gate;
pub mod host;
pub mod http;
pub mod id;
mod inquiry;
mod level;
pub mod modern;
pub mod params;
mod places;
mod process;
pub mod replay;
pub mod revision;
pub mod roots;
pub mod router;
pub mod settings;
mod shares;
pub mod talk;
mod wire;

#[cfg(test)]
mod testing;
