//! Runs that are asked for: which session each belongs to, whether that can take one more, and where it is executed.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use jiff::SignedDuration;
use session_core::asked::Asked;
use session_core::budget::{Account, Budget, Usage};
use session_core::error::StoreError;
use session_core::event::{Payload, PayloadError};
use session_core::family::Parent;
use session_core::names::{AgentKey, ExecutorType, ExternalKey, Label, Principal, ToolName};
use session_core::ports::{EventStore as _, Page, RunStore as _, SessionFilter, SessionStore as _};
use session_core::run::RunSpec;
use session_core::sandbox::SandboxLevel;
use session_core::session::NewSession;
use session_core::turn::{Permissions, Turn};
use session_core::{ManagedSession, SandboxSpec, Seq, SessionState, WorkspaceKind, record};
use session_manager::{Draft, Submission, Task, TaskSession};
use session_runner::scope::InPlace;
use session_runner::workspace::environment::check_variable;

use super::asked::{limits_asked, sandbox_asked};
use super::operations::{Operations, bad_name};
use super::protocol::{
    BudgetWire, Enqueued, Inherited, NewSessionWire, Reply, SandboxWire, SessionWire, Submit, TaskWire,
    TurnWire,
};
use super::scope::{self, Settling};
use crate::failure::{Failure, Kind, Outcome};

/// What an agent is asked that is asked for nothing in particular.
const GO_ON: &str = "Go on from where you stopped.";

/// What a task is given as its environment.
struct Variables {
    /// By the caller's own.
    base: Vec<(String, String)>,
    /// By name; comes on top.
    named: Vec<(String, String)>,
    /// Directories that its session may read because of what is in the caller's own.
    tools: BTreeSet<Utf8PathBuf>,
}

impl Operations {
    /// Enqueues tasks.
    pub(super) async fn submit(&self, submit: Submit) -> Outcome<Reply> {
        let principal = Principal::new(&submit.principal).map_err(bad_name)?;
        let mut tasks = Vec::with_capacity(submit.tasks.len());
        let mut unconfined = Vec::with_capacity(submit.tasks.len());
        let alone = submit.tasks.len() == 1 && submit.tasks[0].name.is_none();
        for (index, wire) in submit.tasks.into_iter().enumerate() {
            let field =
                wire.name.clone().map_or_else(|| format!("tasks[{index}]"), |name| format!("task {name:?}"));
            let named = |failure: Failure| {
                if alone {
                    return failure;
                }
                Failure { message: format!("{field}: {}", failure.message), ..failure }
            };
            let (task, session) = self.task(wire, &principal).await.map_err(named)?;
            unconfined.push(level(&task, session.as_ref()) == SandboxLevel::Off);
            tasks.push(task);
        }
        let submission = Submission { principal, place: self.place(), at_once: submit.at_once, tasks };
        let runs = self.coordinator().submit(submission).await?;
        let enqueued = runs.iter().zip(unconfined);
        let enqueued =
            enqueued.map(|(run, unconfined)| Enqueued { session: run.session, run: run.id, unconfined });
        Ok(Reply::Submitted(enqueued.collect()))
    }

