//! The Messages interface, as Claude Code and Goose use it: always a stream.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::http::Exchange;
use super::reply::{End, Part, Reply, Told};

/// What agents say in the user's place begins so.
const NOT_THE_USER: &[&str] = &["<system-reminder>", "<turn-context>"];

/// What an agent says of a tool that was refused and does not call an error.
const DECLINED: &str = "declined to run this tool";
/// The tools that run commands, by the agents that have them.
const SHELLS: &[&str] = &["Bash", "shell", "developer__shell"];

/// The number of the next answer.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Answers a conversation.
pub(super) fn messages(body: &Value, exchange: Exchange) -> io::Result<()> {
    let tool = tool(body);
    // What has no tools is a question of the agent's own, about titles and such.
    let reply = if tool.is_some() { Reply::to(&told(body)) } else { Reply::default() };
    if let End::Failed(message) = &reply.end {
        let error = json!({ "type": "invalid_request_error", "message": message });
        return exchange.json(400, &json!({ "type": "error", "error": error }));
    }
    let wanted = reply.command.as_deref().and_then(super::of_server);
    let of_server =
        wanted.and_then(|(name, given)| Some((offered(body, name)?, serde_json::from_str(given).ok()?)));
    let shell = |command: &String| {
        (tool.unwrap_or_default(), json!({ "command": command, "description": "what the script says" }))
    };
    let call = of_server.or_else(|| reply.command.as_ref().map(shell));
    stream(&reply, call, &body["model"], exchange)
}

/// What the agent calls this tool of a server.
fn offered(body: &Value, name: &str) -> Option<String> {
    let mut names = body["tools"].as_array()?.iter().filter_map(|tool| tool["name"].as_str());
    names
        .find(|offered| offered.strip_suffix(name).is_some_and(|rest| rest.ends_with("__")))
        .map(str::to_owned)
}

/// The tool that runs commands, if it is offered.
fn tool(body: &Value) -> Option<String> {
    let tools = body["tools"].as_array()?;
    let mut names = tools.iter().filter_map(|tool| tool["name"].as_str());
    names.find(|name| SHELLS.contains(name)).map(str::to_owned)
}

fn told(body: &Value) -> Vec<Told> {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_user = messages.iter().filter(|message| message["role"] == "user");
    of_user.flat_map(|message| blocks(&message["content"])).collect()
}

fn blocks(content: &Value) -> Vec<Told> {
    if let Some(text) = content.as_str() {
        return user(text).into_iter().collect();
    }
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let told = |block: &Value| match block["type"].as_str() {
        Some("text") => user(block["text"].as_str().unwrap_or_default()),
        Some("tool_result") => {
            let answer = &block["content"];
            let text = answer.as_str().or_else(|| answer[0]["text"].as_str()).unwrap_or_default();
            Some(Told::Tool(text.into(), block["is_error"] == true || text.contains(DECLINED)))
        }
        Some(_) | None => None,
    };
    blocks.iter().filter_map(told).collect()
}

fn user(text: &str) -> Option<Told> {
    let is_agents = NOT_THE_USER.iter().any(|beginning| text.trim_start().starts_with(beginning));
    (!is_agents).then(|| Told::User(text.into()))
}

fn stream(
    reply: &Reply,
    call: Option<(String, Value)>,
    model: &Value,
    mut exchange: Exchange,
) -> io::Result<()> {
    exchange.stream()?;
    // The agent takes two answers of one id for pieces of one.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let message = json!({
        "id": format!("msg_{number:016}"), "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null,
        "usage": { "input_tokens": reply.tokens, "output_tokens": 0 },
    });
    exchange.event(&json!({ "type": "message_start", "message": message }))?;
    let mut index = 0;
    let mut block =
        |exchange: &mut Exchange, begin: Value, deltas: &[Value], whole: bool| -> io::Result<()> {
            exchange
                .event(&json!({ "type": "content_block_start", "index": index, "content_block": begin }))?;
            for delta in deltas {
                exchange.event(&json!({ "type": "content_block_delta", "index": index, "delta": delta }))?;
            }
            if whole {
                exchange.event(&json!({ "type": "content_block_stop", "index": index }))?;
            }
            index += 1;
            Ok(())
        };
    for (number, part) in reply.parts.iter().enumerate() {
        let (begin, deltas) = match part {
            Part::Said(text) => {
                (json!({ "type": "text", "text": "" }), vec![json!({ "type": "text_delta", "text": text })])
            }
            Part::Thought(text) => (
                json!({ "type": "thinking", "thinking": "", "signature": "" }),
                vec![
                    json!({ "type": "thinking_delta", "thinking": text }),
                    json!({ "type": "signature_delta", "signature": "c2lnbmVk" }),
                ],
            ),
        };
        block(&mut exchange, begin, &deltas, reply.completes(number))?;
    }
    if let Some((tool, input)) = call {
        let input = input.to_string();
        let begin =
            json!({ "type": "tool_use", "id": format!("toolu_{number:016}"), "name": tool, "input": {} });
        block(&mut exchange, begin, &[json!({ "type": "input_json_delta", "partial_json": input })], true)?;
    }
    if reply.hangs() {
        return exchange.hang();
    }
    let reason = if reply.command.is_some() { "tool_use" } else { "end_turn" };
    let delta = json!({ "stop_reason": reason, "stop_sequence": null });
    exchange.event(&json!({ "type": "message_delta", "delta": delta, "usage": { "output_tokens": 0 } }))?;
    exchange.event(&json!({ "type": "message_stop" }))
}
