//! From what somebody wants executed to what is enqueued: every check, before anything is made.

use camino::Utf8PathBuf;
use jiff::{SignedDuration, Timestamp};
use session_core::affinity::{Affinity, Place};
use session_core::asked::Asked;
use session_core::budget::Budget;
use session_core::event::Payload;
use session_core::family::Parent;
use session_core::names::{AgentKey, ExecutorType, ExternalKey, Label, Principal};
use session_core::ports::{NewCrew, NewRun, RunOf};
use session_core::run::RunSpec;
use session_core::session::NewSession;
use session_core::turn::{ALLOW_MAX, ASKING_MAX, Asking, MODEL_MAX, PROMPT_MAX, Turn};
use session_core::{Env, SandboxSpec, SessionId, WorkspaceKind};

use super::DispatchError;
use crate::crew::{self, CrewError, Node};

/// Tasks that are submitted together: all of them are enqueued, or none.
#[derive(Debug, Clone)]
pub struct Submission {
    /// Whose sessions they are.
    pub principal: Principal,
    /// Where they are executed, but for those of a session whose files are somewhere already.
    pub place: Place,
    /// How many of them may be in flight at once; `None` for as many as the runner takes.
    pub at_once: Option<u32>,
    /// The tasks, at least one.
    pub tasks: Vec<Task>,
}

/// One thing to execute.
#[derive(Debug, Clone)]
pub struct Task {
    /// By what other tasks of the submission refer to it.
    pub name: Option<String>,
    /// The names of the tasks that must complete before it.
    pub after: Vec<String>,
    /// In which session.
    pub session: TaskSession,
    /// With what it is executed.
    pub executor: ExecutorType,
    /// What an agent is asked for; for every executor but `command`.
    pub turn: Option<Turn>,
    /// The program and its arguments. Of an agent what it is given beside ours, which may be nothing; `acp` has no
    /// program of its own and is named it here.
    pub argv: Vec<String>,
    /// The environment, complete but for what the workspace adds.
    pub env: Vec<(String, String)>,
    /// The longest wall time.
    pub timeout: Option<SignedDuration>,
    /// For how long it waits for a runner that may take it. Without it a further run of a session, one of a session with a key,
    /// and one of a child that spends from its parent's budget wait as long as the settings say, and the first one of any other
    /// new session as long as it takes.
    pub claim_within: Option<SignedDuration>,
    /// Higher ones first.
    pub priority: i32,
}

/// The session of a task.
#[derive(Debug, Clone)]
pub enum TaskSession {
    /// A new one.
    New(Draft),
    /// The one that bears this key of the principal's, where it is as was asked for, or a new one that bears it.
    Keyed(ExternalKey, Draft, Box<Asked>),
    /// One that exists.
    Existing(SessionId),
}

/// What a new session is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Free text for people.
    pub label: Option<Label>,
    /// The agent that works in it.
    pub agent: Option<AgentKey>,
    /// The directory it works in.
    pub kind: WorkspaceKind,
    /// The project, for every kind but `scratch`.
    pub project: Option<Utf8PathBuf>,
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxSpec,
    /// A JSON object.
    pub metadata: Payload,
    /// What it may use up.
    pub budget: Budget,
    /// The session that starts it, and how far that may go.
    pub parent: Option<Parent>,
}

/// The most tasks of one submission.
pub(super) const TASKS_MAX: usize = 10_000;
/// The longest single argument or variable, in bytes: what Linux takes (`MAX_ARG_STRLEN`).
pub(super) const ARGUMENT_MAX: usize = 128 * 1024 - 1;
/// The most bytes of all arguments and variables of one task: half of what Linux takes by default.
pub(super) const ARGUMENTS_MAX: usize = 1024 * 1024;

/// A submission as it is enqueued.
pub(super) struct Planned {
    pub(super) batch: Vec<NewRun>,
    pub(super) crew: Option<NewCrew>,
    /// For each run of the batch the index of its task.
    pub(super) tasks: Vec<usize>,
}

