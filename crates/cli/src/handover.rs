//! What does not come along where an agent goes on with a session from its log, as commands say it beforehand.

use serde::Serialize;
use session_core::names::ExecutorType;
use session_core::{Event, ManagedSession, Run};

use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// One thing that does not come along.
#[derive(Debug, Serialize)]
pub struct NotCarried {
    /// Its name, for scripts.
    pub what: &'static str,
    /// A sentence about it.
    pub why: String,
}

/// With whom the session would go on; `None` where that is no agent. `agent` is the one that was named.
pub fn next(
    agent: Option<&str>,
    session: &ManagedSession,
    last: Option<&Run>,
) -> Outcome<Option<ExecutorType>> {
    let named = agent.map(ExecutorType::new).transpose();
    let named = named.map_err(|error| Failure::of(Kind::Usage, &error))?;
    let bound = session.binding.as_ref().map(|binding| binding.executor.clone());
    let next = named.or_else(|| last.map(|run| run.affinity.executor.clone())).or(bound);
    Ok(next.filter(ExecutorType::is_agent))
}

/// What `to` will not have of what was there.
#[cfg(target_os = "linux")]
pub fn not_carried(
    session: &ManagedSession,
    last: Option<&Run>,
    log: &[Event],
    to: &ExecutorType,
) -> Vec<NotCarried> {
    let handover = session_runner::Handover {
        log,
        binding: session.binding.as_ref(),
        from: last.map(|run| &run.affinity.executor),
        last: last.and_then(|run| run.spec.turn.as_ref()),
        arguments: last.map(|run| run.spec.argv.as_slice()).unwrap_or_default(),
        to,
    };
    handover.not_carried().into_iter().map(|not| NotCarried { what: not.what, why: not.why }).collect()
}

/// Nothing is handed over where nothing is started.
#[cfg(not(target_os = "linux"))]
pub fn not_carried(_: &ManagedSession, _: Option<&Run>, _: &[Event], _: &ExecutorType) -> Vec<NotCarried> {
    Vec::new()
}

/// Tells it on stderr.
pub fn tell(list: &[NotCarried]) {
    for not in list {
        output::say(&format!("not carried over: {}", output::harmless(&not.why, 400)));
    }
}
