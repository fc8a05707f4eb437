//! An MCP server for tests: each of its tools does one thing that a bridge must bear.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines};

use crate::envelope::{Kind, Message, member};

type Input = Lines<BufReader<DuplexStream>>;

/// Serves until its input ends or it is told to crash.
pub(super) async fn serve(from: DuplexStream, mut into: DuplexStream, scope: &str, is_plain: bool) {
    let mut input = BufReader::new(from).lines();
    let (mut calls, mut hangs, mut cancelled, mut listening) = (0_u32, 0_u32, Vec::new(), String::new());
    while let Ok(Some(line)) = input.next_line().await {
        let message = Message::parse(line.into_bytes()).unwrap();
        if message.method() == Some("notifications/cancelled") {
            cancelled.push(message.param("requestId").unwrap_or_default().to_owned());
        }
        let Some(id) = message.id_text().filter(|_| message.kind() == Kind::Request) else { continue };
        let params = message.params().unwrap_or("{}");
        let result = match message.method() {
            Some("initialize") => {
                let version = member(params, "protocolVersion").unwrap_or("\"2025-11-25\"");
                format!(
                    r#"{{"protocolVersion":{version},"capabilities":{{"tools":{{}}}},"instructions":"in {scope}","x":1.0}}"#
                )
            }
            Some("server/discover") if is_plain => {
                r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}"#.to_owned()
            }
            Some("server/discover") => {
                let error = r#"{"code":-32601,"message":"no"}"#;
                say(&mut into, &format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)).await;
                continue;
            }
            Some("subscriptions/listen") => {
                listening = id.to_owned();
                changed(&mut into, &listening).await;
                continue;
            }
            Some("tools/list") => {
                let marked =
                    r#"{"type":"object","properties":{"who":{"type":"string","x-mcp-header":"Who"}}}"#;
                format!(
                    r#"{{"tools":[{{"name":"echo","inputSchema":{marked}}},{{"name":"count","inputSchema":{{}}}}]}}"#
                )
            }
            Some("tools/call") => {
                calls += 1;
                let tool: String = serde_json::from_str(member(params, "name").unwrap()).unwrap();
                let arguments = member(params, "arguments").unwrap_or("{}");
                match tool.as_str() {
                    "crash" => return,
                    "hang" => {
                        hangs += 1;
                        continue;
                    }
                    "hangs" => hangs.to_string(),
                    "change" => {
                        changed(&mut into, &listening).await;
                        "1".to_owned()
                    }
                    "scope" => format!(r#""{scope}""#),
                    "count" => calls.to_string(),
                    "cancelled" => format!("[{}]", cancelled.join(",")),
                    "echo" => arguments.to_owned(),
                    "big" => format!("\"{}\"", "x".repeat(arguments.parse().unwrap())),
                    tool => act(tool, &message, id, &mut input, &mut into).await,
                }
            }
            Some(_) | None => "{}".to_owned(),
        };
        say(&mut into, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
    }
}

/// Tools that say something before they answer. Returns the result.
async fn act(tool: &str, call: &Message, id: &str, input: &mut Input, into: &mut DuplexStream) -> String {
    match tool {
        "progress" => {
            let token = call.progress_token().unwrap();
            for step in 1..=3 {
                let params = format!(r#"{{"progressToken":{token},"progress":{step}}}"#);
                let method = "notifications/progress";
                say(into, &format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)).await;
            }
            "3".into()
        }
        "log" => {
            let params = r#"{"level":"notice","data":"x"}"#;
            let method = "notifications/message";
            say(into, &format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)).await;
            "1".into()
        }
        "work" | "mumble" => {
            let token = call.progress_token().unwrap();
            for step in 1..=4 {
                tokio::time::sleep(std::time::Duration::from_secs(400)).await;
                let progress = format!(r#"{{"progressToken":{token},"progress":{step}}}"#);
                let (method, params) = match tool {
                    "work" => ("notifications/progress", progress),
                    _ => ("notifications/message", r#"{"level":"notice","data":"x"}"#.to_owned()),
                };
                say(into, &format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)).await;
            }
            "4".into()
        }
        "ask" | "later" => {
            if tool == "later" {
                say(into, "it waits").await;
                let line = input.next_line().await.unwrap().unwrap();
                let message = Message::parse(line.into_bytes()).unwrap();
                let id = message.id_text().unwrap();
                say(into, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#)).await;
            }
            say(into, r#"{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"a":1e1}}"#)
                .await;
            loop {
                let line = input.next_line().await.unwrap().unwrap();
                let message = Message::parse(line.into_bytes()).unwrap();
                if message.id_text() == Some(r#""s""#) {
                    return message.result().unwrap_or("\"refused\"").to_owned();
                }
            }
        }
        "noise" => {
            say(into, "starting up…").await;
            say(into, &format!("\"{}", "x".repeat(100_000))).await;
            say(into, r#"{"jsonrpc":"2.0","id":"nobody","result":1}"#).await;
            say(into, r#"{"jsonrpc":"2.0","id":77777,"result":1}"#).await;
            "\"done\"".into()
        }
        "tell" => {
            say(into, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"told"}}"#)).await;
            say(into, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
            "\"twice\"".into()
        }
        other => format!("\"{other} is no tool\""),
    }
}

/// Tells who listens that something has changed.
async fn changed(into: &mut DuplexStream, listening: &str) {
    let meta = format!(r#"{{"io.modelcontextprotocol/subscriptionId":{listening}}}"#);
    let method = "notifications/tools/list_changed";
    say(into, &format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"_meta":{meta}}}}}"#)).await;
}

async fn say(into: &mut DuplexStream, line: &str) {
    // Whoever is not there any more is told nothing.
    drop(into.write_all(format!("{line}\n").as_bytes()).await);
}
