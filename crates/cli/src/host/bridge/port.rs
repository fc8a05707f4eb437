//! What the bridge asks of the process around it: server processes as runs of sessions, and what is recorded of those.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use mcp_bridge::gate::Scope;
use mcp_bridge::host::{Child, Ending, Exit, Host, HostError, Recalled, Record, ServerName, Stray};
use session_core::affinity::Place;
use session_core::error::StoreError;
use session_core::event::Payload;
use session_core::names::{ExecutorType, ExternalKey, Label, Principal};
use session_core::ports::SessionStore as _;
use session_core::run::{self, EndKind, ReasonCode, StopMode};
use session_core::session::NewSession;
use session_core::state::Trigger;
use session_core::{ManagedSession, SessionId};
use session_manager::{StateError, Submission, Task, TaskSession};
use session_runner::workspace::{Removal, remove};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pipes::{Expected, Pipes};
use super::record;
use super::scope::{Given, Grounds};
use super::servers::{Server, Servers};
use crate::host::operations::Operations;
use crate::host::protocol::BudgetWire;
use crate::host::submit::overlay;

/// How long a process may take to be there, for want of room most of all: less than the bridge waits for its handshake.
const START_BOUND: Duration = Duration::from_secs(45);
/// The same for the queue.
const CLAIM_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// When to try again where there was no room.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// This host, as the bridge asks it.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub(super) operations: Arc<Operations>,
    pub(super) pipes: Arc<Pipes>,
    pub(super) servers: Arc<Servers>,
    pub(super) grounds: Arc<Grounds>,
    /// What goes on when nobody waits for it any more.
    pub(super) tasks: TaskTracker,
}

impl Port {
    fn server(&self, name: &ServerName) -> Result<&Server, HostError> {
        let gone = || HostError::Broken(format!("there is no server {name} here any more"));
        self.servers.get(name).ok_or_else(gone)
    }

    fn given(&self, principal: &Principal, server: &Server, scope: &Scope) -> Result<Given, HostError> {
        self.grounds.given(&self.operations, principal, server, Some(scope))
    }

    async fn recorded(&self, session: SessionId) -> Result<Option<ManagedSession>, HostError> {
        self.operations.store().session(session).await.map_err(|error| unrecorded(&error))
    }

    fn new_session(
        &self,
        id: SessionId,
        principal: &Principal,
        server: &ServerName,
        given: &Given,
        metadata: Payload,
    ) -> NewSession {
        NewSession {
            id,
            principal: principal.clone(),
            key: None,
            label: Label::new(server.as_str()).ok(),
            agent: None,
            kind: given.kind,
            project: given.project.clone(),
            sandbox: given.sandbox.clone(),
            metadata,
            budget: self.operations.budget(BudgetWire::default()),
            parent: None,
        }
    }

    async fn create(&self, new: NewSession) -> Result<(), HostError> {
        let created = self.operations.store().create(new, self.operations.now()).await;
        created.map(drop).map_err(|error| unrecorded(&error))
    }

    /// Has a process of this server executed in this session, and waits for it.
    async fn start(
        &self,
        session: SessionId,
        principal: &Principal,
        server: &Server,
        given: Given,
    ) -> Result<Started, HostError> {
        let expected = self.pipes.expect(session);
        let expected =
            expected.ok_or_else(|| other(format!("the process of {session} has not ended yet")))?;
        let task = Task {
            name: None,
            after: Vec::new(),
            session: TaskSession::Existing(session),
            executor: ExecutorType::mcp(),
            turn: None,
            argv: server.argv.clone(),
            env: overlay(given.base_env, server.env.clone()),
            timeout: None,
            claim_within: Some(CLAIM_WITHIN),
            priority: 0,
        };
        let place = Place::Runner(self.operations.profile().id);
        let submission = Submission { principal: principal.clone(), place, at_once: None, tasks: vec![task] };
        let submitted = self.operations.coordinator().submit(submission).await;
        let runs = submitted.map_err(|error| {
            self.pipes.forget(session);
            other(error.to_string())
        })?;
        if let [run] = &runs[..] {
            self.pipes.comes_with(session, run.id);
        }
        self.started(session, expected).await
    }

    async fn started(&self, session: SessionId, expected: Expected) -> Result<Started, HostError> {
        let Expected { wire, mut over } = expected;
        let came = timeout(START_BOUND, async {
            tokio::select! {
                biased;
                Ok(wire) = wire => Ok(wire),
                ending = &mut over => Err(ending.ok().flatten()),
            }
        });
        match came.await {
            Ok(Ok(wire)) => Ok(Started { wire, over }),
            Ok(Err(ending)) => Err(self.not_started(session, ending).await),
            Err(_elapsed) => {
                self.pipes.forget(session);
                if let Err(error) = self.operations.coordinator().stop(&[session], StopMode::Kill).await {
                    tracing::warn!(%session, %error, "a run that nobody waits for could not be stopped");
                }
                let message = "the server was not started in time: as many sessions work as may".into();
                Err(HostError::Limit { message, retry_after: RETRY_AFTER })
            }
        }
    }

