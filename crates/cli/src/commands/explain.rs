//! `roomette resume --explain`: where a session can be resumed, what will be restored and what will not.

use jiff::Timestamp;
use serde::Serialize;
use session_core::approvals::Grant;
use session_core::context::Restored;
use session_core::ports::{RunStore as _, SessionStore as _};
use session_core::{Event, ManagedSession, Run, SessionRef, SessionState, WorkspaceKind};

use crate::args::NextTurnArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::handover::NotCarried;
use crate::host::{link, runner_id};
use crate::view::binding::BindingView;
use crate::{handover, output, resume, select, system, view};

/// How many repairs are listed for people.
const REPAIRS_SHOWN: usize = 5;

/// What a resume would find.
#[derive(Debug, Serialize)]
struct Explanation {
    session: String,
    state: &'static str,
    /// Nothing stands in its way here and now.
    possible: bool,
    /// What does, and what to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obstacles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runner: Option<RunnerPart>,
    directory: DirectoryPart,
    /// What would run.
    #[serde(skip_serializing_if = "Option::is_none")]
    argv: Option<Vec<String>>,
    /// The agent's own conversation, where it is carried on.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<BindingView>,
    /// What an agent will not have that begins anew from the log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_carried_over: Vec<NotCarried>,
    restored: RestoredPart,
    /// What a resume does not bring back.
    not_restored: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RunnerPart {
    /// Its id, or the name of its machine where that is all that is known.
    needed: String,
    here: bool,
}

#[derive(Debug, Serialize)]
struct DirectoryPart {
    kind: &'static str,
    path: String,
    there: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
}

#[derive(Debug, Serialize)]
struct RestoredPart {
    messages: usize,
    repairs: Vec<String>,
    answers: usize,
    directories: usize,
    budget: view::AccountView,
}

/// Says what a resume would find. Changes nothing, and needs no host.
pub async fn execute(context: &Context, text: &str, argv: &[String], next: &NextTurnArgs) -> Outcome<()> {
    text.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(text)) };
    let id = select::one(&store, text).await?;
    let session = store.session(id).await?;
    let last = store.runs(id, 1).await?.pop();
    let log = resume::recorded(context, &store, id).await?;
    store.close().await;
    let Some(session) = session else { return Err(select::unknown(text)) };
    let explanation = explain(context, &session, last.as_ref(), &log, (argv, next))?;
    if context.json { output::json(&explanation) } else { output::line(&text_of(&explanation)) }
}

fn explain(
    context: &Context,
    session: &ManagedSession,
    last: Option<&Run>,
    log: &[Event],
    (argv, next): (&[String], &NextTurnArgs),
) -> Outcome<Explanation> {
    let runner = runner(context, session)?;
    let to = handover::next(next.agent.as_deref(), session, last)?;
    let anew = to.filter(|_| next.from_history);
    let not_carried_over = anew.as_ref().map(|to| handover::not_carried(session, last, log, to));
    let conversation = session.binding.as_ref().filter(|_| anew.is_none()).map(BindingView::new);
    let directory = directory(context, session);
    let argv = if argv.is_empty() { last.map(|run| run.spec.argv.clone()) } else { Some(argv.to_vec()) };
    let now = context.env.now();
    let mut obstacles = obstacles(session, last, &directory, argv.as_ref(), now);
    obstacles.extend(link::check_system().err().map(|refused| refused.message));
    let restored = Restored::from_log(log);
    let is_directory = |grant: &&Grant| matches!(grant, Grant::Directory { .. });
    let directories = restored.grants.iter().filter(is_directory).count();
    Ok(Explanation {
        session: session.id.to_string(),
        state: session.state.name(),
        possible: obstacles.is_empty(),
        obstacles,
        not_restored: not_restored(session, &directory),
        runner,
        directory,
        argv,
        conversation,
        not_carried_over: not_carried_over.unwrap_or_default(),
        restored: RestoredPart {
            messages: restored.history.messages.len(),
            repairs: restored.history.repairs.iter().map(ToString::to_string).collect(),
            answers: restored.grants.len() - directories,
            directories,
            budget: view::AccountView::new(session),
        },
    })
}

fn runner(context: &Context, session: &ManagedSession) -> Outcome<Option<RunnerPart>> {
    let here = runner_id::load(&context.paths.runner_id())?;
    if let Some(needed) = session.workspace.runner {
        return Ok(Some(RunnerPart { needed: needed.to_string(), here: here == Some(needed) }));
    }
    // An imported one that no runner has taken up yet.
    let bound = session.binding.as_ref().map(|binding| binding.hostname.to_string());
    let here = system::hostname();
    Ok(bound.map(|needed| RunnerPart { here: needed == here, needed: format!("any on {needed}") }))
}

