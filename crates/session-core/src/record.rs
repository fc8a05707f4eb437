//! The events by which the program records its own changes. Every store writes exactly these, in the transaction of
//! the change.

use serde_json::{Map, Value, json};

use crate::event::{EventKind, NewEvent};
use crate::ids::RunId;
use crate::names::Label;
use crate::run::{Ending, Exit, RunPhase};
use crate::session::{Binding, Generation, NewSession};
use crate::state::SessionState;

fn event(kind: EventKind, run: Option<RunId>, fields: &[(&str, Option<Value>)]) -> NewEvent {
    let given = fields.iter().filter_map(|(name, value)| Some(((*name).into(), value.clone()?)));
    NewEvent::internal(kind, run, &Value::Object(given.collect::<Map<_, _>>()))
}

/// A session was made.
#[must_use]
pub fn session_created(new: &NewSession, generation: Option<&Generation>) -> NewEvent {
    let fields = [
        ("workspace", Some(json!(new.kind.as_str()))),
        ("project", new.project.as_ref().map(|project| json!(project))),
        ("label", new.label.as_ref().map(|label| json!(label))),
        ("agent", new.agent.as_ref().map(|agent| json!(agent))),
        ("parent", new.parent.map(|parent| json!(parent))),
        ("generation", generation.map(|generation| json!(generation.number))),
        ("previous", generation.and_then(|generation| generation.previous).map(|id| json!(id))),
    ];
    event(EventKind::SessionCreated, None, &fields)
}

/// A session changed its state.
#[must_use]
pub fn session_state(from: SessionState, to: SessionState) -> NewEvent {
    let reason = match to {
        SessionState::Terminated { reason, .. } => Some(json!(reason.code())),
        SessionState::Active | SessionState::Idle { .. } | SessionState::Suspended { .. } => None,
    };
    let fields = [("from", Some(json!(from.name()))), ("to", Some(json!(to.name()))), ("reason", reason)];
    event(EventKind::SessionState, None, &fields)
}

/// A session got another label, or none.
#[must_use]
pub fn session_label(label: Option<&Label>) -> NewEvent {
    event(EventKind::SessionLabel, None, &[("label", Some(json!(label)))])
}

/// A run changed its state; `from` is `None` when it was enqueued, `ending` is there when it is over.
#[must_use]
pub fn run_state(run: RunId, from: Option<RunPhase>, to: RunPhase, ending: Option<&Ending>) -> NewEvent {
    let exit = ending.and_then(|ending| ending.exit);
    let fields = [
        ("from", from.map(|phase| json!(phase.code()))),
        ("to", Some(json!(to.code()))),
        ("reason", ending.and_then(|ending| ending.reason).map(|reason| json!(reason.code()))),
        (
            "exit_code",
            exit.and_then(|exit| if let Exit::Code(code) = exit { Some(json!(code)) } else { None }),
        ),
        (
            "signal",
            exit.and_then(|exit| if let Exit::Signal(signal) = exit { Some(json!(signal)) } else { None }),
        ),
        ("message", ending.filter(|ending| !ending.message.is_empty()).map(|ending| json!(ending.message))),
    ];
    event(EventKind::RunState, Some(run), &fields)
}

/// An executor bound itself to the session.
#[must_use]
pub fn bound(run: RunId, binding: &Binding) -> NewEvent {
    let fields = [
        ("executor", Some(json!(binding.executor))),
        ("executor_session_id", Some(json!(binding.executor_session_id))),
        ("runner", Some(json!(binding.runner))),
        ("hostname", Some(json!(binding.hostname))),
        ("project_dir", Some(json!(binding.project_dir))),
    ];
    event(EventKind::Bound, Some(run), &fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{EndKind, ReasonCode};

    #[test]
    fn a_record_holds_what_there_is_and_nothing_else() {
        let run = RunId::from_uuid(uuid::Uuid::from_u128(7)).unwrap();
        let started = run_state(run, None, RunPhase::Pending, None);
        assert_eq!(started.payload.as_str(), r#"{"to":"pending"}"#);
        let ending =
            Ending::because(EndKind::Failed, ReasonCode::ExitNonzero, Some(Exit::Code(3)), "left with 3");
        let failed = run_state(run, Some(RunPhase::Running), RunPhase::Failed, Some(&ending));
        assert_eq!(
            failed.payload.as_str(),
            r#"{"exit_code":3,"from":"running","message":"left with 3","reason":"exit_nonzero","to":"failed"}"#
        );
    }
}
