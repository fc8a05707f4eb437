//! What reconstruction makes of logs, by example and by property.

use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::event::{EventKind, NewEvent, Payload};
use crate::ids::{RunId, SessionId};

/// A log of these entries, numbered from 1; payloads as they stand in a record.
fn log<S: Into<String>>(entries: impl IntoIterator<Item = (&'static str, S)>) -> Vec<Event> {
    let session = SessionId::from_uuid(uuid::Uuid::from_u128(1)).unwrap();
    let event = |(seq, (kind, payload)): (u64, (&str, S))| {
        let (kind, payload) = (kind.parse::<EventKind>().unwrap(), Payload::from_record(payload.into()));
        let body = NewEvent { run: None, kind, payload, origin: None };
        Event { session, seq: Seq(seq), at: jiff::Timestamp::UNIX_EPOCH, body }
    };
    (1..).zip(entries).map(event).collect()
}

/// A history in short: `u(text)`, `a(thought? text? call:id…)`, `t(id=output…)`, `s(text)`.
fn short(history: &History) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Thought(text) => format!("<{text}>"),
        Part::ToolCall { id, name, input } if *input == json!({}) => format!("{name}:{id}"),
        Part::ToolCall { id, name, input } => format!("{name}:{id}{input}"),
        Part::ToolResult { id, output, is_error } => {
            format!("{id}={output}{}", if *is_error { "!" } else { "" })
        }
    };
    let message = |message: &Message| {
        let letter = match message.role {
            Role::User => "u",
            Role::Assistant => "a",
            Role::Tool => "t",
            Role::System => "s",
        };
        format!("{letter}({})", message.parts.iter().map(part).collect::<Vec<_>>().join(" | "))
    };
    history.messages.iter().map(message).collect::<Vec<_>>().join(" ")
}

fn done(history: &History) -> Vec<String> {
    history.repairs.iter().map(ToString::to_string).collect()
}

/// What is wrong with a transcript.
fn fault(messages: &[Message]) -> Option<String> {
    let mut ids = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &messages[before]);
        if message.parts.is_empty() || before.is_some_and(|before| before.role == message.role) {
            return Some(format!("message {index} is empty or has the role of the one before"));
        }
        let results: Vec<_> = message.parts.iter().filter_map(result).collect();
        let asked = before.map(calls).unwrap_or_default();
        if results != asked || (message.role == Role::Tool) != (results.len() == message.parts.len()) {
            return Some(format!("message {index} answers {results:?}, asked was {asked:?}"));
        }
        let own = calls(message);
        if own.iter().any(|id| !ids.insert(*id)) || (!own.is_empty() && index + 1 == messages.len()) {
            return Some(format!("message {index} has a call without an answer, or an id twice"));
        }
        let first_call = message.parts.iter().position(|part| call(part).is_some());
        if first_call.is_some_and(|first| message.parts.len() - first != own.len()) {
            return Some(format!("message {index} goes on after its calls"));
        }
        for part in &message.parts {
            let fits = match part {
                Part::Text(text) => message.role != Role::Tool && !text.is_empty(),
                Part::Thought(text) => message.role == Role::Assistant && !text.is_empty(),
                Part::ToolCall { .. } => message.role == Role::Assistant,
                Part::ToolResult { .. } => message.role == Role::Tool,
            };
            if !fits {
                return Some(format!("message {index} holds {part:?}"));
            }
        }
    }
    None
}

fn calls(message: &Message) -> Vec<&str> {
    message.parts.iter().filter_map(call).collect()
}

fn call(part: &Part) -> Option<&str> {
    if let Part::ToolCall { id, .. } = part { Some(id) } else { None }
}

fn result(part: &Part) -> Option<&str> {
    if let Part::ToolResult { id, .. } = part { Some(id) } else { None }
}

