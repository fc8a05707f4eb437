//! Who said what on whose behalf: carried along with every turn, never shared between sessions.

use crate::ids::{RunId, SessionId};
use crate::names::AgentKey;

/// The thread that ties log lines, events and requests of one turn together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorrelationContext {
    /// The session.
    pub session: SessionId,
    /// The run that executes the turn, once there is one.
    pub run: Option<RunId>,
    /// The turn, counted from 1; 0 before the first.
    pub turn: u64,
    /// The request within the turn, counted from 1; 0 before the first.
    pub request: u64,
    /// The agent that speaks.
    pub agent: Option<AgentKey>,
    /// The agent that started it.
    pub parent_agent: Option<AgentKey>,
    /// What it was started as, such as `reviewer`.
    pub role: Option<String>,
}

impl CorrelationContext {
    /// A session's context before its first turn.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self { session, run: None, turn: 0, request: 0, agent: None, parent_agent: None, role: None }
    }

    /// The context of the next turn, executed by `run`.
    #[must_use]
    pub fn next_turn(&self, run: RunId) -> Self {
        Self { run: Some(run), turn: self.turn + 1, request: 0, ..self.clone() }
    }

    /// The context of the next request within the turn.
    #[must_use]
    pub fn next_request(&self) -> Self {
        Self { request: self.request + 1, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_within_their_turn() {
        let session = SessionId::from_uuid(uuid::Uuid::from_u128(1)).unwrap();
        let run = RunId::from_uuid(uuid::Uuid::from_u128(2)).unwrap();
        let first = CorrelationContext::new(session).next_turn(run).next_request().next_request();
        assert_eq!((first.turn, first.request, first.run), (1, 2, Some(run)));
        assert_eq!((first.next_turn(run).turn, first.next_turn(run).request), (2, 0));
    }
}
