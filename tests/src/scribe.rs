//! Agents that use the scribe, through the official SDK of Python: `tests/fixtures/mcp/scribe.py`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use camino::Utf8Path;
use serde_json::{Value, json};

use crate::home::Home;
use crate::http::Served;
use crate::peers::Peers;
use crate::program::roomette;

const SCRIPT: &str = include_str!("../fixtures/mcp/scribe.py");

/// A process of the SDK, with any number of connections.
#[derive(Debug)]
pub struct Agents {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Agents {
    /// A process without a connection; `None` where a person left these tests out by name.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn new(home: &Home) -> Option<Self> {
        let peers = Peers::installed()?;
        let script = peers.script("scribe.py", SCRIPT);
        let mut command = peers.program(home, &peers.python(), &[script.as_str()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("the SDK: {error}"));
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("no pipes");
        };
        Some(Self { child, input, output: BufReader::new(output) })
    }

    /// Has it do something, and tells what came of it.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn ask(&mut self, command: &Value) -> Value {
        let mut line = String::new();
        let told = writeln!(self.input, "{command}").and_then(|()| self.output.read_line(&mut line));
        assert!(told.is_ok_and(|read| read > 0), "the SDK's process is gone: {command}");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Starts `roomette mcp` under this name, in this directory, with more variables.
    pub fn start(&mut self, home: &Home, name: &str, directory: &Utf8Path, more: &[(&str, &str)]) -> Value {
        self.start_in(home, name, directory, more, "legacy")
    }

    /// The same in an era: `legacy`, or a revision without sessions.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start_in(
        &mut self,
        home: &Home,
        name: &str,
        directory: &Utf8Path,
        more: &[(&str, &str)],
        era: &str,
    ) -> Value {
        let mut env = serde_json::Map::new();
        for (variable, value) in home.command(&[]).get_envs() {
            if let (Some(variable), Some(value)) = (variable.to_str(), value.and_then(|value| value.to_str()))
            {
                env.insert(variable.into(), value.into());
            }
        }
        env.extend(more.iter().map(|(variable, value)| ((*variable).to_owned(), json!(value))));
        let stdio = json!({ "command": roomette(), "args": ["mcp"], "env": env, "cwd": directory });
        let opened = self.ask(&json!({ "open": name, "stdio": stdio, "era": era }));
        assert!(opened.get("failed").is_none(), "{opened}");
        opened
    }

    /// Connects to the scribe of a host that serves.
    ///
    /// # Panics
    ///
    /// When it is not let in.
    pub fn connect(&mut self, served: &Served, name: &str, token: &str, more: &Value, era: &str) -> Value {
        let mut headers = json!({ "Authorization": format!("Bearer {token}") });
        if let (Some(headers), Some(more)) = (headers.as_object_mut(), more.as_object()) {
            headers.extend(more.clone());
        }
        let url = format!("http://{}/mcp/scribe", served.address);
        let opened = self.ask(&json!({ "open": name, "url": url, "headers": headers, "era": era }));
        assert!(opened.get("failed").is_none(), "{opened}");
        opened
    }

    /// Calls a tool over a connection.
    pub fn call(&mut self, name: &str, tool: &str, arguments: &Value) -> Value {
        self.ask(&json!({ "call": name, "tool": tool, "arguments": arguments }))
    }

    /// Calls a tool that does what it is called for.
    ///
    /// # Panics
    ///
    /// When it refuses.
    #[track_caller]
    pub fn done(&mut self, name: &str, tool: &str, arguments: &Value) -> Value {
        let answer = self.call(name, tool, arguments);
        let refused = answer.get("refused").or_else(|| answer.get("error"));
        assert!(refused.is_none(), "{tool} {arguments}: {answer}");
        answer
    }

    /// Calls a tool that refuses, and tells what it says.
    ///
    /// # Panics
    ///
    /// When it does not refuse.
    #[track_caller]
    pub fn refused(&mut self, name: &str, tool: &str, arguments: &Value) -> String {
        let answer = self.call(name, tool, arguments);
        answer["refused"].as_str().unwrap_or_else(|| panic!("{tool} {arguments}: {answer}")).to_owned()
    }

    /// The texts of the last entries.
    #[track_caller]
    pub fn texts(&mut self, name: &str, context: &Value) -> Vec<String> {
        let read = self.done(name, "read_recent", context);
        let entries = read["entries"].as_array().into_iter().flatten();
        entries.map(|entry| entry["text"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Ends a connection.
    pub fn close(&mut self, name: &str) {
        self.ask(&json!({ "close": name }));
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