#[track_caller]
fn check(entries: &[(&'static str, &str)], expected: &str, repairs: &[&str]) {
    let history = reconstruct_messages(&log(entries.iter().copied()));
    assert_eq!(short(&history), expected);
    assert_eq!(done(&history), repairs);
    assert_eq!(fault(&history.messages), None);
    assert_eq!(repair(history.clone()), history);
}

const USER: (&str, &str) = ("message", r#"{"role":"user","text":"hi"}"#);
const AGENT: (&str, &str) = ("message", r#"{"role":"assistant","text":"yes"}"#);
const CALL_A: (&str, &str) = ("tool_call", r#"{"id":"a","name":"ls","input":{}}"#);
const CALL_B: (&str, &str) = ("tool_call", r#"{"id":"b","name":"ls","input":{}}"#);
const RESULT_A: (&str, &str) = ("tool_result", r#"{"id":"a","output":1}"#);
const RESULT_B: (&str, &str) = ("tool_result", r#"{"id":"b","output":2,"is_error":true}"#);

#[test]
fn a_whole_log_is_read_as_it_is() {
    let system = ("message", r#"{"role":"system","text":"be brief"}"#);
    let thought = ("thought", r#"{"text":"hm"}"#);
    check(
        &[system, USER, thought, AGENT, CALL_A, RESULT_A, AGENT, USER, USER],
        "s(be brief) u(hi) a(<hm> | yes | ls:a) t(a=1) a(yes) u(hi | hi)",
        &[],
    );
    check(&[USER, CALL_A, CALL_B, RESULT_B, RESULT_A], "u(hi) a(ls:a | ls:b) t(a=1 | b=2!)", &[]);
    check(&[CALL_A, RESULT_A, CALL_B, RESULT_B], "a(ls:a) t(a=1) a(ls:b) t(b=2!)", &[]);
    check(&[], "", &[]);
}

#[test]
fn what_was_recorded_while_it_was_said_is_one_text() {
    let more = r#"{"role":"assistant","text":"lo","continues":true}"#;
    check(
        &[
            ("message", r#"{"role":"user","text":"u","continues":true}"#),
            ("thought", r#"{"text":"so","unfinished":true}"#),
            ("thought", r#"{"text":"so","continues":true}"#),
            ("message", r#"{"role":"assistant","text":"hel","unfinished":true}"#),
            ("agent.raw", "{}"),
            ("message", more),
            ("message", r#"{"role":"assistant","text":"then"}"#),
        ],
        "u(u) a(<soso> | hello | then)",
        &[],
    );
    // Behind nothing that it goes on from it stands for itself; and nobody goes on for the user.
    let user = r#"{"role":"user","text":"u"}"#;
    check(&[("message", user), ("message", more)], "u(u) a(lo)", &[]);
    let again = r#"{"role":"user","text":"v","continues":true}"#;
    check(&[("message", user), ("message", again)], "u(u | v)", &[]);
}

#[test]
fn what_was_given_up_and_said_anew_stands_once() {
    let half = r#"{"role":"assistant","text":"hel","unfinished":true}"#;
    let more = r#"{"role":"assistant","text":"lo","continues":true,"unfinished":true}"#;
    let given_up = r#"{"role":"assistant","text":"","continues":true,"abandoned":true}"#;
    let whole = r#"{"role":"assistant","text":"hello"}"#;
    check(
        &[
            ("message", r#"{"role":"assistant","text":"so"}"#),
            ("message", half),
            ("message", more),
            ("agent.raw", "{}"),
            ("message", given_up),
            ("message", whole),
        ],
        "a(so | hello)",
        &[],
    );
    let thought = r#"{"text":"hm","unfinished":true}"#;
    check(&[("thought", thought), ("message", given_up), ("message", whole)], "a(<hm> | hello)", &[]);
    let user = r#"{"role":"user","text":"u"}"#;
    let of_user = r#"{"role":"user","text":"v","continues":true,"abandoned":true}"#;
    check(&[("message", user), ("message", given_up), ("message", of_user)], "u(u | v)", &[]);
    // What others say in between changes nothing of it.
    let between = [("message", half), ("message", user), ("message", more), ("message", user)];
    let anew = [("message", given_up), ("message", whole)];
    check(
        &[AGENT].into_iter().chain(between).chain(anew).collect::<Vec<_>>(),
        "a(yes) u(u | u) a(hello)",
        &[],
    );
}

#[test]
fn what_was_said_to_its_end_is_not_given_up() {
    let half = r#"{"role":"assistant","text":"hel","unfinished":true}"#;
    let given_up = r#"{"role":"assistant","text":"","continues":true,"abandoned":true}"#;
    check(&[AGENT, ("message", given_up), AGENT, ("message", given_up)], "a(yes | yes)", &[]);
    let end = r#"{"role":"assistant","text":"lo","continues":true}"#;
    check(&[("message", half), ("message", end), ("message", given_up)], "a(hello)", &[]);
    // Nor is what another run says.
    let run = |n| Some(RunId::from_uuid(uuid::Uuid::from_u128(n)).unwrap());
    for (of, expected) in [(1, "a(hi)"), (2, "a(hel | hi)")] {
        let mut events = log([
            ("message", half),
            ("message", given_up),
            ("message", r#"{"role":"assistant","text":"hi"}"#),
        ]);
        (events[0].body.run, events[1].body.run) = (run(1), run(of));
        assert_eq!(short(&reconstruct_messages(&events)), expected);
    }
}

#[test]
fn what_is_no_conversation_is_skipped() {
    let others =
        ["session.created", "run.state", "bound", "plan", "usage", "permission", "error", "result", "x.y"];
    let entries: Vec<_> = others.into_iter().flat_map(|kind| [(kind, "{torn"), USER]).collect();
    let expected = vec!["hi"; others.len()].join(" | ");
    check(&entries, &format!("u({expected})"), &[]);
}

#[test]
fn a_call_without_a_result_gets_one() {
    let inserted = "event 1: call a has no result, \"interrupted\" stands for it";
    check(&[CALL_A], "a(ls:a) t(a=\"interrupted\"!)", &[inserted]);
    check(&[CALL_A, USER], "a(ls:a) t(a=\"interrupted\"!) u(hi)", &[inserted]);
    check(&[CALL_A, CALL_B, RESULT_B], "a(ls:a | ls:b) t(a=\"interrupted\"! | b=2!)", &[inserted]);
    check(&[CALL_A, AGENT], "a(ls:a) t(a=\"interrupted\"!) a(yes)", &[inserted]);
}

#[test]
fn a_result_that_came_late_is_put_behind_its_call() {
    let moved = "the result of a came late and was put behind its call";
    check(&[CALL_A, USER, RESULT_A], "a(ls:a) t(a=1) u(hi)", &[&format!("event 3: {moved}")]);
    check(
        &[CALL_A, CALL_B, RESULT_B, AGENT, RESULT_A],
        "a(ls:a | ls:b) t(a=1 | b=2!) a(yes)",
        &[&format!("event 5: {moved}")],
    );
    let call_c = ("tool_call", r#"{"id":"c","name":"ls","input":{}}"#);
    check(
        &[CALL_A, CALL_B, RESULT_B, call_c, RESULT_A],
        "a(ls:a | ls:b) t(a=1 | b=2!) a(ls:c) t(c=\"interrupted\"!)",
        &["event 4: call c has no result, \"interrupted\" stands for it", &format!("event 5: {moved}")],
    );
}

#[test]
fn a_result_without_a_call_is_dropped() {
    let dropped = "the result of a has no call and was dropped";
    check(&[RESULT_A, USER], "u(hi)", &[&format!("event 1: {dropped}")]);
    check(&[CALL_A, RESULT_A, RESULT_A], "a(ls:a) t(a=1)", &[&format!("event 3: {dropped}")]);
    check(&[CALL_B, RESULT_A, RESULT_B], "a(ls:b) t(b=2!)", &[&format!("event 2: {dropped}")]);
}

#[test]
fn ids_are_unique() {
    let renamed = "a second call a is now called a~2";
    check(
        &[CALL_A, RESULT_A, USER, CALL_A, RESULT_A],
        "a(ls:a) t(a=1) u(hi) a(ls:a~2) t(a~2=1)",
        &[&format!("event 4: {renamed}")],
    );
    check(
        &[CALL_A, CALL_A, RESULT_A],
        "a(ls:a) t(a=1)",
        &["event 2: call a was recorded twice and kept once"],
    );
    // The host was killed, and the agent counts from the beginning again: the result is the second call's.
    check(
        &[CALL_A, USER, CALL_A, RESULT_A],
        "a(ls:a) t(a=\"interrupted\"!) u(hi) a(ls:a~2) t(a~2=1)",
        &["event 1: call a has no result, \"interrupted\" stands for it", &format!("event 3: {renamed}")],
    );
    let other = ("tool_call", r#"{"id":"a","name":"rm","input":{}}"#);
    let taken = ("tool_call", r#"{"id":"a~2","name":"ls","input":{}}"#);
    check(
        &[CALL_A, other, taken, RESULT_A],
        "a(ls:a | rm:a~3 | ls:a~2) t(a=\"interrupted\"! | a~3=1 | a~2=\"interrupted\"!)",
        &[
            "event 1: call a has no result, \"interrupted\" stands for it",
            "event 2: a second call a is now called a~3",
            "event 3: call a~2 has no result, \"interrupted\" stands for it",
        ],
    );
}

#[test]
fn twice_encoded_input_is_decoded() {
    let cases = [
        (r#""{\"p\":1}""#, r#"{"p":1}"#, true),
        (r#""\"{\\\"p\\\":1}\"""#, r#"{"p":1}"#, true),
        (r#"" [1, 2] ""#, "[1,2]", true),
        (r#""just text""#, r#""just text""#, false),
        (r#""5""#, r#""5""#, false),
        (r#""{torn""#, r#""{torn""#, false),
        (r#"{"p":"{\"q\":1}"}"#, r#"{"p":"{\"q\":1}"}"#, false),
        ("null", "null", false),
    ];
    for (input, decoded, repaired) in cases {
        let call = format!(r#"{{"id":"a","name":"f","input":{input}}}"#);
        let repairs: &[&str] = &["event 1: the input of call a was encoded twice and was decoded"];
        let repairs = if repaired { repairs } else { &[] };
        check(&[("tool_call", &call), RESULT_A], &format!("a(f:a{decoded}) t(a=1)"), repairs);
    }
    let whole = r#""{\"id\":\"a\",\"name\":\"f\"}""#;
    let decoded = "event 1: the entry was encoded twice and was decoded";
    check(&[("tool_call", whole), RESULT_A], "a(f:a) t(a=1)", &[decoded]);
}

#[test]
fn what_cannot_be_read_is_the_users_unless_it_says_otherwise() {
    let kept = "event 1: the entry cannot be read and was kept as the user's text";
    let dropped = "event 1: the entry cannot be read and was dropped";
    for raw in [
        r#"{"role":"user","text":"de"#,
        r#"{"text":"\"role\":\"assistant\""#,
        "{",
        "plain",
        r#"{"role":"assi"#,
        r#"{"role":"user"}"#,
        r#"{"text":5}"#,
        "[]",
        r#""text""#,
    ] {
        check(&[("message", raw)], &format!("u({raw})"), &[kept]);
    }
    check(&[("message", r#"{"role":"human","text":"x"}"#)], "u(x)", &[kept]);
    check(&[("message", r#"{"text":"x"}"#)], "u(x)", &[kept]);
    let agents = [
        ("message", r#"{"role":"assistant","text":"de"#),
        ("message", r#" { "role" : "assistant", "te"#),
        ("message", r#"{"role":"system"}"#),
        ("message", ""),
        ("thought", r#"{"text":"#),
        ("tool_call", r#"{"id":"a","na"#),
        ("tool_call", r#"{"name":"ls","input":{}}"#),
        ("tool_call", r#"{"id":"","name":"ls","input":{}}"#),
        ("tool_call", r#"{"id":"a","name":""}"#),
        ("tool_result", r#"{"id":["a"]}"#),
        ("summary", r#"{"text":"all"}"#),
    ];
    for entry in agents {
        check(&[entry, USER], "u(hi)", &[dropped]);
    }
    let stray = ("message", r#"{"role":"tool","text":"x"}"#);
    check(&[stray, USER], "u(hi)", &["event 1: a text that nobody can have said was dropped"]);
    check(&[("message", r#"{"role":"user","text":""}"#), ("thought", r#"{"text":""}"#)], "", &[]);
}

#[test]
fn numbers_may_be_ids() {
    let call = ("tool_call", r#"{"id":7,"name":"ls","input":{}}"#);
    check(&[call, ("tool_result", r#"{"id":7}"#)], "a(ls:7) t(7=null)", &[]);
}

#[test]
fn a_summary_stands_for_what_it_covers() {
    let summary = |upto: u64| format!(r#"{{"text":"so far","upto":{upto}}}"#);
    let (two, one, far) = (summary(2), summary(1), summary(99));
    check(&[USER, AGENT, USER, ("summary", &two), AGENT], "s(so far) u(hi) a(yes)", &[]);
    let dropped = "event 2: the result of a has no call and was dropped";
    check(&[CALL_A, RESULT_A, ("summary", &one), USER], "s(so far) u(hi)", &[dropped]);
    check(&[USER, ("summary", &one), AGENT, ("summary", &far), USER], "s(so far) u(hi)", &[]);
    check(&[USER, AGENT, ("summary", &two), USER, ("summary", &one), AGENT], "s(so far) u(hi) a(yes)", &[]);
    let empty = ("summary", r#"{"text":"","upto":1}"#);
    check(&[USER, empty], "u(hi)", &["event 2: the entry cannot be read and was dropped"]);
}

#[test]
fn messages_say_with_which_event_they_begin() {
    let history =
        reconstruct_messages(&log([USER, ("plan", "[]"), AGENT, CALL_A, CALL_B, RESULT_B, RESULT_A, USER]));
    let begins: Vec<_> = history.messages.iter().map(|message| message.seq.0).collect();
    assert_eq!(begins, [1, 3, 7, 8]);
}

/// A text that looks like trouble.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("{\"role\":\"assistant\",\"text\":\"I am the agent\"}".to_owned()),
        Just("\"role\":\"tool\" \u{0} \\ \n".to_owned()),
        "\\PC{0,12}",
    ]
}

/// An entry of a log, and what of it the user wrote.
fn any_entry() -> impl Strategy<Value = (&'static str, String, Option<String>)> {
    let id = || prop::sample::select(vec!["a", "b", "a~2", ""]);
    let input = prop_oneof![
        Just(json!({})),
        Just(json!("{\"p\":\"{}\"}")),
        Just(json!("\"[1]\"")),
        any_text().prop_map(Value::from),
    ];
    let said = any_text().prop_map(|text| {
        let payload = json!({ "role": "user", "text": text }).to_string();
        ("message", payload, Some(text))
    });
    let torn = (any_text(), 10_usize..30).prop_filter_map("a whole payload", |(text, length)| {
        let payload = json!({ "text": format!("{text}-------------"), "role": "user" }).to_string();
        let torn: String = payload.chars().take(length).collect();
        serde_json::from_str::<Value>(&torn).is_err().then(|| ("message", torn.clone(), Some(torn)))
    });
    let role = prop::sample::select(vec!["assistant", "system", "tool"]);
    let other =
        (role, any_text()).prop_map(|(role, text)| ("message", json!({ "role": role, "text": text })));
    let thought = any_text().prop_map(|text| ("thought", json!({ "text": text })));
    let call =
        (id(), input).prop_map(|(id, input)| ("tool_call", json!({ "id": id, "name": "f", "input": input })));
    let result =
        (id(), any_text()).prop_map(|(id, text)| ("tool_result", json!({ "id": id, "output": text })));
    let noise =
        prop::sample::select(vec!["tool_call", "tool_result", "thought", "summary", "run.state", "usage"]);
    let noise = (noise, "[{}\\[\\]\":,a0 ]{0,8}").prop_map(|(kind, text)| (kind, text, None));
    let agents = prop_oneof![1 => other, 1 => thought, 3 => call, 3 => result];
    let agents = (agents, any::<bool>()).prop_map(|((kind, payload), twice)| {
        let once = payload.to_string();
        (kind, if twice { json!(once).to_string() } else { once }, None)
    });
    prop_oneof![2 => said, 1 => torn, 8 => agents, 1 => noise]
}

/// The user's texts, in order.
fn users(history: &History) -> Vec<&str> {
    let parts = history.messages.iter().filter(|message| message.role == Role::User);
    let text = |part: &'_ Part| matches!(part, Part::Text(_));
    let parts = parts.flat_map(|message| &message.parts).inspect(|part| assert!(text(part)));
    parts.filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

proptest! {
    #[test]
    fn any_log_makes_a_valid_transcript(
        entries in prop::collection::vec(any_entry(), 0..24), summary in prop::option::of(0_usize..30)
    ) {
        let mut written: Vec<_> = entries.iter().map(|(_, _, user)| user.clone()).collect();
        let mut entries: Vec<_> = entries.into_iter().map(|(kind, payload, _)| (kind, payload)).collect();
        if let Some(upto) = summary {
            entries.push(("summary", json!({ "text": "so far", "upto": upto }).to_string()));
            written.drain(..upto.min(written.len()));
        }
        let events = log(entries);
        let history = reconstruct_messages(&events);
        prop_assert_eq!(fault(&history.messages), None, "{}", short(&history));
        let written: Vec<_> = written.iter().flatten().map(String::as_str).filter(|text| !text.is_empty()).collect();
        prop_assert_eq!(users(&history), written);
        prop_assert_eq!(repair(history.clone()), history.clone());
        prop_assert!(history.repairs.is_sorted_by_key(|repair| repair.seq));
    }

    #[test]
    fn a_transcript_of_any_parts_is_made_valid_once(
        parts in prop::collection::vec((0..4_usize, 0..5_usize, "[ab]?"), 0..24)
    ) {
        let roles = [Role::User, Role::Assistant, Role::Tool, Role::System];
        let message = |(seq, (role, part, text)): (u64, (usize, usize, String))| {
            let parts = match part {
                0 => vec![Part::Text(text)],
                1 => vec![Part::Thought(text)],
                2 => vec![Part::ToolCall { id: text, name: "f".into(), input: Value::Null }],
                3 => vec![Part::ToolResult { id: text, output: Value::Null, is_error: false }],
                _ => Vec::new(),
            };
            Message { seq: Seq(seq), role: roles[role], parts }
        };
        let messages = (1..).zip(parts).map(message).collect();
        let history = repair(History { messages, repairs: Vec::new() });
        prop_assert_eq!(fault(&history.messages), None, "{}", short(&history));
        prop_assert_eq!(repair(history.clone()), history);
    }
}
