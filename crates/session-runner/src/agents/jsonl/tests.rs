//! The parsers against what real agents printed, and the shell against an agent at the other end of a pair of pipes.

mod acp;
mod claude_code;
mod codex;
mod gemini;
mod holding;
mod hostile;
mod scripted;
mod wire;

use super::protocol::{Heard, Protocol};
use crate::agents::asking::Answer;
use crate::agents::ending::TurnEnd;
use crate::agents::testing::brief;

/// What a framework's recorded lines mean, one short line each, and what the turn came to. Questions get this answer; lines
/// of progress are left out.
fn replay(mut protocol: impl Protocol, recorded: &str, answer: &Answer) -> (Vec<String>, TurnEnd) {
    let mut told = Vec::new();
    protocol.open();
    for line in recorded.lines() {
        for heard in protocol.hear(line) {
            match heard {
                Heard::Said(said) => told.extend(brief(&[said])),
                Heard::Asks(name, ask) => {
                    told.push(format!("asks {} {:?} {:?} {:?}", ask.tool, ask.title, ask.command, ask.input));
                    told.extend(protocol.answer(&name, answer.clone()).map(|line| format!("> {line}")));
                }
                Heard::Withdraws(_) => told.push("withdraws".into()),
                Heard::Sends(line) => told.push(format!("> {line}")),
                Heard::Over => told.push("over".into()),
                Heard::Wrong => {
                    told.push("wrong".into());
                    return (told, protocol.close().end);
                }
            }
        }
    }
    let closing = protocol.close();
    told.extend(brief(&closing.said));
    told.retain(|line| !line.starts_with("progress "));
    (told, closing.end)
}

/// A recorded turn.
macro_rules! fixture {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/agents/jsonl/fixtures/", $path, ".jsonl"))
    };
}
use fixture;
