//! Codex 0.169, as it was recorded.

use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::jsonl::Codex;
use crate::agents::testing::{id, resumed, turn};
use crate::agents::turn::{Conversation, Totals, Turn};

use super::{fixture, replay};

#[test]
fn a_thread_has_an_id_of_its_own() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/new"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-b71c-77a2-a41d-03b9f1707942",
        r#"error {"message":"no metadata of this model"}"#,
        "resumable",
        r#"message {"role":"assistant","text":"ECHO: hello there"}"#,
        "usage 4972 tokens, 0 micros, exact; totals 4972 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("ECHO: hello there".into()), stop: Stop::EndTurn });
}

#[test]
fn what_a_resumed_thread_used_is_what_came_since() {
    let thread = "01a200ed-b71c-77a2-a41d-03b9f1707942";
    let totals = Totals { tokens: 4972, cost_micros: 0 };
    let turn = Turn { conversation: Conversation::Resumed { id: id(thread), totals }, ..turn() };
    let (told, end) = replay(Codex::new(turn), fixture!("codex/resume"), &Answer::Allow);
    assert_eq!(told[0], format!("bound {thread}"));
    assert_eq!(told[4], "usage 4978 tokens, 0 micros, exact; totals 9950 0");
    assert!(matches!(end, TurnEnd::Completed { .. }), "{end:?}");
}

#[test]
fn a_thread_that_was_not_asked_for_is_not_taken() {
    let wanted = "01a200ed-b71c-77a2-a41d-03b9f1707942";
    let (told, end) = replay(Codex::new(resumed(wanted)), fixture!("codex/another_thread"), &Answer::Allow);
    assert_eq!(told, ["wrong"]);
    let got = "01a200ed-bc71-75d2-88e9-e66d88bd403a".into();
    assert_eq!(end, TurnEnd::WrongConversation { wanted: id(wanted), got });
}

#[test]
fn a_command_is_a_tool() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/tool"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-be86-7101-b545-81359c8cb040",
        r#"error {"message":"no metadata of this model"}"#,
        "resumable",
        r#"message {"role":"assistant","text":"Calling exec_command."}"#,
        r#"tool_call {"id":"item_2","input":{"command":"/bin/bash -lc 'echo from-tool'"},"name":"shell"}"#,
        "tool_result {\"id\":\"item_2\",\"output\":{\"exit_code\":0,\"output\":\"from-tool\\n\"}}",
        "message {\"role\":\"assistant\",\"text\":\"TOOL-RESULTS Chunk ID: 9263b1\\nWall time: 0.0000 seconds\\nProcess exited with code 0\\nOriginal token count: 3\\nOutput:\\nfrom-tool\"}",
        "usage 10007 tokens, 0 micros, exact; totals 10007 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("TOOL-RESULTS Chunk ID: 9263b1\nWall time: 0.0000 seconds\nProcess exited with code 0\nOriginal token count: 3\nOutput:\nfrom-tool".into()), stop: Stop::EndTurn });
}

#[test]
fn a_command_that_fails_is_a_failed_tool() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/tool_failed"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-c14a-78f3-9e4d-5a5eebe061ab",
        r#"error {"message":"no metadata of this model"}"#,
        "resumable",
        r#"message {"role":"assistant","text":"Calling exec_command."}"#,
        r#"tool_call {"id":"item_2","input":{"command":"/bin/bash -lc false"},"name":"shell"}"#,
        r#"tool_result {"id":"item_2","is_error":true,"output":{"exit_code":1,"output":""}}"#,
        "message {\"role\":\"assistant\",\"text\":\"TOOL-RESULTS Chunk ID: 56d50c\\nWall time: 0.0000 seconds\\nProcess exited with code 1\\nOriginal token count: 0\\nOutput:\"}",
        "usage 9993 tokens, 0 micros, exact; totals 9993 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("TOOL-RESULTS Chunk ID: 56d50c\nWall time: 0.0000 seconds\nProcess exited with code 1\nOriginal token count: 0\nOutput:".into()), stop: Stop::EndTurn });
}

#[test]
fn what_the_agent_thinks_is_told_apart() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/thought"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-c40a-74f1-bb1a-401538a90c6b",
        r#"error {"message":"no metadata of this model"}"#,
        "resumable",
        r#"thought {"text":"deep thoughts"}"#,
        r#"message {"role":"assistant","text":"ECHO: STUB:THINK deep thoughts"}"#,
        "usage 4983 tokens, 0 micros, exact; totals 4983 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Completed { text: Some("ECHO: STUB:THINK deep thoughts".into()), stop: Stop::EndTurn }
    );
}

#[test]
fn an_error_of_the_model_ends_the_turn() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/error_400"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-c642-7973-8604-dec5778ab14e",
        r#"error {"message":"no metadata of this model"}"#,
        "error {\"message\":\"{\\\"error\\\": {\\\"message\\\": \\\"stub says 400\\\", \\\"type\\\": \\\"invalid_request_error\\\", \\\"code\\\": \\\"invalid_request_error\\\", \\\"param\\\": null}}\"}",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "{\"error\": {\"message\": \"stub says 400\", \"type\": \"invalid_request_error\", \"code\": \"invalid_request_error\", \"param\": null}}".into() });
}

#[test]
fn reconnecting_degrades() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/error_401"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-c83f-7e63-ad32-017a9925190f",
        r#"error {"message":"no metadata of this model"}"#,
        "degraded Reconnecting... 1/1 (unexpected status 401 Unauthorized: stub says 401, url: http://model.test/v1/responses)",
        r#"error {"message":"unexpected status 401 Unauthorized: stub says 401, url: http://model.test/v1/responses"}"#,
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Failed {
            message: "unexpected status 401 Unauthorized: stub says 401, url: http://model.test/v1/responses"
                .into()
        }
    );
}

#[test]
fn a_stream_that_the_model_cut_ends_the_turn() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/cut_by_model"), &Answer::Allow);
    let expected = [
        "bound 01a200ed-cb4a-7ec0-b3d5-917285ac4f9c",
        r#"error {"message":"no metadata of this model"}"#,
        "degraded Reconnecting... 1/1 (stream disconnected before completion: Transport error: network error: error decoding response body)",
        r#"error {"message":"stream disconnected before completion: Transport error: network error: error decoding response body"}"#,
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "stream disconnected before completion: Transport error: network error: error decoding response body".into() });
}

#[test]
fn without_an_end_of_the_turn_it_is_cut() {
    let (told, end) = replay(Codex::new(turn()), fixture!("codex/killed"), &Answer::Allow);
    let expected =
        ["bound 01a200ed-ce52-7893-975d-ff1b1da25f79", r#"error {"message":"no metadata of this model"}"#];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Cut { message: "its output ended before its turn did".into() });
}

#[test]
fn an_item_that_was_never_begun_has_a_call_as_well() {
    let line = r#"{"type":"item.completed","item":{"id":"i","type":"file_change","changes":[],"status":"completed"}}"#;
    let (told, _) = replay(Codex::new(turn()), line, &Answer::Allow);
    assert_eq!(told[1], r#"tool_call {"id":"i","input":{"changes":[]},"name":"apply_patch"}"#);
    assert_eq!(told[2], r#"tool_result {"id":"i","output":{"changes":[],"status":"completed"}}"#);
}

#[test]
fn a_prompt_that_is_not_there_ended_without_saying_anything() {
    let (told, end) = replay(Codex::new(resumed("x")), "", &Answer::Allow);
    assert_eq!((told.len(), end), (0, TurnEnd::Cut { message: "it ended without saying anything".into() }));
}
