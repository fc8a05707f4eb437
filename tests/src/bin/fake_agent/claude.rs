//! Claude Code's words, as far as roomette speaks with it: `stream-json` both ways.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::Outcome;
use crate::memory::Memory;
use crate::turn::{End, Held, Leave, Tongue, hold};
use crate::wire::Wire;

/// Without these it would be another program.
const MUST: &[&[&str]] = &[
    &["-p"],
    &["--input-format", "stream-json"],
    &["--output-format", "stream-json"],
    &["--include-partial-messages"],
    &["--verbose"],
    &["--permission-prompt-tool", "stdio"],
];

/// Holds turns until nobody is there any more.
pub(crate) fn speak(arguments: &[String]) -> Outcome<ExitCode> {
    for words in MUST {
        if !arguments.windows(words.len()).any(|found| found == *words) {
            return Err(format!("{} is missing", words.join(" ")).into());
        }
    }
    let value = |name: &str| {
        let mut after = arguments.iter().skip_while(|argument| *argument != name);
        after.nth(1)
    };
    let wire = Wire::stdio();
    let memory = match (value("--session-id"), value("--resume")) {
        (Some(id), None) => Memory::new(id)?.ok_or(format!("Session ID {id} is already in use."))?,
        (None, Some(id)) => {
            let Some(memory) = Memory::recall(id)? else {
                let errors = [format!("No conversation found with session ID: {id}")];
                // With an id of its own making.
                wire.send(&json!({
                    "type": "result", "subtype": "error_during_execution", "is_error": true, "errors": errors,
                    "session_id": "77777777-7777-4777-8777-777777777777",
                }))?;
                return Ok(ExitCode::FAILURE);
            };
            memory
        }
        _ => return Err("either --session-id or --resume".into()),
    };
    Claude { wire, session: memory.id.clone() }.turns(memory)
}

struct Claude {
    wire: Wire,
    session: String,
}

impl Claude {
    fn turns(mut self, mut memory: Memory) -> Outcome<ExitCode> {
        while let Some((_, message)) = self.wire.next()? {
            if message["type"] != "user" {
                self.agree(&message)?;
                continue;
            }
            let init =
                json!({ "type": "system", "subtype": "init", "session_id": self.session, "tools": ["Bash"] });
            self.wire.send(&init)?;
            let blocks = message["message"]["content"].as_array().cloned().unwrap_or_default();
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            let held = hold(&texts.join("\n\n"), &mut memory, &mut self)?;
            match self.ending(&held) {
                Ok(result) => self.wire.send(&result)?,
                Err(code) => return Ok(ExitCode::from(code)),
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Answers what needs no thought.
    fn agree(&self, message: &Value) -> Outcome<()> {
        if message["type"] != "control_request" {
            return Ok(());
        }
        let response = json!({ "subtype": "success", "request_id": message["request_id"], "response": {} });
        self.wire.send(&json!({ "type": "control_response", "response": response }))
    }

    fn ending(&self, held: &Held) -> Result<Value, u8> {
        let tokens = held.tokens;
        let mut result = json!({
            "type": "result", "subtype": "success", "is_error": false, "session_id": self.session,
            "usage": { "input_tokens": tokens, "output_tokens": 0 },
            "model_usage_since_last_result": { "fake": { "inputTokens": tokens, "outputTokens": 0 } },
        });
        match &held.end {
            End::Done(text) => {
                result["result"] = json!(text);
                result["stop_reason"] = json!("end_turn");
            }
            End::Failed(message) => {
                // "success" all the same, as it is with errors of the model.
                result["is_error"] = json!(true);
                result["result"] = json!(message);
            }
            End::Interrupted => {
                result["subtype"] = json!("error_during_execution");
                result["is_error"] = json!(true);
                result["terminal_reason"] = json!("aborted_streaming");
            }
            End::Left(code) => return Err(*code),
        }
        Ok(result)
    }

    fn assistant(&self, block: &Value) -> Outcome<()> {
        let message = json!({ "id": "msg_1", "role": "assistant", "content": [block] });
        self.wire.send(&json!({ "type": "assistant", "message": message, "session_id": self.session }))
    }

    fn piece(&self, event: &Value) -> Outcome<()> {
        self.wire.send(&json!({ "type": "stream_event", "event": event, "session_id": self.session }))
    }

    fn is_interrupt(message: &Value) -> bool {
        message["request"]["subtype"] == "interrupt"
    }
}

impl Tongue for Claude {
    fn say(&mut self, text: &str) -> Outcome<()> {
        self.assistant(&json!({ "type": "text", "text": text }))
    }

    /// In pieces, which a block that is complete repeats.
    fn begin(&mut self, text: &str) -> Outcome<()> {
        let (first, second) = text.split_at(text.floor_char_boundary(text.len().min(2)));
        self.piece(
            &json!({ "type": "content_block_start", "content_block": { "type": "text", "text": "" } }),
        )?;
        for piece in [first, second] {
            let delta = json!({ "type": "text_delta", "text": piece });
            self.piece(&json!({ "type": "content_block_delta", "delta": delta }))?;
        }
        Ok(())
    }

    fn think(&mut self, text: &str) -> Outcome<()> {
        self.assistant(&json!({ "type": "thinking", "thinking": text }))
    }

    fn ask(&mut self, call: &str, command: &str) -> Outcome<Leave> {
        // Read as a value and written again it would be another text: `1.0`, and this order.
        let input = format!(r#"{{ "timeout" : 1.0,"command":{} }}"#, json!(command));
        let value: Value = serde_json::from_str(&input)?;
        self.assistant(&json!({ "type": "tool_use", "id": call, "name": "Bash", "input": value }))?;
        let request = format!(r#"{{"subtype":"can_use_tool","tool_name":"Bash","input":{input}}}"#);
        self.wire
            .print(format!(r#"{{"type":"control_request","request_id":"{call}","request":{request}}}"#))?;
        while let Some((line, message)) = self.wire.next()? {
            if Self::is_interrupt(&message) {
                self.agree(&message)?;
                return Ok(Leave::Interrupted);
            }
            let response = &message["response"];
            if response["request_id"] != call {
                continue;
            }
            let told = |field: &str| response["response"][field].as_str().unwrap_or_default().to_owned();
            return Ok(match told("behavior").as_str() {
                "allow" if line.contains(&format!(r#""updatedInput":{input}"#)) => {
                    Leave::Given(command.into())
                }
                "allow" => Leave::Refused("the input is another one".into()),
                _ => Leave::Refused(told("message")),
            });
        }
        Ok(Leave::Interrupted)
    }

    fn result(&mut self, call: &str, output: &str, is_error: bool) -> Outcome<()> {
        let block =
            json!({ "type": "tool_result", "tool_use_id": call, "content": output, "is_error": is_error });
        self.wire.send(&json!({ "type": "user", "message": { "role": "user", "content": [block] } }))
    }

    fn print(&mut self, line: &[u8]) -> Outcome<()> {
        self.wire.print(line)
    }

    fn hang(&mut self) -> Outcome<()> {
        while let Some((_, message)) = self.wire.next()? {
            self.agree(&message)?;
            if Self::is_interrupt(&message) {
                break;
            }
        }
        Ok(())
    }
}
