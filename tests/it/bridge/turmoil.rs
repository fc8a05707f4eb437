//! Clients that do at random what clients do, and servers that are killed meanwhile, on one, two and four threads of the
//! bridge: everybody gets an answer, and their own, and in the end nothing is left.
//!
//! `ROOMETTE_SEED` has the clients decide the same again.

use std::collections::BTreeSet;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use camino::Utf8PathBuf;
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use session_tests::bridge::{Bridge, Client};
use session_tests::home::{Home, descendants, gone_within, processes_with};
use session_tests::trials;
use tokio::time::Instant;

/// How many operations there are on each number of threads: a thousand together.
const ROUNDS: [(u32, usize); 3] = [(1, 333), (2, 333), (4, 334)];
/// How long one may take: if it is not done by then, something hangs.
const LONGEST: Duration = Duration::from_secs(30);
/// How many clients work at once, and how many sessions each has at the most.
const CLIENTS: usize = 6;
const SESSIONS: usize = 3;
/// How often a call may be told that the server went, after it was killed.
const TIMES: usize = 5;

#[test]
fn a_thousand_operations_at_random_end_with_the_right_answers_and_nothing_left() {
    let seed = seed();
    eprintln!("ROOMETTE_SEED={seed}");
    for (threads, operations) in ROUNDS {
        let begun = Instant::now();
        let home = Home::new().with("ROOMETTE_TEST_WORKERS", &threads.to_string());
        let bridge = trials::isolated(&home, &[]);
        let mut sessions = Vec::new();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let rng = Rng::with_seed(seed ^ (u64::from(threads) << 32) ^ client as u64);
                    let mut one = One::new(&home, &bridge, client, rng);
                    let share = operations / CLIENTS + usize::from(client < operations % CLIENTS);
                    scope.spawn(move || {
                        one.works(share);
                        one.made
                    })
                })
                .collect();
            for client in clients {
                sessions.extend(client.join().unwrap());
            }
        });
        eprintln!("{operations} operations on {threads} threads in {:?}", begun.elapsed());
        // What is looked for afterwards is to be found before: servers, and their keepers, which have no session's name.
        let variables: Vec<_> =
            sessions.iter().map(|session| format!("ROOMETTE_SESSION_ID={session}")).collect();
        let servers: BTreeSet<i32> = variables.iter().flat_map(|variable| processes_with(variable)).collect();
        let started: BTreeSet<i32> = descendants(bridge.pid()).into_iter().collect();
        assert!(!servers.is_empty() && servers.is_subset(&started), "{servers:?} of {started:?}");
        assert!(started.len() > servers.len(), "{started:?}");
        assert_eq!(bridge.end_by(Signal::TERM), Some(0));
        assert_eq!(home.run(&["ps", "--busy", "-q"]).ok().stdout, "");
        for variable in &variables {
            leaves_nothing(variable);
        }
        for pid in started {
            assert!(gone_within(pid, Duration::from_secs(1)), "{pid} is left");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "who runs a test repeats it by the environment")]
fn seed() -> u64 {
    std::env::var("ROOMETTE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..))
}

/// What has this in its environment is gone, or within a second.
fn leaves_nothing(variable: &str) {
    for pid in processes_with(variable) {
        assert!(gone_within(pid, Duration::from_secs(1)), "{pid} of {variable} is left");
    }
}

/// What a client does next.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Create,
    Call,
    CallAtOnce,
    Cancel,
    Delete,
    KillChild,
}

/// A session of a client's, and where its server must be.
struct Held {
    client: Client,
    directory: Option<Utf8PathBuf>,
}

/// One client with its sessions.
struct One<'b> {
    bridge: &'b Bridge,
    directory: Utf8PathBuf,
    rng: Rng,
    held: Vec<Held>,
    /// The ids of all that it ever had.
    made: Vec<String>,
    ids: u64,
}

impl<'b> One<'b> {
    fn new(home: &Home, bridge: &'b Bridge, number: usize, rng: Rng) -> Self {
        let directory = super::project(home, &format!("of-{number}"));
        Self { bridge, directory, rng, held: Vec::new(), made: Vec::new(), ids: 1_000 }
    }

    /// Does so many operations, each in time.
    fn works(&mut self, operations: usize) {
        for _ in 0..operations {
            let (operation, begun) = (self.next(), Instant::now());
            self.does(operation);
            assert!(begun.elapsed() <= LONGEST, "{operation:?} took {:?}", begun.elapsed());
        }
    }

    fn next(&mut self) -> Operation {
        match self.rng.u32(0..100) {
            _ if self.held.is_empty() => Operation::Create,
            0..15 if self.held.len() < SESSIONS => Operation::Create,
            0..50 => Operation::Call,
            50..65 => Operation::CallAtOnce,
            65..80 => Operation::Cancel,
            80..90 => Operation::Delete,
            _ => Operation::KillChild,
        }
    }

