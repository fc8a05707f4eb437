//! The server `tests/fixtures/mcp/trials.py`, behind a bridge and alone: each call has a thread of its own.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use crate::bridge::Bridge;
use crate::home::Home;

const SERVER: &str = include_str!("../fixtures/mcp/trials.py");
/// The interpreter, without what it would look for at its start.
const PYTHON: [&str; 2] = ["python3", "-IS"];

/// A bridge before it, where each client session has a process of its own.
#[must_use]
pub fn isolated(home: &Home, more: &[&str]) -> Bridge {
    let server = file(home);
    let place = server.parent().unwrap_or(&server);
    let first = ["--listen", "127.0.0.1:0", "--session-isolation", "--allow-read", place.as_str()];
    Bridge::serving(home, &[&first, more, &["--"], &PYTHON, &[server.as_str()]].concat())
}

/// Its file, in a directory of its own.
fn file(home: &Home) -> Utf8PathBuf {
    let place = home.path().join("server");
    fs::create_dir_all(&place).unwrap_or_else(|error| panic!("{place}: {error}"));
    let path = place.join("trials.py");
    fs::write(&path, SERVER).unwrap_or_else(|error| panic!("{path}: {error}"));
    path
}

/// The server without a bridge and without a sandbox.
#[derive(Debug)]
pub struct Trials {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    asked: u64,
}

impl Trials {
    /// Starts it in this directory.
    ///
    /// # Panics
    ///
    /// When there is no Python.
    #[must_use]
    pub fn start(home: &Home, directory: &Utf8Path) -> Self {
        let server = file(home);
        let mut command = home.program(PYTHON[0], &[PYTHON[1], server.as_str()]);
        command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("python3: {error}"));
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("no pipes");
        };
        Self { child, stdin, stdout: BufReader::new(stdout), asked: 0 }
    }

    /// Calls a tool.
    ///
    /// # Errors
    ///
    /// When the tool says that it failed.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Result<String, String> {
        self.asked += 1;
        let params = json!({"name": tool, "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": self.asked, "method": "tools/call", "params": params});
        writeln!(self.stdin, "{call}").unwrap_or_else(|error| panic!("stdin: {error}"));
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap_or_else(|error| panic!("stdout: {error}"));
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or(&line).to_owned();
        if answer["result"]["isError"] == json!(false) { Ok(text) } else { Err(text) }
    }
}

impl Drop for Trials {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
