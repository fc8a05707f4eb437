//! Opens one identity many times at once, and prints which session each call got: `open_identity URL CALLS`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;

use jiff::SignedDuration;
use session_core::budget::Budget;
use session_core::event::Payload;
use session_core::identity::{AgentContext, RepoRoot, Scope, SessionIdentity};
use session_core::ports::SessionStore as _;
use session_core::session::{NewSession, OpenSession};
use session_core::{Env, WorkspaceKind};
use session_store::{OpenOptions, SqlStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(calls)) = (arguments.next(), arguments.next()) else {
        return Err("usage: open_identity URL CALLS".into());
    };
    let env = Env::system();
    let store = Arc::new(SqlStore::open(&url.parse()?, OpenOptions::default()).await?);
    let identity = SessionIdentity {
        machine: "here".parse()?,
        repo_root: RepoRoot::resolve("/".into())?,
        scope: Scope::Project { execution_id: "one".parse()? },
        agent: AgentContext::default().key(false)?,
    };
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..calls.parse::<u32>()? {
        let (store, env, identity) = (Arc::clone(&store), env.clone(), identity.clone());
        let new = NewSession {
            id: env.session_id(),
            principal: "tester".parse()?,
            key: None,
            label: None,
            agent: None,
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox: session_core::SandboxSpec::default(),
            metadata: Payload::parse("{}")?,
            budget: Budget::default(),
            parent: None,
        };
        tasks.spawn(async move {
            let request = OpenSession { identity, new, ttl: SignedDuration::from_hours(24), lifetime: None };
            store.open(request, env.now()).await
        });
    }
    let mut lines = Vec::new();
    while let Some(opened) = tasks.join_next().await {
        let opened = opened??;
        lines.push(format!("{} {}", opened.session, if opened.created { "created" } else { "found" }));
    }
    std::io::Write::write_all(&mut std::io::stdout(), (lines.join("\n") + "\n").as_bytes())?;
    Ok(())
}
