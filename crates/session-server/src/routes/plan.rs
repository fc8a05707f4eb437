//! From a request for a run to a submission: names are checked, the session is found, and what is not said is filled in.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use jiff::SignedDuration;
use session_api::runs::{Ask, CreateRun, RunType};
use session_api::{Code, Problem};
use session_core::affinity::Place;
use session_core::asked::{Asked, AskedSandbox};
use session_core::budget::{Budget, BudgetPatch, LimitChange, Resource, Usage, share_of};
use session_core::event::Payload;
use session_core::family::Parent;
use session_core::names::{ExecutorType, ExternalKey, Principal, ToolName};
use session_core::ports::{Page, SessionFilter};
use session_core::run::RunSpec;
use session_core::token::Verb;
use session_core::turn::{Asking, Permissions, Turn};
use session_core::{ManagedSession, Run, SessionId, StoreError, WorkspaceKind};
use session_manager::{Draft, Submission, Task, TaskSession};

use super::bind::directory;
use crate::auth::Caller;
use crate::extract::{field, optional};
use crate::problem::Refusal;
use crate::state::{Settled, State, Wanted};

/// What is submitted for this request.
pub(super) async fn submission(
    state: &State,
    caller: &Caller,
    request: CreateRun,
) -> Result<Submission, Refusal> {
    match request.kind {
        RunType::Start => start(state, caller, request, Confined::ByParent).await,
        RunType::Resume => resume(state, caller, request).await,
    }
}

/// What bounds a new session that has a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confined {
    /// What its parent has.
    ByParent,
    /// What the settings give to a session of this owner, who is in no room.
    BySettings,
}

/// A new session and its first run.
pub(super) async fn start(
    state: &State,
    caller: &Caller,
    request: CreateRun,
    confined: Confined,
) -> Result<Submission, Refusal> {
    if request.session_id.is_some() {
        return Err(Refusal::invalid(
            "session_id",
            "a start makes its own session: say `\"type\": \"resume\"`",
        ));
    }
    let parent = parent(state, caller, &request).await?;
    // A child is its parent's owner's.
    let principal = parent.as_ref().map_or_else(|| caller.principal(), |parent| &parent.principal).clone();
    let giver = parent.as_ref().filter(|_| matches!(caller, Caller::Run(_)));
    let key = key(caller, &request)?;
    let project = request.project_dir.as_deref().map(|path| directory("project_dir", path)).transpose()?;
    let kind = match request.workspace.as_deref() {
        Some(kind) => field("workspace", kind)?,
        None if project.is_some() => WorkspaceKind::Worktree,
        None => WorkspaceKind::Scratch,
    };
    let named: Vec<_> = request.env.clone().into_iter().collect();
    state.host().check_env(&named)?;
    let asked = request.sandbox.clone().unwrap_or_default();
    let found = bearer(state, &principal, key.as_ref()).await?;
    let confining = parent.as_ref().filter(|_| confined == Confined::ByParent);
    let wanted = Wanted {
        principal: &principal,
        parent: confining.map(|parent| &parent.sandbox),
        kind,
        project: project.as_deref().map(camino::Utf8Path::as_str),
        sandbox: &asked,
        env: &named,
        found: found.as_ref().map(|session| &session.sandbox),
    };
    let Settled { sandbox, tools, base_env } = state.host().settle(wanted).await?;
    let draft = Draft {
        label: optional("label", request.label.as_deref())?,
        agent: optional("agent", request.agent.as_deref())?,
        kind,
        project,
        sandbox,
        metadata: metadata(&request)?,
        budget: budget(state.host().budget(), giver, &request)?,
        parent: parent.as_ref().map(|parent| Parent {
            callback: request.callback,
            allotted: giver.is_some(),
            confined: confining.is_some(),
            by: caller.claim_of_token(),
            ..Parent::new(parent.id)
        }),
    };
    let executor = match request.executor.as_deref() {
        Some(executor) => field("executor", executor)?,
        None if request.prompt.is_some() => {
            return Err(Refusal::invalid("executor", "is missing: a prompt is for an agent, say which"));
        }
        None => ExecutorType::command(),
    };
    let session = match key {
        // Which session bears it, if one does, is known for certain when the run is enqueued alone.
        Some(key) => {
            let asked = Box::new(asked_of(&request, &draft, &tools));
            TaskSession::Keyed(key, draft, asked)
        }
        None => TaskSession::New(draft),
    };
    let spec = RunSpec {
        argv: request.argv.clone(),
        env: overlay(base_env, named),
        timeout: time("timeout_s", request.timeout_s)?,
        turn: turn(&request)?,
    };
    submitted(principal, state.host().place(), &request, session, executor, spec)
}

