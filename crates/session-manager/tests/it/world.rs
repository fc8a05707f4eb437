//! A world in which nothing happens by itself: engines, a factory and a sink that do what a test says, and write down what
//! is asked of them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::SignedDuration;
use session_core::budget::{Account, Usage};
use session_core::names::{ExternalKey, Principal};
use session_core::ports::{
    Engine, EngineError, LifecycleEvent, LifecycleSink, Release, SessionFactory, SinkError,
};
use session_core::session::WorkspaceSpec;
use session_core::testing::{self, ManualClock};
use session_core::{Env, ManagedSession, SessionId, SessionState};
use session_manager::options::Limits;
use session_manager::{ManagerOptions, SessionHandle, SessionManager, SessionRequest};
use tokio::sync::Semaphore;

/// How something behaves that the manager has no power over.
#[derive(Clone, Default)]
pub(crate) enum Behaves {
    #[default]
    Well,
    Fails,
    Panics,
    Hangs,
    /// Waits at the gate, then does well.
    Waits(Arc<Gate>),
    /// The record says otherwise. Of a sink only.
    Objects,
    /// The same, said after waiting at the gate.
    ObjectsLate(Arc<Gate>),
    /// Somebody waits to use the session. Of a sink only.
    Busy,
    /// The same, said after waiting at the gate.
    BusyLate(Arc<Gate>),
}

/// Where the tests step in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Point {
    Create,
    Flush,
    Shutdown,
    /// A report to the sink, by its name in the journal.
    Report(&'static str),
    /// The question what the record says of a budget.
    Account,
}

/// A gate that something stops at until a test lets it through.
pub(crate) struct Gate {
    reached: Semaphore,
    opened: Semaphore,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { reached: Semaphore::new(0), opened: Semaphore::new(0) })
    }

    /// Returns when something stands at the gate.
    pub(crate) async fn reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }

    /// Lets one through.
    pub(crate) fn open(&self) {
        self.opened.add_permits(1);
    }

    async fn pass(&self) {
        self.reached.add_permits(1);
        self.opened.acquire().await.unwrap().forget();
    }
}

/// What everything in the world shares: how it behaves, and what happened.
#[derive(Default)]
pub(crate) struct Script {
    behaviour: Mutex<HashMap<Point, Behaves>>,
    journal: Mutex<Vec<String>>,
    /// What every record says of its budget.
    account: Mutex<Option<Account>>,
    /// Sessions in the order in which they were first mentioned.
    sessions: Mutex<Vec<SessionId>>,
}

impl Script {
    fn write(&self, session: SessionId, what: &str) {
        let number = {
            let mut sessions = self.sessions.lock().unwrap();
            let known = sessions.iter().position(|known| *known == session);
            known.unwrap_or_else(|| {
                sessions.push(session);
                sessions.len() - 1
            })
        };
        self.journal.lock().unwrap().push(format!("{}: {what}", number + 1));
    }

    async fn act(&self, point: Point) -> Result<(), EngineError> {
        let behaviour = self.behaviour.lock().unwrap().get(&point).cloned().unwrap_or_default();
        match behaviour {
            Behaves::Well => Ok(()),
            Behaves::Fails => Err(EngineError::Failed("it has had enough".into())),
            Behaves::Panics => panic!("it fell over"),
            Behaves::Hangs => std::future::pending().await,
            Behaves::Objects | Behaves::Busy => Err(EngineError::Failed("objection".into())),
            Behaves::ObjectsLate(gate) | Behaves::BusyLate(gate) => {
                gate.pass().await;
                Err(EngineError::Failed("objection".into()))
            }
            Behaves::Waits(gate) => {
                gate.pass().await;
                Ok(())
            }
        }
    }
}

pub(crate) struct TestEngine {
    session: SessionId,
    script: Arc<Script>,
}

impl TestEngine {
    /// Something that only this engine does.
    pub(crate) fn say(&self, what: &str) {
        self.script.write(self.session, what);
    }
}

#[async_trait]
impl Engine for TestEngine {
    async fn suspend(&self) -> Result<(), EngineError> {
        self.say("flush");
        self.script.act(Point::Flush).await
    }

    async fn shutdown(&self, why: Release) {
        self.say(&format!("shutdown {why:?}"));
        let _never_fails = self.script.act(Point::Shutdown).await;
    }
}

pub(crate) struct TestFactory(Arc<Script>);

#[async_trait]
impl SessionFactory for TestFactory {
    type Engine = TestEngine;

    async fn create(&self, session: &ManagedSession) -> Result<TestEngine, EngineError> {
        self.0.write(session.id, "make");
        self.0.act(Point::Create).await?;
        Ok(TestEngine { session: session.id, script: Arc::clone(&self.0) })
    }
}

/// A factory that does well, outside of any world.
pub(crate) fn factory() -> TestFactory {
    TestFactory(Arc::default())
}

struct TestSink(Arc<Script>);

