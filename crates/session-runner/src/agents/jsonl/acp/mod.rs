//! The Agent Client Protocol, version 1: JSON-RPC, one message a line.
//!
//! One step follows the other: `initialize`, then `session/new` or the resume of a session, then its mode and model, then
//! the one prompt. Each step's request bears the step's number, so that an answer that comes twice, or to nothing, means
//! nothing. What the agent says of a session while it loads it has been logged before and is not taken again.
//!
//! The messages are read field by field and leniently: of what an agent says in words of a later version the rest is
//! still understood, and what is not understood is told as it came. The agent may ask for leave, and for nothing else: it
//! reads, writes and runs by itself, where its sandbox lets it, and not through us.

mod messages;
mod permission;
mod setup;
mod tools;
mod usage;

use serde_json::{Value, json};
use session_core::event::EventKind;
use session_core::names::ExecutorSessionId;

use self::messages::{Message, failure};
use self::permission::Permissions;
use self::setup::{Choice, Step};
use self::tools::Tools;
use self::usage::Meter;
use super::protocol::{Closing, Heard, Opening, Protocol, cut, heard, object, text};
use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::entry;
use crate::agents::said::Said;
use crate::agents::speech::Speech;
use crate::agents::turn::Turn;

/// Agents that tell an error as if the model had said it, and how they begin.
const ERRORS_SAID: &[(&str, &str)] = &[("goose", "Ran into this error: ")];

/// One turn with an agent that speaks the Agent Client Protocol.
pub(in crate::agents) struct Acp {
    turn: Turn,
    step: Step,
    begun: bool,
    session: Option<String>,
    models: Choice,
    speech: Speech,
    /// Which message the pieces belong to, where the agent says.
    speaking: String,
    tools: Tools,
    permissions: Permissions,
    meter: Meter,
    /// The agent says that its thread is broken, which some do not say by an error.
    broken: bool,
    /// How it begins where it tells an error in words.
    error_said: Option<&'static str>,
    end: Option<TurnEnd>,
}

impl Acp {
    pub(in crate::agents) fn new(turn: Turn) -> Self {
        let meter = Meter::new(turn.conversation.totals());
        Self {
            turn,
            step: Step::Initialize,
            begun: false,
            session: None,
            models: None,
            speech: Speech::default(),
            speaking: String::new(),
            tools: Tools::default(),
            permissions: Permissions::default(),
            meter,
            broken: false,
            error_said: None,
            end: None,
        }
    }

    /// The answer to what we asked last.
    fn answered(&mut self, result: Result<&Value, &Value>) -> Vec<Heard> {
        match (self.step, result) {
            (Step::Initialize, Ok(result)) => self.initialized(result),
            (Step::Open, Ok(result)) => self.opened(result),
            (Step::Open, Err(error)) if self.turn.conversation.resumed().is_some() => {
                let message = failure(error);
                self.ends(if messages::wants_login(error) {
                    TurnEnd::Failed { message }
                } else {
                    TurnEnd::Gone { message }
                })
            }
            (Step::Mode, Ok(_)) => self.choose_model(),
            (Step::Model, Ok(_)) => vec![self.prompt()],
            (Step::Prompt, Ok(result)) => self.prompted(result),
            (Step::Prompt, Err(error)) => {
                let said = self.flush();
                let end = self.ends(TurnEnd::Failed { message: failure(error) });
                heard(said).into_iter().chain(end).collect()
            }
            (Step::Initialize | Step::Open | Step::Mode | Step::Model, Err(error)) => {
                let message = format!("{} failed: {}", self.step.method(&self.turn), failure(error));
                self.ends(TurnEnd::Failed { message })
            }
            (Step::Over, _) => Vec::new(),
        }
    }

    /// The turn is over: the agent has answered the prompt.
    fn prompted(&mut self, result: &Value) -> Vec<Heard> {
        let mut said = self.flush();
        said.push(Said::Resumable);
        said.push(Said::Usage(self.meter.report(result)));
        let last = self.speech.last_word();
        let reason = text(result, "stopReason");
        let completed = |stop| TurnEnd::Completed { text: last.clone(), stop };
        let failed = |message: String| TurnEnd::Failed { message };
        let end = match reason {
            "end_turn" if self.broken => {
                failed(last.clone().unwrap_or_else(|| "its thread broke down".into()))
            }
            "end_turn" if self.told_an_error() => failed(last.clone().unwrap_or_default()),
            "end_turn" => completed(Stop::EndTurn),
            "max_tokens" => completed(Stop::MaxTokens),
            "max_turn_requests" => completed(Stop::MaxTurnRequests),
            "refusal" => completed(Stop::Refusal),
            // Some end their turn when they are told no.
            "cancelled" if self.permissions.denied() => completed(Stop::Denied),
            "cancelled" => failed("its turn was cancelled".into()),
            "" => failed("it ended its turn without saying why".into()),
            other => failed(format!("it ended its turn for a reason that is not known here: {other}")),
        };
        heard(said).into_iter().chain(self.ends(end)).collect()
    }

    /// Whether the last thing that it said is that it failed.
    fn told_an_error(&self) -> bool {
        let last = self.speech.last_word().unwrap_or_default();
        self.error_said.is_some_and(|beginning| last.starts_with(beginning))
    }

    fn ends(&mut self, end: TurnEnd) -> Vec<Heard> {
        self.step = Step::Over;
        self.end.get_or_insert(end);
        vec![Heard::Over]
    }