/// The owner's name for the session, where the caller may say one.
fn key(caller: &Caller, request: &CreateRun) -> Result<Option<ExternalKey>, Refusal> {
    let key = optional::<ExternalKey>("key", request.key.as_deref())?;
    match (caller, &key) {
        // It would lead into a session of the owner's that is no child of the run's.
        (Caller::Run(_), Some(_)) => {
            let detail = "is an owner's name for a session: a run's token makes new ones alone";
            Err(Refusal(Problem::new(Code::Forbidden, detail).at("key")))
        }
        (Caller::Run(_), None) | (Caller::Principal(_), _) => Ok(key),
    }
}

/// The session that bears this key now, where there is a key.
async fn bearer(
    state: &State,
    principal: &Principal,
    key: Option<&ExternalKey>,
) -> Result<Option<ManagedSession>, Refusal> {
    let Some(key) = key else { return Ok(None) };
    let (principal, key) = (Some(principal.clone()), Some(key.clone()));
    let filter = SessionFilter { principal, key, ..SessionFilter::default() };
    let found = state.coordinator().store().list(&filter, &Page::first(1)).await?;
    Ok(found.items.into_iter().next().map(|item| item.session))
}

/// What was said of the session: one that is found by its key is what it was made as, and who asks for something else is
/// refused.
fn asked_of(request: &CreateRun, draft: &Draft, tools: &BTreeSet<Utf8PathBuf>) -> Asked {
    let workspace = request.workspace.is_some() || request.project_dir.is_some();
    let budget = request.budget.unwrap_or_default();
    let limit = |limit: Option<u64>| limit.map_or(LimitChange::Keep, LimitChange::To);
    let of = request.sandbox.clone().unwrap_or_default();
    let spec = &draft.sandbox;
    let limits = [of.memory_bytes, of.processes, of.file_size_bytes, of.write_bytes];
    let network = of.net.is_some() || !of.net_allow.is_empty();
    let named = |named: &[String], settled: &BTreeSet<Utf8PathBuf>| match named {
        [] => BTreeSet::new(),
        _ => settled.difference(tools).cloned().collect(),
    };
    Asked {
        budget: BudgetPatch {
            tokens_max: budget.tokens,
            tool_calls_max: budget.tool_calls,
            turns_max: limit(budget.turns),
            cost_micros_max: limit(budget.cost_micros),
        },
        agent: draft.agent.clone(),
        sandbox: AskedSandbox {
            level: of.level.is_some().then_some(spec.level),
            network: network.then(|| spec.network.clone()),
            read: named(&of.allow_read, &spec.read),
            write: named(&of.allow_write, &spec.write),
            limits: limits.iter().any(Option::is_some).then_some(spec.limits),
        },
        metadata: request.metadata.is_some().then(|| draft.metadata.clone()),
        parent: draft.parent.map(|parent| parent.session),
        callback: request.callback,
        workspace: workspace.then(|| (draft.kind, draft.project.clone())),
    }
}

/// The session that is to start the new one, if one is.
async fn parent(
    state: &State,
    caller: &Caller,
    request: &CreateRun,
) -> Result<Option<ManagedSession>, Refusal> {
    let wanted = optional::<SessionId>("parent_session_id", request.parent_session_id.as_deref())?;
    match caller.parent(state, wanted).await? {
        Some(parent) => visible(state, caller, parent).await.map(Some),
        None if request.callback => Err(Refusal::invalid("callback", "is for a parent, and there is none")),
        None => Ok(None),
    }
}

