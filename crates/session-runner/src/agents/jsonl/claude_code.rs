//! Claude Code, `claude -p` both ways in `stream-json`.
//!
//! The conversation's id is ours, so it is known before the program runs; every `system/init` says it again. Questions come
//! as `control_request` on the same wire. `result` ends the turn, and only its `is_error` says how: the `subtype` is
//! "success" for errors of the model too. After an interruption its `usage` is empty, but not
//! `model_usage_since_last_result`, which counts the models of subagents as well; so that is what is taken.
//!
//! What the model says comes twice: in pieces, and when a block of it is complete as that block. The pieces are told, and
//! of the block what they did not tell. Where the model is asked again because its answer broke off, the pieces were in vain.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use session_core::event::EventKind;
use session_core::names::ExecutorSessionId;

use super::protocol::{Closing, Heard, Opening, Protocol, count, cut, heard, micros, object, text};
use crate::agents::asking::{Answer, Ask};
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::entry;
use crate::agents::lines::LINE_MAX;
use crate::agents::said::{Reported, Said, UsageQuality};
use crate::agents::speech::Speech;
use crate::agents::turn::{Conversation, Totals, Turn};

/// What the result of a resume says that finds nothing to resume.
const GONE: &str = "No conversation found with session ID";
/// What a person is told in place of an empty refusal.
const REFUSED: &str = "this was not allowed";
/// Reasons of the program that say that a turn was interrupted.
const ABORTED: &str = "aborted";

/// One turn with Claude Code.
pub(in crate::agents) struct ClaudeCode {
    turn: Turn,
    id: ExecutorSessionId,
    totals: Totals,
    begun: bool,
    resumable: bool,
    end: Option<TurnEnd>,
    speech: Speech,
    /// The pieces of the block that is being said. It comes as one line: of a longer one the pieces count.
    pieces: String,
    /// More of it came than one line holds.
    overlong: bool,
    /// The inputs that are asked about, byte for byte: an answer gives them back. One a question, and questions are
    /// bounded.
    inputs: Vec<(String, Box<RawValue>)>,
}

impl ClaudeCode {
    pub(in crate::agents) fn new(turn: Turn) -> Self {
        let id = match &turn.conversation {
            Conversation::New { id } | Conversation::Resumed { id, .. } => id.clone(),
        };
        let totals = turn.conversation.totals();
        Self {
            turn,
            id,
            totals,
            begun: false,
            resumable: false,
            end: None,
            speech: Speech::default(),
            pieces: String::new(),
            overlong: false,
            inputs: Vec::new(),
        }
    }

    /// The program's own account of itself, once a turn.
    fn init(&mut self, event: &Value) -> Vec<Heard> {
        let got = text(event, "session_id");
        self.begun = true;
        if got != self.id.as_str() {
            self.end = Some(TurnEnd::WrongConversation { wanted: self.id.clone(), got: got.into() });
            return vec![Heard::Wrong];
        }
        vec![Heard::Said(Said::Bound(self.id.clone()))]
    }

    /// A piece of what the model is about to say; a subagent's is between it and the agent.
    fn piece(&mut self, event: &Value) -> Vec<Said> {
        let piece = &event["event"];
        if !text(event, "parent_tool_use_id").is_empty() {
            return Vec::new();
        }
        let delta = &piece["delta"];
        let (kind, words) = match (text(piece, "type"), text(delta, "type")) {
            ("content_block_delta", "text_delta") => (EventKind::Message, text(delta, "text")),
            ("content_block_delta", "thinking_delta") => (EventKind::Thought, text(delta, "thinking")),
            ("content_block_start", _) => {
                (self.pieces, self.overlong) = (String::new(), false);
                return self.speech.pause();
            }
            ("message_start", _) => return self.something_else(),
            _ => return Vec::new(),
        };
        if self.pieces.len() + words.len() <= LINE_MAX {
            self.pieces.push_str(words);
        } else {
            self.overlong = true;
        }
        self.speech.piece(kind, words)
    }