    async fn task(&self, wire: TaskWire, principal: &Principal) -> Outcome<(Task, Option<ManagedSession>)> {
        let TaskWire {
            name,
            after,
            session,
            argv,
            executor,
            turn,
            base_env,
            env,
            timeout,
            claim_within,
            priority,
        } = wire;
        let mut given = Variables { base: Vec::new(), named: env, tools: BTreeSet::new() };
        for (name, value) in &given.named {
            check_variable(name, value).map_err(|error| Failure::of(Kind::Usage, &error))?;
        }
        let executor = executor.as_deref().map(ExecutorType::new).transpose().map_err(bad_name)?;
        let task = |session, (executor, spec): (ExecutorType, RunSpec)| {
            let RunSpec { argv, env, timeout, turn } = spec;
            Task { name, after, session, executor, turn, argv, env, timeout, claim_within, priority }
        };
        let first =
            |executor: Option<ExecutorType>, turn: Option<TurnWire>, given: Variables| -> Outcome<_> {
                let turn = turn.map(|turn| asked(turn, None)).transpose()?;
                let executor = executor.unwrap_or_else(ExecutorType::command);
                Ok((
                    executor,
                    RunSpec { argv: argv.clone(), env: overlay(given.base, given.named), timeout, turn },
                ))
            };
        match session {
            SessionWire::New(new) => {
                let settling = self.settling();
                given.base = base_env.given(settling == Settling::AtRunner);
                let session =
                    TaskSession::New(self.new_session(principal, &new, settling, &mut given).await?);
                Ok((task(session, first(executor, turn, given)?), None))
            }
            SessionWire::Keyed { key, new } => {
                let session = self.keyed(principal, &key, &new, base_env, &mut given).await?;
                can_take_a_turn(&session)?;
                let place = TaskSession::Existing(session.id);
                Ok((task(place, first(executor, turn, given)?), Some(session)))
            }
            SessionWire::Existing(id) => {
                let Some(session) = self.store().session(id).await? else {
                    return Err(StoreError::UnknownSession(id).into());
                };
                can_take_a_turn(&session)?;
                given.base = base_env.given(session.sandbox.pending.is_some());
                if session.sandbox.level != SandboxLevel::Off {
                    given.base = scope::without_home(std::mem::take(&mut given.base));
                }
                let last = self.store().runs(id, 1).await?.pop().map(|run| (run.affinity.executor, run.spec));
                // What was imported never ran here: it goes on with the agent that has its conversation.
                let bound = session.binding.as_ref().filter(|_| last.is_none());
                let executor = executor.or_else(|| bound.map(|binding| binding.executor.clone()));
                let wanted = Wanted { executor, turn, argv, timeout };
                Ok((task(TaskSession::Existing(id), again(last, wanted, given)?), Some(session)))
            }
        }
    }

    /// The session that bears this key of the caller's; made if there is none. What was asked of a new one and does not hold
    /// for the one that is there is refused: a limit that is not set must not look as if it were.
    async fn keyed(
        &self,
        principal: &Principal,
        key: &str,
        wire: &NewSessionWire,
        base_env: Inherited,
        given: &mut Variables,
    ) -> Outcome<ManagedSession> {
        let key = ExternalKey::new(key).map_err(bad_name)?;
        // It may be from a time when this host settled for itself, or did not.
        let bearer = self.bearer(principal, &key).await?;
        let settling = bearer.map_or_else(|| self.settling(), |session| Settling::of(&session.sandbox));
        given.base = base_env.given(settling == Settling::AtRunner);
        let Draft { label, agent, kind, project, sandbox, metadata, budget, parent } =
            self.new_session(principal, wire, settling, given).await?;
        let real = project.as_ref().filter(|_| settling == Settling::Here);
        let real = real.and_then(|project| project.canonicalize_utf8().ok()).or_else(|| project.clone());
        let asked = Asked {
            budget: limits_asked(wire.budget),
            agent: agent.clone(),
            sandbox: sandbox_asked(&wire.sandbox, &sandbox, &given.tools),
            metadata: (wire.metadata != "{}").then(|| metadata.clone()),
            parent: parent.map(|parent| parent.session),
            callback: wire.callback && parent.is_some(),
            workspace: None,
        };
        let new = NewSession {
            id: self.session_id(),
            principal: principal.clone(),
            label,
            agent,
            kind,
            project,
            sandbox,
            metadata,
            budget,
            parent,
            key: Some(key.clone()),
        };
        let found = self.store().open_key(new, self.now()).await?;
        if found.created {
            return Ok(found.session);
        }
        let first = self.store().read(found.session.id, Seq::START, 1).await?;
        let made = first.first().and_then(|first| record::made_with(&first.body));
        // It may have been made under another name of the same directory.
        let theirs = found.session.workspace.project.clone();
        let same =
            real.is_some() && theirs.as_ref().and_then(|theirs| theirs.canonicalize_utf8().ok()) == real;
        let workspace = Some((kind, if same { theirs } else { real }));
        let differs = Asked { workspace, ..asked }.differs(&found.session, made);
        if differs.is_empty() {
            return Ok(found.session);
        }
        let message = format!(
            "session {} bears the key {key} already, with {} of its own",
            found.session.id,
            differs.join(", ")
        );
        Err(Failure::new(Kind::Conflict, message)
            .hint("leave them out; `roomette budget set` and `roomette label` change what can be changed"))
    }

