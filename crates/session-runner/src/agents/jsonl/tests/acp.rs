//! Agents that speak the Agent Client Protocol, as they were recorded: Goose 1.50, claude-agent-acp 0.100, codex-acp 2.6
//! and `OpenCode` 1.18.

use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::jsonl::Acp;
use crate::agents::testing::{resumed, turn};
use crate::agents::turn::Turn;

use super::{fixture, replay};

#[test]
fn a_session_begins_in_a_mode_that_asks() {
    let (told, end) = replay(Acp::new(turn()), fixture!("acp/goose_new"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 20261122_7",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"approve","sessionId":"20261122_7"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"20261122_7"}}"#,
        r#"message {"role":"assistant","text":"STORED apple"}"#,
        "resumable",
        "usage 1214 tokens, 3058 micros, last_call; totals 1214 3058",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("STORED apple".into()), stop: Stop::EndTurn });
}

#[test]
fn what_is_loaded_is_not_told_again() {
    let (told, end) = replay(Acp::new(resumed("20261122_7")), fixture!("acp/goose_load"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/load","params":{"cwd":"/p","mcpServers":[],"sessionId":"20261122_7"}}"#,
        "bound 20261122_7",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"approve","sessionId":"20261122_7"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"20261122_7"}}"#,
        r#"message {"role":"assistant","text":"RECALLED apple"}"#,
        "resumable",
        "usage 1284 tokens, 4781 micros, last_call; totals 1284 4781",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("RECALLED apple".into()), stop: Stop::EndTurn });
}

