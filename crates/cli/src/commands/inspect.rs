//! `roomette inspect`: everything about a session.

use serde::Serialize;
use session_core::ports::{Page, RunStore as _, SessionFilter, SessionStore as _};
use session_core::session::SessionSummary;
use session_core::{Run, SessionId};
use session_runner::workspace::SessionDir;
use session_store::SqlStore;

use crate::context::Context;
use crate::failure::Outcome;
use crate::view::{RunView, SessionView};
use crate::{output, select, view};

/// How many runs are shown.
const RUNS: u32 = 50;
/// How many children are named.
const CHILDREN: u32 = 200;

#[derive(Serialize)]
struct Everything {
    #[serde(flatten)]
    session: SessionView,
    paths: PathsView,
    /// The live sessions that it started, newest first, at most 200.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<String>,
    /// Newest first.
    runs: Vec<RunView>,
}

#[derive(Serialize)]
struct PathsView {
    work: String,
    output: String,
    log: String,
}

/// Shows a session.
pub async fn execute(context: &Context, text: &str) -> Outcome<()> {
    text.parse::<session_core::SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(text)) };
    let id = select::one(&store, text).await?;
    let (summary, runs) = read(&store, id, text).await?;
    let children = children(&store, id).await?;
    store.close().await;
    let directory = context.layout().session(id);
    let everything = Everything {
        session: SessionView::new(&summary, Some(directory.root().to_string())),
        paths: paths(&summary, &directory),
        children,
        runs: runs.iter().map(RunView::new).collect(),
    };
    if context.json { output::json(&everything) } else { output::line(&text_of(&everything)) }
}

async fn read(store: &SqlStore, id: SessionId, text: &str) -> Outcome<(SessionSummary, Vec<Run>)> {
    let Some(session) = store.session(id).await? else { return Err(select::unknown(text)) };
    let runs = store.runs(id, RUNS).await?;
    Ok((SessionSummary { session, last_run: runs.first().cloned() }, runs))
}

/// What it started, as far as it is shown.
async fn children(store: &SqlStore, id: SessionId) -> Outcome<Vec<String>> {
    let filter = SessionFilter { parent: Some(id), live: true, ..SessionFilter::default() };
    let listing = store.list(&filter, &Page::first(CHILDREN)).await?;
    Ok(listing.items.iter().map(|item| item.session.id.to_string()).collect())
}

fn paths(summary: &SessionSummary, directory: &SessionDir) -> PathsView {
    let workspace = &summary.session.workspace;
    let in_place =
        workspace.project.as_ref().filter(|_| workspace.kind == session_core::WorkspaceKind::InPlace);
    PathsView {
        work: in_place.map_or_else(|| directory.work().to_string(), ToString::to_string),
        output: directory.output_dir().to_string(),
        log: directory.log().to_string(),
    }
}

fn text_of(everything: &Everything) -> String {
    let Everything { session, paths, children, runs } = everything;
    let mut lines = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("{name:<11}{}", output::harmless(&value, 2_000)));
        }
    };
    add("session", Some(session.id.clone()));
    add("label", session.label.clone());
    add("status", Some(session.status.into()));
    let because = session.terminated_because.map(|reason| format!(" ({reason})")).unwrap_or_default();
    add("state", Some(format!("{}{because}", session.state)));
    add("owner", Some(session.principal.clone()));
    add("agent", session.agent.clone());
    add("executor", session.executor.clone());
    if let Some(binding) = &session.binding {
        let resumable = if binding.resumable { "" } else { ", nothing to be resumed yet" };
        add("bound to", Some(format!("{} on {}{resumable}", binding.executor_session_id, binding.hostname)));
    }
    add("parent", session.parent.clone());
    let short: Vec<_> = children.iter().map(|child| view::short(child)).collect();
    add("children", Some(short.join(" ")).filter(|children| !children.is_empty()));
    add(
        "forked",
        session.forked_from.as_ref().map(|fork| format!("from {} at event {}", fork.session, fork.at)),
    );
    add("key", session.key.clone());
    add("previous", session.previous.clone());
    add("created", Some(session.created_at.to_string()));
    add("used", Some(session.active_at.to_string()));
    add("expires", session.expires_at.map(|at| at.to_string()));
    add("budget", Some(session.budget.in_one_line()));
    for (name, value) in session.sandbox.lines() {
        add(name, Some(value));
    }
    add("workspace", Some(session.workspace.kind.into()));
    add("project", session.workspace.project.clone());
    match session.workspace.removed_at {
        Some(at) => add("removed", Some(at.to_string())),
        None => add("work", Some(paths.work.clone())),
    }
    add("output", Some(paths.output.clone()));
    add("log", Some(paths.log.clone()));
    add("metadata", Some(session.metadata.get().into()).filter(|metadata| metadata != "{}"));
    for run in runs {
        lines.push(String::new());
        lines.extend(run_lines(run));
    }
    lines.join("\n")
}

fn run_lines(run: &RunView) -> Vec<String> {
    let because = run.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let mut lines = vec![format!("run {}  {}{because}", run.id, run.state)];
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("  {name:<10}{}", output::harmless(&value, 2_000)));
        }
    };
    add("executor", Some(run.executor.clone()));
    add("why", run.message.clone());
    add("exit", run.exit_code.map(|code| code.to_string()));
    add("signal", run.signal.map(|signal| signal.to_string()));
    let argv = serde_json::to_string(&run.argv).unwrap_or_default();
    add("argv", Some(argv));
    add("env", Some(run.env.join(" ")).filter(|names| !names.is_empty()));
    let report = run.sandbox.as_ref().and_then(|report| serde_json::from_str(report.get()).ok());
    for (name, value) in report.iter().flat_map(view::sandbox::held) {
        add(name, Some(value));
    }
    add("started", run.started_at.map(|at| at.to_string()));
    add("ended", run.ended_at.map(|at| at.to_string()));
    let elapsed = run.started_at.zip(run.ended_at).map(|(from, to)| view::duration(to.duration_since(from)));
    add("took", elapsed);
    add(
        "waits for",
        Some(run.waiting_for).filter(|&n| n > 0 && run.ended_at.is_none()).map(|n| format!("{n} runs")),
    );
    lines
}
