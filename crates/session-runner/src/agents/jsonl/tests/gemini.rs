//! Gemini CLI 0.61, as it was recorded.

use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::jsonl::Gemini;
use crate::agents::testing::{id, resumed};

use super::{fixture, replay};

#[test]
fn pieces_are_one_message() {
    let (told, end) = replay(
        Gemini::new(resumed("097809dd-dbd0-4f81-8fd8-d49ac749bbeb")),
        fixture!("gemini/tool"),
        &Answer::Allow,
    );
    let expected = [
        "bound 097809dd-dbd0-4f81-8fd8-d49ac749bbeb",
        "resumable",
        r#"message {"role":"assistant","text":"Calling run_shell_command."}"#,
        r#"tool_call {"id":"run_shell_command__fc-5154afd3","input":{"command":"echo from-tool","description":"stub shell call"},"name":"run_shell_command"}"#,
        r#"tool_result {"id":"run_shell_command__fc-5154afd3","output":"from-tool"}"#,
        "message {\"role\":\"assistant\",\"text\":\"TOOL-RESULTS {\\\"output\\\": \\\"<untrusted_context>\\\\nOutput: from-tool\\\\nProcess Group PGID: 12802\\\\n</untrusted_context>\\\"}\"}",
        "usage 17092 tokens, 0 micros, exact; totals 17092 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("TOOL-RESULTS {\"output\": \"<untrusted_context>\\nOutput: from-tool\\nProcess Group PGID: 12802\\n</untrusted_context>\"}".into()), stop: Stop::EndTurn });
}

#[test]
fn an_error_of_the_model_ends_the_turn() {
    let (told, end) = replay(
        Gemini::new(resumed("fd96aa7e-4571-45f7-ae64-b37d666dbd97")),
        fixture!("gemini/error_400"),
        &Answer::Allow,
    );
    let expected = [
        "bound fd96aa7e-4571-45f7-ae64-b37d666dbd97",
        "usage 705 tokens, 0 micros, exact; totals 705 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "[API Error: {\"error\":{\"code\":400,\"message\":\"stub says 400\",\"status\":\"INVALID_ARGUMENT\"}}]".into() });
}

#[test]
fn so_does_a_refused_key() {
    let (told, end) = replay(
        Gemini::new(resumed("34e736ba-a472-4c8c-bebc-f3df8fc55839")),
        fixture!("gemini/error_401"),
        &Answer::Allow,
    );
    let expected = [
        "bound 34e736ba-a472-4c8c-bebc-f3df8fc55839",
        "usage 705 tokens, 0 micros, exact; totals 705 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "[API Error: {\"error\":{\"code\":401,\"message\":\"stub says 401\",\"status\":\"UNAUTHENTICATED\"}}]".into() });
}

#[test]
fn a_stream_that_the_model_cut_ends_the_turn() {
    let (told, end) = replay(
        Gemini::new(resumed("20695bc3-7fdc-4562-b02b-b81b2dbefafd")),
        fixture!("gemini/cut_by_model"),
        &Answer::Allow,
    );
    let expected = [
        "bound 20695bc3-7fdc-4562-b02b-b81b2dbefafd",
        "resumable",
        r#"message {"role":"assistant","text":"ECHO: STUB:CUT"}"#,
        "usage 704 tokens, 0 micros, exact; totals 704 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "[API Error: terminated]".into() });
}

#[test]
fn without_a_result_it_is_cut() {
    let (told, end) = replay(
        Gemini::new(resumed("b52b10ba-3b8b-47b0-8ec0-a760cfa6a16c")),
        fixture!("gemini/killed"),
        &Answer::Allow,
    );
    let expected = [
        "bound b52b10ba-3b8b-47b0-8ec0-a760cfa6a16c",
        "resumable",
        r#"message {"role":"assistant","text":"w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 "}"#,
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Cut { message: "its output ended before its turn did".into() });
}

#[test]
fn a_tool_that_fails_is_a_failed_tool() {
    let protocol = Gemini::new(resumed("9c0209d0-fc9d-4862-8749-f41ba3b4af26"));
    let (told, end) = replay(protocol, fixture!("gemini/tool_failed"), &Answer::Allow);
    assert!(told[4].starts_with("tool_result") && told[4].contains(r#""is_error":true"#), "{told:#?}");
    assert!(matches!(end, TurnEnd::Completed { .. }), "{end:?}");
}

#[test]
fn what_was_used_is_of_the_turn_and_summed_up_by_us() {
    let id = "aaaaaaaa-1111-4111-8111-111111111111";
    for (recorded, tokens) in [(fixture!("gemini/new"), 8848), (fixture!("gemini/resume"), 8860)] {
        let (told, end) = replay(Gemini::new(resumed(id)), recorded, &Answer::Allow);
        assert_eq!(told[0], format!("bound {id}"));
        let expected = format!("usage {tokens} tokens, 0 micros, exact; totals {tokens} 0");
        assert_eq!(told[3], expected);
        assert!(matches!(end, TurnEnd::Completed { stop: Stop::EndTurn, .. }), "{end:?}");
    }
}

#[test]
fn another_conversation_is_not_taken() {
    let (told, end) = replay(Gemini::new(resumed("x")), fixture!("gemini/new"), &Answer::Allow);
    assert_eq!(told, ["wrong"]);
    let got = "aaaaaaaa-1111-4111-8111-111111111111".into();
    assert_eq!(end, TurnEnd::WrongConversation { wanted: id("x"), got });
}