/// Checks everything and puts the tasks in order.
pub(super) fn plan(
    submission: Submission,
    env: &Env,
    resume_within: Option<SignedDuration>,
) -> Result<Planned, DispatchError> {
    let Submission { principal, place, at_once, tasks } = submission;
    if tasks.is_empty() || tasks.len() > TASKS_MAX {
        return Err(invalid("tasks", format!("there are {}, 1 to {TASKS_MAX} are allowed", tasks.len())));
    }
    if at_once == Some(0) {
        return Err(invalid("at_once", "0 would let nothing ever begin; give 1 or more"));
    }
    for (index, task) in tasks.iter().enumerate() {
        let field =
            task.name.as_ref().map_or_else(|| format!("tasks[{index}]"), |name| format!("task {name:?}"));
        check(task, &field)?;
    }
    let nodes: Vec<_> =
        tasks.iter().map(|task| Node { name: task.name.as_deref(), after: &task.after }).collect();
    let order = crew::order(&nodes).map_err(|error| {
        let field = match &error {
            CrewError::DuplicateName(_) => "name",
            CrewError::UnknownName { .. } | CrewError::Cycle(_) => "after",
        };
        invalid(field, error.to_string())
    })?;
    let crew = (tasks.len() > 1).then(|| NewCrew { id: env.crew_id(), at_once });
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    let mut planned = Planned { batch: Vec::with_capacity(order.len()), crew, tasks: Vec::new() };
    for placed in order {
        if let Some(task) = tasks[placed.task].take() {
            // One that is found by its key goes where its files are, as a further one. What a child has of its parent's is
            // held up for as long as it waits.
            let hurried = match &task.session {
                TaskSession::Existing(_) | TaskSession::Keyed(..) => true,
                TaskSession::New(draft) => draft.parent.is_some_and(|parent| parent.allotted),
            };
            let within = task.claim_within.or(resume_within.filter(|_| hurried));
            let claim_by = claim_by(within, env.now());
            planned.batch.push(NewRun { claim_by, ..new_run(task, placed.after, &principal, &place, env) });
            planned.tasks.push(placed.task);
        }
    }
    Ok(planned)
}

fn new_run(task: Task, after: Vec<usize>, principal: &Principal, place: &Place, env: &Env) -> NewRun {
    let of = match task.session {
        TaskSession::Existing(id) => RunOf::Existing(id),
        TaskSession::New(draft) => RunOf::New(Box::new(new_session(draft, None, principal, env))),
        TaskSession::Keyed(key, draft, asked) => {
            RunOf::Keyed(Box::new(new_session(draft, Some(key), principal, env)), asked)
        }
    };
    NewRun {
        id: env.run_id(),
        of,
        spec: RunSpec { argv: task.argv, env: task.env, timeout: task.timeout, turn: task.turn },
        priority: task.priority,
        affinity: Affinity { place: place.clone(), executor: task.executor, project_dir: None },
        after,
        claim_by: None,
        delivers: Vec::new(),
    }
}

/// When a run that may wait so long must be taken.
pub(super) fn claim_by(within: Option<SignedDuration>, now: Timestamp) -> Option<Timestamp> {
    within.map(|within| now.saturating_add(within).unwrap_or(Timestamp::MAX))
}

fn new_session(draft: Draft, key: Option<ExternalKey>, principal: &Principal, env: &Env) -> NewSession {
    let Draft { label, agent, kind, project, sandbox, metadata, budget, parent } = draft;
    let (id, principal) = (env.session_id(), principal.clone());
    NewSession { id, principal, label, agent, kind, project, sandbox, metadata, budget, parent, key }
}

fn check(task: &Task, field: &str) -> Result<(), DispatchError> {
    let at = |part: &str| format!("{field}.{part}");
    check_turn(task, field)?;
    check_process(task, field)?;
    for (part, time) in [("timeout", task.timeout), ("claim_within", task.claim_within)] {
        if time.is_some_and(|time| time <= SignedDuration::ZERO) {
            return Err(invalid(at(part), "must be longer than nothing"));
        }
    }
    if let TaskSession::New(draft) | TaskSession::Keyed(_, draft, _) = &task.session {
        let Draft { kind, project, metadata, .. } = draft;
        if metadata.value().ok().is_none_or(|value| !value.is_object()) {
            return Err(invalid(at("metadata"), "is not a JSON object"));
        }
        match (kind, project) {
            (WorkspaceKind::Scratch, None) => {}
            (WorkspaceKind::Scratch, Some(_)) => {
                return Err(invalid(at("project"), "a scratch workspace has no project"));
            }
            (WorkspaceKind::Worktree | WorkspaceKind::InPlace, Some(project)) if project.is_absolute() => {}
            (WorkspaceKind::Worktree | WorkspaceKind::InPlace, _) => {
                return Err(invalid(
                    at("project"),
                    format!("a {kind} workspace needs an absolute project path"),
                ));
            }
        }
    }
    Ok(())
}

