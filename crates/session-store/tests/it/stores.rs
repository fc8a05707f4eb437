//! Stores for tests, and the ordinary values that go into them.

use std::path::PathBuf;
use std::sync::Arc;

use session_core::Env;
use session_core::Store;
use session_core::affinity::{Affinity, Place, RunnerProfile};
use session_core::event::{EventKind, NewEvent, Payload};
use session_core::identity::{RepoRoot, Scope, SessionIdentity};
use session_core::names::ExecutorType;
use session_core::ports::{NewRun, RunOf};
use session_core::run::RunSpec;
use session_core::session::{NewSession, OpenSession, WorkspaceKind};
use session_store::{OpenOptions, SqlStore, StoreUrl};
use tempfile::TempDir;

/// An SQLite file in a directory of its own, which goes with it.
pub struct SqliteFile {
    directory: TempDir,
}

impl SqliteFile {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    pub fn url(&self) -> StoreUrl {
        StoreUrl::Sqlite(self.path())
    }

    pub async fn open(&self) -> SqlStore {
        SqlStore::open(&self.url(), OpenOptions::default()).await.unwrap()
    }
}

pub async fn open(url: &str) -> SqlStore {
    SqlStore::open(&url.parse().unwrap(), OpenOptions::default()).await.unwrap()
}

/// Two stores over one database, as two processes have them.
pub struct Pair {
    pub stores: [Arc<dyn Store>; 2],
    pub handles: [SqlStore; 2],
}

impl Pair {
    pub async fn of(url: &str) -> Self {
        let handles = [open(url).await, open(url).await];
        Self { stores: handles.clone().map(|store| Arc::new(store) as Arc<dyn Store>), handles }
    }
}

/// What ordinary values are made with. Real ids: several stores must not draw the same.
pub fn world() -> Env {
    Env::system()
}

pub fn new_session(env: &Env) -> NewSession {
    NewSession {
        id: env.session_id(),
        principal: "alice".parse().unwrap(),
        key: None,
        label: None,
        agent: None,
        kind: WorkspaceKind::Scratch,
        project: None,
        sandbox: session_core::SandboxSpec::default(),
        metadata: Payload::parse("{}").unwrap(),
        budget: session_core::budget::Budget::default(),
        parent: None,
    }
}

pub fn open_request(env: &Env, agent: &str) -> OpenSession {
    let identity = SessionIdentity {
        machine: "laptop".parse().unwrap(),
        repo_root: RepoRoot::from_record("/repo").unwrap(),
        scope: Scope::Project { execution_id: "one".parse().unwrap() },
        agent: agent.parse().unwrap(),
    };
    let ttl = jiff::SignedDuration::from_hours(24);
    OpenSession { identity, new: new_session(env), ttl, lifetime: None }
}

pub fn new_run(env: &Env) -> NewRun {
    NewRun {
        id: env.run_id(),
        of: RunOf::New(Box::new(new_session(env))),
        spec: RunSpec { argv: vec!["true".into()], ..RunSpec::default() },
        priority: 0,
        affinity: Affinity { place: Place::Anywhere, executor: ExecutorType::command(), project_dir: None },
        after: Vec::new(),
        claim_by: None,
        delivers: Vec::new(),
    }
}

pub fn runner(env: &Env) -> RunnerProfile {
    RunnerProfile {
        id: env.runner_id(),
        hostname: "box".parse().unwrap(),
        executors: vec![ExecutorType::command()],
        project_dirs: None,
    }
}

pub fn message(text: &str) -> NewEvent {
    let payload = Payload::from_value(&serde_json::json!({ "text": text }));
    NewEvent { run: None, kind: EventKind::Message, payload, origin: None }
}