#[test]
fn what_is_not_there_cannot_be_loaded() {
    let (told, end) = replay(Acp::new(resumed("x")), fixture!("acp/goose_missing"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/load","params":{"cwd":"/p","mcpServers":[],"sessionId":"x"}}"#,
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Gone {
            message: "Resource not found: Session not found: 01990000-0000-7000-8000-000000000000".into()
        }
    );
}

#[test]
fn nor_resumed() {
    let (told, end) = replay(Acp::new(resumed("x")), fixture!("acp/opencode_missing"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/resume","params":{"cwd":"/p","mcpServers":[],"sessionId":"x"}}"#,
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Gone { message: "Internal error: OpenCode service failure".into() });
}

#[test]
fn a_tool_is_asked_for_and_allowed() {
    let (told, end) = replay(Acp::new(turn()), fixture!("acp/goose_allow"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 20261122_8",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"approve","sessionId":"20261122_8"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"20261122_8"}}"#,
        r#"message {"role":"assistant","text":"Calling shell."}"#,
        r#"tool_call {"id":"call_f6bbee78fd494d47a267","input":{"command":"touch q1"},"name":"shell"}"#,
        r#"asks shell "shell · touch q1" Some(["touch q1"]) {"command":"touch q1"}"#,
        r#"> {"id":"005a4e79-2559-43e9-94d9-0d023a592cd6","jsonrpc":"2.0","result":{"outcome":{"optionId":"allow_once","outcome":"selected"}}}"#,
        r#"tool_result {"id":"call_f6bbee78fd494d47a267","output":{"exit_code":0,"stderr":"","stdout":""}}"#,
        r#"message {"role":"assistant","text":"TOOL-RESULTS (no output)"}"#,
        "resumable",
        "usage 1231 tokens, 4725 micros, last_call; totals 1231 4725",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Completed { text: Some("TOOL-RESULTS (no output)".into()), stop: Stop::EndTurn }
    );
}

#[test]
fn a_call_that_comes_bit_by_bit_is_told_when_it_is_asked_for() {
    let (told, end) = replay(Acp::new(turn()), fixture!("acp/claude_allow"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 3b5560df-7d53-4991-9911-e0ac74f66f88",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"default","sessionId":"3b5560df-7d53-4991-9911-e0ac74f66f88"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"3b5560df-7d53-4991-9911-e0ac74f66f88"}}"#,
        r#"message {"role":"assistant","text":"Calling Bash."}"#,
        r#"tool_call {"id":"toolu_f42cf83eed5d42638e5356","input":{"command":"touch q1","description":"stub shell call"},"name":"Bash"}"#,
        r#"asks Bash "touch q1" Some(["touch q1"]) {"command":"touch q1","description":"stub shell call"}"#,
        r#"> {"id":0,"jsonrpc":"2.0","result":{"outcome":{"optionId":"allow-once","outcome":"selected"}}}"#,
        r#"tool_result {"id":"toolu_f42cf83eed5d42638e5356","output":"(Bash completed with no output)"}"#,
        r#"message {"role":"assistant","text":"TOOL-RESULTS (Bash completed with no output)"}"#,
        "resumable",
        "usage 8732 tokens, 20565 micros, exact; totals 8732 20565",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Completed {
            text: Some("TOOL-RESULTS (Bash completed with no output)".into()),
            stop: Stop::EndTurn
        }
    );
}

#[test]
fn a_refusal_may_end_the_turn() {
    let (told, end) = replay(Acp::new(in_mode("workspace-write")), fixture!("acp/codex_esc"), &no());
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 01a20117-a279-7902-89ee-07c66318d518",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"workspace-write","sessionId":"01a20117-a279-7902-89ee-07c66318d518"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"01a20117-a279-7902-89ee-07c66318d518"}}"#,
        "message {\"role\":\"assistant\",\"text\":\"Warning: no metadata of this model\\n\\n\"}",
        r#"message {"role":"assistant","text":"Calling exec_command."}"#,
        r#"tool_call {"id":"call_7ea0a249b1ea4bb596c9","input":{"command":"touch q4","cwd":"/p"},"name":"execute"}"#,
        r#"asks execute "touch q4" Some(["touch q4"]) {"command":"touch q4","cwd":"/p"}"#,
        r#"> {"id":0,"jsonrpc":"2.0","result":{"outcome":{"optionId":"cancel","outcome":"selected"}}}"#,
        r#"tool_result {"id":"call_7ea0a249b1ea4bb596c9","is_error":true,"output":[{"terminalId":"call_7ea0a249b1ea4bb596c9","type":"terminal"}]}"#,
        "resumable",
        "usage 5991 tokens, 0 micros, exact; totals 5991 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("Calling exec_command.".into()), stop: Stop::Denied });
}

#[test]
fn a_cancelled_turn_is_not_completed() {
    let (told, end) = replay(Acp::new(turn()), fixture!("acp/goose_cancel"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 20261122_10",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"approve","sessionId":"20261122_10"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"20261122_10"}}"#,
        r#"message {"role":"assistant","text":"w0 "}"#,
        "resumable",
        "usage 0 tokens, 0 micros, unknown; totals 0 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "its turn was cancelled".into() });
}

#[test]
fn nor_is_one_whose_question_was_cancelled() {
    let (told, end) = replay(Acp::new(turn()), fixture!("acp/goose_askcut"), &Answer::Cancelled);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 20261122_11",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"approve","sessionId":"20261122_11"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"20261122_11"}}"#,
        r#"message {"role":"assistant","text":"Calling shell."}"#,
        r#"tool_call {"id":"call_a5515fc420854c98bdc7","input":{"command":"touch q3"},"name":"shell"}"#,
        r#"asks shell "shell · touch q3" Some(["touch q3"]) {"command":"touch q3"}"#,
        r#"> {"id":"82f4af44-7bac-4f29-85b1-152888c2fbc8","jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#,
        "resumable",
        "usage 0 tokens, 0 micros, unknown; totals 0 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "its turn was cancelled".into() });
}

#[test]
fn an_error_of_the_model_is_an_error_of_the_prompt() {
    let (told, end) = replay(Acp::new(turn()), fixture!("acp/claude_e400"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound aebd6d5e-27f7-4457-a18e-3ee9c1e6c681",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"default","sessionId":"aebd6d5e-27f7-4457-a18e-3ee9c1e6c681"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"aebd6d5e-27f7-4457-a18e-3ee9c1e6c681"}}"#,
        r#"message {"role":"assistant","text":"API Error: 400 stub says 400"}"#,
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "Internal error: API Error: 400 stub says 400".into() });
}

#[test]
fn or_only_a_broken_thread() {
    let (told, end) = replay(Acp::new(in_mode("read-only")), fixture!("acp/codex_e400"), &Answer::Allow);
    let expected = [
        r#"> {"id":2,"jsonrpc":"2.0","method":"session/new","params":{"cwd":"/p","mcpServers":[]}}"#,
        "bound 01a20114-dafe-7b02-970f-92b72efac11e",
        r#"> {"id":3,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"read-only","sessionId":"01a20114-dafe-7b02-970f-92b72efac11e"}}"#,
        r#"> {"id":5,"jsonrpc":"2.0","method":"session/prompt","params":{"prompt":[{"text":"hello there","type":"text"}],"sessionId":"01a20114-dafe-7b02-970f-92b72efac11e"}}"#,
        "message {\"role\":\"assistant\",\"text\":\"Warning: no metadata of this model\\n\\n{\\\"error\\\": {\\\"message\\\": \\\"stub says 400\\\", \\\"type\\\": \\\"invalid_request_error\\\", \\\"code\\\": \\\"invalid_request_error\\\", \\\"param\\\": null}}\\n\\n\"}",
        "resumable",
        "usage 0 tokens, 0 micros, unknown; totals 0 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "Warning: no metadata of this model\n\n{\"error\": {\"message\": \"stub says 400\", \"type\": \"invalid_request_error\", \"code\": \"invalid_request_error\", \"param\": null}}\n\n".into() });
}

#[test]
fn what_is_allowed_beyond_the_sandbox_runs() {
    let protocol = Acp::new(in_mode("workspace-write"));
    let (told, end) = replay(protocol, fixture!("acp/codex_escok"), &Answer::Allow);
    assert!(told.iter().any(|line| line.starts_with("asks execute")), "{told:#?}");
    assert!(told.iter().any(|line| line.starts_with("tool_result")), "{told:#?}");
    assert!(matches!(end, TurnEnd::Completed { stop: Stop::EndTurn, .. }), "{end:?}");
}

fn in_mode(mode: &str) -> Turn {
    Turn { mode: Some(mode.into()), ..turn() }
}

fn no() -> Answer {
    Answer::Deny { message: "no".into() }
}