/// What is given to the process: its program, its arguments and its environment.
fn check_process(task: &Task, field: &str) -> Result<(), DispatchError> {
    let at = |part: &str| format!("{field}.{part}");
    let names_program = task.executor.names_program();
    if names_program && task.argv.first().is_none_or(String::is_empty) {
        return Err(invalid(at("argv"), "names no program"));
    }
    let mut bytes = 0;
    let variables = task.env.iter().flat_map(|(name, value)| [("env", name), ("env", value)]);
    for (part, text) in task.argv.iter().map(|argument| ("argv", argument)).chain(variables) {
        if text.contains('\0') {
            return Err(invalid(at(part), "contains a NUL byte, which no program can be given"));
        }
        if text.len() > ARGUMENT_MAX {
            let reason = format!("one text is {} bytes long, {ARGUMENT_MAX} are allowed", text.len());
            return Err(invalid(at(part), reason));
        }
        bytes += text.len() + 1;
    }
    if bytes > ARGUMENTS_MAX {
        let reason = format!("arguments and environment are {bytes} bytes, {ARGUMENTS_MAX} are allowed");
        return Err(invalid(at("argv"), reason));
    }
    for (name, _) in &task.env {
        if name.is_empty() || name.contains('=') {
            return Err(invalid(at("env"), format!("{name:?} is no name of a variable")));
        }
    }
    Ok(())
}

/// Whether what is asked for and with what it is executed belong together.
fn check_turn(task: &Task, field: &str) -> Result<(), DispatchError> {
    let at = |part: &str| format!("{field}.{part}");
    let Some(turn) = &task.turn else {
        if !task.executor.is_agent() {
            return Ok(());
        }
        return Err(invalid(at("turn"), format!("{} is an agent: say what it is asked for", task.executor)));
    };
    if !task.executor.is_agent() {
        return Err(invalid(at("turn"), "a command is asked for nothing: name the agent as the executor"));
    }
    let Turn { prompt, permissions, model, from_history } = turn;
    if *from_history && matches!(task.session, TaskSession::New(_)) {
        return Err(invalid(at("turn.from_history"), "a new session has no history to begin from"));
    }
    if prompt.trim().is_empty() {
        return Err(invalid(at("turn.prompt"), "is empty"));
    }
    if prompt.contains('\0') {
        return Err(invalid(at("turn.prompt"), "contains a NUL byte, which no program can be given"));
    }
    if prompt.len() > PROMPT_MAX {
        let reason = format!("is {} bytes long, {PROMPT_MAX} are allowed", prompt.len());
        return Err(invalid(at("turn.prompt"), reason));
    }
    if permissions.allow.len() > ALLOW_MAX {
        let reason = format!("names {} tools, {ALLOW_MAX} are allowed", permissions.allow.len());
        return Err(invalid(at("turn.permissions.allow"), reason));
    }
    if let Asking::For(time) = permissions.asking
        && !(SignedDuration::from_millis(1)..=ASKING_MAX).contains(&time)
    {
        let reason = "must be longer than nothing and no longer than 30 days; \"wait\" has no end";
        return Err(invalid(at("turn.permissions.asking"), reason));
    }
    // One that looks like an option must not become one.
    let is_name = |name: &str| {
        !name.trim().is_empty()
            && name.len() <= MODEL_MAX
            && !name.starts_with('-')
            && !name.contains(char::is_control)
    };
    if model.as_deref().is_some_and(|name| !is_name(name)) {
        let reason = format!(
            "is no name of a model: 1 to {MODEL_MAX} bytes, no hyphen in front and no control characters"
        );
        return Err(invalid(at("turn.model"), reason));
    }
    Ok(())
}

