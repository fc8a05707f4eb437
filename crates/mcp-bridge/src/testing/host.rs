//! A host whose servers are tasks, or shell scripts, and which keeps its records in memory.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use session_core::SessionId;
use session_core::env::Env;
use session_core::names::Principal;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::server;
use crate::gate::Scope;
use crate::host::{Child, Ending, Exit, Handshake, Host, HostError, Recalled, Record, ServerName, Stray};
use crate::revision::Revision;

/// Everything that a test may look at.
pub(crate) struct TestHost {
    env: Env,
    pub(crate) records: Mutex<HashMap<SessionId, Recalled>>,
    pub(crate) names: Mutex<HashMap<String, SessionId>>,
    pub(crate) opened: AtomicUsize,
    pub(crate) provisional: AtomicUsize,
    alive: watch::Sender<usize>,
    pub(crate) strays: Mutex<Vec<String>>,
    /// The next process is not started, for this reason.
    pub(crate) refuse: Mutex<Option<HostError>>,
    /// The next ones end like this when they crash.
    pub(crate) exit: Mutex<Option<Exit>>,
    /// Servers want no handshake.
    pub(crate) plain: AtomicBool,
    /// A server is not there before this; meanwhile the host reads records for nobody else.
    pub(crate) late: Mutex<Option<Arc<Notify>>>,
    readers: Semaphore,
    /// A script instead of the task.
    pub(crate) script: Mutex<Option<&'static str>>,
}

impl Default for TestHost {
    fn default() -> Self {
        Self {
            env: Env::system(),
            records: Mutex::default(),
            names: Mutex::default(),
            opened: AtomicUsize::new(0),
            provisional: AtomicUsize::new(0),
            alive: watch::Sender::new(0),
            strays: Mutex::default(),
            refuse: Mutex::default(),
            exit: Mutex::default(),
            plain: AtomicBool::new(false),
            late: Mutex::default(),
            readers: Semaphore::new(1),
            script: Mutex::default(),
        }
    }
}

impl TestHost {
    pub(crate) fn alive(&self) -> usize {
        *self.alive.borrow()
    }

    /// Waits until so many processes are there.
    pub(crate) async fn until_alive(&self, number: usize) {
        let mut alive = self.alive.subscribe();
        let reached = alive.wait_for(|alive| *alive == number);
        tokio::time::timeout(Duration::from_secs(20), reached).await.expect("never so many").unwrap();
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    async fn until_late(&self) {
        let late = self.late.lock().unwrap().clone();
        if let Some(late) = late {
            late.notified().await;
        }
    }

    fn start(&self, scope: &str) -> Child {
        self.alive.send_modify(|alive| *alive += 1);
        let alive = self.alive.clone();
        let gone = move || alive.send_modify(|alive| *alive -= 1);
        if let Some(script) = *self.script.lock().unwrap() {
            return serve_sh(script, gone);
        }
        let (stdin, from) = tokio::io::duplex(64 * 1024);
        let (into, stdout) = tokio::io::duplex(64 * 1024);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (scope, is_plain) = (scope.to_owned(), self.plain.load(Ordering::SeqCst));
        let exit = self.exit.lock().unwrap().clone();
        let serving = tokio::spawn(async move {
            tokio::select! {
                () = server::serve(from, into, &scope, is_plain) => {}
                () = stopped.cancelled() => {}
            }
        });
        let ended = Box::pin(async move {
            drop(serving.await);
            gone();
            exit.unwrap_or(Exit::Ended("exit status 1".into()))
        });
        Child { stdin: Box::new(stdin), stdout: Box::new(stdout), ended, stop }
    }
}

/// A server that is a shell script, killed when it is to end.
fn serve_sh(script: &str, gone: impl FnOnce() + Send + 'static) -> Child {
    #[expect(clippy::disallowed_methods, reason = "the host of the tests starts its own processes")]
    let mut command = tokio::process::Command::new("sh");
    command.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let ended = Box::pin(async move {
        let status = tokio::select! {
            status = child.wait() => status,
            () = stopped.cancelled() => {
                child.kill().await.unwrap();
                child.wait().await
            }
        };
        gone();
        Exit::Ended(status.unwrap().to_string())
    });
    Child { stdin: Box::new(stdin), stdout: Box::new(stdout), ended, stop }
}

#[async_trait]
impl Host for TestHost {
    fn session_id(&self) -> SessionId {
        self.env.session_id()
    }

    async fn named(
        &self,
        principal: &Principal,
        server: &ServerName,
        name: &str,
    ) -> Result<SessionId, HostError> {
        let key = format!("{principal}/{server}/{name}");
        Ok(*self.names.lock().unwrap().entry(key).or_insert_with(|| self.env.session_id()))
    }

    async fn provisional(&self, _: &Principal, _: &ServerName) -> Result<Child, HostError> {
        self.provisional.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.refuse.lock().unwrap().take() {
            return Err(error);
        }
        self.until_late().await;
        Ok(self.start("nothing"))
    }

    async fn open(&self, session: SessionId, record: &Record) -> Result<Child, HostError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.refuse.lock().unwrap().take() {
            return Err(error);
        }
        let _reader = self.readers.acquire().await;
        self.until_late().await;
        let recalled = Recalled { record: record.clone(), ended: None };
        let recalled = self.records.lock().unwrap().entry(session).or_insert(recalled).clone();
        if let Some(ending) = recalled.ended {
            return Err(HostError::Over(ending));
        }
        let scope = match recalled.record.scope {
            Scope::Default => "default".to_owned(),
            Scope::Roots(roots) => {
                roots.iter().map(|root| root.path().as_str()).collect::<Vec<_>>().join(" ")
            }
        };
        Ok(self.start(&scope))
    }

    async fn recall(&self, session: SessionId) -> Result<Option<Recalled>, HostError> {
        Ok(self.records.lock().unwrap().get(&session).cloned())
    }

    async fn end(&self, session: SessionId, ending: &Ending) -> Result<(), HostError> {
        let _reader = self.readers.acquire().await;
        if let Some(recalled) = self.records.lock().unwrap().get_mut(&session) {
            recalled.ended.get_or_insert_with(|| ending.clone());
        }
        Ok(())
    }

    async fn bury(
        &self,
        session: SessionId,
        principal: &Principal,
        server: &ServerName,
    ) -> Result<(), HostError> {
        tokio::task::yield_now().await;
        let handshake = Handshake {
            initialize: String::new(),
            initialized: String::new(),
            revision: Revision::V2025_11_25,
        };
        let (principal, server) = (principal.clone(), server.clone());
        let record = Record { server, principal, scope: Scope::Default, handshake };
        self.records.lock().unwrap().insert(session, Recalled { record, ended: Some(Ending::Deleted) });
        Ok(())
    }

    fn touch(&self, _: SessionId) {}

    fn stray(&self, _: SessionId, stray: Stray<'_>) {
        let text = match stray {
            Stray::Line(line, _) => format!("line {}", String::from_utf8_lossy(line)),
            Stray::Long(bytes) => format!("long {bytes}"),
            Stray::Half(line) => format!("half {}", String::from_utf8_lossy(line)),
            Stray::Unasked => "unasked".into(),
        };
        self.strays.lock().unwrap().push(text);
    }
}
