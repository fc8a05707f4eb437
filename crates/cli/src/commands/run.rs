//! `roomette run`: tasks, each in a session of its own.

use std::io::Read as _;

use camino::Utf8Path;
use session_core::names::ExternalKey;
use session_core::ports::SessionStore as _;
use session_core::turn::PROMPT_MAX;
use session_core::{SessionId, WorkspaceKind};
use session_runner::workspace::check_repository;
use session_runner::workspace::environment::SESSION_ID_VARIABLE;

use super::aftermath;
use crate::args::{FamilyArgs, RunArgs, SandboxArgs, TaskArgs, TurnArgs};
use crate::context::{Context, current_directory};
use crate::crew::{self, Defaults, Projects};
use crate::failure::{Failure, Kind, Outcome};
use crate::follow::{self, Followed, OnInterrupt, Watched};
use crate::host::link::{self, Connection};
use crate::host::protocol::{
    BudgetWire, Enqueued, NewSessionWire, Reply, Request, SandboxWire, SessionWire, Submit, TaskWire,
    TurnWire, Update,
};
use crate::{environment, output, select, view};

/// Enqueues the tasks, then watches them unless told not to.
pub async fn execute(context: &Context, args: RunArgs) -> Outcome<()> {
    let detach = args.detach;
    let (family, key) = (args.family.clone(), args.key.is_some());
    let has_projects = args.in_place || args.worktree || args.project.is_some() || args.file.is_some();
    let projects = if has_projects { Projects::of(context).await? } else { Projects::Here };
    let mut submit = submission(context, args, projects)?;
    adopt(&mut submit, parent(context, &family, key).await?, &family)?;
    link::check_system()?;
    if projects == Projects::Here {
        check_projects(context, &submit)?;
    }
    let labels: Vec<Option<String>> = submit.tasks.iter().map(label_of).collect();
    let mut connection = link::ensure_host(context).await?;
    let enqueued = enqueue(&mut connection, submit).await?;
    if detach {
        return print_ids(context, &enqueued);
    }
    let watched = enqueued.iter().zip(labels);
    let watched = watched.map(|(at, label)| Watched { session: at.session, run: at.run, label }).collect();
    watch(context, connection, watched).await
}

/// The session that starts the tasks, where one does: the one that is named, or else the one that this command is called
/// in. That is no more than a hint: whoever talks to the host is its owner, and may name any session of theirs.
async fn parent(context: &Context, family: &FamilyArgs, has_key: bool) -> Outcome<Option<SessionId>> {
    if let Some(named) = &family.parent {
        return Ok(select::several(context, std::slice::from_ref(named)).await?.pop());
    }
    let around = context.variable(SESSION_ID_VARIABLE).and_then(|id| id.parse::<SessionId>().ok());
    // A session that is found by its key is whose child it is.
    let Some(around) = around.filter(|_| !family.no_parent && !has_key) else { return Ok(None) };
    let Some(store) = context.read_store().await? else { return Ok(None) };
    let found = store.session(around).await?;
    store.close().await;
    Ok(found.map(|session| session.id))
}

/// Makes every new session a child of this one.
fn adopt(submit: &mut Submit, parent: Option<SessionId>, family: &FamilyArgs) -> Outcome<()> {
    if parent.is_none() && (family.callback || family.no_callback) {
        return Err(Failure::usage("--callback and --no-callback are about a parent, and there is none")
            .hint("name it with --parent"));
    }
    for task in &mut submit.tasks {
        if let SessionWire::New(new) | SessionWire::Keyed { new, .. } = &mut task.session {
            (new.parent, new.callback) = (parent, parent.is_some() && !family.no_callback);
        }
    }
    Ok(())
}

/// Finds out before anything is made whether a worktree can be made of each project.
fn check_projects(context: &Context, submit: &Submit) -> Outcome<()> {
    let git = context.git();
    let mut checked = Vec::new();
    for task in &submit.tasks {
        let (SessionWire::New(new) | SessionWire::Keyed { new, .. }) = &task.session else { continue };
        let NewSessionWire { workspace, project: Some(project), .. } = new else { continue };
        if workspace == WorkspaceKind::Worktree.as_str() && !checked.contains(&project) {
            let project = Utf8Path::new(project);
            check_repository(&git, project).map_err(|error| Failure::of(Kind::Usage, &error))?;
        }
        checked.push(project);
    }
    Ok(())
}

