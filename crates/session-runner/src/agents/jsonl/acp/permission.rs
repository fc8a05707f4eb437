//! Leave that is asked for: the agent offers options, and the answer is one of them, chosen by its kind alone.

use serde_json::{Value, json};

use super::super::protocol::{Heard, text};
use super::tools::Call;
use crate::agents::asking::{Answer, Ask};
use crate::agents::entry;

/// The options of the questions that are open.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    open: Vec<Open>,
    denied: bool,
}

#[derive(Debug)]
struct Open {
    /// The id of the request, exactly: `1` and `"1"` are two.
    id: Value,
    /// The same as text.
    name: String,
    /// The ids of the options, by kind.
    options: Vec<(String, Value)>,
}

impl Permissions {
    /// Something was forbidden in this turn.
    pub(super) fn denied(&self) -> bool {
        self.denied
    }

    /// The question, as it is put to a person.
    pub(super) fn ask(&mut self, id: &Value, params: &Value, call: Option<&Call>) -> Vec<Heard> {
        let unnamed = Call::default();
        let call = call.unwrap_or(&unnamed);
        let offered = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let options: Vec<_> = offered
            .iter()
            .map(|option| (text(option, "kind").to_owned(), option["optionId"].clone()))
            .collect();
        let offers = |kind: &str| options.iter().any(|(offered, _)| offered == kind);
        let Some(tool) = entry::tool_name(call.tool()) else {
            return vec![Heard::Sends(response(id, None))];
        };
        let title = if call.title.is_empty() { tool.as_str() } else { &call.title };
        let ask = Ask {
            title: entry::head(title, entry::TITLE_MAX).to_owned(),
            command: entry::command(&call.input),
            input: entry::payload(&call.input),
            lasting: !offers("allow_once") && offers("allow_always"),
            tool,
        };
        self.open.retain(|open| open.id != *id);
        let name = id.to_string();
        self.open.push(Open { id: id.clone(), name: name.clone(), options });
        vec![Heard::Asks(name, ask)]
    }

    /// The line that gives the answer.
    pub(super) fn answer(&mut self, question: &str, answer: &Answer) -> Option<String> {
        let at = self.open.iter().position(|open| open.name == question)?;
        let open = self.open.swap_remove(at);
        // For once rather than for good: what holds for good in this session is remembered by us.
        let kinds: &[&str] = match answer {
            Answer::Allow => &["allow_once", "allow_always"],
            Answer::Deny { .. } => &["reject_once", "reject_always"],
            Answer::Cancelled => &[],
        };
        self.denied |= matches!(answer, Answer::Deny { .. });
        let chosen = kinds.iter().find_map(|kind| open.options.iter().find(|(offered, _)| offered == kind));
        Some(response(&open.id, chosen.map(|(_, option)| option)))
    }

    /// The agent no longer wants to know: the question's name, and the answer that it still gets.
    pub(super) fn withdraw(&mut self, id: &Value) -> Option<(String, String)> {
        let at = self.open.iter().position(|open| open.id == *id)?;
        let open = self.open.swap_remove(at);
        let answer = response(&open.id, None);
        Some((open.name, answer))
    }

    /// The turn is cancelled: so is every question.
    pub(super) fn cancel_all(&mut self) -> Vec<String> {
        std::mem::take(&mut self.open).iter().map(|open| response(&open.id, None)).collect()
    }
}

/// The response to a question: this option, or that nobody chose.
fn response(id: &Value, option: Option<&Value>) -> String {
    let outcome = match option {
        Some(option) => json!({ "outcome": "selected", "optionId": option }),
        None => json!({ "outcome": "cancelled" }),
    };
    json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } }).to_string()
}