    /// What the agent says on its own.
    fn told(&mut self, method: &str, params: &Value, line: &str) -> Vec<Heard> {
        match method {
            "session/update" => heard(self.update(params, line)),
            "$/cancel_request" => {
                let Some((name, response)) = self.permissions.withdraw(&params["requestId"]) else {
                    return Vec::new();
                };
                vec![Heard::Withdraws(name), Heard::Sends(response)]
            }
            // A vendor's own; nothing that we take part in.
            _ if method.starts_with(['_', '$']) => Vec::new(),
            _ => heard(entry::raw(line)),
        }
    }

    /// What the agent wants of us.
    fn asked(&mut self, id: &Value, method: &str, params: &Value, line: &str) -> Vec<Heard> {
        let mut said = self.flush_speech();
        if method == "session/request_permission" {
            let call = &params["toolCall"];
            said.extend(self.tools.update(call, line));
            said.extend(self.tools.tell(text(call, "toolCallId"), line));
            let known = self.tools.known(text(call, "toolCallId"));
            let asks = self.permissions.ask(id, params, known);
            return heard(said).into_iter().chain(asks).collect();
        }
        said.extend(entry::raw(line));
        let error = json!({ "code": -32601, "message": format!("{method} is not offered here") });
        let reply = json!({ "jsonrpc": "2.0", "id": id, "error": error });
        heard(said).into_iter().chain([Heard::Sends(reply.to_string())]).collect()
    }

    /// News of the session.
    fn update(&mut self, params: &Value, line: &str) -> Vec<Said> {
        // Before the prompt it tells what was said in earlier turns.
        if self.step != Step::Prompt || self.session.as_deref() != Some(text(params, "sessionId")) {
            return Vec::new();
        }
        let update = &params["update"];
        let kind = text(update, "sessionUpdate");
        let words = match kind {
            "agent_message_chunk" => Some(EventKind::Message),
            "agent_thought_chunk" => Some(EventKind::Thought),
            _ => None,
        };
        if let Some(words) = words {
            return self.words(words, update, line);
        }
        match kind {
            "tool_call" | "tool_call_update" => {
                let mut said = self.flush_speech();
                said.extend(self.tools.tell_others(text(update, "toolCallId")));
                said.extend(self.tools.update(update, line));
                said
            }
            "plan" => {
                let mut said = self.flush_speech();
                said.extend(self.tools.tell_others(""));
                said.push(entry::plan(update.get("entries").unwrap_or(&Value::Null), line));
                said
            }
            "usage_update" => {
                self.meter.update(update);
                self.tools.tell_others("")
            }
            "session_info_update" => {
                let status = update.pointer("/_meta/codex/threadStatus");
                self.broken |= status.is_some_and(|status| status.to_string().contains("systemError"));
                Vec::new()
            }
            "user_message_chunk"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update" => Vec::new(),
            _ => entry::raw(line).into_iter().collect(),
        }
    }

    fn words(&mut self, kind: EventKind, update: &Value, line: &str) -> Vec<Said> {
        let mut said = self.tools.tell_others("");
        let content = &update["content"];
        if text(content, "type") != "text" {
            said.extend(self.flush_speech());
            said.extend(entry::raw(line));
            return said;
        }
        self.meter.chunk(update);
        let message = text(update, "messageId");
        if message != self.speaking {
            said.extend(self.flush_speech());
            message.clone_into(&mut self.speaking);
        }
        said.extend(self.speech.piece(kind, text(content, "text")));
        said
    }

    fn flush_speech(&mut self) -> Vec<Said> {
        self.speech.pause()
    }

    fn flush(&mut self) -> Vec<Said> {
        let mut said = self.flush_speech();
        said.extend(self.tools.tell_all());
        said
    }

    fn bind(&mut self, id: &ExecutorSessionId) -> Vec<Heard> {
        self.session = Some(id.to_string());
        heard([Said::Bound(id.clone())])
    }
}

impl Protocol for Acp {
    fn open(&mut self) -> Opening {
        Opening { text: format!("{}\n", setup::initialize()), stays_open: true }
    }

    fn hear(&mut self, line: &str) -> Vec<Heard> {
        let Some(message) = object(line) else {
            let said = self.flush_speech();
            return heard(said.into_iter().chain(entry::raw(line)));
        };
        self.begun = true;
        match Message::of(&message) {
            Message::Response(id, result) if id.as_u64() == Some(self.step.number()) => self.answered(result),
            Message::Request(id, method, params) => self.asked(id, method, params, line),
            Message::Notification(method, params) => self.told(method, params, line),
            // A response to nothing that we asked, or the second one.
            Message::Response(..) | Message::Nothing => heard(entry::raw(line)),
        }
    }

    fn untold(&self) -> usize {
        self.speech.held() + self.tools.untold()
    }

    fn tell(&mut self) -> Vec<Said> {
        let mut said = self.speech.tell();
        said.extend(self.tools.tell_others(""));
        said
    }

    fn answer(&mut self, question: &str, answer: Answer) -> Option<String> {
        self.permissions.answer(question, &answer)
    }

    fn interrupt(&mut self) -> Vec<String> {
        let Some(session) = self.session.as_ref().filter(|_| self.step == Step::Prompt) else {
            return Vec::new();
        };
        let params = json!({ "sessionId": session });
        let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
        std::iter::once(cancel.to_string()).chain(self.permissions.cancel_all()).collect()
    }

    fn close(&mut self) -> Closing {
        let said = self.flush();
        Closing { said, end: self.end.take().unwrap_or_else(|| cut(self.begun)) }
    }
}