    /// The session that bears this key now.
    async fn bearer(&self, principal: &Principal, key: &ExternalKey) -> Outcome<Option<ManagedSession>> {
        let (principal, key) = (Some(principal.clone()), Some(key.clone()));
        let filter = SessionFilter { principal, key, ..SessionFilter::default() };
        let found = self.store().list(&filter, &Page::first(1)).await?;
        Ok(found.items.into_iter().next().map(|item| item.session))
    }

    /// What a session gets about whose sandbox nobody said anything.
    pub(super) fn default_sandbox(&self) -> Outcome<SandboxSpec> {
        let settled = self.settle(self.settling(), None, &SandboxWire::default(), None, Vec::new(), &[]);
        Ok(settled.map_err(scope::refused)?.sandbox)
    }

    /// The session that is to be a new one's parent: one of the same owner, or none.
    async fn parent(&self, principal: &Principal, wire: &NewSessionWire) -> Outcome<Option<ManagedSession>> {
        let Some(id) = wire.parent else { return Ok(None) };
        let found = self.store().session(id).await?.filter(|session| session.principal == *principal);
        Ok(Some(found.ok_or(StoreError::UnknownSession(id))?))
    }

    /// The caller's environment loses what a session in a sandbox has of its own, and gains what finds its tools.
    async fn new_session(
        &self,
        principal: &Principal,
        wire: &NewSessionWire,
        settling: Settling,
        given: &mut Variables,
    ) -> Outcome<Draft> {
        let limits = &self.config().limits;
        let parent = self.parent(principal, wire).await?;
        let metadata = Payload::parse(&wire.metadata).map_err(|error| match error {
            PayloadError::NotJson(_) => Failure::usage("metadata: is not a JSON object"),
            PayloadError::TooLarge { .. } => Failure::usage(format!("metadata: {error}")),
        })?;
        let kind: WorkspaceKind = wire.workspace.parse().map_err(|error| Failure::of(Kind::Usage, &error))?;
        let project = wire.project.as_deref().map(Utf8PathBuf::from);
        let in_place = if kind == WorkspaceKind::InPlace { InPlace::Yes } else { InPlace::No };
        let base = std::mem::take(&mut given.base);
        let touched = project.clone().map(|project| (project, in_place));
        let of_parent = parent.as_ref().map(|parent| &parent.sandbox);
        let settled = self.settle(settling, of_parent, &wire.sandbox, touched, base, &given.named);
        let settled = settled.map_err(scope::refused)?;
        (given.base, given.tools) = (settled.base_env, settled.tools);
        Ok(Draft {
            label: wire.label.as_deref().map(Label::new).transpose().map_err(bad_name)?,
            agent: wire.agent.as_deref().map(AgentKey::new).transpose().map_err(bad_name)?,
            kind,
            project,
            sandbox: settled.sandbox,
            metadata,
            parent: parent.map(|parent| Parent {
                session: parent.id,
                depth_max: limits.children_depth,
                children_max: limits.children_width,
                callback: wire.callback,
                // Whoever speaks with the host is the owner, and spends the owner's.
                allotted: false,
                confined: true,
                by: None,
            }),
            budget: self.budget(wire.budget),
        })
    }

    /// What a new session may use up; what is not given is the installation's setting.
    pub(super) fn budget(&self, wire: BudgetWire) -> Budget {
        let limits = &self.config().limits;
        Budget {
            tokens_max: wire.tokens.unwrap_or(limits.tokens),
            tool_calls_max: wire.tool_calls.unwrap_or(limits.tool_calls),
            turns_max: wire.turns.or(limits.turns),
            cost_micros_max: wire.cost_micros.or(limits.cost_micros),
        }
    }
}

