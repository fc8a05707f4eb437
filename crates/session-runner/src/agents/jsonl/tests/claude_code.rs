//! Claude Code 2.1.329, as it was recorded.

use session_core::event::{Event, NewEvent, Seq};
use session_core::history::{Part, fold};

use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::jsonl::ClaudeCode;
use crate::agents::jsonl::protocol::{Heard, Protocol as _};
use crate::agents::said::Said;
use crate::agents::testing::{brief, id, resumed, turn};
use crate::agents::turn::{Conversation, Turn};

use super::{fixture, replay};

#[test]
fn a_conversation_begins_under_our_id() {
    let (told, end) = replay(
        ClaudeCode::new(begun("11111111-1111-4111-8111-111111111111")),
        fixture!("claude_code/new"),
        &Answer::Allow,
    );
    let expected = [
        "bound 11111111-1111-4111-8111-111111111111",
        "resumable",
        r#"message {"role":"assistant","text":"ECHO: hello there"}"#,
        "usage 4149 tokens, 16676 micros, exact; totals 4149 16676",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("ECHO: hello there".into()), stop: Stop::EndTurn });
}

#[test]
fn what_comes_in_pieces_and_again_as_a_block_is_told_once() {
    let id = "00c88092-a0a7-4673-9d4b-fd9a7df5acf1";
    let recorded = fixture!("claude_code/partial");
    let expected = [
        &format!("bound {id}")[..],
        "resumable",
        r#"thought {"text":"hmm well"}"#,
        r#"message {"role":"assistant","text":"w0 w1 w2 w3 w4 w5 "}"#,
    ];
    let (told, end) = replay(ClaudeCode::new(begun(id)), recorded, &Answer::Allow);
    assert_eq!(told[..4], expected);
    assert!(matches!(end, TurnEnd::Completed { .. }), "{end:?}");

    // Told after every line, as if each took its time; and cut off before the block is complete.
    let mut protocol = ClaudeCode::new(begun(id));
    let mut said = Vec::new();
    for line in recorded.lines() {
        let heard = protocol.hear(line).into_iter();
        said.extend(heard.filter_map(|heard| if let Heard::Said(said) = heard { Some(said) } else { None }));
        said.extend(protocol.tell());
        assert_eq!(protocol.untold(), 0);
    }
    let told = brief(&said);
    let pieces: Vec<_> = told.iter().filter(|line| line.starts_with("message")).collect();
    assert_eq!(pieces.len(), 7, "{pieces:#?}");
    assert_eq!(pieces[5], r#"message {"continues":true,"role":"assistant","text":"w5 ","unfinished":true}"#);
    assert_eq!(pieces[6], r#"message {"continues":true,"role":"assistant","text":""}"#, "its original comes");
    let original = |said: &Said| match said {
        Said::Event { payload, .. } => payload.value().unwrap()["raw"]["message"]["id"].is_string(),
        Said::Bound(_) | Said::Resumable | Said::Usage(_) | Said::Degraded(_) | Said::Progress(_) => false,
    };
    assert_eq!(said.iter().filter(|said| original(said)).count(), 2, "of the thought and of the message");

    let died: Vec<_> = recorded.lines().take(13).collect();
    let (told, end) = replay(ClaudeCode::new(begun(id)), &died.join("\n"), &Answer::Allow);
    assert_eq!(told.last().unwrap(), r#"message {"role":"assistant","text":"w0 w1 w2 "}"#);
    assert!(matches!(end, TurnEnd::Cut { .. }), "{end:?}");
}

#[test]
fn what_broke_off_and_is_said_anew_does_not_count() {
    let lines: Vec<_> = fixture!("claude_code/partial").lines().collect();
    let at = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
    // After three words of the message the model is asked again; it answers by the word, or at once and otherwise.
    let half = &lines[..at("w3 ")];
    let retry =
        r#"{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"error":"overloaded"}"#;
    let other = lines[at("w0 w1 w2")].replacen("w0 w1", "v0 v1", 1);
    let streamed = [half, &[retry], &lines[at("message_start")..]].concat();
    let last = &lines[lines.len() - 1..];
    let at_once = [half, &[retry, &other], last].concat();
    // The answer that comes at once begins with a thought, or is a call alone; or all of the message was said but its block.
    let thought = lines[at(r#""content":[{"type":"thinking""#)];
    let thoughtful = [half, &[retry, thought, &other], last].concat();
    let call = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t","name":"Bash","input":{}}]}}"#;
    let calling = [half, &[retry, call, &other], last].concat();
    let stopped = [&lines[..at("w0 w1 w2")], &[STOPPED, retry], &lines[at("message_start")..]].concat();
    for (lines, whole) in [
        (streamed, "w0 w1 w2 w3 w4 w5 "),
        (at_once, "v0 v1 w2 w3 w4 w5 "),
        (thoughtful, "v0 v1 w2 w3 w4 w5 "),
        (calling, "v0 v1 w2 w3 w4 w5 "),
        (stopped, "w0 w1 w2 w3 w4 w5 "),
    ] {
        for takes_its_time in [false, true] {
            let mut protocol = ClaudeCode::new(begun("00c88092-a0a7-4673-9d4b-fd9a7df5acf1"));
            let mut told = Vec::new();
            for line in &lines {
                told.extend(protocol.hear(line).into_iter().filter_map(|heard| match heard {
                    Heard::Said(said) => Some(said),
                    Heard::Asks(..) | Heard::Withdraws(_) | Heard::Sends(_) | Heard::Over | Heard::Wrong => {
                        None
                    }
                }));
                told.extend(if takes_its_time { protocol.tell() } else { Vec::new() });
            }
            assert_eq!(messages(&told), [whole]);
            let given_up = brief(&told).iter().filter(|line| line.contains("abandoned")).count();
            assert_eq!(given_up, usize::from(takes_its_time), "what nobody was told needs no word");
        }
    }
}

/// The end of a block, before the block itself.
const STOPPED: &str = r#"{"type":"stream_event","event":{"type":"content_block_stop","index":1}}"#;

/// What the agent said, as a reader of the log puts it together.
fn messages(told: &[Said]) -> Vec<String> {
    let (env, _) = session_core::testing::env();
    let session = env.session_id();
    let event = |(seq, said): (u64, &Said)| match said {
        Said::Event { kind, payload } => {
            let body = NewEvent { run: None, kind: kind.clone(), payload: payload.clone(), origin: None };
            Some(Event { session, seq: Seq(seq), at: env.now(), body })
        }
        Said::Bound(_) | Said::Resumable | Said::Usage(_) | Said::Degraded(_) | Said::Progress(_) => None,
    };
    let events: Vec<_> = (1..).zip(told).filter_map(event).collect();
    let parts = fold(&events).messages.into_iter().flat_map(|message| message.parts);
    parts.filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None }).collect()
}

#[test]
fn the_cost_of_a_resumed_conversation_is_that_of_the_turn() {
    let id = "11111111-1111-4111-8111-111111111111";
    let (told, end) = replay(ClaudeCode::new(resumed(id)), fixture!("claude_code/resume"), &Answer::Allow);
    assert_eq!(told[0], format!("bound {id}"));
    assert_eq!(told[3], "usage 4155 tokens, 938 micros, exact; totals 4155 17614");
    assert!(matches!(end, TurnEnd::Completed { .. }), "{end:?}");
}

#[test]
fn a_tool_is_asked_for_and_allowed() {
    let (told, end) = replay(
        ClaudeCode::new(begun("22222222-2222-4222-8222-222222222222")),
        fixture!("claude_code/allow"),
        &Answer::Allow,
    );
    let expected = [
        "bound 22222222-2222-4222-8222-222222222222",
        "resumable",
        r#"message {"role":"assistant","text":"Calling Write."}"#,
        r#"tool_call {"id":"toolu_0f93b3b834024ba281e195","input":{"content":"hi","file_path":"/p/a.txt"},"name":"Write"}"#,
        r#"asks Write "/p/a.txt" None {"content":"hi","file_path":"/p/a.txt"}"#,
        r#"> {"type":"control_response","response":{"subtype":"success","request_id":"e6599c36-898d-4ed4-bcfd-9880bfc957c2","response":{"behavior":"allow","updatedInput":{"file_path":"/p/a.txt","content":"hi"}}}}"#,
        r#"tool_result {"id":"toolu_0f93b3b834024ba281e195","output":"File created successfully at: /p/a.txt (…)"}"#,
        r#"message {"role":"assistant","text":"TOOL-RESULTS File created successfully at: /p/a.txt (…)"}"#,
        "usage 8397 tokens, 18550 micros, exact; totals 8397 18550",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Completed {
            text: Some("TOOL-RESULTS File created successfully at: /p/a.txt (…)".into()),
            stop: Stop::EndTurn
        }
    );
}

#[test]
fn a_refusal_is_a_result_and_the_turn_goes_on() {
    let (told, end) = replay(
        ClaudeCode::new(begun("33333333-3333-4333-8333-333333333333")),
        fixture!("claude_code/deny"),
        &no(),
    );
    let expected = [
        "bound 33333333-3333-4333-8333-333333333333",
        "resumable",
        r#"message {"role":"assistant","text":"Calling Bash."}"#,
        r#"tool_call {"id":"toolu_ab12f13a36504bca9f7267","input":{"command":"touch b.txt","description":"stub shell call"},"name":"Bash"}"#,
        r#"asks Bash "touch b.txt" Some(["touch b.txt"]) {"command":"touch b.txt","description":"stub shell call"}"#,
        r#"> {"type":"control_response","response":{"subtype":"success","request_id":"498e9f34-bfb9-41d3-b1fc-77aa0f572e37","response":{"behavior":"deny","message":"not in this room"}}}"#,
        r#"tool_result {"id":"toolu_ab12f13a36504bca9f7267","is_error":true,"output":"not in this room"}"#,
        r#"message {"role":"assistant","text":"TOOL-RESULTS not in this room"}"#,
        "usage 8343 tokens, 17973 micros, exact; totals 8343 17973",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Completed { text: Some("TOOL-RESULTS not in this room".into()), stop: Stop::EndTurn }
    );
}

#[test]
fn a_question_is_withdrawn_by_an_interruption() {
    let (told, end) = replay(
        ClaudeCode::new(begun("33333333-3333-4333-8333-333333333334")),
        fixture!("claude_code/interrupt_at_question"),
        &Answer::Allow,
    );
    let expected = [
        "bound 33333333-3333-4333-8333-333333333334",
        "resumable",
        r#"message {"role":"assistant","text":"Calling Bash."}"#,
        r#"tool_call {"id":"toolu_4ce8c9c41a2d49a8b6bde9","input":{"command":"touch c.txt","description":"stub shell call"},"name":"Bash"}"#,
        r#"asks Bash "touch c.txt" Some(["touch c.txt"]) {"command":"touch c.txt","description":"stub shell call"}"#,
        r#"> {"type":"control_response","response":{"subtype":"success","request_id":"43312e96-33a2-44c8-88cd-f304652f55a8","response":{"behavior":"allow","updatedInput":{"command":"touch c.txt","description":"stub shell call"}}}}"#,
        "withdraws",
        r#"tool_result {"id":"toolu_4ce8c9c41a2d49a8b6bde9","is_error":true,"output":"rejected"}"#,
        "agent.raw user",
        "usage 4165 tokens, 16964 micros, exact; totals 4165 16964",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "its turn was interrupted".into() });
}

#[test]
fn an_interruption_still_says_what_was_used() {
    let (told, end) = replay(
        ClaudeCode::new(begun("77777777-7777-4777-8777-777777777777")),
        fixture!("claude_code/interrupt"),
        &Answer::Allow,
    );
    let expected = [
        "bound 77777777-7777-4777-8777-777777777777",
        "resumable",
        r#"message {"role":"assistant","text":"w0 "}"#,
        "agent.raw user",
        "usage 4146 tokens, 16600 micros, exact; totals 4146 16600",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "its turn was interrupted".into() });
}

#[test]
fn a_tool_is_interrupted() {
    let protocol = ClaudeCode::new(begun("12121212-7777-4777-8777-777777777779"));
    let (told, end) = replay(protocol, fixture!("claude_code/interrupt_in_tool"), &Answer::Allow);
    assert!(told.iter().any(|line| line.contains(r#""is_error":true,"output":"rejected""#)), "{told:#?}");
    assert_eq!(end, TurnEnd::Failed { message: "its turn was interrupted".into() });
}

#[test]
fn what_is_not_there_cannot_be_resumed() {
    let (told, end) = replay(
        ClaudeCode::new(resumed("44444444-4444-4444-8444-444444444444")),
        fixture!("claude_code/missing"),
        &Answer::Allow,
    );
    let expected = ["over"];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Gone {
            message: "No conversation found with session ID: 44444444-4444-4444-8444-444444444444".into()
        }
    );
}

#[test]
fn a_new_conversation_that_is_not_there_failed() {
    let protocol = ClaudeCode::new(begun("44444444-4444-4444-8444-444444444444"));
    let (_, end) = replay(protocol, fixture!("claude_code/missing"), &Answer::Allow);
    assert!(matches!(end, TurnEnd::Failed { .. }), "{end:?}");
}

#[test]
fn another_conversation_is_not_taken() {
    let protocol = ClaudeCode::new(resumed("99999999-0000-4000-8000-000000000000"));
    let (told, end) = replay(protocol, fixture!("claude_code/new"), &Answer::Allow);
    assert_eq!(told, ["wrong"]);
    let got = "11111111-1111-4111-8111-111111111111".into();
    assert_eq!(end, TurnEnd::WrongConversation { wanted: id("99999999-0000-4000-8000-000000000000"), got });
}

#[test]
fn an_error_of_the_model_is_no_message() {
    let (told, end) = replay(
        ClaudeCode::new(begun("55555555-5555-4555-8555-555555555555")),
        fixture!("claude_code/error_400"),
        &Answer::Allow,
    );
    let expected = [
        "bound 55555555-5555-4555-8555-555555555555",
        "resumable",
        r#"error {"message":"API Error: 400 stub says 400"}"#,
        "usage 0 tokens, 0 micros, exact; totals 0 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Failed { message: "API Error: 400 stub says 400".into() });
}

#[test]
fn a_retry_degrades() {
    let (told, end) = replay(
        ClaudeCode::new(begun("66666666-6666-4666-8666-666666666666")),
        fixture!("claude_code/error_401"),
        &Answer::Allow,
    );
    let expected = [
        "bound 66666666-6666-4666-8666-666666666666",
        "degraded the model does not answer: authentication_failed (401), attempt 1 of 1",
        "resumable",
        r#"error {"message":"Failed to authenticate. API Error: 401 stub says 401"}"#,
        "usage 0 tokens, 0 micros, exact; totals 0 0",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Failed { message: "Failed to authenticate. API Error: 401 stub says 401".into() }
    );
}

#[test]
fn what_the_agent_thinks_is_told_apart() {
    let (told, end) = replay(
        ClaudeCode::new(begun("88888888-8888-4888-8888-888888888888")),
        fixture!("claude_code/thought"),
        &Answer::Allow,
    );
    let expected = [
        "bound 88888888-8888-4888-8888-888888888888",
        "resumable",
        r#"thought {"text":"deep thoughts"}"#,
        r#"message {"role":"assistant","text":"ECHO: STUB:THINK deep thoughts"}"#,
        "usage 4159 tokens, 16828 micros, exact; totals 4159 16828",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        end,
        TurnEnd::Completed { text: Some("ECHO: STUB:THINK deep thoughts".into()), stop: Stop::EndTurn }
    );
}

#[test]
fn a_cut_stream_is_tried_again_by_the_agent_itself() {
    let (told, end) = replay(
        ClaudeCode::new(begun("99999999-9999-4999-8999-999999999999")),
        fixture!("claude_code/retried"),
        &Answer::Allow,
    );
    let expected = [
        "bound 99999999-9999-4999-8999-999999999999",
        "degraded the model does not answer: unknown, attempt 1 of 1",
        "resumable",
        r#"message {"role":"assistant","text":"ECHO: STUB:CUT"}"#,
        "usage 8295 tokens, 33324 micros, exact; totals 8295 33324",
        "over",
    ];
    assert_eq!(told, expected);
    assert_eq!(end, TurnEnd::Completed { text: Some("ECHO: STUB:CUT".into()), stop: Stop::EndTurn });
}

/// A turn that begins the conversation of this id.
fn begun(of: &str) -> Turn {
    Turn { conversation: Conversation::New { id: id(of) }, ..turn() }
}

fn no() -> Answer {
    Answer::Deny { message: "not in this room".into() }
}

#[test]
fn what_is_allowed_is_exactly_what_was_asked() {
    let input = r#"{ "n":123456789012345678901234567890, "n": 1.10 }"#;
    let request = format!(r#"{{"subtype":"can_use_tool","tool_name":"T","input":{input}}}"#);
    let line = format!(r#"{{"type":"control_request","request_id":"q","request":{request}}}"#);
    let (told, _) = replay(ClaudeCode::new(turn()), &line, &Answer::Allow);
    assert!(told[1].contains(&format!(r#""updatedInput":{input}}}"#)), "{told:?}");
}

#[test]
fn what_it_asks_beyond_tools_is_refused_at_once() {
    let line = r#"{"type":"control_request","request_id":"7","request":{"subtype":"hook_callback"}}"#;
    let (told, end) = replay(ClaudeCode::new(turn()), line, &Answer::Allow);
    assert_eq!(told[0], "agent.raw control_request");
    assert!(told[1].contains(r#""subtype":"error""#) && told[1].contains(r#""request_id":"7""#), "{told:?}");
    assert!(matches!(end, TurnEnd::Cut { .. }), "{end:?}");
}

#[test]
fn what_was_said_before_is_told_before_the_prompt_and_only_to_a_new_conversation() {
    let primer = Some("before".to_owned());
    let opening = ClaudeCode::new(Turn { primer: primer.clone(), ..turn() }).open();
    let prompt = opening.text.lines().last().unwrap();
    let content = r#"[{"text":"before","type":"text"},{"text":"hello there","type":"text"}]"#;
    assert!(opening.stays_open && prompt.contains(content), "{prompt}");
    let opening = ClaudeCode::new(Turn { primer, ..resumed("x") }).open();
    assert!(!opening.text.contains("before"), "{}", opening.text);
}
