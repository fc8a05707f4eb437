//! From what a keeper recorded to what a run came to, and what is told of it in the session's directory.

use std::io;

use camino::Utf8Path;
use jiff::Timestamp;
use serde_json::json;
use session_core::event::Payload;
use session_core::run::{EndKind, Ending, Exit, ReasonCode, Run};
use session_core::{ManagedSession, RunId, WorkspaceKind};
use session_manager::recovery::{self, EndCause, KeeperEnding};

use crate::egress::{Denials, Denied};
use crate::process::orphans::OrphansEnded;
use crate::process::watching::{Told, left_untold};
use crate::process::{LimitHit, keeper_record, protocol};
use crate::process::{RunEnd, RunOutcome, SpawnFailure, SpawnFailureKind};
use crate::workspace::metadata::{RunMetadata, WorkspaceMetadata};
use crate::workspace::{SessionDir, SessionMetadata};

/// How the run ended.
pub(crate) fn ending(outcome: &RunOutcome) -> Ending {
    match outcome {
        RunOutcome::Ended(end) => ended(end),
        RunOutcome::SpawnFailed(failure) => not_started(failure),
    }
}

/// How a run ended that ran.
pub(crate) fn ended(end: &RunEnd) -> Ending {
    let mut ending = match end.cause {
        protocol::EndCause::Limit => Ending::because(
            EndKind::Failed,
            ReasonCode::LimitExceeded,
            keeper_ending(end).exit,
            "it was ended because it had written more to disk than it may (--max-writes)",
        ),
        protocol::EndCause::Exited
        | protocol::EndCause::Stopped
        | protocol::EndCause::Killed
        | protocol::EndCause::TimedOut
        | protocol::EndCause::HostLost => recovery::ending(keeper_ending(end)),
    };
    if end.limit == Some(LimitHit::Memory) && ending.kind == EndKind::Failed {
        ending.reason = Some(ReasonCode::LimitExceeded);
        let note = "the kernel had ended a process of it for want of memory (--max-memory)";
        ending.message = format!("{note}; {}", ending.message);
    }
    if end.survivors > 0 {
        let note = format!("{} of its processes hang in the kernel and could not be ended", end.survivors);
        ending.message =
            [ending.message, note].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    }
    ending
}

/// How a run ended whose program could not be started.
pub(crate) fn not_started(failure: &SpawnFailure) -> Ending {
    let reason = match failure.kind {
        SpawnFailureKind::WorkingDirectory => ReasonCode::WorkspaceFailed,
        SpawnFailureKind::Sandbox => ReasonCode::SandboxUnavailable,
        SpawnFailureKind::NotFound
        | SpawnFailureKind::Permission
        | SpawnFailureKind::TooLong
        | SpawnFailureKind::Exhausted
        | SpawnFailureKind::Spec
        | SpawnFailureKind::SandboxPolicy
        | SpawnFailureKind::StateFile
        | SpawnFailureKind::Other => ReasonCode::SpawnFailed,
    };
    Ending::because(EndKind::Failed, reason, None, failure.message.clone())
}

/// How a run ended whose keeper died under it.
pub(crate) fn keeper_lost(orphans: OrphansEnded) -> Ending {
    recovery::lost(&format!(
        "its keeper was killed, and {} processes that it left were ended",
        orphans.killed
    ))
}

/// A run's end, in the words of the manager.
pub(crate) fn keeper_ending(end: &RunEnd) -> KeeperEnding {
    KeeperEnding {
        cause: match end.cause {
            // What the keeper killed for a limit has ended by a signal.
            protocol::EndCause::Exited | protocol::EndCause::Limit => EndCause::Exited,
            protocol::EndCause::Stopped => EndCause::Stopped,
            protocol::EndCause::Killed => EndCause::Killed,
            protocol::EndCause::TimedOut => EndCause::TimedOut,
            protocol::EndCause::HostLost => EndCause::HostLost,
        },
        exit: end.exit.map(|exit| match exit {
            protocol::Exit::Code(code) => Exit::Code(code),
            protocol::Exit::Signal(signal) => Exit::Signal(signal),
        }),
    }
}

