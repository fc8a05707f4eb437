//! The two ends of a fake agent: lines in, which are read while it works, and lines out.

use std::io::{BufRead as _, Stdout, Write as _};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::Value;

use crate::Outcome;

/// How many lines may wait.
const LINES_MAX: usize = 64;

/// Where the agent listens and speaks.
pub(crate) struct Wire {
    lines: Receiver<String>,
    out: Stdout,
}

impl Wire {
    pub(crate) fn stdio() -> Self {
        let (sender, lines) = sync_channel(LINES_MAX);
        // It ends with stdin, or with the program.
        std::thread::spawn(move || {
            let lines = std::io::stdin().lock().lines();
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines, out: std::io::stdout() }
    }

    /// The next line, when it comes; `None` at the end.
    pub(crate) fn next(&self) -> Outcome<Option<(String, Value)>> {
        match self.lines.recv() {
            Ok(line) => {
                let value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
                Ok(Some((line, value)))
            }
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn print(&self, line: impl AsRef<[u8]>) -> Outcome<()> {
        let mut stdout = self.out.lock();
        stdout.write_all(line.as_ref())?;
        stdout.write_all(b"\n")?;
        Ok(stdout.flush()?)
    }

    pub(crate) fn send(&self, message: &Value) -> Outcome<()> {
        self.print(message.to_string())
    }
}
