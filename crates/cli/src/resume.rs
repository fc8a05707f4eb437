//! The resume in three steps: the one place that knows both the manager and the store, used by every front end.
//!
//! 1. The manager opens the session again, under its own id. It is not yet open for work.
//! 2. The store's event log gives the conversation, repaired, and what was granted.
//! 3. The session's engine takes the conversation over.
//!
//! Only then is the session active. Whatever happens before, an error, a cancellation, a panic or the death of the process,
//! leaves it suspended, and the next resume begins anew: an active session without its past cannot exist.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use session_core::context::Restored;
use session_core::error::StoreError;
use session_core::event::{Event, Seq};
use session_core::ports::{EngineError, Orchestrator, ResumeStep, SessionFactory};
use session_core::{SessionId, SessionState, StoreResult};
use session_manager::{
    Coordinator, DispatchOptions, Dispatcher, InFlight, ResumeError, SessionHandle, SessionManager,
    TrackError, UseError,
};
use session_runner::{Door, Refusal, Rooms};
use session_store::SqlStore;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::context::Context;
use crate::failpoint;

/// How often a session may slip away between being resumed and being used before that is an error.
const ATTEMPTS: usize = 8;
/// How long the log may take to be read, and the engine to take it over.
const STEP_BOUND: Duration = Duration::from_secs(30);

/// Opens sessions: those that live here are entered, all others are resumed in three steps first.
#[derive(Debug)]
pub struct Resumer<F: SessionFactory> {
    manager: SessionManager<F>,
    dispatcher: Arc<dyn Dispatcher>,
}

