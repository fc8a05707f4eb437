//! Agents that print one JSON object a line: one shell, and one parser a framework.
//!
//! A [`Protocol`](protocol::Protocol) is pure: lines go in, what they mean comes out, and nothing it is told makes it
//! fail. [`JsonLines`] does what it says: it reads with a longest line, writes without ever waiting for the agent while the
//! agent waits for it, and keeps the time.

mod acp;
mod claude_code;
mod codex;
mod gemini;
mod pen;
mod protocol;
mod shell;
#[cfg(test)]
mod tests;

pub(super) use acp::Acp;
pub(super) use claude_code::ClaudeCode;
pub(super) use codex::Codex;
pub(super) use gemini::Gemini;
pub(super) use shell::JsonLines;
