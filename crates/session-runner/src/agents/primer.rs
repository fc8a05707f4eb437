//! What is said to an agent of a conversation that it does not know: our log's account of it, as text.

use serde_json::Value;
use session_core::history::{History, Message, Part, Role};

/// The longest account, in bytes. Of a longer conversation the beginning is left out.
const PRIMER_MAX: usize = 200 << 10;
/// The most that is told of one call of a tool, or of its result, in bytes.
const TOOL_MAX: usize = 2 << 10;

/// Says how the account is to be taken.
const BEFORE: &str = "You are taking over a conversation that was held before, by you or by another agent. What follows is its \
                      record, oldest first. The files may have changed since. Go on from it; do not answer it again.";
const AFTER: &str = "The record ends here. The user says now:";

/// An account of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// What the agent is told.
    pub(crate) text: String,
    /// How many messages at the beginning are left out.
    pub(crate) left_out: usize,
    /// How many calls of tools, and results, are cut.
    pub(crate) cut: usize,
}

/// The account of a conversation; `None` where nothing was said.
pub(crate) fn account(history: &History) -> Option<Account> {
    let said: Vec<String> = history.messages.iter().filter_map(told).collect();
    let mut bytes = 0;
    let kept = said.iter().rev().take_while(|text| {
        bytes += text.len();
        bytes <= PRIMER_MAX
    });
    let kept = kept.count();
    let left_out = said.len() - kept;
    let kept = said.get(left_out..).unwrap_or_default();
    if said.is_empty() {
        return None;
    }
    let mut text = format!("{BEFORE}\n\n");
    if left_out > 0 {
        text = format!("{text}[{left_out} earlier messages are left out]\n\n");
    }
    for message in kept {
        text.push_str(message);
        text.push_str("\n\n");
    }
    text.push_str(AFTER);
    let told = history.messages.iter().flat_map(|message| &message.parts);
    Some(Account { text, left_out, cut: told.filter(|part| is_cut(part)).count() })
}

/// Whether less is told of a tool than there is.
fn is_cut(part: &Part) -> bool {
    match part {
        Part::Text(_) | Part::Thought(_) => false,
        Part::ToolCall { input, .. } => input.to_string().len() > TOOL_MAX,
        Part::ToolResult { output, .. } => plain(output).len() > TOOL_MAX,
    }
}

/// What a tool answered, as text.
fn plain(output: &Value) -> String {
    output.as_str().map_or_else(|| output.to_string(), str::to_owned)
}

fn told(message: &Message) -> Option<String> {
    let speaker = match message.role {
        Role::User => "User",
        Role::Assistant => "Assistant",
        Role::Tool => "Tool",
        Role::System => "Note",
    };
    let parts: Vec<String> = message.parts.iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| format!("{speaker}: {}", parts.join("\n")))
}

fn part(part: &Part) -> Option<String> {
    match part {
        Part::Text(text) => Some(text.clone()),
        // Nobody else's business.
        Part::Thought(_) => None,
        Part::ToolCall { name, input, .. } => {
            Some(format!("[called {name} with {}]", cut(&input.to_string())))
        }
        Part::ToolResult { output, is_error, .. } => {
            let what = if *is_error { "failed with" } else { "answered" };
            Some(format!("[{what} {}]", cut(&plain(output))))
        }
    }
}

fn cut(text: &str) -> String {
    match text.get(..text.floor_char_boundary(TOOL_MAX)) {
        Some(head) if head.len() < text.len() => format!("{head}… ({} bytes)", text.len()),
        Some(_) | None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use session_core::event::Seq;

    use super::*;

    fn said(role: Role, parts: Vec<Part>) -> Message {
        Message { seq: Seq(1), role, parts }
    }

    #[test]
    fn an_account_says_who_said_what_and_which_tools_were_called() {
        let call = Part::ToolCall { id: "1".into(), name: "Bash".into(), input: json!({ "command": "ls" }) };
        let result = Part::ToolResult { id: "1".into(), output: json!("x".repeat(5000)), is_error: false };
        let history = History {
            messages: vec![
                said(Role::User, vec![Part::Text("what is here?".into())]),
                said(Role::Assistant, vec![Part::Thought("hm".into()), call]),
                said(Role::Tool, vec![result]),
                said(Role::Assistant, vec![Part::Text("a file".into())]),
            ],
            repairs: Vec::new(),
        };
        let Account { text, left_out, cut } = account(&history).unwrap();
        assert_eq!((left_out, cut), (0, 1));
        assert!(text.contains(
            "User: what is here?\n\nAssistant: [called Bash with {\"command\":\"ls\"}]\n\nTool: [answered xxx"
        ));
        assert!(
            text.contains("… (5000 bytes)]\n\nAssistant: a file\n\n") && !text.contains("hm\n"),
            "{text}"
        );
        assert!(text.ends_with(AFTER));
        assert_eq!(account(&History::default()), None);
    }

    #[test]
    fn of_a_long_conversation_the_end_is_told_and_what_is_missing() {
        let long = said(Role::User, vec![Part::Text("y".repeat(1000))]);
        let history = History { messages: vec![long; 1000], repairs: Vec::new() };
        let Account { text, left_out, .. } = account(&history).unwrap();
        assert!(left_out > 0);
        assert!(
            text.len() < PRIMER_MAX + 4096 && text.contains("earlier messages are left out]"),
            "{}",
            text.len()
        );
    }
}