/// Sends a submission.
pub async fn enqueue(connection: &mut Connection, submit: Submit) -> Outcome<Vec<Enqueued>> {
    let Reply::Submitted(enqueued) = connection.ask(&Request::Submit(submit)).await? else {
        return Err(Reply::unexpected());
    };
    warn_of_what_is_unconfined(&enqueued);
    Ok(enqueued)
}

/// Says of runs that nothing confines what that means, each time.
pub fn warn_of_what_is_unconfined(enqueued: &[Enqueued]) {
    let mut unconfined = enqueued.iter().filter(|at| at.unconfined).map(|at| at.session.to_string());
    let Some(first) = unconfined.next() else { return };
    let more = unconfined.count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    output::say(&format!("warning: sandbox off, nothing confines {}{more}:", view::short(&first)));
    for gap in ::sandbox::unconfined() {
        output::say(&format!("  - {gap}"));
    }
}

/// Watches runs until they are over, then says what each came to.
pub async fn watch(context: &Context, connection: Connection, watched: Vec<Watched>) -> Outcome<()> {
    let labels: Vec<_> = watched.iter().map(|watched| watched.label.clone()).collect();
    let followed = follow::until_over(context, connection, watched, OnInterrupt::Stop, None).await?;
    summary(context, &followed, &labels)?;
    aftermath::tell(context, &followed.updates).await?;
    follow::verdict(&followed).map_or(Ok(()), Err)
}

/// The ids of what was enqueued: all that a script needs to go on.
pub fn print_ids(context: &Context, enqueued: &[Enqueued]) -> Outcome<()> {
    for at in enqueued {
        if context.json { output::json(at)? } else { output::line(&at.session.to_string())? }
    }
    Ok(())
}

fn label_of(task: &TaskWire) -> Option<String> {
    match &task.session {
        SessionWire::New(session) | SessionWire::Keyed { new: session, .. } => session.label.clone(),
        SessionWire::Existing(_) => None,
    }
}

fn submission(context: &Context, args: RunArgs, projects: Projects) -> Outcome<Submit> {
    let principal = context.principal()?.to_string();
    let defaults = Defaults { projects, ..defaults(context, &args.task)? };
    if let Some(path) = &args.file {
        let crew = crew::read(path, &defaults)?;
        return Ok(Submit { principal, at_once: args.at_once.or(crew.at_once), tasks: crew.tasks });
    }
    let turn = turn(&args)?;
    if args.argv.is_empty() && turn.is_none() {
        return Err(Failure::usage("there is nothing to run").hint(
            "name a program, `roomette run -- PROGRAM…`, or a crew file, `roomette run -f CREW.TOML`",
        ));
    }
    let (workspace, project) = workspace(&args, projects)?;
    args.label.as_deref().map(select::label).transpose()?;
    let metadata = args.metadata.unwrap_or_else(|| "{}".into());
    if let Err(error) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&metadata) {
        return Err(Failure::caused(Kind::Usage, "--metadata is not a JSON object", &error)
            .hint("for example --metadata '{\"ticket\": 42}'"));
    }
    let new = NewSessionWire {
        label: args.label,
        agent: args.agent.clone(),
        workspace: workspace.into(),
        project,
        metadata,
        budget: BudgetWire {
            tokens: args.limits.tokens,
            tool_calls: args.limits.tool_calls,
            turns: args.limits.turns,
            cost_micros: args.limits.cost,
        },
        sandbox: sandbox(args.sandbox),
        parent: None,
        callback: false,
    };
    let session = match args.key {
        Some(key) => {
            ExternalKey::new(&key)
                .map_err(|error| Failure::caused(Kind::Usage, "--key is not valid", &error))?;
            SessionWire::Keyed { key, new }
        }
        None => SessionWire::New(new),
    };
    let task = TaskWire {
        name: None,
        after: Vec::new(),
        session,
        argv: args.argv,
        executor: args.agent,
        turn,
        base_env: defaults.base_env,
        env: defaults.env,
        timeout: defaults.timeout,
        claim_within: defaults.claim_within,
        priority: args.priority,
    };
    Ok(Submit { principal, at_once: args.at_once, tasks: vec![task; args.count as usize] })
}