/// The payload of the `result` event.
pub(crate) fn result(outcome: &RunOutcome) -> Option<Payload> {
    let RunOutcome::Ended(end) = outcome else { return None };
    let mut result = json!({
        "stdout_bytes": end.output.stdout_bytes,
        "stderr_bytes": end.output.stderr_bytes,
    });
    let mut add = |name: &str, value: serde_json::Value| result[name] = value;
    if let Some(line) = &end.output.last_line {
        add("last_line", json!(line));
    }
    if end.leftover_killed > 0 {
        add("leftover_killed", json!(end.leftover_killed));
    }
    if let Some(limit) = end.limit {
        add("limit", json!(limit));
    }
    if end.log_errors > 0 {
        add("log_errors", json!(end.log_errors));
        add("log_error", json!(end.log_error));
    }
    Some(Payload::from_value(&result))
}

/// What a run has changed among the names that run code elsewhere. What cannot be found out is nothing: the names are in the
/// session's log too. Blocks.
pub(crate) fn changes(directory: &SessionDir, run: RunId) -> Told {
    told(&directory.keeper_state(), run).unwrap_or_else(|error| {
        tracing::warn!(%run, %error, "what a run has changed among watched names could not be found out");
        Told::default()
    })
}

/// Adds to a `result` what the run has changed.
pub(crate) fn with_changes(result: Option<Payload>, told: &Told) -> Option<Payload> {
    if told.changes.is_empty() {
        return result;
    }
    let mut value = result.and_then(|result| result.value().ok()).unwrap_or_else(|| json!({}));
    value["changed"] = json!(told.changes);
    if told.more > 0 {
        value["more_changed"] = json!(told.more);
    }
    Some(Payload::from_value(&value))
}

/// What the keeper has told, or, where it was killed before it could, what is found now.
fn told(state_file: &Utf8Path, run: RunId) -> io::Result<Told> {
    match keeper_record(state_file, run)? {
        Some(record) if record.outcome.is_some() => {
            Ok(Told { changes: record.changes, more: record.more_changes })
        }
        Some(_) | None => Ok(left_untold(state_file, run)?.unwrap_or_default()),
    }
}

/// Adds to a `result` what the run's proxy did not let through.
pub(crate) fn with_denials(result: Option<Payload>, denials: &Denials) -> Option<Payload> {
    if denials.each.is_empty() {
        return result;
    }
    let mut value = result.and_then(|result| result.value().ok()).unwrap_or_else(|| json!({}));
    let told = |(denied, times): &(Denied, u64)| json!({ "endpoint": format!("{}:{}", denied.host, denied.port), "times": times, "why": denied.to_string() });
    value["denied"] = denials.each.iter().map(told).collect();
    if denials.others > 0 {
        value["more_denied"] = json!(denials.others);
    }
    Some(Payload::from_value(&value))
}

/// Brings `session.json` up to date. It is a copy for people: when it cannot be written, that is said and the run
/// goes on.
pub(crate) fn record(directory: &SessionDir, session: &ManagedSession, run: &Run, now: Timestamp) {
    if let Err(error) = metadata(directory, session, run, now).write(&directory.metadata()) {
        tracing::warn!(session = %session.id, %error, "session.json could not be written");
    }
}

fn metadata(directory: &SessionDir, session: &ManagedSession, run: &Run, now: Timestamp) -> SessionMetadata {
    let (kind, project) = (session.workspace.kind, session.workspace.project.clone());
    let ending = run.ended().map(|(_, ending)| ending);
    let cwd = project.clone().filter(|_| kind == WorkspaceKind::InPlace).unwrap_or_else(|| directory.work());
    SessionMetadata {
        v: SessionMetadata::VERSION,
        id: session.id,
        label: session.label.as_ref().map(ToString::to_string),
        agent: session.agent.as_ref().map(ToString::to_string),
        state: session.state.name().into(),
        last_run: Some(RunMetadata {
            id: run.id,
            state: run.state.phase().code().into(),
            reason: ending.and_then(|ending| ending.reason).map(|reason| reason.code().into()),
            exit: ending.and_then(|ending| ending.exit).map(|exit| match exit {
                Exit::Code(code) => protocol::Exit::Code(code),
                Exit::Signal(signal) => protocol::Exit::Signal(signal),
            }),
            argv: run.spec.argv.clone(),
        }),
        workspace: WorkspaceMetadata {
            kind: kind.as_str().into(),
            cwd,
            project,
            branch: (kind == WorkspaceKind::Worktree).then(|| directory.branch()),
        },
        created_at: session.created_at,
        updated_at: now,
        metadata: session.metadata.value().unwrap_or_default(),
    }
}