/// How much the kernel must enforce of a task's session.
fn level(task: &Task, session: Option<&ManagedSession>) -> SandboxLevel {
    match (&task.session, session) {
        (_, Some(session)) => session.sandbox.level,
        (TaskSession::New(draft) | TaskSession::Keyed(_, draft, _), None) => draft.sandbox.level,
        (TaskSession::Existing(_), None) => SandboxLevel::Best,
    }
}

/// What was said of a further run.
struct Wanted {
    executor: Option<ExecutorType>,
    turn: Option<TurnWire>,
    argv: Vec<String>,
    timeout: Option<SignedDuration>,
}

/// The next run of a session: what is not given is as in the last one.
fn again(
    last: Option<(ExecutorType, RunSpec)>,
    wanted: Wanted,
    given: Variables,
) -> Outcome<(ExecutorType, RunSpec)> {
    let Wanted { executor, turn, argv, timeout } = wanted;
    let (last_executor, last) = last.unzip();
    let other = executor.is_some() && executor != last_executor;
    let executor = executor.or(last_executor).unwrap_or_else(ExecutorType::command);
    let RunSpec { argv: last_argv, env: last_env, timeout: last_timeout, turn: last_turn } =
        last.unwrap_or_else(|| RunSpec { env: given.base, ..RunSpec::default() });
    // What another executor was given means nothing to this one.
    let argv = if argv.is_empty() && !other { last_argv } else { argv };
    if executor.is_mcp() {
        return Err(Failure::usage(
            "an MCP server is started by its bridge, when a client of it asks for something",
        )
        .hint("`roomette bridge` goes on with its sessions"));
    }
    if executor.is_command() && turn.is_some() {
        return Err(Failure::usage("the session runs commands, which are asked for nothing")
            .hint("name an agent with --agent, and --from-history where another one worked before"));
    }
    if executor.is_command() && argv.is_empty() {
        return Err(Failure::usage("the session never ran, so there is nothing to run again")
            .hint("say what to run: `roomette resume SESSION -- PROGRAM…`"));
    }
    // Models and tools are named by each agent in its own words.
    let last_turn = last_turn.map(|last| if other { for_another(last) } else { last });
    let turn = if executor.is_command() { None } else { Some(asked(turn.unwrap_or_default(), last_turn)?) };
    let env = overlay(last_env, given.named);
    Ok((executor, RunSpec { argv, env, timeout: timeout.or(last_timeout), turn }))
}

/// What still holds of an agent's turn where another one goes on.
fn for_another(last: Turn) -> Turn {
    let permissions = Permissions { allow: Vec::new(), ..last.permissions };
    Turn { model: None, permissions, ..last }
}

/// What an agent is asked for; what is not given is as in the last turn.
fn asked(wire: TurnWire, last: Option<Turn>) -> Outcome<Turn> {
    let TurnWire { prompt, from_history, model, allow, asking } = wire;
    let (last_permissions, last_model) = match last {
        Some(last) => (last.permissions, last.model),
        None => Default::default(),
    };
    let names = |names: Vec<String>| names.iter().map(|name| ToolName::new(name)).collect::<Result<_, _>>();
    Ok(Turn {
        prompt: prompt.unwrap_or_else(|| GO_ON.into()),
        from_history,
        model: model.or(last_model),
        permissions: Permissions {
            allow: allow.map(names).transpose().map_err(bad_name)?.unwrap_or(last_permissions.allow),
            asking: asking.unwrap_or(last_permissions.asking),
        },
    })
}

/// `over` on top of `base`: a name that both have keeps its place and takes the later value.
pub(super) fn overlay(mut base: Vec<(String, String)>, over: Vec<(String, String)>) -> Vec<(String, String)> {
    for (name, value) in over {
        match base.iter_mut().find(|(found, _)| *found == name) {
            Some((_, old)) => *old = value,
            None => base.push((name, value)),
        }
    }
    base
}

