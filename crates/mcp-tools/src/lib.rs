//! The scribe: MCP tools by which agents find their own session again, by who they are.
//!
//! What decides is pure: what a caller said of itself and where ([`context`]), and which identity that is ([`identity`]). What
//! a tool takes and answers is a type with a schema ([`tools`]). Whoever does what a tool is called for is a [`desk::Desk`]:
//! [`own::OwnDesk`] over the ports of `session-core`, or something that passes the call on to where that is. [`server::Scribe`]
//! puts a desk before the clients of the Model Context Protocol.
//!
//! Rules that hold for every tool: a call is judged by itself, whatever connection it comes over; nothing is remembered from
//! one call to the next, so that the end of a session counts at once and everywhere; what is refused changed nothing, and says
//! what to do about it.

#![forbid(unsafe_code)]

pub mod context;
pub mod desk;
pub mod identity;
pub mod own;
pub mod refused;
pub mod server;
pub mod tools;
pub mod work;
