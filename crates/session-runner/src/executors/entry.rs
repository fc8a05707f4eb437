//! How an execution gets into its session, and what its turn costs.

use std::sync::Arc;
use std::time::Duration;

use session_core::ManagedSession;
use session_core::budget::Usage;
use session_core::ports::SinkError;
use session_core::run::{EndKind, Ending, ReasonCode};
use session_manager::{InFlight, SpendError, Spending};

use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Order;
use super::execution::{Came, Execution, RETRY_FIRST, RETRY_LAST, before_start, next_order, pause, sentence};
use crate::door::Refusal;
use crate::room::Rooms;

/// How long changes gather before a run that waits for room asks again.
const GATHER: Duration = Duration::from_millis(20);

/// An execution is in its session, and has a slot.
pub(super) struct Entered {
    pub(super) session: InFlight<Rooms>,
    _slot: Option<OwnedSemaphorePermit>,
}

/// Becomes ready a moment after something has changed that may have made room.
async fn changed(changes: &mut watch::Receiver<u64>) {
    if changes.changed().await.is_err() {
        // The manager is gone; an order says what is to be done.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(GATHER).await;
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
    /// Gets into the session: as soon as there is a slot and room, and however long its records are out of reach, unless an
    /// order comes. While it waits for room its slot is others'.
    pub(super) async fn enter(&mut self) -> Result<Entered, Came> {
        let (door, slots) = (Arc::clone(&self.door), self.slots.clone());
        let (session, mut changes, mut wait) = (self.session.id, door.changes(), RETRY_FIRST);
        loop {
            changes.mark_unchanged();
            let entering = async {
                let slot = slots.take().await;
                door.enter(session).await.map(|session| Entered { session, _slot: slot })
            };
            let refusal = tokio::select! {
                entered = entering => match entered {
                    Ok(entered) => {
                        self.progress.line(self.run.id, None);
                        return Ok(entered);
                    }
                    Err(refusal) => refusal,
                },
                order = next_order(&mut self.orders) => return Err(self.not_begun(order).await),
            };
            match refusal {
                Refusal::Full { message, retry_after } => {
                    self.progress.line(self.run.id, Some(format!("(waiting for room) {message}")));
                    let _waiting = slots.wait();
                    let longest =
                        retry_after.map_or(RETRY_LAST, |after| after.unsigned_abs().max(RETRY_FIRST));
                    tokio::select! {
                        // Not at once: many things change, and few of them make room.
                        () = changed(&mut changes) => {}
                        () = tokio::time::sleep(longest) => {}
                        order = next_order(&mut self.orders) => return Err(self.not_begun(order).await),
                    }
                }
                Refusal::Over(reason) => {
                    let message = format!("its session was ended before it ran: {reason}");
                    let ending =
                        Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, message);
                    return Err(Came::ToEnd(ending, None));
                }
                Refusal::Failed(_) => {
                    let message = refusal.to_string();
                    let ending = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, message);
                    return Err(Came::ToEnd(ending, None));
                }
                Refusal::Passing(message) => {
                    if wait == RETRY_FIRST {
                        tracing::warn!(run = %self.run.id, %message, "a session cannot be opened yet");
                    }
                    self.progress.line(self.run.id, Some(format!("(waiting for the store) {message}")));
                    tokio::select! {
                        next = pause(wait) => wait = next,
                        order = next_order(&mut self.orders) => return Err(self.not_begun(order).await),
                    }
                }
            }
        }
    }

    /// What becomes of a run by an order that comes before it is in its session. One whose host leaves goes back to its place
    /// in the queue: nothing of it has begun.
    async fn not_begun(&self, order: Order) -> Came {
        if order != Order::HostEnds {
            return before_start(order);
        }
        match self.dispatcher.give_back(self.fence).await {
            Ok(_) => {}
            // Its claim, no longer renewed, runs out.
            Err(error) => self.complain(&error, "a run could not be given back"),
        }
        Came::ToNothing
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
}