/// As text of JSON, as long as an event's payload may be.
fn metadata(request: &CreateRun) -> Result<Payload, Refusal> {
    let value = serde_json::Value::from(request.metadata.clone().unwrap_or_default());
    Payload::parse(&value.to_string()).map_err(|error| Refusal::invalid("metadata", error.to_string()))
}

async fn resume(state: &State, caller: &Caller, request: CreateRun) -> Result<Submission, Refusal> {
    caller.person(Verb::Run)?;
    let id = request.session_id.as_deref();
    let id = id.ok_or_else(|| Refusal::invalid("session_id", "is missing: say which session is resumed"))?;
    let id: SessionId = field("session_id", id)?;
    of_new_sessions_only(&request)?;
    let session = visible(state, caller, id).await?;
    further(state, session, &request).await
}

/// A further run of this session, which is the caller's to work in.
pub(super) async fn further(
    state: &State,
    session: ManagedSession,
    request: &CreateRun,
) -> Result<Submission, Refusal> {
    let id = session.id;
    let last = state.coordinator().store().runs(id, 1).await?.pop();
    let executor = match (request.executor.as_deref(), &session.binding, &last) {
        (Some(executor), _, _) => field("executor", executor)?,
        (None, Some(binding), _) => binding.executor.clone(),
        (None, None, Some(run)) => run.affinity.executor.clone(),
        (None, None, None) => ExecutorType::command(),
    };
    let spec = again(state, last, &executor, request)?;
    let place = state.host().place();
    submitted(session.principal, place, request, TaskSession::Existing(id), executor, spec)
}

/// What is not given is as in the session's last run. What another executor was given means nothing to this one.
fn again(
    state: &State,
    last: Option<Run>,
    executor: &ExecutorType,
    request: &CreateRun,
) -> Result<RunSpec, Refusal> {
    if executor.is_mcp() {
        return Err(Refusal::invalid("executor", "an MCP server is started by its bridge alone"));
    }
    let other = last.as_ref().is_some_and(|last| last.affinity.executor != *executor);
    let last = last.map(|run| run.spec).unwrap_or_default();
    let argv = if request.argv.is_empty() && !other { last.argv } else { request.argv.clone() };
    if executor.is_command() && request.prompt.is_none() && argv.is_empty() {
        return Err(Refusal::invalid(
            "argv",
            "is missing: the session never ran, so there is nothing to run again",
        ));
    }
    let mut turn = turn(request)?;
    if let (Some(turn), Some(last)) = (&mut turn, last.turn) {
        turn.model = turn.model.take().or(last.model);
        if request.allow_tools.is_empty() {
            turn.permissions.allow = last.permissions.allow;
        }
        if request.ask.is_none() {
            turn.permissions.asking = last.permissions.asking;
        }
    }
    let named: Vec<_> = request.env.clone().into_iter().collect();
    state.host().check_env(&named)?;
    let env = overlay(last.env, named);
    Ok(RunSpec { argv, env, timeout: time("timeout_s", request.timeout_s)?.or(last.timeout), turn })
}

/// The session, if it is this caller's to work in.
async fn visible(state: &State, caller: &Caller, id: SessionId) -> Result<ManagedSession, Refusal> {
    let found = state.coordinator().store().session(id).await?;
    found.filter(|session| caller.sees(session)).ok_or_else(|| Refusal::unknown("session", id))
}

/// What a session is was said when it was made.
fn of_new_sessions_only(request: &CreateRun) -> Result<(), Refusal> {
    let given = [
        ("key", request.key.is_some()),
        ("label", request.label.is_some()),
        ("agent", request.agent.is_some()),
        ("workspace", request.workspace.is_some()),
        ("project_dir", request.project_dir.is_some()),
        ("metadata", request.metadata.is_some()),
        ("budget", request.budget.is_some()),
        ("sandbox", request.sandbox.is_some()),
        ("parent_session_id", request.parent_session_id.is_some()),
        ("callback", request.callback),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(Refusal::invalid(name, "is of a new session, and this one is there already")),
        None => Ok(()),
    }
}

