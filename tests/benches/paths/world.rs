//! The ordinary values that every path is measured with.

use jiff::SignedDuration;
use session_core::Env;
use session_core::affinity::{Affinity, Place, RunnerProfile};
use session_core::budget::Budget;
use session_core::event::{EventKind, NewEvent, Payload};
use session_core::identity::{RepoRoot, Scope, SessionIdentity};
use session_core::names::ExecutorType;
use session_core::ports::{NewRun, RunOf};
use session_core::run::RunSpec;
use session_core::session::{NewSession, OpenSession, WorkspaceKind};

use crate::measure::Outcome;

/// How long the text of an event is, so that its payload has about 500 bytes.
const EVENT_TEXT_BYTES: usize = 470;
/// For how long an identity stays valid.
const TTL: SignedDuration = SignedDuration::from_hours(24);
/// How long a lease is.
pub(crate) const LEASE: SignedDuration = SignedDuration::from_mins(10);

pub(crate) fn new_session(env: &Env) -> Outcome<NewSession> {
    Ok(NewSession {
        id: env.session_id(),
        principal: "alice".parse()?,
        key: None,
        label: None,
        agent: None,
        kind: WorkspaceKind::Scratch,
        project: None,
        sandbox: session_core::SandboxSpec::default(),
        metadata: Payload::parse("{}")?,
        budget: Budget::default(),
        parent: None,
    })
}

/// A get-or-create by an identity of this name.
pub(crate) fn open_session(env: &Env, agent: &str) -> Outcome<OpenSession> {
    let identity = SessionIdentity {
        machine: "laptop".parse()?,
        repo_root: RepoRoot::from_record("/repo")?,
        scope: Scope::Project { execution_id: "one".parse()? },
        agent: agent.parse()?,
    };
    Ok(OpenSession { identity, new: new_session(env)?, ttl: TTL, lifetime: None })
}

/// A run of a new session.
pub(crate) fn new_run(env: &Env, place: Place) -> Outcome<NewRun> {
    Ok(NewRun {
        id: env.run_id(),
        of: RunOf::New(Box::new(new_session(env)?)),
        spec: RunSpec { argv: vec!["true".into()], ..RunSpec::default() },
        priority: 0,
        affinity: Affinity { place, executor: ExecutorType::command(), project_dir: None },
        after: Vec::new(),
        claim_by: None,
        delivers: Vec::new(),
    })
}

pub(crate) fn runner(env: &Env, executor: &str) -> Outcome<RunnerProfile> {
    Ok(RunnerProfile {
        id: env.runner_id(),
        hostname: "box".parse()?,
        executors: vec![executor.parse()?],
        project_dirs: None,
    })
}

/// The payload of an event: 500 bytes, said by the user and the agent in turn.
pub(crate) fn payload(index: usize) -> String {
    let role = if index.is_multiple_of(2) { "user" } else { "assistant" };
    serde_json::json!({ "role": role, "text": "x".repeat(EVENT_TEXT_BYTES) }).to_string()
}

pub(crate) fn event(index: usize) -> Outcome<NewEvent> {
    let payload = Payload::parse(&payload(index))?;
    Ok(NewEvent { run: None, kind: EventKind::Message, payload, origin: None })
}

/// So many items for each of so many callers.
pub(crate) fn per_caller<T>(
    callers: usize,
    items: usize,
    mut make: impl FnMut(usize, usize) -> Outcome<T>,
) -> Outcome<Vec<Vec<T>>> {
    (0..callers).map(|caller| (0..items).map(|item| make(caller, item)).collect()).collect()
}