/// What an agent is asked for, where one is.
fn turn(args: &RunArgs) -> Outcome<Option<TurnWire>> {
    match (&args.agent, &args.prompt) {
        (None, None) => {
            let TurnArgs { model, allow_tool, ask } = &args.turn;
            if model.is_some() || !allow_tool.is_empty() || ask.is_some() {
                return Err(Failure::usage("--model, --allow-tool and --ask are for agents")
                    .hint("name one: `roomette run --agent claude-code \"…\"`"));
            }
            Ok(None)
        }
        (Some(agent), None) => Err(Failure::usage(format!("{agent} is asked for nothing"))
            .hint(format!("for example `roomette run --agent {agent} \"fix the failing test\"`"))),
        (_, Some(prompt)) => Ok(Some(TurnWire { prompt: Some(said(prompt)?), ..asked(args.turn.clone()) })),
    }
}

/// How an agent is asked.
pub fn asked(args: TurnArgs) -> TurnWire {
    let TurnArgs { model, allow_tool, ask } = args;
    let allow = Some(allow_tool).filter(|allow| !allow.is_empty());
    TurnWire { prompt: None, from_history: false, model, allow, asking: ask }
}

/// What the user says: the text itself, or what stdin has where it is `-`.
pub fn said(prompt: &str) -> Outcome<String> {
    if prompt != "-" {
        return Ok(prompt.into());
    }
    let mut text = String::new();
    let most = u64::try_from(PROMPT_MAX).unwrap_or(u64::MAX).saturating_add(1);
    std::io::stdin()
        .take(most)
        .read_to_string(&mut text)
        .map_err(|error| Failure::caused(Kind::Usage, "the prompt cannot be read from stdin", &error))?;
    Ok(text)
}

fn sandbox(args: SandboxArgs) -> SandboxWire {
    SandboxWire {
        level: args.sandbox,
        net: args.net,
        net_allow: args.net_allow,
        allow_read: args.allow_read,
        allow_write: args.allow_write,
        memory_bytes: args.max_memory,
        processes: args.max_processes,
        file_size_bytes: args.max_file_size,
        write_bytes: args.max_writes,
    }
}

/// What the caller's environment and flags give to every task.
pub fn defaults(context: &Context, args: &TaskArgs) -> Outcome<Defaults> {
    Ok(Defaults {
        base_env: environment::base(context, &args.allow_env)?,
        env: environment::named(context, &args.env)?,
        timeout: args.timeout.or(context.config.run.timeout),
        claim_within: args.claim_within,
        projects: Projects::Here,
    })
}

fn workspace(args: &RunArgs, projects: Projects) -> Outcome<(&'static str, Option<String>)> {
    let kind = match (args.in_place, args.worktree || args.project.is_some()) {
        (true, _) => "in-place",
        (false, true) => "worktree",
        (false, false) => return Ok(("scratch", None)),
    };
    let directory = match &args.project {
        Some(project) => project.clone(),
        None => current_directory()?,
    };
    let project =
        projects.named(&directory).map_err(|reason| Failure::usage(format!("--project: {reason}")))?;
    Ok((kind, Some(project.into())))
}

/// What each run came to, in the order in which they were given.
fn summary(context: &Context, followed: &Followed, labels: &[Option<String>]) -> Outcome<()> {
    if context.json {
        return followed.updates.iter().try_for_each(output::json);
    }
    let labelled = labels.iter().any(Option::is_some);
    let mut head = vec!["SESSION", "STATE", "EXIT", "TIME", "LAST LINE"];
    if labelled {
        head.insert(1, "LABEL");
    }
    let mut table = output::table(&head);
    for (update, label) in followed.updates.iter().zip(labels) {
        let mut row = row(update, context.env.now());
        if labelled {
            row.insert(1, label.as_deref().map(|label| output::harmless(label, 40)).unwrap_or_default());
        }
        table.add_row(row);
    }
    output::print(&table)
}

fn row(update: &Update, now: jiff::Timestamp) -> Vec<String> {
    let session: SessionId = update.session;
    let exit = match (update.exit_code, update.signal) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "-".into(),
    };
    let elapsed = view::elapsed(update.started_at, update.ended_at, now).map(view::duration);
    let state = match update.reason.as_deref() {
        Some(reason) if reason != "exit_nonzero" => format!("{} ({reason})", update.state),
        _ => update.state.clone(),
    };
    vec![
        view::short(&session.to_string()).into(),
        state,
        exit,
        elapsed.unwrap_or_else(|| "-".into()),
        update.last_line.as_deref().map(|line| output::harmless(line, 80)).unwrap_or_default(),
    ]
}