fn submitted(
    principal: Principal,
    place: Place,
    request: &CreateRun,
    session: TaskSession,
    executor: ExecutorType,
    spec: RunSpec,
) -> Result<Submission, Refusal> {
    let RunSpec { argv, env, timeout, turn } = spec;
    let (name, after, priority) = (None, Vec::new(), request.priority);
    let claim_within = time("claim_within_s", request.claim_within_s)?;
    let task = Task { name, after, session, executor, turn, argv, env, timeout, claim_within, priority };
    Ok(Submission { principal, place, at_once: None, tasks: vec![task] })
}

/// What the new session may use up: where a run starts it that is set aside by the run's own session, the `giver`, and no
/// more than it has left; a share of that, and a turn, where nobody says how much. So a family spends from one purse. An agent
/// could do nothing without what is all gone: it is refused.
fn budget(default: Budget, giver: Option<&ManagedSession>, request: &CreateRun) -> Result<Budget, Refusal> {
    let asked = request.budget.unwrap_or_default();
    let share = |resource, asked: Option<u64>| {
        let left = giver.map_or(u64::MAX, |giver| giver.account().left(resource));
        match asked {
            Some(asked) if asked > left => {
                let reason = format!("is {asked}, and the session that starts it has {left} left");
                Err(Refusal::invalid(format!("budget.{resource}"), reason))
            }
            Some(asked) => Ok(asked),
            // Without a turn it could do nothing at all: where none is left that is refused.
            None if resource == Resource::Turns => Ok(default.limit(resource).min(share_of(left).max(1))),
            None => {
                let share =
                    giver.filter(|_| request.prompt.is_some()).map(|giver| giver.account().share(resource));
                let share = share.unwrap_or_else(|| Ok(share_of(left))).map_err(StoreError::from)?;
                Ok(default.limit(resource).min(share))
            }
        }
    };
    Ok(Budget::of(Usage {
        tokens: share(Resource::Tokens, asked.tokens)?,
        tool_calls: share(Resource::ToolCalls, asked.tool_calls)?,
        turns: share(Resource::Turns, asked.turns)?,
        cost_micros: share(Resource::Cost, asked.cost_micros)?,
    }))
}

fn time(name: &str, seconds: Option<f64>) -> Result<Option<SignedDuration>, Refusal> {
    let Some(seconds) = seconds else { return Ok(None) };
    let time = SignedDuration::try_from_secs_f64(seconds).ok();
    // Kept in whole milliseconds.
    let time =
        time.map(|time| SignedDuration::from_millis(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)));
    match time.filter(|time| *time > SignedDuration::ZERO) {
        Some(time) => Ok(Some(time)),
        None => Err(Refusal::invalid(name, "must be a time of at least a millisecond")),
    }
}

fn turn(request: &CreateRun) -> Result<Option<Turn>, Refusal> {
    let Some(prompt) = request.prompt.clone() else {
        let given = [
            ("model", request.model.is_some()),
            ("from_history", request.from_history),
            ("allow_tools", !request.allow_tools.is_empty()),
            ("ask", request.ask.is_some()),
        ];
        return match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Refusal::invalid(name, "is for an agent, and there is no `prompt`")),
            None => Ok(None),
        };
    };
    let allow: Result<Vec<ToolName>, _> =
        request.allow_tools.iter().map(|tool| field("allow_tools", tool)).collect();
    let asking = match request.ask {
        None | Some(Ask::Wait) => Asking::Wait,
        Some(Ask::Never) => Asking::Never,
        Some(Ask::ForMs(time)) => {
            Asking::For(SignedDuration::from_millis(i64::try_from(time).unwrap_or(i64::MAX)))
        }
    };
    let permissions = Permissions { allow: allow?, asking };
    Ok(Some(Turn { prompt, from_history: request.from_history, permissions, model: request.model.clone() }))
}

/// `over` on top of `base`: a name that both have keeps its place and takes the later value.
fn overlay(mut base: Vec<(String, String)>, over: Vec<(String, String)>) -> Vec<(String, String)> {
    for (name, value) in over {
        match base.iter_mut().find(|(found, _)| *found == name) {
            Some((_, old)) => *old = value,
            None => base.push((name, value)),
        }
    }
    base
}