#[async_trait]
impl LifecycleSink for TestSink {
    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError> {
        let name = name(event);
        let behaviour = self.0.behaviour.lock().unwrap().get(&Point::Report(name)).cloned();
        self.0.act(Point::Report(name)).await.map_err(|error| match behaviour {
            Some(Behaves::Objects | Behaves::ObjectsLate(_)) => SinkError::Superseded("so it is".into()),
            Some(Behaves::Busy | Behaves::BusyLate(_)) => SinkError::Busy("a run waits".into()),
            _ => SinkError::Unavailable(error.into()),
        })?;
        let mut what = format!("record {name}");
        if let LifecycleEvent::Moved { trigger: session_core::state::Trigger::Terminate(reason), .. } = event
        {
            write!(what, " {reason}").unwrap();
        }
        self.0.write(event.session(), &what);
        Ok(())
    }

    async fn account(&self, _session: SessionId) -> Result<Option<Account>, SinkError> {
        self.0.act(Point::Account).await.map_err(|error| SinkError::Unavailable(error.into()))?;
        Ok(*self.0.account.lock().unwrap())
    }
}

fn name(event: &LifecycleEvent) -> &'static str {
    match event {
        LifecycleEvent::Created(_) => "created",
        LifecycleEvent::Moved { trigger, .. } => trigger.name(),
        LifecycleEvent::Resuming { step, .. } => step.code(),
        LifecycleEvent::Reserved { .. } => "reserved",
        LifecycleEvent::Settled { .. } => "settled",
        LifecycleEvent::BudgetChanged { .. } => "budget",
        LifecycleEvent::Granted { .. } => "grant",
    }
}

pub(crate) type Manager = SessionManager<TestFactory>;
pub(crate) type Handle = Arc<SessionHandle<TestEngine>>;

/// A manager and everything around it.
pub(crate) struct World {
    pub(crate) manager: Manager,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) env: Env,
    pub(crate) script: Arc<Script>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(ManagerOptions::default())
    }

    pub(crate) fn limited(limits: Limits) -> Self {
        Self::with(ManagerOptions { limits, ..ManagerOptions::default() })
    }

    pub(crate) fn with(options: ManagerOptions) -> Self {
        let (env, clock) = testing::env();
        let script = Arc::new(Script::default());
        let (factory, sink) = (TestFactory(Arc::clone(&script)), Arc::new(TestSink(Arc::clone(&script))));
        let manager = SessionManager::new(env.clone(), options, factory, sink).unwrap();
        Self { manager, clock, env, script }
    }

    /// A session of `me`.
    pub(crate) async fn open(&self) -> Handle {
        self.manager.create(request("me")).await.unwrap()
    }

    /// A session of `me` that is suspended.
    pub(crate) async fn suspended(&self) -> SessionId {
        let session = self.open().await.id();
        self.manager.suspend(session).await.unwrap();
        session
    }

    /// The record of an active session of another process.
    pub(crate) fn record(&self, principal: &str) -> ManagedSession {
        let now = self.env.now();
        let SessionRequest { principal, metadata, budget, kind, .. } = request(principal);
        ManagedSession {
            id: self.env.session_id(),
            principal,
            state: SessionState::Active,
            key: None,
            label: None,
            agent: None,
            workspace: WorkspaceSpec { kind, project: None, runner: None, removed_at: None },
            sandbox: session_core::SandboxSpec::default(),
            metadata,
            budget,
            usage: Usage::NONE,
            reserved: Usage::NONE,
            allotted: Usage::NONE,
            parent: None,
            depth: 0,
            callback: false,
            forked_from: None,
            generation: None,
            binding: None,
            created_at: now,
            active_at: now,
        }
    }

    pub(crate) fn behaves(&self, point: Point, behaviour: Behaves) {
        self.script.behaviour.lock().unwrap().insert(point, behaviour);
    }

    /// Every record says this of its budget from now on.
    pub(crate) fn accounts(&self, account: Account) {
        *self.script.account.lock().unwrap() = Some(account);
    }

    /// Has something wait at a gate from now on.
    pub(crate) fn gate(&self, point: Point) -> Arc<Gate> {
        let gate = Gate::new();
        self.behaves(point, Behaves::Waits(Arc::clone(&gate)));
        gate
    }

    /// What happened since the last call.
    pub(crate) fn journal(&self) -> Vec<String> {
        std::mem::take(&mut *self.script.journal.lock().unwrap())
    }

    pub(crate) fn pass(&self, by: SignedDuration) {
        self.clock.advance(by);
    }

    /// The session's state by its name.
    pub(crate) fn state(&self, session: SessionId) -> &'static str {
        self.manager.view(session).map_or("none", |view| view.state.name())
    }

    /// Lets everything run that can run without time passing.
    pub(crate) async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn request(principal: &str) -> SessionRequest {
    SessionRequest::new(Principal::new(principal).unwrap())
}

pub(crate) fn key(text: &str) -> ExternalKey {
    ExternalKey::new(text).unwrap()
}

pub(crate) fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

pub(crate) const MILLISECOND: SignedDuration = SignedDuration::from_millis(1);
