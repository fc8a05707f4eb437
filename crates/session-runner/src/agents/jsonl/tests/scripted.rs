//! An agent that speaks the Agent Client Protocol as it is told to, well or badly.

use serde_json::{Value, json};
use session_core::event::EventKind;

use super::wire::Held;
use crate::agents::asking::Answer;
use crate::agents::bounds::Bounds;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::framework::Framework;
use crate::agents::said::{Said, UsageQuality};
use crate::agents::testing::{Recorder, brief, id, resumed, turn};
use crate::agents::turn::Turn;

/// What the agent can do.
const RESUMES: &str = r#"{"loadSession":true,"sessionCapabilities":{"resume":{}}}"#;
const LOADS: &str = r#"{"loadSession":true}"#;
const NOTHING: &str = "{}";

fn held(turn: Turn, answers: impl IntoIterator<Item = Answer>) -> Held {
    Held::new(Framework::Acp, turn, Bounds::default(), Recorder::answering(answers))
}

impl Held {
    /// Reads a request of this method.
    async fn expect(&mut self, method: &str) -> Value {
        let message = self.agent.hear().await.unwrap();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    async fn respond(&mut self, to: &Value, result: Value) {
        self.agent.say(&json!({ "jsonrpc": "2.0", "id": to["id"], "result": result }).to_string()).await;
    }

    async fn update(&mut self, update: Value) {
        let params = json!({ "sessionId": "s1", "update": update });
        let message = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
        self.agent.say(&message.to_string()).await;
    }

    async fn says(&mut self, text: &str) {
        let content = json!({ "type": "text", "text": text });
        self.update(json!({ "sessionUpdate": "agent_message_chunk", "content": content })).await;
    }

    /// Shakes hands: this can it do.
    async fn initialize(&mut self, capabilities: &str) {
        let request = self.expect("initialize").await;
        assert_eq!(request["params"]["clientCapabilities"]["fs"]["writeTextFile"], false);
        let capabilities: Value = serde_json::from_str(capabilities).unwrap();
        self.respond(&request, json!({ "protocolVersion": 1, "agentCapabilities": capabilities })).await;
    }

    /// Comes to the prompt of a new session, and returns it.
    async fn prompted(&mut self) -> Value {
        self.initialize(NOTHING).await;
        let request = self.expect("session/new").await;
        self.respond(&request, json!({ "sessionId": "s1" })).await;
        self.expect("session/prompt").await
    }

    /// Asks for leave with these kinds of options.
    async fn ask(&mut self, question: Value, kinds: &[&str]) {
        let options: Vec<_> = kinds
            .iter()
            .rev()
            .map(|kind| json!({ "optionId": format!("the-{kind}"), "kind": kind }))
            .collect();
        let call = json!({ "toolCallId": "t1", "title": "rm x", "kind": "execute", "rawInput": { "command": ["rm", "x"] } });
        let params = json!({ "sessionId": "s1", "toolCall": call, "options": options });
        let request = json!({ "jsonrpc": "2.0", "id": question, "method": "session/request_permission", "params": params });
        self.agent.say(&request.to_string()).await;
    }

    async fn ended(mut self) -> (TurnEnd, Vec<String>) {
        self.agent.die();
        let end = self.end.await.unwrap();
        let mut told = brief(&self.desk.said());
        told.retain(|line| !line.starts_with("progress "));
        (end, told)
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_agent_completes() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    assert_eq!(prompt["params"]["prompt"][0]["text"], "hello there");
    held.says("Hel").await;
    held.says("lo").await;
    held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
    assert_eq!(held.agent.hear().await, None, "its stdin is closed");
    let (end, told) = held.ended().await;
    assert_eq!(end, TurnEnd::Completed { text: Some("Hello".into()), stop: Stop::EndTurn });
    let message = r#"message {"role":"assistant","text":"Hello"}"#;
    assert_eq!(told, ["bound s1", message, "resumable", "usage 0 tokens, 0 micros, unknown; totals 0 0"]);
}

#[tokio::test(start_paused = true)]
async fn answers_are_chosen_by_kind() {
    let deny = || Answer::Deny { message: "no".into() };
    let all = &["allow_once", "allow_always", "reject_once", "reject_always"][..];
    for (answer, offered, chosen, lasting) in [
        (Answer::Allow, all, Some("the-allow_once"), false),
        (Answer::Allow, &["allow_always", "reject_once"], Some("the-allow_always"), true),
        (deny(), all, Some("the-reject_once"), false),
        (deny(), &["allow_once", "reject_always"], Some("the-reject_always"), false),
        (deny(), &["allow_once"], None, false),
        (Answer::Allow, &["reject_once", "of_a_later_version"], None, false),
        (Answer::Cancelled, all, None, false),
    ] {
        let mut held = held(turn(), [answer]);
        let prompt = held.prompted().await;
        held.ask(json!("7"), offered).await;
        let response = held.agent.hear().await.unwrap();
        assert_eq!(response["id"], "7", "the id comes back as it was");
        assert_eq!(response["result"]["outcome"]["optionId"].as_str(), chosen, "{response}");
        held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
        let asked = held.desk.asked();
        assert_eq!(held.desk.said_before(), [3], "the binding, the call and its line of progress");
        assert_eq!((asked[0].lasting, asked[0].tool.as_str()), (lasting, "execute"));
        assert_eq!(asked[0].command, Some(vec!["rm".into(), "x".into()]));
        assert!(matches!(held.ended().await.0, TurnEnd::Completed { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_because_of_a_refusal_is_completed() {
    let mut held = held(turn(), [Answer::Deny { message: "no".into() }]);
    let prompt = held.prompted().await;
    held.ask(json!(0), &["allow_once", "reject_once"]).await;
    held.agent.hear().await;
    held.respond(&prompt, json!({ "stopReason": "cancelled" })).await;
    assert_eq!(held.ended().await.0, TurnEnd::Completed { text: None, stop: Stop::Denied });
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_cancels_its_questions_too() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    held.ask(json!(3), &["allow_once"]).await;
    held.desk.until(|desk| desk.asked().len() == 1).await;
    held.cancel.cancel();
    assert_eq!(held.expect("session/cancel").await["params"]["sessionId"], "s1");
    assert_eq!(held.agent.hear().await.unwrap()["result"]["outcome"]["outcome"], "cancelled");
    held.respond(&prompt, json!({ "stopReason": "cancelled" })).await;
    assert_eq!(held.agent.hear().await, None);
    assert_eq!(held.desk.withdrawn(), 1);
    assert_eq!(held.ended().await.0, TurnEnd::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_for_a_turn_that_is_cancelled() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    held.cancel.cancel();
    held.expect("session/cancel").await;
    held.ask(json!(4), &["allow_once"]).await;
    assert_eq!(held.agent.hear().await.unwrap()["result"]["outcome"]["outcome"], "cancelled");
    held.respond(&prompt, json!({ "stopReason": "cancelled" })).await;
    assert_eq!(held.desk.asked(), []);
    assert_eq!(held.ended().await.0, TurnEnd::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn an_agent_may_take_its_question_back() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    held.ask(json!(3), &["allow_once"]).await;
    held.agent.say(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"3"}}"#).await;
    held.agent.say(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":3}}"#).await;
    assert_eq!(held.agent.hear().await.unwrap()["id"], 3);
    held.desk.until(|desk| desk.withdrawn() == 1).await;
    held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
    assert!(matches!(held.ended().await.0, TurnEnd::Completed { .. }));
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_replays_is_not_taken_again() {
    for (capabilities, method) in [(RESUMES, "session/resume"), (LOADS, "session/load")] {
        let mut held = held(resumed("s1"), []);
        held.initialize(capabilities).await;
        let request = held.expect(method).await;
        held.says("from before").await;
        held.respond(&request, Value::Null).await;
        let prompt = held.expect("session/prompt").await;
        held.says("new").await;
        held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
        let (end, told) = held.ended().await;
        assert_eq!(end, TurnEnd::Completed { text: Some("new".into()), stop: Stop::EndTurn });
        assert!(!told.iter().any(|line| line.contains("before")), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_gone_is_gone() {
    let mut held_by_nobody = held(resumed("s1"), []);
    held_by_nobody.initialize(NOTHING).await;
    assert!(matches!(held_by_nobody.ended().await.0, TurnEnd::Gone { .. }));

    for (code, gone) in [(-32002, true), (-32603, true), (-32000, false)] {
        let mut held = held(resumed("s1"), []);
        held.initialize(RESUMES).await;
        let request = held.expect("session/resume").await;
        let error = json!({ "code": code, "message": "Resource not found" });
        held.agent.say(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }).to_string()).await;
        let end = held.ended().await.0;
        assert_eq!(matches!(end, TurnEnd::Gone { .. }), gone, "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_session_is_not_taken() {
    let mut held = held(resumed("s1"), []);
    held.initialize(LOADS).await;
    let request = held.expect("session/load").await;
    held.respond(&request, json!({ "sessionId": "s2" })).await;
    let (end, told) = held.ended().await;
    assert_eq!(end, TurnEnd::WrongConversation { wanted: id("s1"), got: "s2".into() });
    assert_eq!(told, [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_mode_and_a_model_are_set_before_the_prompt() {
    let mut chosen = held(Turn { mode: Some("plan".into()), model: Some("big".into()), ..turn() }, []);
    chosen.initialize(NOTHING).await;
    let request = chosen.expect("session/new").await;
    let modes = json!({ "currentModeId": "auto", "availableModes": [{ "id": "auto" }, { "id": "plan" }] });
    let options =
        json!([{ "id": "m", "category": "model", "options": [{ "options": [{ "value": "big" }] }] }]);
    let opened = json!({ "sessionId": "s1", "modes": modes, "configOptions": options });
    chosen.respond(&request, opened.clone()).await;
    let request = chosen.expect("session/set_mode").await;
    assert_eq!(request["params"]["modeId"], "plan");
    chosen.respond(&request, json!({})).await;
    let request = chosen.expect("session/set_config_option").await;
    assert_eq!((&request["params"]["configId"], &request["params"]["value"]), (&json!("m"), &json!("big")));
    chosen.respond(&request, json!({})).await;
    chosen.expect("session/prompt").await;

    let mut unknown = held(Turn { mode: Some("yolo".into()), ..turn() }, []);
    unknown.initialize(NOTHING).await;
    let request = unknown.expect("session/new").await;
    unknown.respond(&request, opened).await;
    let message = r#"it has no mode "yolo"; it has: auto, plan"#.into();
    assert_eq!(unknown.ended().await.0, TurnEnd::Failed { message });
}

#[tokio::test(start_paused = true)]
async fn a_refusing_agent_failed() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    let error =
        json!({ "code": -32603, "message": "Internal error", "data": { "details": "the model is out" } });
    held.agent.say(&json!({ "jsonrpc": "2.0", "id": prompt["id"], "error": error }).to_string()).await;
    let message = "Internal error: the model is out".into();
    assert_eq!(held.ended().await.0, TurnEnd::Failed { message });
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_tells_an_error_as_its_words_failed() {
    for (name, failed) in [("goose", true), ("gander", false)] {
        let mut held = held(turn(), []);
        let request = held.expect("initialize").await;
        let info = json!({ "name": name, "version": "1" });
        held.respond(&request, json!({ "protocolVersion": 1, "agentInfo": info })).await;
        let request = held.expect("session/new").await;
        held.respond(&request, json!({ "sessionId": "s1" })).await;
        let prompt = held.expect("session/prompt").await;
        held.says("Ran into this error: it is away").await;
        held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
        let end = held.ended().await.0;
        assert_eq!(matches!(end, TurnEnd::Failed { .. }), failed, "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_version_failed() {
    let mut held = held(turn(), []);
    let request = held.expect("initialize").await;
    held.respond(&request, json!({ "protocolVersion": 2 })).await;
    let end = held.ended().await.0;
    assert!(matches!(&end, TurnEnd::Failed { message } if message.contains("version 2")), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_has_not_completed() {
    let mut held = held(turn(), []);
    held.prompted().await;
    held.says("half a wo").await;
    let (end, told) = held.ended().await;
    assert!(matches!(end, TurnEnd::Cut { .. }), "{end:?}");
    assert!(told.iter().any(|line| line.contains("half a wo")), "what it said is kept: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_is_interrupted_and_given_up() {
    let silent = held(turn(), []);
    let end = silent.end.await.unwrap();
    assert_eq!(end, TurnEnd::Cut { message: "it said nothing within 60s".into() });

    let mut later = held(turn(), []);
    later.prompted().await;
    later.expect("session/cancel").await;
    let end = later.end.await.unwrap();
    assert!(matches!(&end, TurnEnd::Cut { message } if message.contains("nothing more")), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_odd_is_told_and_the_turn_goes_on() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    held.agent.say("DEBUG something").await;
    held.update(json!({ "sessionUpdate": "brand_new_kind" })).await;
    held.update(json!({ "sessionUpdate": "tool_call", "nothing": "here" })).await;
    held.agent.say(&format!("\"{}\"", "x".repeat((16 << 20) + 1))).await;
    held.agent.say(r#"{"jsonrpc":"2.0","id":"a1","method":"_vendor/ask","params":{}}"#).await;
    let refused = held.agent.hear().await.unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("a1"), &json!(-32601)));
    held.says("hello").await;
    held.respond(&prompt, json!({ "stopReason": "end_turn", "usage": null })).await;
    held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
    held.agent.die();
    assert!(matches!(held.end.await.unwrap(), TurnEnd::Completed { .. }));
    let said = held.desk.said();
    let told = brief(&said);
    let raw = told.iter().filter(|line| line.starts_with("agent.raw")).count();
    assert_eq!(raw, 5, "the noise, two updates, the request and the second answer: {told:#?}");
    assert!(said.iter().any(|said| matches!(said, Said::Event { kind: EventKind::Error, .. })), "{told:#?}");
    let usage = said.iter().filter_map(|said| match said {
        Said::Usage(reported) => Some(reported.quality),
        Said::Bound(_) | Said::Resumable | Said::Event { .. } | Said::Degraded(_) | Said::Progress(_) => None,
    });
    assert_eq!(usage.collect::<Vec<_>>(), [UsageQuality::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_is_not_known_is_no_success() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    held.respond(&prompt, json!({ "stopReason": "brand_new" })).await;
    let end = held.ended().await.0;
    assert!(matches!(&end, TurnEnd::Failed { message } if message.contains("brand_new")), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_is_told_once_and_before_its_result() {
    let mut held = held(turn(), []);
    let prompt = held.prompted().await;
    let call = |update: Value| {
        let mut call = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1" });
        call.as_object_mut().unwrap().extend(update.as_object().unwrap().clone());
        call
    };
    held.update(call(json!({ "sessionUpdate": "tool_call", "title": "Terminal", "rawInput": {} }))).await;
    held.update(call(json!({ "name": "Bash", "rawInput": { "command": "ls" } }))).await;
    held.says("meanwhile").await;
    held.update(call(json!({ "status": "completed", "rawOutput": "a b" }))).await;
    held.respond(&prompt, json!({ "stopReason": "end_turn" })).await;
    let (_, told) = held.ended().await;
    assert_eq!(told[1], r#"tool_call {"id":"t1","input":{"command":"ls"},"name":"Bash"}"#);
    assert_eq!(told[2], r#"message {"role":"assistant","text":"meanwhile"}"#);
    assert_eq!(told[3], r#"tool_result {"id":"t1","output":"a b"}"#);
}
