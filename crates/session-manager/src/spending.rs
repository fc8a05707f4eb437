//! Spending: set aside the most that may be used, then settle for what was.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;
use session_core::RunId;
use session_core::budget::{Exhausted, Meter, Reserved, Settled, Usage};
use session_core::ports::{LifecycleEvent, SessionFactory, SinkError};

use crate::error::SpendError;
use crate::guards::InFlight;
use crate::manager::{HandleOf, SessionManager};

/// A part of a session's budget that is set aside. What is not settled counts as used, all of it.
#[must_use = "settle it with what was really used"]
pub struct Spending<F: SessionFactory> {
    manager: SessionManager<F>,
    handle: HandleOf<F>,
    held: Option<Held>,
    /// What counts as used if this is dropped: nothing, before anybody has it.
    if_dropped: Usage,
}

/// What is set aside, and where.
struct Held {
    reserved: Reserved<Arc<Meter>>,
    worst: Usage,
    /// The most that the record has set aside of it by now.
    recorded: Usage,
    run: Option<RunId>,
    /// When the tokens were booked, on the manager's timeline.
    booked_at: Timestamp,
}

impl<F: SessionFactory> InFlight<F> {
    /// Sets aside the most that the next step may use: of the tokens that all sessions may use in an hour, of the session's
    /// own budget, and in its record. Who refuses says why; then nothing is set aside. Before the session's own budget refuses,
    /// its record is asked whether somebody raised it.
    ///
    /// When the answer of the sink is lost, the record may have something set aside that is not used; it is for whoever keeps
    /// the records to forfeit that once this process is gone.
    pub async fn reserve(&self, worst: Usage, run: Option<RunId>) -> Result<Spending<F>, SpendError> {
        let handle = Arc::clone(self.handle());
        if handle.is_ended() {
            return Err(SpendError::Ended(handle.id()));
        }
        let (manager, task) = (self.manager().clone(), self.manager().clone());
        // If this future is dropped meanwhile, what is set aside is given back.
        let spending = manager.carry_out(async move { task.set_aside(handle, worst, run).await }).await;
        spending.map(|mut spending| {
            spending.if_dropped = worst;
            spending
        })
    }

    /// Takes over what the session's record says of its budget by now: limits that were changed, and what its children have
    /// and used, nobody tells otherwise. What is known here stays where the record is out of reach.
    pub async fn look_up_budget(&self) {
        let (handle, session) = (self.handle(), self.handle().id());
        // A change that is on its way is not undone by what was read before it.
        let _recorded = handle.kept().recorded.lock().await;
        match self.manager().account(session).await {
            Ok(Some(account)) => handle.kept().catch_up(account),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%session, %error, "nobody could say what the session may use by now");
            }
        }
    }
}

impl<F: SessionFactory> Spending<F> {
    /// The most that was set aside.
    #[must_use]
    pub fn worst(&self) -> Usage {
        self.held.as_ref().map_or(Usage::NONE, |held| held.worst)
    }

    /// The record has set aside at least this much by now, because it was told so meanwhile: a settlement gives that back.
    pub fn recorded(mut self, spending: Usage) -> Self {
        if let Some(held) = &mut self.held {
            held.recorded = held.recorded.at_least(spending);
        }
        self
    }

    /// Books what was really used, also if it is more than was set aside, and gives the rest back. Says what is used up by
    /// now, and of which resources that was the step beyond the warning mark.
    ///
    /// It is booked at once; the future waits until it is recorded too. A record that is out of reach goes on holding all
    /// that was set aside.
    pub fn settle(mut self, actual: Usage) -> impl Future<Output = Settled> + Send + use<F> {
        let (settled, report) = self.book(actual);
        let recorded = report.map(|report| self.manager.spawn(report));
        async move {
            if let Some(recorded) = recorded {
                // It says in the log what went wrong.
                let _ended = recorded.await;
            }
            settled
        }
    }

