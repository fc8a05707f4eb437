//! The Gemini interface, as Gemini CLI uses it over Vertex AI: a stream for what has tools, and one value for the rest.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::http::Exchange;
use super::reply::{End, Part, Reply, Told};

/// What the agent says in the user's place begins so.
const NOT_THE_USER: &str = "<session_context>";
/// The tool that runs commands.
const SHELL: &str = "run_shell_command";

/// The number of the next call of a tool.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Whether a path is one of this interface's.
pub(super) fn is_asked(path: &str) -> bool {
    path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent")
}

/// Answers a conversation.
pub(super) fn generate(path: &str, body: &Value, exchange: Exchange) -> io::Result<()> {
    // What has no tools is a question of the agent's own, about which model is to answer.
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let reply = if has_tools { Reply::to(&told(body)) } else { Reply::default() };
    if let End::Failed(message) = &reply.end {
        let error = json!({ "code": 400, "message": message, "status": "INVALID_ARGUMENT" });
        return exchange.json(400, &json!({ "error": error }));
    }
    if path.ends_with(":generateContent") {
        return exchange.json(200, &piece(&reply, &[json!({ "text": "{}" })], true));
    }
    stream(&reply, exchange)
}

fn told(body: &Value) -> Vec<Told> {
    let contents = body["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_user = contents.iter().filter(|content| content["role"] == "user");
    let parts = of_user.filter_map(|content| content["parts"].as_array()).flatten();
    let mut told = Vec::new();
    let mut answered = Vec::new();
    for part in parts {
        if let Some(text) = part["text"].as_str().filter(|text| !text.starts_with(NOT_THE_USER)) {
            told.push(Told::User(text.into()));
        }
        // A conversation that was taken up again tells each answer twice.
        let answer = &part["functionResponse"];
        if answer.is_object() && !answered.contains(&&answer["id"]) {
            answered.push(&answer["id"]);
            let error = answer["response"]["error"].as_str();
            told.push(Told::Tool(error.unwrap_or_default().into(), error.is_some()));
        }
    }
    told
}

/// A piece of an answer, with what was counted so far.
fn piece(reply: &Reply, parts: &[Value], last: bool) -> Value {
    let mut candidate = json!({ "content": { "role": "model", "parts": parts }, "index": 0 });
    if last {
        candidate["finishReason"] = json!("STOP");
    }
    let counted = json!({ "promptTokenCount": reply.tokens, "candidatesTokenCount": 0, "totalTokenCount": reply.tokens });
    json!({ "candidates": [candidate], "usageMetadata": counted, "modelVersion": "ours" })
}

fn stream(reply: &Reply, mut exchange: Exchange) -> io::Result<()> {
    exchange.stream()?;
    for part in &reply.parts {
        let part = match part {
            Part::Said(text) => json!({ "text": text }),
            Part::Thought(text) => json!({ "text": text, "thought": true }),
        };
        exchange.data(&piece(reply, &[part], false))?;
    }
    if reply.hangs() {
        return exchange.hang();
    }
    let command = reply.command.as_ref().map(|command| {
        let id = format!("call_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        json!({ "functionCall": { "id": id, "name": SHELL, "args": { "command": command } } })
    });
    exchange.data(&piece(reply, command.as_slice(), true))
}