/// Refuses a further run before it is enqueued, where the session is over or its turns are all used.
fn can_take_a_turn(session: &ManagedSession) -> Outcome<()> {
    if let SessionState::Terminated { reason, .. } = session.state {
        let message = format!("session {} is over ({reason}) and never comes back", session.id);
        return Err(Failure::new(Kind::Conflict, message)
            .hint("`roomette fork SESSION` makes a new session of its log"));
    }
    let mut account = Account { reserved: Usage::NONE, ..session.account() };
    let turn = Usage { turns: 1, ..Usage::NONE };
    account.reserve(turn).map_err(|exhausted| {
        Failure::of(Kind::Budget, &exhausted)
            .hint(format!("`roomette budget top-up {} --turns N` gives it more", session.id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &[(&str, &str)]) -> Vec<(String, String)> {
        text.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    fn wanted(argv: &[&str]) -> Wanted {
        let argv = argv.iter().map(|&part| part.into()).collect();
        Wanted { executor: None, turn: None, argv, timeout: None }
    }

    fn given(base: &[(&str, &str)], named: &[(&str, &str)]) -> Variables {
        Variables { base: pairs(base), named: pairs(named), tools: BTreeSet::new() }
    }

    #[test]
    fn a_further_run_is_the_last_one_with_what_was_said_anew() {
        let last = RunSpec {
            argv: vec!["make".into()],
            env: pairs(&[("PATH", "/bin"), ("A", "1")]),
            timeout: Some(SignedDuration::from_secs(5)),
            turn: None,
        };
        let before = || Some((ExecutorType::command(), last.clone()));
        let (executor, same) = again(before(), wanted(&[]), given(&[("PATH", "/other")], &[])).unwrap();
        assert_eq!((executor, &same), (ExecutorType::command(), &last));
        let other = Wanted { timeout: Some(SignedDuration::from_secs(9)), ..wanted(&["ls"]) };
        let (_, changed) = again(before(), other, given(&[], &[("A", "2"), ("B", "3")])).unwrap();
        assert_eq!(changed.argv, ["ls"]);
        assert_eq!(changed.env, pairs(&[("PATH", "/bin"), ("A", "2"), ("B", "3")]));
        assert_eq!(changed.timeout, Some(SignedDuration::from_secs(9)));
        let never = again(None, wanted(&[]), given(&[], &[])).unwrap_err();
        assert_eq!(never.kind, Kind::Usage);
    }

    #[test]
    fn a_further_turn_is_asked_for_something_new_under_the_same_rules() {
        let codex = ExecutorType::new("codex").unwrap();
        let permissions = Permissions {
            allow: vec![ToolName::new("Read").unwrap()],
            asking: session_core::turn::Asking::Never,
        };
        let turn = Turn { permissions: permissions.clone(), model: Some("m".into()), ..Turn::new("begin") };
        let last = RunSpec { argv: vec!["--flag".into()], turn: Some(turn), ..RunSpec::default() };
        let before = || Some((codex.clone(), last.clone()));
        let (executor, spec) = again(before(), wanted(&[]), given(&[], &[])).unwrap();
        let turn = spec.turn.unwrap();
        assert_eq!((executor, spec.argv.as_slice()), (codex.clone(), ["--flag".to_owned()].as_slice()));
        assert_eq!(
            (turn.prompt.as_str(), turn.permissions, turn.model.as_deref()),
            (GO_ON, permissions, Some("m"))
        );
        let gemini = Wanted {
            executor: Some(ExecutorType::new("gemini").unwrap()),
            turn: Some(TurnWire { prompt: Some("more".into()), from_history: true, ..TurnWire::default() }),
            ..wanted(&[])
        };
        let (executor, spec) = again(before(), gemini, given(&[], &[])).unwrap();
        assert_eq!(
            (executor.as_str(), spec.argv.len()),
            ("gemini", 0),
            "another agent knows not its arguments"
        );
        assert!(spec.is_from_history());
        let turn = spec.turn.unwrap();
        assert_eq!((turn.model, turn.permissions.allow.len()), (None, 0), "nor its model, nor its tools");
        assert_eq!(turn.permissions.asking, session_core::turn::Asking::Never);
        let asked = Wanted { turn: Some(TurnWire::default()), ..wanted(&[]) };
        let command =
            Some((ExecutorType::command(), RunSpec { argv: vec!["make".into()], ..RunSpec::default() }));
        assert_eq!(again(command, asked, given(&[], &[])).unwrap_err().kind, Kind::Usage);
    }
}
