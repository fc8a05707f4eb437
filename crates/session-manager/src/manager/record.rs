//! Reporting to the sink: one session's changes in the order in which they happened.

use session_core::budget::Account;
use session_core::ports::{EngineError, LifecycleEvent, ResumeStep, SessionFactory, SinkError};
use session_core::state::TerminationReason;
use session_core::{SessionId, SessionState};

use super::{HandleOf, SessionManager};
use crate::handle::Kept;
use crate::recorded::{Arrival, Recorded};
use crate::registry::Terminating;

/// Why a change is not recorded.
pub(super) enum NotWritten {
    /// The sink refused it.
    Refused(SinkError),
    /// The sink hung or panicked: it may be recorded or not.
    Lost(SinkError),
}

impl NotWritten {
    pub(super) fn into_error(self) -> SinkError {
        match self {
            Self::Refused(error) | Self::Lost(error) => error,
        }
    }
}

impl<F: SessionFactory> SessionManager<F> {
    /// Records one change, within the time that the sink has.
    pub(crate) async fn write(&self, event: LifecycleEvent) -> Result<(), SinkError> {
        self.try_write(event).await.map_err(NotWritten::into_error)
    }

    pub(super) async fn try_write(&self, event: LifecycleEvent) -> Result<(), NotWritten> {
        let sink = std::sync::Arc::clone(&self.inner.sink);
        let lost = |fault: EngineError| NotWritten::Lost(SinkError::Unavailable(Box::new(fault)));
        let answer =
            self.guarded(self.inner.options.answer_within, async move { sink.on(&event).await }).await;
        answer.map_err(lost)?.map_err(NotWritten::Refused)
    }

    /// What the record says of a session's budget, asked within the time that the sink has.
    pub(crate) async fn account(&self, session: SessionId) -> Result<Option<Account>, SinkError> {
        let sink = std::sync::Arc::clone(&self.inner.sink);
        let asked =
            self.guarded(self.inner.options.answer_within, async move { sink.account(session).await });
        asked.await.map_err(|fault| SinkError::Unavailable(Box::new(fault)))?
    }

    /// Records how far a resume has come.
    pub(crate) async fn record_step(&self, kept: &Kept, step: ResumeStep) -> Result<(), SinkError> {
        let recorded = *kept.recorded.lock().await;
        self.record_step_of(kept.id(), recorded, step).await
    }

    /// The same for whoever has the record to itself already. The steps tell of a session that comes back from suspension:
    /// one that is recorded as awake and merely has no engine in this process, because it is new or its process went away,
    /// is opened without ado.
    pub(super) async fn record_step_of(
        &self,
        session: SessionId,
        recorded: Recorded,
        step: ResumeStep,
    ) -> Result<(), SinkError> {
        match recorded {
            Recorded::Active | Recorded::Idle | Recorded::Awake => Ok(()),
            Recorded::Suspended | Recorded::PerhapsSuspended | Recorded::Over | Recorded::Elsewhere => {
                self.write(LifecycleEvent::Resuming { session, step }).await
            }
        }
    }

    /// Records that a session has come to `arrival`, unless its record says so already.
    pub(crate) async fn record(&self, kept: &Kept, arrival: Arrival) -> Result<(), SinkError> {
        let mut recorded = kept.recorded.lock().await;
        self.bring(kept.id(), &mut recorded, arrival).await
    }

    /// The same for whoever has the record to itself already.
    pub(super) async fn bring(
        &self,
        session: SessionId,
        recorded: &mut Recorded,
        arrival: Arrival,
    ) -> Result<(), SinkError> {
        let Some((trigger, next)) = recorded.towards(arrival) else { return Ok(()) };
        let answer = self.try_write(LifecycleEvent::Moved { session, trigger }).await;
        *recorded = match &answer {
            Ok(()) => next,
            Err(NotWritten::Refused(SinkError::Superseded(_))) => Recorded::Elsewhere,
            Err(NotWritten::Refused(
                SinkError::Busy(_) | SinkError::Exhausted(_) | SinkError::Unavailable(_),
            )) => *recorded,
            Err(NotWritten::Lost(_)) => recorded.unless(next),
        };
        answer.map_err(NotWritten::into_error)
    }

    /// Records whether a live session is in use or idle, as it is by now. When its record says that it is over or elsewhere,
    /// it is let go of here; when it says that somebody waits to use it, the session is not idle but active. To be called in
    /// a task of the manager's.
    pub(crate) async fn report_use(&self, handle: &HandleOf<F>) -> Result<(), SinkError> {
        let kept = handle.kept();
        let mut recorded = kept.recorded.lock().await;
        let arrival = self.lock().registry.get(kept.id()).and_then(|entry| match entry.state {
            SessionState::Active => Some(Arrival::Used),
            SessionState::Idle { .. } => Some(Arrival::Idled),
            SessionState::Suspended { .. } | SessionState::Terminated { .. } => None,
        });
        let Some(arrival) = arrival.filter(|_| !handle.is_ended()) else { return Ok(()) };
        let answer = self.bring(kept.id(), &mut recorded, arrival).await;
        drop(recorded);
        match &answer {
            Err(SinkError::Superseded(_)) => self.let_go(handle.id()),
            // Somebody waits to use it: it is not idle.
            Err(SinkError::Busy(_)) if arrival == Arrival::Idled => {
                self.change(|state, now| state.registry.touch(now, handle.id()).is_ok());
            }
            Ok(()) | Err(SinkError::Busy(_) | SinkError::Exhausted(_) | SinkError::Unavailable(_)) => {}
        }
        answer
    }

    /// Whether the record says that the session is active. `false` also when that cannot be told at once.
    pub(crate) fn is_recorded_active(handle: &HandleOf<F>) -> bool {
        handle.kept().recorded.try_lock().is_ok_and(|recorded| *recorded == Recorded::Active)
    }

    /// The record of a live session turned out to be no longer ours. `false` when the session is being ended here: then
    /// that is what its record says.
    pub(crate) async fn disown(&self, handle: &HandleOf<F>) -> bool {
        let mut recorded = handle.kept().recorded.lock().await;
        // Whoever ends a session says so to its users before its record does.
        if handle.is_ended() || !recorded.disown() {
            return false;
        }
        drop(recorded);
        self.let_go(handle.id());
        true
    }

    /// Ends a session here whose record is no longer ours: its engine goes, its record stays as somebody else made it.
    pub(super) fn let_go(&self, session: SessionId) {
        tracing::warn!(%session, "the session's record was changed by somebody else: it is let go of here");
        // The reason is recorded nowhere.
        let reason = TerminationReason::Killed;
        let begun = self.change(|state, _| state.registry.begin_terminate(session, reason));
        if let Ok(Terminating::Close(handle)) = begun {
            let manager = self.clone();
            self.spawn(async move { manager.end(handle, reason).await });
        }
    }
}
