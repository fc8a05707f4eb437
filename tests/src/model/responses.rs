//! The Responses interface, as Codex uses it: always a stream.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::http::Exchange;
use super::reply::{End, Part, Reply, Told};

/// What the agent says in the user's place begins so.
const NOT_THE_USER: &[&str] = &["<", "# AGENTS.md"];
/// The tools that run commands, by the versions that have them.
const SHELLS: &[&str] = &["exec_command", "shell_command", "shell"];

/// The number of the next answer.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Answers a conversation.
pub(super) fn responses(body: &Value, exchange: Exchange) -> io::Result<()> {
    let reply = Reply::to(&told(body));
    if let End::Failed(message) = &reply.end {
        let error = json!({ "type": "invalid_request_error", "message": message });
        return exchange.json(400, &json!({ "error": error }));
    }
    stream(&reply, body, exchange)
}

fn told(body: &Value) -> Vec<Told> {
    let items = body["input"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().flat_map(item).collect()
}

fn item(item: &Value) -> Vec<Told> {
    if item["type"] == "function_call_output" {
        // Whether it went wrong stands in its words alone.
        let output = &item["output"];
        let text = output.as_str().or_else(|| output[0]["text"].as_str()).unwrap_or_default();
        return vec![Told::Tool(text.into(), false)];
    }
    if item["role"] != "user" {
        return Vec::new();
    }
    let blocks = item["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
    let of_user =
        |text: &&str| !NOT_THE_USER.iter().any(|beginning| text.trim_start().starts_with(beginning));
    texts.filter(of_user).map(|text| Told::User(text.into())).collect()
}

/// The call of the tool that runs commands.
fn call(command: &str, body: &Value, number: u64) -> Value {
    let tools = body["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    if let Some((name, given)) = super::of_server(command) {
        return of_server(tools, name, given, number);
    }
    let offered = |name: &&&str| tools.iter().any(|tool| tool["name"] == **name);
    let name = SHELLS.iter().find(offered).copied().unwrap_or_default();
    let arguments = match name {
        "exec_command" => json!({ "cmd": command }),
        "shell" => json!({ "command": ["sh", "-c", command] }),
        _ => json!({ "command": command }),
    };
    json!({
        "type": "function_call", "id": format!("fc_{number}"), "call_id": format!("call_{number}"), "name": name,
        "arguments": arguments.to_string(), "status": "completed",
    })
}

/// The call of a server's tool, which stands by itself or in the namespace of its server.
fn of_server(tools: &[Value], name: &str, given: &str, number: u64) -> Value {
    let mut call = json!({
        "type": "function_call", "id": format!("fc_{number}"), "call_id": format!("call_{number}"), "name": name,
        "arguments": given, "status": "completed",
    });
    for tool in tools {
        let own = tool["name"].as_str().unwrap_or_default();
        let inner = tool["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
        if inner.iter().any(|tool| tool["name"] == name) {
            call["namespace"] = json!(own);
        } else if own.strip_suffix(name).is_some_and(|rest| rest.ends_with("__")) {
            call["name"] = json!(own);
        }
    }
    call
}

fn stream(reply: &Reply, body: &Value, mut exchange: Exchange) -> io::Result<()> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    exchange.stream()?;
    let mut response = json!({ "id": format!("resp_{number}"), "object": "response", "status": "in_progress", "output": [] });
    exchange.event(&json!({ "type": "response.created", "response": response }))?;
    let mut items: Vec<Value> = Vec::new();
    for (index, part) in reply.parts.iter().enumerate() {
        items.push(match part {
            Part::Said(text) => json!({
                "type": "message", "id": format!("msg_{number}_{index}"), "role": "assistant", "status": "completed",
                "content": [{ "type": "output_text", "text": text, "annotations": [] }],
            }),
            Part::Thought(text) => json!({
                "type": "reasoning", "id": format!("rs_{number}_{index}"), "encrypted_content": null,
                "summary": [{ "type": "summary_text", "text": text }],
            }),
        });
    }
    items.extend(reply.command.as_ref().map(|command| call(command, body, number)));
    for (index, item) in items.iter().enumerate() {
        for kind in ["response.output_item.added", "response.output_item.done"] {
            exchange.event(&json!({ "type": kind, "output_index": index, "item": item }))?;
        }
    }
    if reply.hangs() {
        return exchange.hang();
    }
    response["status"] = json!("completed");
    response["output"] = json!(items);
    response["usage"] = json!({
        "input_tokens": reply.tokens, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": 0,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": reply.tokens,
    });
    exchange.event(&json!({ "type": "response.completed", "response": response }))
}