    /// Something else comes than the block of which there are pieces. Where it is to come as a block, those were in vain: it
    /// broke off, and is said anew if at all.
    fn something_else(&mut self) -> Vec<Said> {
        let in_vain = !std::mem::take(&mut self.pieces).is_empty() && !std::mem::take(&mut self.overlong);
        match self.speech.saying().filter(|_| in_vain).cloned() {
            Some(kind) => self.speech.give_up(&kind),
            None => self.speech.pause(),
        }
    }

    /// A block that the model has said. What its pieces did not tell is told.
    fn block(&mut self, kind: EventKind, words: &str, line: &str) -> Vec<Said> {
        let of_it = !self.pieces.is_empty() && self.speech.saying().is_none_or(|saying| *saying == kind);
        if let Some(rest) = words.strip_prefix(self.pieces.as_str()).filter(|_| of_it) {
            (self.pieces, self.overlong) = (String::new(), false);
            let mut said = self.speech.piece(kind, rest);
            said.extend(self.speech.end(line));
            said
        } else {
            let mut said = self.something_else();
            said.extend(entry::words(&kind, words, Some(line)));
            said
        }
    }

    /// What the model says and calls, one block a line as a rule.
    fn assistant(&mut self, event: &Value, line: &str) -> Vec<Said> {
        let mut said = self.written_down();
        if event.get("is_api_error_message").and_then(Value::as_bool) == Some(true) {
            // Not the model's words: they have no place in the conversation.
            let blocks = event["message"]["content"].as_array();
            let words = blocks.and_then(|blocks| blocks.first()).map_or("", |block| text(block, "text"));
            said.extend(self.speech.pause());
            said.push(entry::trouble(words, line));
            return said;
        }
        let nested = !text(event, "parent_tool_use_id").is_empty();
        let blocks = event["message"]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut unknown = blocks.is_empty();
        for block in blocks {
            match text(block, "type") {
                // What a subagent says is between it and the agent.
                "text" | "thinking" if nested => unknown = true,
                "text" => said.extend(self.block(EventKind::Message, text(block, "text"), line)),
                "thinking" => said.extend(self.block(EventKind::Thought, text(block, "thinking"), line)),
                "tool_use" => {
                    // A subagent's leaves what the agent is saying alone.
                    said.extend(if nested { self.speech.pause() } else { self.something_else() });
                    let input = block.get("input").unwrap_or(&Value::Null);
                    said.extend(entry::tool_call(text(block, "id"), text(block, "name"), input, line));
                }
                _ => unknown = true,
            }
        }
        if unknown {
            said.extend(entry::raw(line));
        }
        said
    }

    /// What the program says on the user's side: results of tools, and notes of its own.
    fn user(&mut self, event: &Value, line: &str) -> Vec<Said> {
        let mut said = self.written_down();
        said.extend(self.speech.pause());
        let blocks = event["message"]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut unknown = blocks.is_empty();
        for block in blocks {
            if text(block, "type") == "tool_result" {
                let is_error = block.get("is_error").and_then(Value::as_bool).unwrap_or_default();
                let output = block.get("content").unwrap_or(&Value::Null);
                said.push(entry::tool_result(text(block, "tool_use_id"), output, is_error, line));
            } else {
                unknown = true;
            }
        }
        if unknown {
            said.extend(entry::raw(line));
        }
        said
    }

    fn written_down(&mut self) -> Vec<Said> {
        let first = !std::mem::replace(&mut self.resumable, true);
        first.then_some(Said::Resumable).into_iter().collect()
    }