    /// Why there is no process.
    async fn not_started(&self, session: SessionId, ending: Option<run::Ending>) -> HostError {
        if let Ok(Some(found)) = self.recorded(session).await
            && let Some(ending) = record::ended(&found)
        {
            return HostError::Over(ending);
        }
        let Some(ending) = ending else { return other("the run of the server was taken over".into()) };
        let ended_by_itself = ending.exit.is_some() && ending.kind != EndKind::Stopped;
        let message = format!("the server was not started: {}", ending.message);
        match ending.reason {
            Some(ReasonCode::SandboxUnavailable) => HostError::Sandbox(ending.message),
            Some(ReasonCode::BudgetExhausted) => HostError::Budget(ending.message),
            Some(ReasonCode::SpawnFailed) => HostError::Broken(message),
            _ if ended_by_itself => HostError::Broken(message),
            _ => other(message),
        }
    }

    /// How a process ended.
    async fn exit(
        &self,
        session: SessionId,
        stop: &CancellationToken,
        over: oneshot::Receiver<Option<run::Ending>>,
    ) -> Exit {
        let ending = over.await.ok().flatten();
        if let Ok(Some(found)) = self.recorded(session).await
            && let Some(ending) = record::ended(&found)
        {
            return Exit::Over(ending);
        }
        let Some(ending) = ending else { return Exit::Ended("its run was taken over".into()) };
        match ending.kind {
            // Somebody else wanted its room: it comes back when it is needed.
            EndKind::Stopped if !stop.is_cancelled() => Exit::Suspended,
            EndKind::Completed | EndKind::Failed | EndKind::Stopped | EndKind::Lost => {
                Exit::Ended(ending.exit.map_or_else(|| ending.message.clone(), |exit| exit.to_string()))
            }
        }
    }

    fn child(&self, session: SessionId, started: Started) -> Child {
        let Started { wire, over } = started;
        let (port, stop) = (self.clone(), wire.stop.clone());
        let ended = Box::pin(async move { port.exit(session, &stop, over).await });
        Child { stdin: Box::new(wire.ends.stdin), stdout: Box::new(wire.ends.stdout), ended, stop: wire.stop }
    }

    /// Nothing is left of a session that was only asked something, but that it was.
    async fn clear_away(&self, session: SessionId, given: &Given) {
        if let Err(error) = self.end(session, &Ending::Deleted).await {
            tracing::warn!(%session, %error, "a session that was only asked something was not ended");
        }
        let (layout, git) = (self.operations.layout(), self.operations.context().git());
        let (kind, sandbox) = (given.kind, given.sandbox.clone());
        let removed = tokio::task::spawn_blocking(move || {
            let removal =
                Removal { session, kind, project: None, force: true, archive: false, sandbox: &sandbox };
            let removed = remove(&layout, &git, &removal);
            // It wrote nothing there; if it did, that is kept.
            let _kept = std::fs::remove_dir(layout.session(session).output_dir());
            removed.map_err(|error| error.to_string())
        });
        match removed.await {
            Ok(Ok(_)) => {
                let removed = self.operations.store().workspace_removed(session, self.operations.now()).await;
                if let Err(error) = removed {
                    tracing::warn!(%session, %error, "that a workspace is gone was not recorded");
                }
            }
            // `roomette cleanup` tries again.
            Ok(Err(error)) => tracing::warn!(%session, %error, "a workspace is still there"),
            Err(error) => tracing::warn!(%session, %error, "a workspace is still there"),
        }
    }
}

/// A process that is there.
struct Started {
    wire: session_runner::Wire,
    over: oneshot::Receiver<Option<run::Ending>>,
}

#[async_trait]
impl Host for Port {
    fn session_id(&self) -> SessionId {
        self.operations.session_id()
    }

    async fn named(
        &self,
        principal: &Principal,
        server: &ServerName,
        name: &str,
    ) -> Result<SessionId, HostError> {
        let given = self.given(principal, self.server(server)?, &Scope::Default)?;
        let metadata = record::bare(server, false).map_err(|error| other(error.to_string()))?;
        let key = ExternalKey::new(&format!("mcp:{server}:{name}"));
        let key = key.map_err(|error| other(error.to_string()))?;
        let new = self.new_session(self.session_id(), principal, server, &given, metadata);
        let opened =
            self.operations.store().open_key(NewSession { key: Some(key), ..new }, self.operations.now());
        opened.await.map(|keyed| keyed.session.id).map_err(|error| unrecorded(&error))
    }

