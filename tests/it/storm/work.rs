//! What the clients of a fleet want done: runs of every kind, each enqueued once, however often it takes to hear that it was.

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use fastrand::Rng;
use serde_json::{Value, json};
use session_core::{RunId, SessionId};
use session_tests::home::left;
use session_tests::http::{Reply, ask_at};
use tokio::time::Instant;

/// How many enqueue at once.
pub(super) const CLIENTS: usize = 4;
/// How many runs they enqueue together.
pub(super) const RUNS: usize = 500;
/// Longer than a coordinator is away.
const PATIENCE: Duration = Duration::from_mins(2);

/// What is wanted of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A new session's.
    New,
    /// A further one of a session, which goes where its files are.
    Further,
    /// One of a session with a key, which is new or goes where its files are.
    Keyed,
    /// A new session's below a parent, which is to hear of its end.
    Child,
    /// Of an executor that no runner has.
    ForNobody,
}

/// A run that was enqueued.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enqueued {
    pub(super) run: RunId,
    pub(super) session: SessionId,
    pub(super) parent: Option<SessionId>,
    pub(super) kind: Kind,
}

/// The clients, and what they work with.
pub(super) struct Work {
    addresses: Vec<String>,
    token: String,
    directory: Utf8PathBuf,
    /// Sessions that others go on with.
    sessions: Mutex<Vec<SessionId>>,
}

impl Work {
    /// Of these coordinators, in this directory.
    #[expect(
        clippy::disallowed_methods,
        reason = "another process copies: what this one has open cannot be run"
    )]
    pub(super) fn new(addresses: Vec<String>, token: String, directory: &Utf8Path) -> Self {
        let mut install = Command::new("install");
        install.args(["-m", "755", env!("CARGO_BIN_EXE_witness"), directory.join("witness").as_str()]);
        left(install).ok();
        fs::create_dir(directory.join("seen")).unwrap();
        Self { addresses, token, directory: directory.join("seen"), sessions: Mutex::default() }
    }

    /// Where witnesses write down what they see.
    pub(super) fn directory(&self) -> &Utf8Path {
        &self.directory
    }

    /// One client's part: its share of the runs, evenly over the time, and further ones until the storm is over.
    pub(super) fn enqueue(
        &self,
        client: usize,
        seed: u64,
        length: Duration,
        over: &AtomicBool,
    ) -> Vec<Enqueued> {
        let mut rng = Rng::with_seed(seed ^ (client as u64 + 1));
        let (share, began) = (RUNS.div_ceil(CLIENTS), Instant::now());
        let pace = length / u32::try_from(share).unwrap();
        let mut enqueued = Vec::new();
        while enqueued.len() < share {
            if let Some(one) = self.one(&format!("{seed}-{client}-{}", enqueued.len()), &mut rng) {
                enqueued.push(one);
            }
            let due = pace * u32::try_from(enqueued.len()).unwrap();
            if !over.load(Ordering::SeqCst) {
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
        }
        enqueued
    }

    /// Enqueues one; `None` if its session has a run at this moment, or is over.
    fn one(&self, key: &str, rng: &mut Rng) -> Option<Enqueued> {
        let some = {
            let sessions = self.sessions.lock().unwrap();
            rng.choice(sessions.iter()).copied()
        };
        let (count, pause) = (rng.u32(1..6).to_string(), rng.u32(..400).to_string());
        let children = u32::from(rng.u8(..3) == 0).to_string();
        let witness = self.directory.parent().unwrap().join("witness");
        let argv = json!([witness, self.directory, count, pause, children]);
        let sandbox = json!({"allow_read": [self.directory.parent()], "allow_write": [self.directory]});
        let start = json!({"type": "start", "argv": argv, "sandbox": sandbox, "priority": rng.i32(-2..3)});
        let (kind, more) = match (rng.u8(..10), some) {
            (0, _) => (
                Kind::ForNobody,
                json!({"executor": "gemini", "prompt": "hello", "argv": [], "claim_within_s": 4}),
            ),
            (1..=3, Some(session)) => {
                (Kind::Further, json!({"type": "resume", "session_id": session, "sandbox": null}))
            }
            // What is wider than the parent's sandbox is refused: it has the same without a word.
            (4..=5, Some(session)) => {
                (Kind::Child, json!({"parent_session_id": session, "callback": true, "sandbox": null}))
            }
            (6, _) => (Kind::Keyed, json!({"key": format!("ticket {}", rng.u8(..20))})),
            _ => (Kind::New, json!({})),
        };
        let mut body = start;
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let reply = self.ask(key, &body, rng);
        if reply.status == 409 && kind != Kind::New {
            return None;
        }
        let reply = reply.is(201);
        let (run, session) = (id(&reply, "/run_id"), id(&reply, "/session_id").parse().unwrap());
        if kind == Kind::New {
            self.sessions.lock().unwrap().push(session);
        }
        let parent = some.filter(|_| kind == Kind::Child);
        Some(Enqueued { run: run.parse().unwrap(), session, parent, kind })
    }

    /// Asks some coordinator, and another one if it does not answer, until one does.
    fn ask(&self, key: &str, body: &Value, rng: &mut Rng) -> Reply {
        let until = Instant::now() + PATIENCE;
        loop {
            let address = rng.choice(self.addresses.iter()).unwrap();
            match ask_at(address, "POST", "/v1/runs", &self.token, Some(key), &body.to_string()) {
                Ok(reply) if reply.status < 500 => return reply,
                Ok(_) | Err(_) => {}
            }
            assert!(Instant::now() < until, "no coordinator answers");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn id(reply: &Reply, at: &str) -> String {
    reply
        .body
        .pointer(at)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("{at}: {}", reply.body))
        .to_owned()
}
