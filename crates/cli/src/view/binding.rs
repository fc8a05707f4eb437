//! How a session's agent, and the conversation that it holds, look outside.

use serde::Serialize;
use session_core::session::{Binding, SessionSummary};

/// The agent's own conversation.
#[derive(Debug, Serialize)]
pub struct BindingView {
    /// The agent.
    pub executor: String,
    /// Its id of the conversation.
    pub executor_session_id: String,
    /// The machine that has its files.
    pub hostname: String,
    /// The runner there; nothing for an imported one that was not carried on yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// The directory that it was begun in.
    pub project_dir: String,
    /// It can be carried on.
    pub resumable: bool,
}

impl BindingView {
    /// The view of it.
    pub fn new(binding: &Binding) -> Self {
        Self {
            executor: binding.executor.to_string(),
            executor_session_id: binding.executor_session_id.to_string(),
            hostname: binding.hostname.to_string(),
            runner: binding.runner.map(|runner| runner.to_string()),
            project_dir: binding.project_dir.to_string(),
            resumable: binding.resumable,
        }
    }
}

/// What executes the runs of a session: what executed the last one, or holds its conversation.
pub fn executor(summary: &SessionSummary) -> Option<String> {
    let last = summary.last_run.as_ref().map(|run| &run.affinity.executor);
    let bound = || summary.session.binding.as_ref().map(|binding| &binding.executor);
    last.or_else(bound).map(ToString::to_string)
}

/// What a run does, in one line: its program with its arguments, or its agent and what that is asked for.
pub fn doing(run: &session_core::Run) -> String {
    match &run.spec.turn {
        Some(turn) => {
            format!("{}: {}", run.affinity.executor, turn.prompt.lines().next().unwrap_or_default())
        }
        None => run.spec.argv.join(" "),
    }
}
