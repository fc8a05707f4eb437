//! Whatever an agent prints: nothing panics, nothing is asked without bound, and without the agent's own end of the turn it
//! is never completed.

use proptest::prelude::*;

use crate::agents::asking::Answer;
use crate::agents::ending::TurnEnd;
use crate::agents::jsonl::protocol::{Heard, Protocol};
use crate::agents::jsonl::{Acp, ClaudeCode, Codex, Gemini};
use crate::agents::testing::{resumed, turn};

use super::fixture;

/// Lines of every framework, to be cut, mixed and repeated.
const RECORDED: &[&str] = &[
    fixture!("claude_code/allow"),
    fixture!("claude_code/interrupt_at_question"),
    fixture!("claude_code/error_401"),
    fixture!("claude_code/partial"),
    fixture!("codex/tool"),
    fixture!("codex/error_401"),
    fixture!("gemini/tool"),
    fixture!("acp/goose_allow"),
    fixture!("acp/goose_load"),
];

/// What no agent should print.
const ODD: &[&str] = &[
    "",
    "Welcome!",
    "null",
    "[]",
    "{}",
    "{\"type\":1}",
    "{\"type\":\"assistant\"}",
    "{\"type\":\"assistant\",\"message\":{\"content\":\"text\"}}",
    "{\"type\":\"user\",\"message\":{\"content\":[null,1,{\"type\":\"tool_result\"}]}}",
    "{\"type\":\"control_request\"}",
    "{\"type\":\"control_request\",\"request_id\":\"q\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"\\n\"}}",
    "{\"type\":\"item.completed\"}",
    "{\"type\":\"item.completed\",\"item\":{\"type\":\"web_search\"}}",
    "{\"type\":\"thread.started\"}",
    "{\"type\":\"tool_use\"}",
    "{\"type\":\"message\",\"role\":\"assistant\",\"content\":{}}",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":1}}",
    "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"sessionId\":\"s\"}}",
    "{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"session/request_permission\",\"params\":{\"options\":{}}}",
    "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":{\"sessionUpdate\":\"tool_call\",\"toolCallId\":\"t\",\"rawInput\":[]}}}",
    "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":[]}",
    "{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":null}",
];

fn protocols() -> Vec<Box<dyn Protocol>> {
    vec![
        Box::new(ClaudeCode::new(turn())),
        Box::new(ClaudeCode::new(resumed("22222222-2222-4222-8222-222222222222"))),
        Box::new(Codex::new(turn())),
        Box::new(Codex::new(resumed("x"))),
        Box::new(Gemini::new(turn())),
        Box::new(Gemini::new(resumed("097809dd-dbd0-4f81-8fd8-d49ac749bbeb"))),
        Box::new(Acp::new(turn())),
        Box::new(Acp::new(resumed("20261122_1"))),
    ]
}

/// Lines that look like what agents print, whole or torn.
fn line() -> impl Strategy<Value = String> {
    let recorded: Vec<String> =
        RECORDED.iter().flat_map(|turn| turn.lines()).chain(ODD.iter().copied()).map(str::to_owned).collect();
    let whole = proptest::sample::select(recorded);
    let torn = (whole.clone(), any::<proptest::sample::Index>()).prop_map(|(mut line, at)| {
        let at = line.floor_char_boundary(at.index(line.len() + 1));
        line.truncate(at);
        line
    });
    prop_oneof![6 => whole, 1 => torn, 1 => ".*"]
}

/// Whether a line may end a turn well, by the frameworks' own account.
fn may_complete(line: &str) -> bool {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { return false };
    value["is_error"] == false
        || value["type"] == "turn.completed"
        || value["status"] == "success"
        || value["result"]["stopReason"].is_string()
}

proptest! {
    #[test]
    fn whatever_is_said_the_turn_is_completed_only_by_its_end(
        lines in proptest::collection::vec(line(), 0..40),
        interrupt in any::<bool>(),
    ) {
        for mut protocol in protocols() {
            protocol.open();
            for line in &lines {
                for heard in protocol.hear(line) {
                    if let Heard::Asks(name, _) = heard {
                        protocol.answer(&name, Answer::Deny { message: String::new() });
                        prop_assert_eq!(protocol.answer(&name, Answer::Allow), None, "an answer is given once");
                    }
                }
            }
            if interrupt {
                protocol.interrupt();
            }
            let end = protocol.close().end;
            let completed = matches!(end, TurnEnd::Completed { .. });
            prop_assert!(!completed || lines.iter().any(|line| may_complete(line)), "{:?}", end);
        }
    }

    #[test]
    fn bytes_are_no_protocol(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        for mut protocol in protocols() {
            text.lines().for_each(|line| drop(protocol.hear(line)));
            let completed = matches!(protocol.close().end, TurnEnd::Completed { .. });
            prop_assert!(!completed);
        }
    }
}

#[test]
fn a_recorded_turn_that_is_cut_anywhere_is_never_completed() {
    for recorded in RECORDED {
        let lines: Vec<_> = recorded.lines().collect();
        let end = lines.iter().position(|line| may_complete(line)).unwrap_or(lines.len());
        for cut in 0..=end {
            for mut protocol in protocols() {
                lines[..cut].iter().for_each(|line| drop(protocol.hear(line)));
                let came = protocol.close().end;
                assert!(!matches!(came, TurnEnd::Completed { .. }), "{cut} lines: {came:?}");
            }
        }
    }
}