    fn question(&mut self, event: &Value, line: &str) -> Vec<Heard> {
        let (name, request) = (text(event, "request_id"), &event["request"]);
        if text(request, "subtype") != "can_use_tool" {
            let refusal = json!({
                "type": "control_response",
                "response": { "subtype": "error", "request_id": name, "error": "this is not supported here" },
            });
            let told = entry::raw(line).map(Heard::Said);
            return told.into_iter().chain([Heard::Sends(refusal.to_string())]).collect();
        }
        let Some(tool) = entry::tool_name(text(request, "tool_name")) else { return Vec::new() };
        let input = request.get("input").cloned().unwrap_or_else(|| json!({}));
        // What it will do says more than what the model calls it.
        let what = [text(request, "title").to_owned(), entry::shown(&input).unwrap_or_default()];
        let described = [text(request, "description").to_owned(), tool.to_string()];
        let mut titles = what.into_iter().chain(described).filter(|title| !title.is_empty());
        let title = entry::head(&titles.next().unwrap_or_default(), entry::TITLE_MAX).to_owned();
        let ask = Ask {
            title,
            command: entry::command(&input),
            input: entry::payload(&input),
            lasting: false,
            tool,
        };
        self.inputs.push((name.into(), exactly(line)));
        vec![Heard::Asks(name.into(), ask)]
    }

    fn result(&mut self, event: &Value) -> Vec<Heard> {
        let failed = event.get("is_error").and_then(Value::as_bool) != Some(false);
        let errors = event["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        let said_so = errors.iter().filter_map(Value::as_str).find(|error| !error.is_empty());
        let message = said_so.or(Some(text(event, "result")).filter(|text| !text.is_empty()));
        let message = message.unwrap_or("it failed without saying why").to_owned();
        if !self.begun && failed && message.contains(GONE) && self.turn.conversation.resumed().is_some() {
            // This result bears an id of its own making, and counts nothing.
            self.end.get_or_insert(TurnEnd::Gone { message });
            return vec![Heard::Over];
        }
        let end = if !failed {
            let result = event.get("result").and_then(Value::as_str).filter(|text| !text.is_empty());
            let stop = match text(event, "stop_reason") {
                "max_tokens" => Stop::MaxTokens,
                "refusal" => Stop::Refusal,
                _ => Stop::EndTurn,
            };
            TurnEnd::Completed { text: result.map(str::to_owned), stop }
        } else if text(event, "terminal_reason").starts_with(ABORTED) {
            TurnEnd::Failed { message: "its turn was interrupted".into() }
        } else {
            TurnEnd::Failed { message }
        };
        self.end.get_or_insert(end);
        let mut said = self.speech.pause();
        if !failed {
            said.extend(self.written_down());
        }
        said.extend(self.usage(event).map(Said::Usage));
        heard(said).into_iter().chain([Heard::Over]).collect()
    }

    /// What the turn used up. The total cost is summed up over the conversation, resumes included.
    fn usage(&mut self, event: &Value) -> Option<Reported> {
        let models = event.get("model_usage_since_last_result").and_then(Value::as_object);
        let total = micros(event.get("total_cost_usd")).max(self.totals.cost_micros);
        let (tokens, cost_micros) = if let Some(models) = models {
            let of = |model: &Value| {
                ["inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens"]
                    .map(|field| count(model, field))
                    .into_iter()
                    .fold(0, u64::saturating_add)
            };
            let tokens = models.values().map(of).fold(0, u64::saturating_add);
            let cost = models.values().map(|model| micros(model.get("costUSD")));
            (tokens, cost.fold(0, u64::saturating_add))
        } else {
            let usage = event.get("usage")?;
            let tokens =
                ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
                    .map(|field| count(usage, field))
                    .into_iter()
                    .fold(0, u64::saturating_add);
            (tokens, total.saturating_sub(self.totals.cost_micros))
        };
        self.totals = Totals { tokens: self.totals.tokens.saturating_add(tokens), cost_micros: total };
        let raw = json!({ "usage": event.get("usage"), "model_usage": models, "total_cost_usd": event.get("total_cost_usd") });
        Some(Reported {
            tokens,
            cost_micros,
            totals: self.totals,
            quality: UsageQuality::Exact,
            raw: entry::payload(&raw),
        })
    }
}

/// The input in a question, as it stands there. What is read as a value and written again may be another number.
fn exactly(line: &str) -> Box<RawValue> {
    #[derive(Deserialize)]
    struct Question<'a> {
        #[serde(borrow)]
        request: Asked<'a>,
    }
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    let question: Option<Question<'_>> = serde_json::from_str(line).ok();
    let input = question.and_then(|question| question.request.input).map(ToOwned::to_owned);
    let none = || to_raw_value(&json!({})).unwrap_or_else(|_| RawValue::NULL.to_owned());
    input.unwrap_or_else(none)
}

