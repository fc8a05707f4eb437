//! Runs that are asked for: which session each belongs to, whether that can take one more, and where it is executed.

use camino::Utf8PathBuf;
use jiff::SignedDuration;
use session_core::affinity::Place;
use session_core::budget::{Account, Budget, Usage};
use session_core::error::StoreError;
use session_core::event::{Payload, PayloadError};
use session_core::names::{AgentKey, ExecutorType, ExternalKey, Label, Principal};
use session_core::ports::{RunStore as _, SessionStore as _};
use session_core::run::RunSpec;
use session_core::sandbox::SandboxLevel;
use session_core::session::NewSession;
use session_core::{ManagedSession, SandboxSpec, SessionState, WorkspaceKind};
use session_manager::{Draft, Submission, Task, TaskSession};
use session_runner::scope::InPlace;
use session_runner::workspace::environment::check_variable;

use super::operations::{Operations, bad_name};
use super::protocol::{
    BudgetWire, Enqueued, NewSessionWire, Reply, SandboxWire, SessionWire, Submit, TaskWire,
};
use super::scope;
use crate::failure::{Failure, Kind, Outcome};

/// What a task is given as its environment.
struct Variables {
    /// By the caller's own.
    base: Vec<(String, String)>,
    /// By name; comes on top.
    named: Vec<(String, String)>,
}