fn directory(context: &Context, session: &ManagedSession) -> DirectoryPart {
    let own = context.layout().session(session.id).work();
    let project = session.workspace.project.clone();
    let path = match (session.workspace.kind, &project) {
        (WorkspaceKind::InPlace, Some(project)) => project.clone(),
        (WorkspaceKind::InPlace | WorkspaceKind::Scratch | WorkspaceKind::Worktree, _) => own,
    };
    DirectoryPart {
        kind: session.workspace.kind.as_str(),
        there: path.is_dir(),
        path: path.into(),
        project: project.map(Into::into),
    }
}

fn obstacles(
    session: &ManagedSession,
    last: Option<&Run>,
    directory: &DirectoryPart,
    argv: Option<&Vec<String>>,
    now: Timestamp,
) -> Vec<String> {
    let mut obstacles = Vec::new();
    if let SessionState::Terminated { reason, .. } = session.state {
        obstacles.push(format!(
            "it is terminated ({reason}) and never comes back; `roomette fork` makes a new session of its log"
        ));
    }
    if let SessionState::Suspended { expires_at, .. } = session.state
        && expires_at <= now
    {
        obstacles.push(format!(
            "its time was over at {expires_at}, which the next host records; `roomette fork` makes a new session of its log"
        ));
    }
    if let Some(phase) = last.map(|run| run.state.phase()).filter(|phase| !phase.is_ended()) {
        obstacles.push(format!("it has a run that is {phase}; wait for it or stop it"));
    }
    if session.workspace.kind == WorkspaceKind::InPlace && !directory.there {
        obstacles.push(format!("its directory {} is gone", directory.path));
    }
    if argv.is_none() && session.binding.is_none() {
        obstacles.push("it never ran; say what to run: `roomette resume SESSION -- PROGRAM…`".into());
    }
    if session.budget.turns_max.is_some_and(|max| session.usage.turns >= max) {
        obstacles.push("its turns are all used; `roomette budget top-up` gives it more".into());
    }
    obstacles
}

fn not_restored(session: &ManagedSession, directory: &DirectoryPart) -> Vec<String> {
    let mut lost = vec!["processes and what they held in memory".to_owned()];
    match (session.workspace.removed_at, directory.there, session.workspace.kind) {
        (Some(at), _, _) => lost.push(format!("its files: a cleanup removed them at {at}")),
        (None, false, WorkspaceKind::Scratch | WorkspaceKind::Worktree)
            if session.workspace.runner.is_some() =>
        {
            lost.push(format!("its files: {} is gone, and would be made anew, empty", directory.path));
        }
        (None, _, _) => {}
    }
    lost
}

fn text_of(explanation: &Explanation) -> String {
    let mut lines = Vec::new();
    let mut add = |name: &str, value: String| {
        lines.push(format!("{name:<14}{}", output::harmless(&value, 2_000)));
    };
    let verdict = if explanation.possible { "can be resumed" } else { "cannot be resumed now" };
    add("session", format!("{} ({}) {verdict}", explanation.session, explanation.state));
    for obstacle in &explanation.obstacles {
        add("obstacle", obstacle.clone());
    }
    if let Some(runner) = &explanation.runner {
        add(
            "runner",
            format!(
                "{}, {}",
                runner.needed,
                if runner.here {
                    "which is this one"
                } else {
                    "another one: it runs there, as soon as that host is up"
                }
            ),
        );
    }
    let DirectoryPart { kind, path, there, project } = &explanation.directory;
    add(
        "directory",
        format!(
            "{path} ({kind}{}), {}",
            project.as_ref().map(|project| format!(" of {project}")).unwrap_or_default(),
            if *there { "there" } else { "not there" }
        ),
    );
    if let Some(argv) = &explanation.argv {
        add("runs", serde_json::to_string(argv).unwrap_or_default());
    }
    if let Some(conversation) = &explanation.conversation {
        let BindingView { executor, executor_session_id, resumable, .. } = conversation;
        let carried = if *resumable {
            "is carried on, if its files are there; else --from-history begins anew from the log"
        } else {
            "was never written down: a new one is begun"
        };
        add("conversation", format!("{executor_session_id} of {executor} {carried}"));
    }
    let RestoredPart { messages, repairs, answers, directories, budget } = &explanation.restored;
    add("restored", format!("the conversation: {messages} messages"));
    for repair in repairs.iter().take(REPAIRS_SHOWN) {
        add("  repaired", repair.clone());
    }
    if repairs.len() > REPAIRS_SHOWN {
        add("  repaired", format!("{} more, which --json lists", repairs.len() - REPAIRS_SHOWN));
    }
    add("restored", format!("what was granted to it: {answers} answers, {directories} directories"));
    add("restored", format!("its budget: {}", budget.in_one_line()));
    for lost in &explanation.not_restored {
        add("not restored", lost.clone());
    }
    for not in &explanation.not_carried_over {
        add("not carried", not.why.clone());
    }
    lines.join("\n")
}
