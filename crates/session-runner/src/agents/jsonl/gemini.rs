//! Gemini CLI, `-o stream-json`: the prompt goes down its stdin, and it takes no other word.
//!
//! Its first line says the conversation's id, which is ours. Messages come in pieces. `result` ends the turn, and only its
//! `status` says how; its `stats` are those of this turn.

use serde_json::Value;
use session_core::event::EventKind;
use session_core::names::ExecutorSessionId;

use super::protocol::{Closing, Heard, Opening, Protocol, count, cut, heard, object, text};
use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::entry;
use crate::agents::said::{Reported, Said, UsageQuality};
use crate::agents::speech::Speech;
use crate::agents::turn::{Conversation, Totals, Turn};

/// One turn with Gemini CLI.
pub(in crate::agents) struct Gemini {
    turn: Turn,
    id: ExecutorSessionId,
    begun: bool,
    resumable: bool,
    speech: Speech,
    totals: Totals,
    end: Option<TurnEnd>,
}

impl Gemini {
    pub(in crate::agents) fn new(turn: Turn) -> Self {
        let id = match &turn.conversation {
            Conversation::New { id } | Conversation::Resumed { id, .. } => id.clone(),
        };
        let totals = turn.conversation.totals();
        Self { turn, id, begun: false, resumable: false, speech: Speech::default(), totals, end: None }
    }

    fn init(&mut self, event: &Value) -> Vec<Heard> {
        let got = text(event, "session_id");
        self.begun = true;
        if got != self.id.as_str() {
            self.end = Some(TurnEnd::WrongConversation { wanted: self.id.clone(), got: got.into() });
            return vec![Heard::Wrong];
        }
        vec![Heard::Said(Said::Bound(self.id.clone()))]
    }

    fn message(&mut self, event: &Value) -> Vec<Said> {
        // The user's own words are in the log already.
        if text(event, "role") != "assistant" {
            return Vec::new();
        }
        let mut said = self.written_down();
        let whole = event.get("delta").and_then(Value::as_bool) != Some(true);
        if whole {
            said.extend(self.speech.pause());
        }
        said.extend(self.speech.piece(EventKind::Message, text(event, "content")));
        if whole {
            said.extend(self.speech.pause());
        }
        said
    }

    fn written_down(&mut self) -> Vec<Said> {
        let first = !std::mem::replace(&mut self.resumable, true);
        first.then_some(Said::Resumable).into_iter().collect()
    }

    fn result(&mut self, event: &Value) -> Vec<Heard> {
        let mut said = self.speech.pause();
        let end = if text(event, "status") == "success" {
            said.extend(self.written_down());
            TurnEnd::Completed { text: self.speech.last_word(), stop: Stop::EndTurn }
        } else {
            let message = text(&event["error"], "message");
            let message = if message.is_empty() { "it failed without saying why" } else { message };
            TurnEnd::Failed { message: message.into() }
        };
        self.end.get_or_insert(end);
        said.extend(self.usage(event).map(Said::Usage));
        heard(said).into_iter().chain([Heard::Over]).collect()
    }

    fn usage(&mut self, event: &Value) -> Option<Reported> {
        let stats = event.get("stats")?;
        let sum = count(stats, "input_tokens").saturating_add(count(stats, "output_tokens"));
        // What the model thinks is in the total, and in nothing else.
        let tokens = count(stats, "total_tokens").max(sum);
        self.totals.tokens = self.totals.tokens.saturating_add(tokens);
        Some(Reported {
            tokens,
            cost_micros: 0,
            totals: self.totals,
            quality: UsageQuality::Exact,
            raw: entry::payload(stats),
        })
    }
}

impl Protocol for Gemini {
    fn open(&mut self) -> Opening {
        Opening { text: self.turn.text(), stays_open: false }
    }

    fn hear(&mut self, line: &str) -> Vec<Heard> {
        let Some(event) = object(line) else {
            let said = self.speech.pause();
            return heard(said.into_iter().chain(entry::raw(line)));
        };
        let kind = text(&event, "type");
        match kind {
            "init" => return self.init(&event),
            "message" => return heard(self.message(&event)),
            "result" => return self.result(&event),
            _ => {}
        }
        let mut said = self.speech.pause();
        let id = text(&event, "tool_id");
        match kind {
            "tool_use" => {
                let input = event.get("parameters").unwrap_or(&Value::Null);
                said.extend(entry::tool_call(id, text(&event, "tool_name"), input, line));
            }
            "tool_result" => {
                let failed = text(&event, "status") != "success";
                said.push(entry::tool_result(id, event.get("output").unwrap_or(&Value::Null), failed, line));
            }
            "error" if text(&event, "severity") == "warning" => {
                said.push(Said::Degraded(text(&event, "message").into()));
            }
            "error" => said.push(entry::trouble(text(&event, "message"), line)),
            _ => said.extend(entry::raw(line)),
        }
        heard(said)
    }

    fn untold(&self) -> usize {
        self.speech.held()
    }

    fn tell(&mut self) -> Vec<Said> {
        self.speech.tell()
    }

    fn answer(&mut self, _question: &str, _answer: Answer) -> Option<String> {
        None
    }

    fn interrupt(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn close(&mut self) -> Closing {
        Closing { said: self.speech.pause(), end: self.end.take().unwrap_or_else(|| cut(self.begun)) }
    }
}
