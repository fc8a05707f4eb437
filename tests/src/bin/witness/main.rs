//! `witness DIRECTORY COUNT PAUSE_MS CHILDREN`: a run that sees to it that it is alone. It holds a lock by its run's id and one
//! by its session's for as long as it lives, appends COUNT events to its session's log through the API, and writes down those
//! that were acknowledged. Then it starts so many sessions with its own token, each of which is a witness too.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use session_tests::http::{Reply, ask_at};

/// Between two attempts to reach the API.
const PAUSE: Duration = Duration::from_millis(100);

/// What goes wrong here is said on stderr, and ends the program.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, count, pause, children] = arguments.as_slice() else {
        return Err("usage: witness DIRECTORY COUNT PAUSE_MS CHILDREN".into());
    };
    let shared = directory;
    let directory = PathBuf::from(directory);
    let (run, session) = (variable("ROOMETTE_RUN_ID")?, variable("ROOMETTE_SESSION_ID")?);
    let mut held = Vec::new();
    for name in [&run, &session] {
        let file = File::create(directory.join(format!("{name}.lock")))?;
        match file.try_lock() {
            Ok(()) => held.push(file),
            Err(TryLockError::WouldBlock) => {
                note(&directory, "twice", &format!("{name} {run} {session}"))?;
                return Ok(ExitCode::from(9));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    let pause = Duration::from_millis(pause.parse()?);
    for number in 1..=count.parse()? {
        let Some(seq) = append(&run, &session, number)? else {
            return Ok(ExitCode::from(3));
        };
        note(&directory, "acknowledged", &format!("{session} {run} {number} {seq}"))?;
        std::thread::sleep(pause);
    }
    for number in 0..children.parse()? {
        let program = std::env::args().next().ok_or("no name of its own")?;
        let body = json!({
            "type": "start", "argv": [program, shared, "1", "0", "0"],
            "budget": {"tokens": 1_000, "tool_calls": 1, "turns": 3},
        });
        let Some(child) = start(&format!("{run} {number}"), &body)? else {
            return Ok(ExitCode::from(4));
        };
        note(&directory, "children", &format!("{session} {} {}", child.0, child.1))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a session once, as often as it takes to hear of it: its id, and its run's. `None` if this run may start none, or there
/// is nothing left for one.
fn start(key: &str, body: &serde_json::Value) -> Outcome<Option<(String, String)>> {
    loop {
        match ask("/v1/runs", Some(key), body) {
            Ok(reply) if reply.status == 201 => {
                return Ok(Some((reply.text("/session_id"), reply.text("/run_id"))));
            }
            Ok(reply) if matches!(reply.status, 401 | 404 | 409 | 422) => return Ok(None),
            Ok(reply) if reply.status < 500 => {
                return Err(format!("refused with {}: {}", reply.status, reply.body).into());
            }
            // The coordinator is away, or just coming: it will be back.
            Ok(_) | Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Asks the API with the run's own token.
fn ask(path: &str, key: Option<&str>, body: &serde_json::Value) -> Outcome<Reply> {
    let (url, token) = (variable("ROOMETTE_URL")?, variable("ROOMETTE_TOKEN")?);
    let address = url.strip_prefix("http://").ok_or("no http:// address")?;
    Ok(ask_at(address, "POST", path, &token, key, &body.to_string())?)
}

/// Appends one event, as often as it takes to hear that it is there; `None` if this run may append no more.
fn append(run: &str, session: &str, number: u32) -> Outcome<Option<u64>> {
    let path = format!("/v1/sessions/{session}/events");
    let body = json!({"events": [
        {"kind": "witness", "payload": {"run": run, "number": number}, "producer": run, "producer_seq": number}
    ]});
    loop {
        match ask(&path, None, &body) {
            Ok(reply) if reply.status == 201 => {
                let seq = reply.body.pointer("/seqs/0").and_then(serde_json::Value::as_u64);
                return seq.map(Some).ok_or_else(|| "an answer without a number".into());
            }
            Ok(reply) if matches!(reply.status, 401 | 404 | 409) => return Ok(None),
            Ok(reply) if reply.status < 500 => {
                return Err(format!("refused with {}: {}", reply.status, reply.body).into());
            }
            // The coordinator is away, or just coming: it will be back.
            Ok(_) | Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// One line more in a file: appended as a whole, whoever else appends.
fn note(directory: &Path, file: &str, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(directory.join(file))?;
    file.write_all(format!("{line}\n").as_bytes())
}

#[expect(clippy::disallowed_methods, reason = "a run is told by its environment who it is")]
fn variable(name: &str) -> Outcome<String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}").into())
}