    fn does(&mut self, operation: Operation) {
        let which = self.rng.usize(0..self.held.len().max(1));
        match operation {
            Operation::Create => self.creates(),
            Operation::Call => {
                let text = self.text();
                self.held[which].says(&text, 1);
            }
            Operation::CallAtOnce => {
                let first = self.ids(3);
                self.held[which].say_at_once(first, 3);
            }
            Operation::Cancel => {
                let (id, waits) = (self.ids(1), self.rng.bool());
                self.held[which].cancels(id, waits);
                let text = self.text();
                self.held[which].says(&text, 1);
            }
            Operation::Delete => {
                let mut held = self.held.swap_remove(which);
                assert_eq!(held.client.ask("DELETE", "").status, 204);
                let gone = held.client.call("echo", &json!({"text": ""}));
                assert!(gone.starts_with("404 "), "{gone}");
                leaves_nothing(&format!("ROOMETTE_SESSION_ID={}", held.client.session));
            }
            Operation::KillChild => {
                let (id, text) = (self.ids(1), self.text());
                self.held[which].is_killed_during(id);
                self.held[which].says(&text, TIMES);
            }
        }
    }

    fn creates(&mut self) {
        let named = self.rng.bool();
        let mut client = self.bridge.client();
        client.begin(named.then_some(&[&*self.directory][..]));
        let mut held = Held { client, directory: named.then(|| self.directory.clone()) };
        held.says("first", 1);
        self.made.push(held.client.session.clone());
        self.held.push(held);
    }

    fn text(&mut self) -> String {
        format!("{:x}", self.rng.u64(..))
    }

    fn ids(&mut self, count: u64) -> u64 {
        self.ids += count;
        self.ids - count
    }
}

impl Held {
    /// A call is answered with what it said, at the latest after so many times, by the server of this session, where it is
    /// to be.
    fn says(&mut self, text: &str, times: usize) {
        let mut said = String::new();
        let heard = (0..times).any(|_| {
            said = self.client.call("echo", &json!({"text": text}));
            said == text
        });
        assert!(heard, "{}: {text} was answered with {said}", self.client.session);
        assert_eq!(self.client.call("session", &json!({})), self.client.session);
        if let Some(directory) = &self.directory {
            assert_eq!(self.client.call("cwd", &json!({})), *directory);
        }
    }

    /// Calls at once have each their own answer.
    fn say_at_once(&self, first: u64, count: u64) {
        let client = &self.client;
        thread::scope(|scope| {
            for id in first..first + count {
                scope.spawn(move || {
                    let call = json!({"name": "echo", "arguments": {"text": id.to_string()}});
                    let reply = client.send_as(id, "tools/call", &call);
                    let text = &reply.body["result"]["content"][0]["text"];
                    assert_eq!(*text, json!(id.to_string()), "{}: {}", client.session, reply.body);
                });
            }
        });
    }

    /// Its server is killed during a call, which is answered nevertheless: that the process ended, or by the next one.
    fn is_killed_during(&self, id: u64) {
        let client = &self.client;
        thread::scope(|scope| {
            let call = json!({"name": "hold", "arguments": {"seconds": 0.2}});
            let calling = scope.spawn(move || client.send_as(id, "tools/call", &call));
            let there = processes_with(&format!("ROOMETTE_SESSION_ID={}", client.session));
            assert!(!there.is_empty(), "{}: nobody was there to be killed", client.session);
            for pid in there {
                let _gone = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
            let answer = calling.join().unwrap().body;
            let held = answer["result"]["content"][0]["text"] == json!("held");
            let ended = answer["error"]["message"].as_str().is_some_and(|why| why.contains("process ended"));
            assert!(held || ended, "{}: {answer}", client.session);
        });
    }

    /// A call that would take long is cancelled: its server hears of that, and its stream ends without an answer, where it was
    /// not broken before.
    fn cancels(&mut self, id: u64, waits: bool) {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "hold", "arguments": {"seconds": 100}}});
        let stream = self.client.begins_to_ask("POST", &call.to_string());
        self.until_held("1");
        let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "at random"}});
        assert_eq!(self.client.ask("POST", &told.to_string()).status, 202);
        if waits {
            let body = Client::answer(stream).body;
            let said = body.as_str().is_some_and(|events| !events.contains("jsonrpc"));
            assert!(said, "{}: a call that was cancelled was answered with {body}", self.client.session);
        } else {
            let _closed = stream.shutdown(Shutdown::Both);
        }
        self.until_held("0");
    }

    /// Waits until its server answers so many calls.
    fn until_held(&mut self, calls: &str) {
        const LOOKS: usize = 1_000;
        let mut held = String::new();
        let is_so = (0..LOOKS).any(|_| {
            held = self.client.call("held", &json!({}));
            held == calls
        });
        assert!(is_so, "{}: {held} calls in place of {calls}", self.client.session);
    }
}
