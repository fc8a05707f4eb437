//! Agents that do what their prompt says (`session_tests::script`), each in the words of its protocol: under the name
//! `claude` it is Claude Code, as far as it is spoken with; as `fake_agent acp` it speaks the Agent Client Protocol.

#![forbid(unsafe_code)]

mod acp;
mod claude;
mod memory;
mod turn;
mod wire;

use std::error::Error;
use std::process::ExitCode;

/// What goes wrong here is said on stderr, and ends the program.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    let mut arguments = std::env::args();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    if name.rsplit('/').next() == Some("claude") {
        return claude::speak(&arguments);
    }
    match arguments.first().map(String::as_str) {
        Some("acp") => acp::speak(),
        Some(_) | None => Err("usage: claude …, or fake_agent acp".into()),
    }
}