impl Operations {
    /// Enqueues tasks.
    pub(super) async fn submit(&self, submit: Submit) -> Outcome<Reply> {
        let principal = Principal::new(&submit.principal).map_err(bad_name)?;
        let mut place = Place::Runner(self.profile().id);
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
            // A further run goes where the session's workspace lies.
            if let Some(runner) = session.as_ref().and_then(|session| session.workspace.runner) {
                place = Place::Runner(runner);
            }
            unconfined.push(level(&task, session.as_ref()) == SandboxLevel::Off);
            tasks.push(task);
        }
        let submission = Submission { principal, place, at_once: submit.at_once, tasks };
        let runs = self.coordinator().submit(submission).await?;
        let enqueued = runs.iter().zip(unconfined);
        let enqueued =
            enqueued.map(|(run, unconfined)| Enqueued { session: run.session, run: run.id, unconfined });
        Ok(Reply::Submitted(enqueued.collect()))
    }

    async fn task(&self, wire: TaskWire, principal: &Principal) -> Outcome<(Task, Option<ManagedSession>)> {
        let TaskWire { name, after, session, argv, base_env, env, timeout, priority } = wire;
        let mut given = Variables { base: base_env, named: env };
        for (name, value) in &given.named {
            check_variable(name, value).map_err(|error| Failure::of(Kind::Usage, &error))?;
        }
        let executor = ExecutorType::command();
        let task = |session, argv, env, timeout| Task {
            name,
            after,
            session,
            executor,
            turn: None,
            argv,
            env,
            timeout,
            priority,
        };
        match session {
            SessionWire::New(new) => {
                let session = TaskSession::New(self.new_session(&new, &mut given)?);
                Ok((task(session, argv, overlay(given.base, given.named), timeout), None))
            }
            SessionWire::Keyed { key, new } => {
                let session = self.keyed(principal, &key, &new, &mut given).await?;
                can_take_a_turn(&session)?;
                let place = TaskSession::Existing(session.id);
                Ok((task(place, argv, overlay(given.base, given.named), timeout), Some(session)))
            }
            SessionWire::Existing(id) => {
                let Some(session) = self.store().session(id).await? else {
                    return Err(StoreError::UnknownSession(id).into());
                };
                can_take_a_turn(&session)?;
                if session.sandbox.level != SandboxLevel::Off {
                    given.base = scope::without_home(std::mem::take(&mut given.base));
                }
                let last = self.store().runs(id, 1).await?.pop().map(|run| run.spec);
                let spec = again(last, argv, given.base, given.named, timeout)?;
                Ok((task(TaskSession::Existing(id), spec.argv, spec.env, spec.timeout), Some(session)))
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
        given: &mut Variables,
    ) -> Outcome<ManagedSession> {
        let key = ExternalKey::new(key).map_err(bad_name)?;
        let Draft { label, agent, kind, project, sandbox, metadata, budget, parent } =
            self.new_session(wire, given)?;
        let id = self.session_id();
        let asked = (label.clone(), kind, project.clone(), sandbox.clone(), metadata.clone(), budget);
        let new = NewSession {
            id,
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
        let (session, (label, kind, project, sandbox, metadata, budget)) = (&found.session, asked);
        let mut differs = Vec::new();
        let mut differ = |is_so: bool, what: &'static str| differs.extend(is_so.then_some(what));
        differ(wire.budget != BudgetWire::default() && budget != session.budget, "limits");
        differ(label.is_some() && label != session.label, "a label");
        // Which repository it was is nothing that was asked for.
        let sandbox = SandboxSpec { repository: session.sandbox.repository.clone(), ..sandbox };
        differ(wire.sandbox != SandboxWire::default() && sandbox != session.sandbox, "a sandbox");
        differ(wire.metadata != "{}" && metadata != session.metadata, "metadata");
        differ((kind, &project) != (session.workspace.kind, &session.workspace.project), "a workspace");
        if differs.is_empty() {
            return Ok(found.session);
        }
        let message = format!(
            "session {} bears the key {key} already, with {} of its own",
            session.id,
            differs.join(", ")
        );
        Err(Failure::new(Kind::Conflict, message)
            .hint("leave them out; `roomette budget set` and `roomette label` change what can be changed"))
    }

    /// The caller's environment loses what a session in a sandbox has of its own, and gains what finds its tools.
    /// What a session gets about whose sandbox nobody said anything.
    pub(super) fn default_sandbox(&self) -> Outcome<SandboxSpec> {
        let nothing = (&SandboxWire::default(), Vec::new());
        let settled =
            scope::settled(&self.config().sandbox, nothing.0, self.data_dir(), None, nothing.1, &[])?;
        Ok(settled.sandbox)
    }

    fn new_session(&self, wire: &NewSessionWire, given: &mut Variables) -> Outcome<Draft> {
        let metadata = Payload::parse(&wire.metadata).map_err(|error| match error {
            PayloadError::NotJson(_) => Failure::usage("metadata: is not a JSON object"),
            PayloadError::TooLarge(_) => Failure::usage(format!("metadata: {error}")),
        })?;
        let kind: WorkspaceKind = wire.workspace.parse().map_err(|error| Failure::of(Kind::Usage, &error))?;
        let project = wire.project.as_deref().map(Utf8PathBuf::from);
        let in_place = if kind == WorkspaceKind::InPlace { InPlace::Yes } else { InPlace::No };
        let base = std::mem::take(&mut given.base);
        let touched = project.clone().map(|project| (project, in_place));
        let settled = scope::settled(
            &self.config().sandbox,
            &wire.sandbox,
            self.data_dir(),
            touched,
            base,
            &given.named,
        )?;
        given.base = settled.base_env;
        let limits = &self.config().limits;
        Ok(Draft {
            label: wire.label.as_deref().map(Label::new).transpose().map_err(bad_name)?,
            agent: wire.agent.as_deref().map(AgentKey::new).transpose().map_err(bad_name)?,
            kind,
            project,
            sandbox: settled.sandbox,
            metadata,
            parent: wire.parent,
            budget: Budget {
                tokens_max: wire.budget.tokens.unwrap_or(limits.tokens),
                tool_calls_max: wire.budget.tool_calls.unwrap_or(limits.tool_calls),
                turns_max: wire.budget.turns.or(limits.turns),
                cost_micros_max: wire.budget.cost_micros.or(limits.cost_micros),
            },
        })
    }
}

/// How much the kernel must enforce of a task's session.
fn level(task: &Task, session: Option<&ManagedSession>) -> SandboxLevel {
    match (&task.session, session) {
        (_, Some(session)) => session.sandbox.level,
        (TaskSession::New(draft) | TaskSession::Keyed(_, draft), None) => draft.sandbox.level,
        (TaskSession::Existing(_), None) => SandboxLevel::Best,
    }
}

/// The next run of a session: what is not given is as in the last one.
fn again(
    last: Option<RunSpec>,
    argv: Vec<String>,
    base_env: Vec<(String, String)>,
    env: Vec<(String, String)>,
    timeout: Option<SignedDuration>,
) -> Outcome<RunSpec> {
    let (last_argv, last_env, last_timeout) = match last {
        Some(spec) => (spec.argv, spec.env, spec.timeout),
        None => (Vec::new(), base_env, None),
    };
    let argv = if argv.is_empty() { last_argv } else { argv };
    if argv.is_empty() {
        return Err(Failure::usage("the session never ran, so there is nothing to run again")
            .hint("say what to run: `roomette resume SESSION -- PROGRAM…`"));
    }
    Ok(RunSpec { argv, env: overlay(last_env, env), timeout: timeout.or(last_timeout), turn: None })
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

/// Refuses a further run before it is enqueued, where the session is over or its turns are all used.
fn can_take_a_turn(session: &ManagedSession) -> Outcome<()> {
    if let SessionState::Terminated { reason, .. } = session.state {
        let message = format!("session {} is over ({reason}) and never comes back", session.id);
        return Err(Failure::new(Kind::Conflict, message)
            .hint("`roomette fork SESSION` makes a new session of its log"));
    }
    let account = Account { budget: session.budget, used: session.usage, reserved: Usage::NONE };
    let mut account = account;
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

    #[test]
    fn a_further_run_is_the_last_one_with_what_was_said_anew() {
        let last = RunSpec {
            argv: vec!["make".into()],
            env: pairs(&[("PATH", "/bin"), ("A", "1")]),
            timeout: Some(SignedDuration::from_secs(5)),
            turn: None,
        };
        let same =
            again(Some(last.clone()), Vec::new(), pairs(&[("PATH", "/other")]), Vec::new(), None).unwrap();
        assert_eq!(same, last);
        let changed = again(
            Some(last),
            vec!["ls".into()],
            Vec::new(),
            pairs(&[("A", "2"), ("B", "3")]),
            Some(SignedDuration::from_secs(9)),
        );
        let changed = changed.unwrap();
        assert_eq!(changed.argv, ["ls"]);
        assert_eq!(changed.env, pairs(&[("PATH", "/bin"), ("A", "2"), ("B", "3")]));
        assert_eq!(changed.timeout, Some(SignedDuration::from_secs(9)));
        let never = again(None, Vec::new(), Vec::new(), Vec::new(), None).unwrap_err();
        assert_eq!(never.kind, Kind::Usage);
    }
}
