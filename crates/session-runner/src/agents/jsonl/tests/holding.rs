//! The shell: time stands still in these tests unless nothing else happens.

use std::time::Duration;

use serde_json::json;
use session_core::event::EventKind;

use super::fixture;
use super::wire::Held;
use crate::agents::asking::Answer;
use crate::agents::bounds::Bounds;
use crate::agents::ending::TurnEnd;
use crate::agents::framework::Framework;
use crate::agents::questions::QUESTIONS_MAX;
use crate::agents::said::Said;
use crate::agents::testing::{OURS, Recorder, brief, turn};
use crate::agents::turn::Turn;

fn init() -> String {
    json!({ "type": "system", "subtype": "init", "session_id": OURS }).to_string()
}

fn question(name: &str) -> String {
    let request = json!({ "subtype": "can_use_tool", "tool_name": "Bash", "input": { "command": "ls" } });
    json!({ "type": "control_request", "request_id": name, "request": request }).to_string()
}

const DONE: &str = r#"{"type":"result","is_error":false,"result":"bye"}"#;

#[tokio::test(start_paused = true)]
async fn a_turn_is_held_to_its_end() {
    let mut held = Held::claude([Answer::Allow]);
    assert_eq!(held.agent.hear().await.unwrap()["request"]["subtype"], "initialize");
    assert_eq!(held.agent.hear().await.unwrap()["message"]["content"][0]["text"], "hello there");
    held.agent.say(&init()).await;
    held.agent.say(&question("q1")).await;
    let answer = held.agent.hear().await.unwrap();
    assert_eq!(answer["response"]["response"]["behavior"], "allow");
    assert_eq!(answer["response"]["response"]["updatedInput"], json!({ "command": "ls" }));
    held.agent.say(DONE).await;
    assert_eq!(held.agent.hear().await, None, "its stdin is closed when its turn is over");
    held.agent.die();
    let TurnEnd::Completed { text, .. } = held.end.await.unwrap() else { panic!("not completed") };
    assert_eq!(text.as_deref(), Some("bye"));
    assert_eq!(held.desk.asked()[0].command.as_deref(), Some(&["ls".to_owned()][..]));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_go_is_not_waited_for() {
    let mut held = Held::claude([]);
    held.agent.say(&init()).await;
    held.agent.say(DONE).await;
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Completed { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_has_not_completed() {
    let mut held = Held::claude([]);
    held.agent.say(&init()).await;
    held.agent.die();
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Cut { .. }));
    assert_eq!(brief(&held.desk.said()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_is_given_up() {
    let bounds = Bounds { idle: Some(Duration::from_mins(1)), ..Bounds::default() };
    let held = Held::new(Framework::ClaudeCode, turn(), bounds, Recorder::answering([]));
    let TurnEnd::Cut { message } = held.end.await.unwrap() else { panic!("not cut") };
    assert_eq!(message, "it said nothing within 60s");

    let mut held = Held::new(Framework::ClaudeCode, turn(), bounds, Recorder::answering([]));
    held.agent.say(&init()).await;
    let TurnEnd::Cut { message } = held.end.await.unwrap() else { panic!("not cut") };
    assert_eq!(message, "it said nothing more within 60s");
}

#[tokio::test(start_paused = true)]
async fn a_turn_has_a_longest_time_and_a_person_who_thinks_is_no_silence() {
    let turn_max = Duration::from_secs(10_000);
    let bounds = Bounds { idle: Some(Duration::from_mins(1)), turn: Some(turn_max), ..Bounds::default() };
    let began = tokio::time::Instant::now();
    let mut held = Held::new(Framework::ClaudeCode, turn(), bounds, Recorder::answering([]));
    held.agent.say(&init()).await;
    held.agent.say(&question("q1")).await;
    let end = held.end.await.unwrap();
    assert_eq!(end, TurnEnd::Cut { message: "its turn took longer than 10000s".into() });
    assert_eq!(began.elapsed(), turn_max + bounds.interrupt);
    assert_eq!(held.desk.withdrawn(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_is_interrupted_and_its_questions_are_withdrawn() {
    let mut held = Held::claude([]);
    held.agent.hear().await;
    held.agent.hear().await;
    held.agent.say(&init()).await;
    held.agent.say(&question("q1")).await;
    held.desk.until(|desk| desk.asked().len() == 1).await;
    held.cancel.cancel();
    assert_eq!(held.agent.hear().await.unwrap()["request"]["subtype"], "interrupt");
    held.agent.say(r#"{"type":"control_cancel_request","request_id":"q1"}"#).await;
    held.agent.say(r#"{"type":"result","is_error":true,"terminal_reason":"aborted_tools"}"#).await;
    assert_eq!(held.agent.hear().await, None);
    held.agent.die();
    assert_eq!(held.end.await.unwrap(), TurnEnd::Cancelled);
    assert_eq!(held.desk.withdrawn(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_completed_before_it_was_cancelled_is_completed() {
    let mut held = Held::claude([]);
    held.agent.say(&init()).await;
    held.cancel.cancel();
    held.agent.say(DONE).await;
    held.agent.die();
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Completed { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_be_told_is_left_at_once() {
    let mut held = Held::new(Framework::Codex, turn(), Bounds::default(), Recorder::answering([]));
    held.agent.say(r#"{"type":"thread.started","thread_id":"t"}"#).await;
    held.desk.until(|desk| !desk.said().is_empty()).await;
    let began = tokio::time::Instant::now();
    held.cancel.cancel();
    assert_eq!(held.end.await.unwrap(), TurnEnd::Cancelled);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_question_is_not_answered() {
    let mut held = Held::claude([]);
    held.agent.hear().await;
    held.agent.hear().await;
    held.agent.say(&init()).await;
    held.agent.say(&question("q1")).await;
    held.agent.say(r#"{"type":"control_cancel_request","request_id":"q1"}"#).await;
    held.desk.until(|desk| desk.withdrawn() == 1).await;
    held.agent.say(DONE).await;
    assert_eq!(held.agent.hear().await, None, "no answer was written");
}

#[tokio::test(start_paused = true)]
async fn too_many_questions_are_refused_and_the_turn_goes_on() {
    let mut held = Held::claude([]);
    held.agent.hear().await;
    held.agent.hear().await;
    held.agent.say(&init()).await;
    for number in 0..=QUESTIONS_MAX {
        held.agent.say(&question(&format!("q{number}"))).await;
    }
    let refused = held.agent.hear().await.unwrap();
    assert_eq!(refused["response"]["request_id"], format!("q{QUESTIONS_MAX}"));
    assert_eq!(refused["response"]["response"]["behavior"], "deny");
    held.agent.say(DONE).await;
    held.agent.die();
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Completed { .. }));
    assert_eq!(held.desk.withdrawn(), QUESTIONS_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_line_without_end_is_skipped_and_told() {
    let mut held = Held::claude([]);
    held.agent.say(&init()).await;
    held.agent.say(&"x".repeat((16 << 20) + 1)).await;
    held.agent.say(DONE).await;
    held.agent.die();
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Completed { .. }));
    let complains = |said: &Said| matches!(said, Said::Event { kind: EventKind::Error, .. });
    assert!(held.desk.said().iter().any(complains), "{:?}", held.desk.said());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_listen_is_still_heard() {
    let long = Turn { prompt: "x".repeat(1 << 20), ..turn() };
    let mut held = Held::new(Framework::Codex, long, Bounds::default(), Recorder::answering([]));
    for line in fixture!("codex/new").lines() {
        held.agent.say(line).await;
    }
    held.agent.die();
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Completed { .. }));
}

#[tokio::test(start_paused = true)]
async fn nothing_of_another_conversation_is_taken() {
    let mut held = Held::claude([]);
    held.agent.say(r#"{"type":"system","subtype":"init","session_id":"another"}"#).await;
    held.agent.say(DONE).await;
    assert!(matches!(held.end.await.unwrap(), TurnEnd::WrongConversation { .. }));
    assert_eq!(held.desk.said(), []);
}

#[tokio::test(start_paused = true)]
async fn what_comes_in_pieces_is_told_after_a_moment_of_silence_or_when_it_takes_long() {
    let bounds = Bounds::default();
    let began = tokio::time::Instant::now();
    let mut held = Held::new(Framework::Gemini, turn(), bounds, Recorder::answering([]));
    held.agent.say(&json!({ "type": "init", "session_id": OURS }).to_string()).await;
    let piece = |text: &str| {
        json!({ "type": "message", "role": "assistant", "delta": true, "content": text }).to_string()
    };
    let messages = |said: &[Said]| {
        let told = brief(said).into_iter();
        told.filter(|line| line.starts_with("message")).collect::<Vec<_>>()
    };
    held.agent.say(&piece("Hel")).await;
    held.agent.say(&piece("lo,")).await;
    held.desk.until(|desk| !messages(&desk.said()).is_empty()).await;
    assert_eq!(began.elapsed(), bounds.quiet);
    let first = r#"message {"role":"assistant","text":"Hello,","unfinished":true}"#;
    assert_eq!(messages(&held.desk.said()), [first]);
    // It never falls silent.
    let began = tokio::time::Instant::now();
    while messages(&held.desk.said()).len() < 2 {
        held.agent.say(&piece("x")).await;
        tokio::time::sleep(bounds.quiet / 2).await;
    }
    assert!(began.elapsed() <= bounds.untold + bounds.quiet, "{:?}", began.elapsed());
    let second = messages(&held.desk.said()).remove(1);
    assert!(second.starts_with(r#"message {"continues":true,"role":"assistant","text":"xxxx"#), "{second}");
}
