//! How an execution gets into its session, and what its turn costs.

use std::time::Duration;

use session_core::ManagedSession;
use session_core::budget::Usage;
use session_core::ports::SinkError;
use session_core::run::{EndKind, Ending, ReasonCode};
use session_manager::{InFlight, SpendError, Spending};

use super::command::{
    Came, Execution, Left, RETRY_FIRST, RETRY_LAST, before_start, next_order, pause, sentence,
};
use crate::room::{Refusal, Rooms};

/// Why an execution is not in its session.
pub(super) enum Refused {
    /// There is no room; try again after this long.
    NoRoom(Duration),
    /// The run is over without it.
    Came(Came),
}

/// How a run ends that its session cannot pay for.
fn unpaid(session: &ManagedSession, error: &SpendError) -> Ending {
    match error {
        SpendError::Exhausted(exhausted) => {
            let message =
                format!("{exhausted}; `roomette budget top-up {}` gives the session more", session.id);
            Ending::because(EndKind::Failed, ReasonCode::BudgetExhausted, None, message)
        }
        SpendError::Hourly(_) => {
            Ending::because(EndKind::Failed, ReasonCode::BudgetExhausted, None, sentence(error))
        }
        SpendError::Ended(_) => {
            Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, sentence(error))
        }
        SpendError::Record { .. } => {
            Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, sentence(error))
        }
    }
}

impl Execution {
    /// Gets into the session, however long its records are out of reach, unless an order comes.
    pub(super) async fn enter(&mut self) -> Result<InFlight<Rooms>, Refused> {
        let mut wait = RETRY_FIRST;
        loop {
            match self.door.enter(self.session.id).await {
                Ok(in_flight) => return Ok(in_flight),
                Err(Refusal::Full { message, retry_after }) => {
                    self.progress.line(self.run.id, Some(format!("(waiting for room) {message}")));
                    let wait = retry_after.map_or(RETRY_LAST, |wait| wait.unsigned_abs().max(RETRY_FIRST));
                    return Err(Refused::NoRoom(wait));
                }
                Err(Refusal::Over(_)) => {
                    let message = "its session was ended before it ran";
                    let ending =
                        Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, message);
                    return Err(Refused::Came(Came::ToEnd(ending, None)));
                }
                Err(refusal @ Refusal::Failed(_)) => {
                    let message = refusal.to_string();
                    let ending = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, message);
                    return Err(Refused::Came(Came::ToEnd(ending, None)));
                }
                Err(Refusal::Passing(message)) => {
                    if wait == RETRY_FIRST {
                        tracing::warn!(run = %self.run.id, %message, "a session cannot be opened yet");
                    }
                    self.progress.line(self.run.id, Some(format!("(waiting for the store) {message}")));
                }
            }
            tokio::select! {
                next = pause(wait) => wait = next,
                order = next_order(&mut self.orders) => return Err(Refused::Came(before_start(order))),
            }
        }
    }

    /// Sets aside what a turn costs, however long the session's record is out of reach, unless an order comes.
    pub(super) async fn pay(
        &mut self,
        session: &InFlight<Rooms>,
        turn: Usage,
    ) -> Result<Spending<Rooms>, Came> {
        let mut wait = RETRY_FIRST;
        loop {
            match session.reserve(turn, Some(self.run.id)).await {
                Ok(spending) => return Ok(spending),
                Err(error @ SpendError::Record { source: SinkError::Unavailable(_), .. }) => {
                    self.progress
                        .line(self.run.id, Some(format!("(waiting for the store) {}", sentence(&error))));
                }
                Err(error) => return Err(Came::ToEnd(unpaid(&self.session, &error), None)),
            }
            tokio::select! {
                next = pause(wait) => wait = next,
                order = next_order(&mut self.orders) => return Err(before_start(order)),
            }
        }
    }

    /// Puts the run back to its place in the queue.
    pub(super) async fn give_back(&self, wait: Duration) -> Left {
        if let Some(lease) = self.run.state.lease()
            && let Err(error) = self.coordinator.give_back(self.run.id, lease.runner).await
        {
            // Its claim, no longer renewed, runs out.
            self.complain(&error, "a run could not be given back");
        }
        Left::NoRoom(wait)
    }
}
