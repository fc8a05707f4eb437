//! A server that is started once: what it calls itself, and its tools.

use std::time::Duration;

use mcp_bridge::host::{Child, Host as _, ServerName};
use serde::Serialize;
use serde_json::{Value, json};
use session_core::names::Principal;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::time::timeout;

use super::port::Port;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// How long a server may take to answer all that it is asked.
const BOUND: Duration = Duration::from_mins(1);
/// The longest line that is read of it, in bytes.
const LINE_MAX: u64 = 16 * 1024 * 1024;
/// The most pages of tools.
const PAGES_MAX: usize = 100;
/// The revision that it is asked for.
const REVISION: &str = "2025-11-25";

/// What a server said of itself.
#[derive(Debug, Serialize)]
struct Found {
    server: String,
    name: Option<String>,
    version: Option<String>,
    revision: Option<String>,
    tools: Vec<Tool>,
}

#[derive(Debug, Serialize)]
struct Tool {
    name: String,
    description: String,
}

/// Starts the server in private directories alone, asks it for its tools, prints them and ends it.
pub(super) async fn print(port: &Port, owner: &Principal, server: &ServerName, named: bool) -> Outcome<()> {
    let child = port.provisional(owner, server).await.map_err(|error| {
        Failure::new(Kind::Error, format!("{server}: {error}"))
            .hint("--allow-read names directories that the server needs beside its own, such as that of its program")
    })?;
    let Child { stdin, stdout, ended, stop } = child;
    let mut server_side = Exchange { stdin, stdout: BufReader::new(stdout), asked: 0 };
    let asked = timeout(BOUND, ask(&mut server_side, server)).await;
    drop(server_side);
    stop.cancel();
    let exit = ended.await;
    let found = match asked {
        Ok(Ok(found)) => found,
        Ok(Err(Silence::Gone)) => {
            let message = format!("{server}: it ended before it answered ({exit:?})");
            return Err(Failure::new(Kind::Error, message)
                .hint("--allow-read names directories that the server needs beside its own"));
        }
        Ok(Err(Silence::Refused(why))) => return Err(Failure::new(Kind::Error, format!("{server}: {why}"))),
        Err(_elapsed) => {
            return Err(Failure::new(Kind::Timeout, format!("{server}: it did not answer within {BOUND:?}")));
        }
    };
    show(&found, named)
}

fn show(found: &Found, named: bool) -> Outcome<()> {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".into());
    output::say(&format!(
        "{}: {} {}, MCP {}, {} tools",
        found.server,
        text(&found.name),
        text(&found.version),
        text(&found.revision),
        found.tools.len()
    ));
    for tool in &found.tools {
        let first = tool.description.lines().next().unwrap_or_default();
        let server = if named { format!("{}\t", found.server) } else { String::new() };
        output::line(&format!("{server}{}\t{first}", tool.name))?;
    }
    Ok(())
}

/// Why there is no answer.
enum Silence {
    Gone,
    Refused(String),
}

async fn ask(server: &mut Exchange, name: &ServerName) -> Result<Found, Silence> {
    let client = json!({ "name": "roomette", "version": env!("CARGO_PKG_VERSION") });
    let params = json!({ "protocolVersion": REVISION, "capabilities": {}, "clientInfo": client });
    let begun = server.ask("initialize", &params).await?;
    server.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut found = Found {
        server: name.to_string(),
        name: text(&begun["serverInfo"]["name"]),
        version: text(&begun["serverInfo"]["version"]),
        revision: text(&begun["protocolVersion"]),
        tools: Vec::new(),
    };
    if begun["capabilities"]["tools"].is_null() {
        return Ok(found);
    }
    let mut params = json!({});
    for _ in 0..PAGES_MAX {
        let page = server.ask("tools/list", &params).await?;
        let tools = page["tools"].as_array().into_iter().flatten();
        found.tools.extend(tools.map(|tool| Tool {
            name: text(&tool["name"]).unwrap_or_default(),
            description: text(&tool["description"]).unwrap_or_default(),
        }));
        match page.get("nextCursor") {
            Some(cursor) if !cursor.is_null() => params = json!({ "cursor": cursor }),
            Some(_) | None => break,
        }
    }
    Ok(found)
}

/// A server, as it is asked line by line.
struct Exchange {
    stdin: Box<dyn AsyncWrite + Send + Unpin>,
    stdout: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    asked: u64,
}

impl Exchange {
    async fn tell(&mut self, message: &Value) -> Result<(), Silence> {
        let line = format!("{message}\n");
        self.stdin.write_all(line.as_bytes()).await.map_err(|_| Silence::Gone)
    }

    /// The result. What the server says besides is passed over, and what it asks is answered with nothing.
    async fn ask(&mut self, method: &str, params: &Value) -> Result<Value, Silence> {
        self.asked += 1;
        let id = json!(self.asked);
        self.tell(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        loop {
            let mut line = Vec::new();
            let read = (&mut self.stdout).take(LINE_MAX).read_until(b'\n', &mut line).await;
            if read.map_or(true, |read| read == 0) {
                return Err(Silence::Gone);
            }
            let Ok(mut message) = serde_json::from_slice::<Value>(&line) else { continue };
            if message["id"] != id || message.get("method").is_some() {
                continue;
            }
            if let Some(error) = message.get("error") {
                return Err(Silence::Refused(format!("it answered {method} with an error: {error}")));
            }
            return Ok(message["result"].take());
        }
    }
}