    /// Settles here. What is left to do is to record it.
    fn book(&mut self, actual: Usage) -> (Settled, Option<impl Future<Output = ()> + Send + use<F>>) {
        let Some(held) = self.held.take() else {
            return (Settled { used: self.handle.meter().used(), warn: Vec::new() }, None);
        };
        let Held { reserved, worst, recorded, run, booked_at } = held;
        let settled = reserved.settle(actual);
        self.manager.settle_hourly(booked_at, worst.tokens, actual.tokens);
        let (manager, session) = (self.manager.clone(), self.handle.id());
        let report = async move {
            let event = LifecycleEvent::Settled { session, run, worst: recorded, actual };
            if let Err(error) = manager.write(event).await {
                tracing::warn!(%session, %error, "what a session used could not be recorded");
            }
        };
        (settled, Some(report))
    }
}

impl<F: SessionFactory> Drop for Spending<F> {
    fn drop(&mut self) {
        let (_settled, report) = self.book(self.if_dropped);
        if let Some(report) = report {
            self.manager.spawn(report);
        }
    }
}

impl<F: SessionFactory> fmt::Debug for Spending<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spending")
            .field("session", &self.handle.id())
            .field("worst", &self.worst())
            .finish_non_exhaustive()
    }
}

impl<F: SessionFactory> SessionManager<F> {
    async fn set_aside(
        self,
        handle: HandleOf<F>,
        worst: Usage,
        run: Option<RunId>,
    ) -> Result<Spending<F>, SpendError> {
        let session = handle.id();
        let booked_at = self.steady_now();
        self.lock().hourly.take(booked_at, worst.tokens)?;
        let reserved = match self.reserve_here(&handle, worst).await {
            Ok(reserved) => reserved,
            Err(exhausted) => {
                self.settle_hourly(booked_at, worst.tokens, 0);
                return Err(exhausted.into());
            }
        };
        let Err(source) = self.write(LifecycleEvent::Reserved { session, worst }).await else {
            let held = Some(Held { reserved, worst, recorded: worst, run, booked_at });
            return Ok(Spending { manager: self, handle, held, if_dropped: Usage::NONE });
        };
        let _given_back = reserved.settle(Usage::NONE);
        self.settle_hourly(booked_at, worst.tokens, 0);
        Err(match source {
            SinkError::Exhausted(exhausted) => SpendError::Exhausted(exhausted),
            SinkError::Superseded(_) => {
                if self.disown(&handle).await {
                    SpendError::Record { session, source }
                } else {
                    SpendError::Ended(session)
                }
            }
            SinkError::Busy(_) | SinkError::Unavailable(_) => SpendError::Record { session, source },
        })
    }

    /// Sets something aside of the session's own budget. Before that is refused, the record is asked once whether it knows
    /// better: somebody may have raised the limits in another process.
    async fn reserve_here(
        &self,
        handle: &HandleOf<F>,
        worst: Usage,
    ) -> Result<Reserved<Arc<Meter>>, Exhausted> {
        let refused = match handle.meter().reserve_owned(worst) {
            Ok(reserved) => return Ok(reserved),
            Err(refused) => refused,
        };
        match self.account(handle.id()).await {
            Ok(Some(account)) => {
                handle.kept().catch_up(account);
                handle.meter().reserve_owned(worst)
            }
            Ok(None) => Err(refused),
            Err(error) => {
                let session = handle.id();
                tracing::warn!(%session, %error, "nobody could say whether the session's budget was raised");
                Err(refused)
            }
        }
    }

    /// Corrects what is booked of the hour: less than was taken is given back to its minute, more is booked now.
    fn settle_hourly(&self, booked_at: Timestamp, taken: u64, used: u64) {
        let now = self.steady_now();
        let mut state = self.lock();
        state.hourly.give_back(now, booked_at, taken.saturating_sub(used));
        if let Some(excess) = used.checked_sub(taken).filter(|excess| *excess > 0) {
            state.hourly.book(now, excess);
        }
    }
}