    async fn provisional(&self, principal: &Principal, server: &ServerName) -> Result<Child, HostError> {
        let of = self.server(server)?;
        let given = self.grounds.given(&self.operations, principal, of, None)?;
        let metadata = record::bare(server, true).map_err(|error| other(error.to_string()))?;
        let session = self.session_id();
        self.create(self.new_session(session, principal, server, &given, metadata)).await?;
        let started = match self.start(session, principal, of, given.clone()).await {
            Ok(started) => started,
            Err(error) => {
                self.clear_away(session, &given).await;
                return Err(error);
            }
        };
        let child = self.child(session, started);
        let (told, ended) = oneshot::channel();
        let (port, exit) = (self.clone(), child.ended);
        // Also when nobody waits for its end.
        self.tasks.spawn(async move {
            let exit = exit.await;
            port.clear_away(session, &given).await;
            drop(told.send(exit));
        });
        let ended = async { ended.await.unwrap_or_else(|_| Exit::Ended("the host has left".into())) };
        Ok(Child { ended: Box::pin(ended), ..child })
    }

    async fn open(&self, session: SessionId, record: &Record) -> Result<Child, HostError> {
        let server = self.server(&record.server)?;
        let found = self.recorded(session).await?;
        let recalled = found.as_ref().and_then(record::recalled);
        if let Some(ending) = recalled.as_ref().and_then(|recalled| recalled.ended.clone()) {
            return Err(HostError::Over(ending));
        }
        let scope = recalled.map_or_else(|| record.scope.clone(), |recalled| recalled.record.scope);
        let given = self.given(&record.principal, server, &scope)?;
        if found.is_none() {
            let metadata = record::metadata(record)
                .map_err(|error| other(format!("what the client began with cannot be recorded: {error}")))?;
            let new = self.new_session(session, &record.principal, &record.server, &given, metadata);
            self.create(new).await?;
        }
        let started = self.start(session, &record.principal, server, given).await?;
        Ok(self.child(session, started))
    }

    async fn recall(&self, session: SessionId) -> Result<Option<Recalled>, HostError> {
        Ok(self.recorded(session).await?.as_ref().and_then(record::recalled))
    }

    async fn end(&self, session: SessionId, ending: &Ending) -> Result<(), HostError> {
        self.pipes.stop(session);
        let reason = record::reason(ending);
        match self.operations.manager().terminate(session, reason).await {
            Ok(()) | Err(StateError::Unknown(_) | StateError::Record { .. }) => {}
            Err(error) => tracing::warn!(%session, %error, "a session did not end in order"),
        }
        // Its record has the last word, whatever this process thought of it.
        let now = self.operations.now();
        match self.operations.store().transition(session, Trigger::Terminate(reason), now).await {
            Ok(_) | Err(StoreError::Transition(_) | StoreError::UnknownSession(_)) => Ok(()),
            Err(error) => Err(unrecorded(&error)),
        }
    }

    async fn bury(
        &self,
        session: SessionId,
        principal: &Principal,
        server: &ServerName,
    ) -> Result<(), HostError> {
        let owner = self.operations.principal().map_err(|failure| other(failure.in_one_line()))?;
        // Nothing is ever executed in it.
        let given = self.grounds.given(&self.operations, &owner, self.server(server)?, None)?;
        let metadata = record::bare(server, false).map_err(|error| other(error.to_string()))?;
        self.create(self.new_session(session, principal, server, &given, metadata)).await?;
        self.end(session, &Ending::Deleted).await?;
        let removed = self.operations.store().workspace_removed(session, self.operations.now()).await;
        removed.map_err(|error| unrecorded(&error))
    }

    /// A session with a process is in use for as long as that is there, and without one it is at rest: the bridge ends the
    /// process of one that rests where another needs its room, and the manager's limits go by that.
    fn touch(&self, _: SessionId) {}

    fn stray(&self, session: SessionId, stray: Stray<'_>) {
        let (what, line): (String, &[u8]) = match stray {
            Stray::Line(line, why) => (format!("a line that is no message ({why})"), line),
            Stray::Long(bytes) => (format!("a line of {bytes} bytes, which is too long"), &[]),
            Stray::Half(line) => ("a line without an end".into(), line),
            Stray::Unasked => ("a message for nobody".into(), &[]),
        };
        let line = String::from_utf8_lossy(line);
        tracing::info!(%session, what, %line, "a server wrote to its stdout what no client gets");
    }
}

pub(super) fn other(message: String) -> HostError {
    HostError::Other(message)
}

fn unrecorded(error: &StoreError) -> HostError {
    other(format!("the session's record is out of reach: {error}"))
}