fn invalid(field: impl Into<String>, reason: impl Into<String>) -> DispatchError {
    DispatchError::Invalid { field: field.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use session_core::testing;

    use super::*;

    fn task(name: &str, after: &[&str]) -> Task {
        Task {
            name: Some(name.into()),
            after: after.iter().map(|&name| name.into()).collect(),
            session: TaskSession::New(Draft {
                label: None,
                agent: None,
                kind: WorkspaceKind::Scratch,
                project: None,
                sandbox: SandboxSpec::default(),
                metadata: Payload::parse("{}").unwrap(),
                budget: Budget::default(),
                parent: None,
            }),
            executor: ExecutorType::command(),
            turn: None,
            argv: vec!["true".into()],
            env: Vec::new(),
            timeout: None,
            claim_within: None,
            priority: 0,
        }
    }

    fn plan_of(tasks: Vec<Task>) -> Result<Planned, DispatchError> {
        let submission =
            Submission { principal: "me".parse().unwrap(), place: Place::Anywhere, at_once: Some(2), tasks };
        plan(submission, &testing::env().0, None)
    }

    #[test]
    fn runs_stand_behind_those_they_wait_for() {
        let planned = plan_of(vec![task("last", &["first"]), task("first", &[])]).unwrap();
        assert_eq!(planned.tasks, [1, 0]);
        assert_eq!(planned.batch[1].after, [0]);
        assert_eq!(planned.crew.unwrap().at_once, Some(2));
        assert!(plan_of(vec![task("alone", &[])]).unwrap().crew.is_none());
    }

    #[test]
    fn a_run_waits_for_its_runner_as_long_as_it_says_or_a_further_one_as_is_set() {
        let (env, _) = testing::env();
        let further = || Task { session: TaskSession::Existing(env.session_id()), ..task("t", &[]) };
        let given = |task| Task { claim_within: Some(SignedDuration::from_secs(5)), ..task };
        let keyed = || {
            let TaskSession::New(draft) = task("t", &[]).session else { unreachable!() };
            Task {
                session: TaskSession::Keyed("k".parse().unwrap(), draft, Box::default()),
                ..task("t", &[])
            }
        };
        let child = |allotted| {
            let TaskSession::New(mut draft) = task("t", &[]).session else { unreachable!() };
            draft.parent = Some(Parent { allotted, ..Parent::new(env.session_id()) });
            Task { session: TaskSession::New(draft), ..task("t", &[]) }
        };
        for (task, expected) in [
            (task("t", &[]), None),
            (child(false), None),
            (child(true), Some(60)),
            (keyed(), Some(60)),
            (further(), Some(60)),
            (given(task("t", &[])), Some(5)),
            (given(further()), Some(5)),
        ] {
            let (principal, place) = ("me".parse().unwrap(), Place::Anywhere);
            let submission = Submission { principal, place, at_once: None, tasks: vec![task] };
            let planned = plan(submission, &env, Some(SignedDuration::from_mins(1))).unwrap();
            let expected = expected.map(|seconds| env.now() + SignedDuration::from_secs(seconds));
            assert_eq!(planned.batch[0].claim_by, expected);
        }
    }

    #[test]
    fn hostile_arguments_are_data() {
        let mut hostile = task("t", &[]);
        hostile.argv = vec!["printf".into(), "it's \"x\"\n$(rm -rf ~)".into()];
        let planned = plan_of(vec![hostile.clone()]).unwrap();
        assert_eq!(planned.batch[0].spec.argv, hostile.argv);
    }

    fn turn(executor: &str, prompt: &str) -> Task {
        let executor = executor.parse().unwrap();
        Task { executor, turn: Some(Turn::new(prompt)), argv: Vec::new(), ..task("t", &[]) }
    }

    #[test]
    fn an_agent_is_asked_for_something_and_a_command_is_not() {
        let mut asked = turn("claude-code", "fix the \"failing\" test\n--help");
        asked.argv = vec!["--verbose".into(), String::new()];
        let planned = plan_of(vec![asked.clone()]).unwrap();
        let run = &planned.batch[0];
        assert_eq!((&run.spec.turn, &run.spec.argv), (&asked.turn, &asked.argv));
        assert_eq!(run.affinity.executor, asked.executor);
        assert!(plan_of(vec![turn("gemini", "go")]).is_ok());
        let mut acp = turn("acp", "go");
        assert_refused(acp.clone(), "task \"t\".argv: names no program");
        acp.argv = vec!["my-agent".into()];
        assert!(plan_of(vec![acp]).is_ok());
        assert_refused(turn("command", "go"), "task \"t\".turn: a command is asked for nothing");
        let silent = Task { turn: None, ..turn("codex", "") };
        assert_refused(silent, "task \"t\".turn: codex is an agent");
    }

    #[test]
    fn every_bound_of_a_turn_is_held() {
        let case = |change: &dyn Fn(&mut Turn), message| {
            let mut task = turn("codex", "go");
            change(task.turn.as_mut().unwrap());
            assert_refused(task, message);
        };
        case(&|turn| turn.prompt = " \n".into(), "task \"t\".turn.prompt: is empty");
        case(&|turn| turn.prompt.push('\0'), "task \"t\".turn.prompt: contains a NUL byte");
        case(
            &|turn| turn.prompt = "x".repeat(PROMPT_MAX + 1),
            "task \"t\".turn.prompt: is 1048577 bytes long",
        );
        let many = vec!["write".parse().unwrap(); ALLOW_MAX + 1];
        case(
            &|turn| turn.permissions.allow.clone_from(&many),
            "task \"t\".turn.permissions.allow: names 1001",
        );
        let message = "task \"t\".turn.from_history: a new session has no history";
        case(&|turn| turn.from_history = true, message);
        let times = [-1, 0].map(SignedDuration::from_secs);
        for time in times.into_iter().chain([ASKING_MAX + SignedDuration::from_millis(1)]) {
            let message = "task \"t\".turn.permissions.asking: must be longer";
            case(&|turn| turn.permissions.asking = Asking::For(time), message);
        }
        for model in ["", " ", "a\nb", "--yolo", &"x".repeat(MODEL_MAX + 1)] {
            case(&|turn| turn.model = Some(model.into()), "task \"t\".turn.model: is no name");
        }
        let mut most = turn("codex", &"x".repeat(PROMPT_MAX));
        most.turn.as_mut().unwrap().permissions.asking = Asking::For(ASKING_MAX);
        assert!(plan_of(vec![most]).is_ok());
    }

    #[track_caller]
    fn assert_refused(task: Task, message: &str) {
        let Err(error) = plan_of(vec![task]) else { panic!("{message}: accepted") };
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[test]
    fn every_fault_names_its_field() {
        let mut cases: Vec<(Task, &str)> = Vec::new();
        let mut case = |change: &dyn Fn(&mut Task), message| {
            let mut task = task("t", &[]);
            change(&mut task);
            cases.push((task, message));
        };
        case(&|t| t.argv.clear(), "task \"t\".argv: names no program");
        case(&|t| t.argv.push("a\0b".into()), "task \"t\".argv: contains a NUL byte");
        case(&|t| t.argv.push("x".repeat(ARGUMENT_MAX + 1)), "task \"t\".argv: one text is 131072 bytes");
        case(
            &|t| t.argv = vec!["x".repeat(ARGUMENT_MAX); 9],
            "task \"t\".argv: arguments and environment are",
        );
        case(&|t| t.env.push(("A=B".into(), String::new())), "task \"t\".env: \"A=B\" is no name");
        case(&|t| t.timeout = Some(SignedDuration::ZERO), "task \"t\".timeout: must be longer");
        case(&|t| t.claim_within = Some(SignedDuration::ZERO), "task \"t\".claim_within: must be longer");
        case(&|t| t.after.push("nobody".into()), "after: task \"t\" is to come after \"nobody\"");
        case(
            &|t| {
                let TaskSession::New(draft) = &mut t.session else { unreachable!() };
                draft.metadata = Payload::parse("[1]").unwrap();
            },
            "task \"t\".metadata: is not a JSON object",
        );
        case(
            &|t| {
                let TaskSession::New(draft) = &mut t.session else { unreachable!() };
                draft.kind = WorkspaceKind::Worktree;
            },
            "task \"t\".project: a worktree workspace needs",
        );
        for (task, message) in cases {
            assert_refused(task, message);
        }
        assert!(plan_of(Vec::new()).is_err());
    }
}