/// Why a session was not opened.
#[derive(Debug, Error)]
pub enum OpenFailure {
    /// There is none.
    #[error("there is no session {0}")]
    Unknown(SessionId),
    /// It is over.
    #[error("session {0} is over: {1}")]
    Over(SessionId, String),
    /// The manager did not resume it.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The manager did not let it be used.
    #[error(transparent)]
    Use(#[from] UseError),
    /// Its engine did not take the conversation over.
    #[error("session {0} could not take its conversation over")]
    Restore(SessionId, #[source] EngineError),
    /// Its log could not be read in time.
    #[error("the log of session {0} could not be read within {STEP_BOUND:?}")]
    Slow(SessionId),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<F: SessionFactory> Resumer<F>
where
    F::Engine: Orchestrator,
{
    /// Resumes the sessions of this manager from the records that this dispatcher shows.
    pub fn new(manager: SessionManager<F>, dispatcher: Arc<dyn Dispatcher>) -> Self {
        Self { manager, dispatcher }
    }

    /// The manager.
    pub fn manager(&self) -> &SessionManager<F> {
        &self.manager
    }

    /// The session, in use until the guard is dropped; resumed first if it has no engine.
    pub async fn enter(&self, session: SessionId) -> Result<InFlight<F>, OpenFailure> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match self.manager.acquire(session).await {
                Ok(in_flight) => return Ok(in_flight),
                // Its record says what it is.
                Err(error @ (UseError::Unknown(_) | UseError::Elsewhere { .. })) => {
                    last = Some(error);
                    self.track(session).await?;
                }
                Err(error @ UseError::Suspended(_)) => {
                    last = Some(error);
                    // It may have been bound, renamed or topped up since this process heard of it.
                    self.track(session).await?;
                    match self.resume(session).await {
                        // Somebody else was faster, or it was over here before that.
                        Ok(_)
                        | Err(OpenFailure::Resume(ResumeError::AlreadyLive(_) | ResumeError::Unknown(_))) => {
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(last.map_or(OpenFailure::Unknown(session), OpenFailure::Use))
    }

    /// The three steps.
    pub async fn resume(&self, session: SessionId) -> Result<Arc<SessionHandle<F::Engine>>, OpenFailure> {
        let mut resuming = self.manager.begin_resume(session).await?;
        failpoint::reach(ResumeStep::Opened.code());
        let restored = if resuming.engine().wants_history() {
            let log = timeout(STEP_BOUND, log(&*self.dispatcher, session)).await;
            Restored::from_log(&log.map_err(|_| OpenFailure::Slow(session))??)
        } else {
            Restored::default()
        };
        resuming.restore(restored.clone()).await?;
        failpoint::reach(ResumeStep::Reconstructed.code());
        let taken_over = timeout(STEP_BOUND, resuming.engine().restore_history(&restored)).await;
        let taken_over = taken_over.unwrap_or(Err(EngineError::TimedOut(STEP_BOUND)));
        taken_over.map_err(|error| OpenFailure::Restore(session, error))?;
        failpoint::reach(ResumeStep::Restored.code());
        Ok(resuming.complete().await?)
    }

    /// Makes a recorded session known to the manager. Nobody works in it now, so what was set aside and never settled
    /// counts as used.
    async fn track(&self, session: SessionId) -> Result<(), OpenFailure> {
        let record = self.dispatcher.session(session).await?.ok_or(OpenFailure::Unknown(session))?;
        if let SessionState::Terminated { reason, .. } = record.state {
            return Err(OpenFailure::Over(session, reason.to_string()));
        }
        let record = if record.reserved == session_core::budget::Usage::default() {
            record
        } else {
            self.dispatcher.forfeit(session).await?;
            self.dispatcher.session(session).await?.ok_or(OpenFailure::Unknown(session))?
        };
        match self.manager.track(record) {
            // Somebody else was faster.
            Ok(()) | Err(TrackError::Known(_)) => Ok(()),
            Err(TrackError::Over(_)) => Err(OpenFailure::Over(session, "it was ended".into())),
            Err(TrackError::Leaving(_)) => Err(UseError::Leaving(session).into()),
        }
    }
}

#[async_trait]
impl Door for Resumer<Rooms> {
    async fn enter(&self, session: SessionId) -> Result<InFlight<Rooms>, Refusal> {
        Resumer::enter(self, session).await.map_err(|failure| refusal(&failure))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.manager.subscribe()
    }
}

fn refusal(failure: &OpenFailure) -> Refusal {
    match failure {
        OpenFailure::Resume(ResumeError::Capacity { refused, .. }) => {
            Refusal::Full { message: refused.to_string(), retry_after: refused.retry_after }
        }
        OpenFailure::Over(_, reason) => Refusal::Over(reason.clone()),
        OpenFailure::Resume(ResumeError::Ended { reason, .. }) => Refusal::Over(reason.to_string()),
        OpenFailure::Slow(_)
        | OpenFailure::Resume(
            ResumeError::Record { .. }
            | ResumeError::NotReady { .. }
            | ResumeError::AlreadyLive(_)
            | ResumeError::Unknown(_)
            | ResumeError::Leaving(_),
        )
        | OpenFailure::Use(_) => Refusal::Passing(sentence(failure)),
        OpenFailure::Store(error) if error.may_pass() => Refusal::Passing(sentence(failure)),
        OpenFailure::Unknown(_)
        | OpenFailure::Resume(ResumeError::Engine { .. })
        | OpenFailure::Restore(..)
        | OpenFailure::Store(_) => Refusal::Failed(sentence(failure)),
    }
}

fn sentence(error: &(dyn std::error::Error + 'static)) -> String {
    crate::failure::Failure::of(crate::failure::Kind::Error, error).in_one_line()
}

/// A session's whole log, in order, as it is recorded.
pub async fn recorded(context: &Context, store: &SqlStore, session: SessionId) -> StoreResult<Vec<Event>> {
    let shared = Arc::new(store.clone());
    log(&Coordinator::new(context.env.clone(), shared, DispatchOptions::default()), session).await
}

/// A session's whole log, in order, as whoever gives the runs has it.
async fn log(dispatcher: &dyn Dispatcher, session: SessionId) -> StoreResult<Vec<Event>> {
    const PAGE: u32 = 1_000;
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(Seq::START, |event| event.seq);
        let page = dispatcher.read(session, after, PAGE).await?;
        if page.is_empty() {
            return Ok(events);
        }
        events.extend(page);
    }
}