/// The answer to a question of the agent.
#[derive(Serialize)]
struct ControlResponse<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    response: Reply<'a>,
}

#[derive(Serialize)]
struct Reply<'a> {
    subtype: &'static str,
    request_id: &'a str,
    response: Verdict<'a>,
}

#[derive(Serialize)]
struct Verdict<'a> {
    behavior: &'static str,
    #[serde(rename = "updatedInput", skip_serializing_if = "Option::is_none")]
    updated_input: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Protocol for ClaudeCode {
    fn open(&mut self) -> Opening {
        let initialize = json!({ "type": "control_request", "request_id": "open", "request": { "subtype": "initialize" } });
        let content: Vec<_> = self.turn.words().map(|text| json!({ "type": "text", "text": text })).collect();
        let prompt = json!({ "type": "user", "message": { "role": "user", "content": content } });
        Opening { text: format!("{initialize}\n{prompt}\n"), stays_open: true }
    }

    fn hear(&mut self, line: &str) -> Vec<Heard> {
        let Some(event) = object(line) else { return heard(entry::raw(line)) };
        match (text(&event, "type"), text(&event, "subtype")) {
            ("system", "init") => self.init(&event),
            ("system", "api_retry") => {
                let (error, attempt) = (text(&event, "error"), count(&event, "attempt"));
                let why = match event.get("error_status").and_then(Value::as_u64) {
                    Some(status) => format!("{error} ({status})"),
                    None => error.into(),
                };
                let of = count(&event, "max_retries");
                heard([Said::Degraded(format!(
                    "the model does not answer: {why}, attempt {attempt} of {of}"
                ))])
            }
            ("stream_event", _) => heard(self.piece(&event)),
            ("assistant", _) => heard(self.assistant(&event, line)),
            ("user", _) => heard(self.user(&event, line)),
            ("control_request", _) => {
                let said = heard(self.speech.pause());
                said.into_iter().chain(self.question(&event, line)).collect()
            }
            ("control_cancel_request", _) => {
                let name = text(&event, "request_id");
                self.inputs.retain(|(held, _)| held != name);
                vec![Heard::Withdraws(name.into())]
            }
            ("control_response" | "keep_alive", _) | ("system", "thinking_tokens" | "status") => Vec::new(),
            ("result", _) => self.result(&event),
            _ => heard(entry::raw(line)),
        }
    }

    fn untold(&self) -> usize {
        self.speech.held()
    }

    fn tell(&mut self) -> Vec<Said> {
        self.speech.tell()
    }

    fn answer(&mut self, question: &str, answer: Answer) -> Option<String> {
        let at = self.inputs.iter().position(|(name, _)| name == question)?;
        let (_, input) = self.inputs.swap_remove(at);
        let response = match answer {
            Answer::Allow => Verdict { behavior: "allow", updated_input: Some(&input), message: None },
            Answer::Deny { message } => {
                let message = if message.is_empty() { REFUSED.to_owned() } else { message };
                Verdict { behavior: "deny", updated_input: None, message: Some(message) }
            }
            Answer::Cancelled => {
                Verdict { behavior: "deny", updated_input: None, message: Some("nobody answered".into()) }
            }
        };
        let response = Reply { subtype: "success", request_id: question, response };
        serde_json::to_string(&ControlResponse { kind: "control_response", response }).ok()
    }

    fn interrupt(&mut self) -> Vec<String> {
        let request = json!({ "type": "control_request", "request_id": "interrupt", "request": { "subtype": "interrupt" } });
        vec![request.to_string()]
    }

    fn close(&mut self) -> Closing {
        Closing { said: self.speech.pause(), end: self.end.take().unwrap_or_else(|| cut(self.begun)) }
    }
}
