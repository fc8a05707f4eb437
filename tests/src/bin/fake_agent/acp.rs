//! The Agent Client Protocol, version 1: JSON-RPC, one message a line.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::Outcome;
use crate::memory::Memory;
use crate::turn::{End, Held, Leave, Tongue, hold};
use crate::wire::Wire;

/// What may be answered: neither the order nor the ids say what is meant, only the kinds do.
const OPTIONS: &[(&str, &str)] =
    &[("0", "reject_always"), ("allow", "reject_once"), ("always", "allow_always"), ("no", "allow_once")];

/// Answers requests until nobody is there any more.
pub(crate) fn speak() -> Outcome<ExitCode> {
    let mut agent = Acp { wire: Wire::stdio(), session: String::new() };
    let mut memory: Option<Memory> = None;
    while let Some((_, message)) = agent.wire.next()? {
        let (id, params) = (message["id"].clone(), &message["params"]);
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => agent.reply(&id, &hello())?,
            "session/new" => {
                let new = Memory::numbered()?;
                agent.session.clone_from(&new.id);
                agent.reply(&id, &json!({ "sessionId": new.id }))?;
                memory = Some(new);
            }
            "session/load" => {
                let wanted = params["sessionId"].as_str().unwrap_or_default();
                memory = Memory::recall(wanted)?;
                match &memory {
                    None => agent.refuse(&id, -32_002, "Resource not found", wanted)?,
                    Some(found) => agent.load(&id, found)?,
                }
            }
            "session/prompt" => {
                let Some(memory) = &mut memory else {
                    agent.refuse(&id, -32_602, "Invalid params", "no session")?;
                    continue;
                };
                let blocks = params["prompt"].as_array().cloned().unwrap_or_default();
                let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
                let held = hold(&texts.join("\n\n"), memory, &mut agent)?;
                if let Err(code) = agent.end(&id, &held)? {
                    return Ok(ExitCode::from(code));
                }
            }
            _ if id.is_null() => {}
            method => agent.refuse(&id, -32_601, "Method not found", method)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn hello() -> Value {
    json!({
        "protocolVersion": 1,
        "agentInfo": { "name": "fake-agent", "version": "1" },
        "agentCapabilities": { "loadSession": true },
    })
}

struct Acp {
    wire: Wire,
    session: String,
}

impl Acp {
    fn reply(&self, id: &Value, result: &Value) -> Outcome<()> {
        self.wire.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))
    }

    fn refuse(&self, id: &Value, code: i64, message: &str, data: &str) -> Outcome<()> {
        let error = json!({ "code": code, "message": message, "data": { "details": data } });
        self.wire.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
    }

    fn update(&self, update: &Value) -> Outcome<()> {
        let params = json!({ "sessionId": self.session, "update": update });
        self.wire.send(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
    }

    fn words(&self, kind: &str, text: &str) -> Outcome<()> {
        self.update(&json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } }))
    }

    /// Tells all that was said before it says that the session is there.
    fn load(&mut self, id: &Value, memory: &Memory) -> Outcome<()> {
        self.session.clone_from(&memory.id);
        for told in &memory.told {
            self.words("user_message_chunk", told)?;
            self.words("agent_message_chunk", "replayed")?;
        }
        // It is not said which one it is, unless it is another one.
        let wandered = memory.id.starts_with('9').then(|| json!({ "sessionId": memory.id }));
        self.reply(id, &wandered.unwrap_or_else(|| json!({})))
    }

    fn end(&self, id: &Value, held: &Held) -> Outcome<Result<(), u8>> {
        let usage = json!({ "inputTokens": held.tokens, "outputTokens": 0, "totalTokens": held.tokens });
        let stopped = |reason: &str| self.reply(id, &json!({ "stopReason": reason, "usage": usage }));
        match &held.end {
            End::Done(_) => stopped("end_turn")?,
            End::Interrupted => stopped("cancelled")?,
            End::Failed(message) => self.refuse(id, -32_603, "Internal error", message)?,
            End::Left(code) => return Ok(Err(*code)),
        }
        Ok(Ok(()))
    }
}

impl Tongue for Acp {
    fn say(&mut self, text: &str) -> Outcome<()> {
        self.begin(text)?;
        // Something else in between: the next one is another message.
        self.update(&json!({ "sessionUpdate": "plan", "entries": [] }))
    }

    /// In two pieces, as such agents do.
    fn begin(&mut self, text: &str) -> Outcome<()> {
        let (first, second) = text.split_at(text.floor_char_boundary(text.len().min(2)));
        [first, second].into_iter().try_for_each(|piece| self.words("agent_message_chunk", piece))
    }

    fn think(&mut self, text: &str) -> Outcome<()> {
        self.words("agent_thought_chunk", text)
    }

    fn ask(&mut self, call: &str, command: &str) -> Outcome<Leave> {
        let input = json!({ "command": command });
        self.update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": call, "title": command, "kind": "execute",
            "status": "pending", "rawInput": input,
        }))?;
        let options: Vec<_> =
            OPTIONS.iter().map(|(id, kind)| json!({ "optionId": id, "kind": kind, "name": kind })).collect();
        let params =
            json!({ "sessionId": self.session, "toolCall": { "toolCallId": call }, "options": options });
        self.wire.send(&json!({
            "jsonrpc": "2.0", "id": call, "method": "session/request_permission", "params": params,
        }))?;
        let mut interrupted = false;
        while let Some((_, message)) = self.wire.next()? {
            interrupted |= message["method"] == "session/cancel";
            if message["id"] != call {
                continue;
            }
            let outcome = &message["result"]["outcome"];
            let chosen = OPTIONS.iter().find(|(id, _)| outcome["optionId"] == *id).map(|(_, kind)| *kind);
            return Ok(match chosen {
                _ if interrupted => Leave::Interrupted,
                Some("allow_once") => Leave::Given(command.into()),
                Some("reject_once") => Leave::Refused("the user said no".into()),
                Some(other) => Leave::Refused(format!("{other} is more than was asked for")),
                None => Leave::Interrupted,
            });
        }
        Ok(Leave::Interrupted)
    }

    fn result(&mut self, call: &str, output: &str, is_error: bool) -> Outcome<()> {
        let status = if is_error { "failed" } else { "completed" };
        self.update(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": call, "status": status,
            "rawOutput": { "output": output },
        }))
    }

    fn print(&mut self, line: &[u8]) -> Outcome<()> {
        self.wire.print(line)
    }

    fn hang(&mut self) -> Outcome<()> {
        while let Some((_, message)) = self.wire.next()? {
            if message["method"] == "session/cancel" {
                break;
            }
        }
        Ok(())
    }
}
