//! `history.json`: the conversation so far, for the program that goes on with it. The event log is the truth; the file is
//! written anew when a session is resumed, and never read back.

use std::io;

use camino::Utf8Path;
use serde_json::{Value, json};
use session_core::history::{History, Message, Part, Role};

use super::file::{Outlives, replace};

/// The version of the format.
const VERSION: u32 = 1;

/// Writes the conversation, whole or not at all. The file is its owner's only.
pub(crate) fn write(path: &Utf8Path, history: &History) -> io::Result<()> {
    let repairs: Vec<_> = history.repairs.iter().map(ToString::to_string).collect();
    let messages: Vec<_> = history.messages.iter().map(message).collect();
    let mut text = serde_json::to_vec(&json!({ "v": VERSION, "messages": messages, "repairs": repairs }))?;
    text.push(b'\n');
    replace(path, &text, Outlives::Processes)
}

fn message(message: &Message) -> Value {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::System => "system",
    };
    let parts: Vec<_> = message.parts.iter().map(part).collect();
    json!({ "seq": message.seq.0, "role": role, "parts": parts })
}

fn part(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Thought(text) => json!({ "type": "thought", "text": text }),
        Part::ToolCall { id, name, input } => {
            json!({ "type": "tool_call", "id": id, "name": name, "input": input })
        }
        Part::ToolResult { id, output, is_error } => {
            json!({ "type": "tool_result", "id": id, "output": output, "is_error": is_error })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use session_core::Seq;

    use super::*;

    #[test]
    fn a_program_reads_the_conversation_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap().join("history.json");
        let said = |seq, role, part| Message { seq: Seq(seq), role, parts: vec![part] };
        let history = History {
            messages: vec![
                said(2, Role::User, Part::Text("what's \"new\"\n?".into())),
                said(3, Role::Assistant, Part::Thought("hm".into())),
            ],
            repairs: Vec::new(),
        };
        write(&path, &history).unwrap();
        let read: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let wanted = json!({
            "v": 1,
            "messages": [
                { "seq": 2, "role": "user", "parts": [{ "type": "text", "text": "what's \"new\"\n?" }] },
                { "seq": 3, "role": "assistant", "parts": [{ "type": "thought", "text": "hm" }] },
            ],
            "repairs": [],
        });
        assert_eq!(read, wanted);
    }
}
