//! Codex, `codex exec --json`: the prompt goes down its stdin, and it takes no other word.
//!
//! Its first line says which thread it holds. A resume by something that names no thread silently begins another one, so the
//! id is compared. `turn.completed` and `turn.failed` end the turn; the usage in it is summed up over the whole thread,
//! resumes included.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use session_core::event::EventKind;
use session_core::names::ExecutorSessionId;

use super::protocol::{Closing, Heard, Opening, Protocol, count, cut, heard, object, text};
use crate::agents::asking::Answer;
use crate::agents::ending::{Stop, TurnEnd};
use crate::agents::entry;
use crate::agents::said::{Reported, Said, UsageQuality};
use crate::agents::turn::{Totals, Turn};

/// The most items that are remembered as begun.
const OPEN_MAX: usize = 1_000;

/// One turn with Codex.
pub(in crate::agents) struct Codex {
    turn: Turn,
    totals: Totals,
    begun: bool,
    resumable: bool,
    /// Items that have started and not ended.
    open: BTreeSet<String>,
    last: Option<String>,
    end: Option<TurnEnd>,
}

impl Codex {
    pub(in crate::agents) fn new(turn: Turn) -> Self {
        let totals = turn.conversation.totals();
        Self { turn, totals, begun: false, resumable: false, open: BTreeSet::new(), last: None, end: None }
    }

    fn thread(&mut self, event: &Value) -> Vec<Heard> {
        let got = text(event, "thread_id");
        self.begun = true;
        if let Some(wanted) = self.turn.conversation.resumed().filter(|wanted| wanted.as_str() != got) {
            self.end = Some(TurnEnd::WrongConversation { wanted: wanted.clone(), got: got.into() });
            return vec![Heard::Wrong];
        }
        match ExecutorSessionId::new(got) {
            Ok(id) => vec![Heard::Said(Said::Bound(id))],
            Err(error) => heard([entry::complaint(&format!("its thread cannot be resumed: {error}"))]),
        }
    }

    fn item(&mut self, event: &Value, line: &str) -> Vec<Said> {
        let (item, completed) = (&event["item"], text(event, "type") == "item.completed");
        let (id, kind) = (text(item, "id"), text(item, "type"));
        match (kind, completed) {
            ("agent_message", true) => {
                let words = text(item, "text");
                self.last = Some(words.to_owned()).filter(|words| !words.is_empty());
                entry::words(&EventKind::Message, words, Some(line))
            }
            ("reasoning", true) => entry::words(&EventKind::Thought, text(item, "text"), Some(line)),
            ("error", true) => vec![entry::trouble(text(item, "message"), line)],
            ("agent_message" | "reasoning" | "error", false) => Vec::new(),
            ("todo_list", _) => vec![entry::plan(item.get("items").unwrap_or(&Value::Null), line)],
            // What asks for nothing has neither call nor result.
            ("", _) => entry::raw(line).into_iter().collect(),
            (_, false) => {
                if self.open.len() < OPEN_MAX {
                    self.open.insert(id.into());
                }
                called(kind, item, line)
            }
            (_, true) => {
                // Some begin and end in one line; a result without its call would be lost from the history.
                let begun = self.open.remove(id);
                let mut said = if begun { Vec::new() } else { called(kind, item, line) };
                let failed = matches!(text(item, "status"), "failed" | "declined");
                said.push(entry::tool_result(id, &output(kind, item), failed, line));
                said
            }
        }
    }

    fn usage(&mut self, event: &Value) -> Option<Reported> {
        let usage = event.get("usage")?;
        let tokens = count(usage, "input_tokens").saturating_add(count(usage, "output_tokens"));
        let used = tokens.saturating_sub(self.totals.tokens);
        self.totals = Totals { tokens: tokens.max(self.totals.tokens), cost_micros: 0 };
        Some(Reported {
            tokens: used,
            cost_micros: 0,
            totals: self.totals,
            quality: UsageQuality::Exact,
            raw: entry::payload(usage),
        })
    }
}

/// A call of a tool, by what it is and what it is called with.
fn called(kind: &str, item: &Value, line: &str) -> Vec<Said> {
    let (name, input) = call(kind, item);
    entry::tool_call(text(item, "id"), &name, &input, line)
}

/// What a tool is called, and with what.
fn call(kind: &str, item: &Value) -> (String, Value) {
    let field = |name: &str| item.get(name).cloned().unwrap_or_default();
    match kind {
        "command_execution" => ("shell".into(), json!({ "command": field("command") })),
        "mcp_tool_call" => {
            (format!("mcp__{}__{}", text(item, "server"), text(item, "tool")), field("arguments"))
        }
        "file_change" => ("apply_patch".into(), json!({ "changes": field("changes") })),
        "web_search" => ("web_search".into(), json!({ "query": field("query") })),
        other => (other.into(), item.clone()),
    }
}

/// What a tool answered.
fn output(kind: &str, item: &Value) -> Value {
    let field = |name: &str| item.get(name).cloned().unwrap_or_default();
    match kind {
        "command_execution" => {
            json!({ "output": field("aggregated_output"), "exit_code": field("exit_code") })
        }
        "mcp_tool_call" if !item["error"].is_null() => field("error"),
        "mcp_tool_call" => field("result"),
        "file_change" => json!({ "changes": field("changes"), "status": field("status") }),
        _ => item.clone(),
    }
}

impl Protocol for Codex {
    fn open(&mut self) -> Opening {
        Opening { text: self.turn.text(), stays_open: false }
    }

    fn hear(&mut self, line: &str) -> Vec<Heard> {
        let Some(event) = object(line) else { return heard(entry::raw(line)) };
        match text(&event, "type") {
            "thread.started" => self.thread(&event),
            "turn.started" => Vec::new(),
            "item.started" | "item.updated" | "item.completed" => {
                let mut said = Vec::new();
                let first = text(&event["item"], "type") != "error" && !self.resumable;
                if first && text(&event, "type") == "item.completed" {
                    self.resumable = true;
                    said.push(Said::Resumable);
                }
                if text(&event, "type") != "item.updated" {
                    said.extend(self.item(&event, line));
                }
                heard(said)
            }
            "error" => {
                let message = text(&event, "message");
                if message.starts_with("Reconnecting") {
                    return heard([Said::Degraded(message.into())]);
                }
                heard([entry::trouble(message, line)])
            }
            "turn.completed" => {
                let end = TurnEnd::Completed { text: self.last.take(), stop: Stop::EndTurn };
                self.end.get_or_insert(end);
                let resumable = (!std::mem::replace(&mut self.resumable, true)).then_some(Said::Resumable);
                let usage = self.usage(&event).map(Said::Usage);
                heard(resumable.into_iter().chain(usage)).into_iter().chain([Heard::Over]).collect()
            }
            "turn.failed" => {
                let message = text(&event["error"], "message");
                let message = if message.is_empty() { "it failed without saying why" } else { message };
                self.end.get_or_insert(TurnEnd::Failed { message: message.into() });
                let usage = self.usage(&event).map(Said::Usage);
                heard(usage).into_iter().chain([Heard::Over]).collect()
            }
            _ => heard(entry::raw(line)),
        }
    }

    fn answer(&mut self, _question: &str, _answer: Answer) -> Option<String> {
        None
    }

    fn interrupt(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn close(&mut self) -> Closing {
        Closing { said: Vec::new(), end: self.end.take().unwrap_or_else(|| cut(self.begun)) }
    }
}
