//! Resuming: the first of the three steps, and what becomes of a resume that is completed, given up or overtaken.

use std::sync::Arc;

use jiff::SignedDuration;
use session_core::ports::{Release, ResumeStep, SessionFactory, SinkError};
use session_core::state::TerminationReason;
use session_core::{ManagedSession, SessionId};
use tokio::time::timeout;

use super::engine::NoEngine;
use super::{HandleOf, SessionManager};
use crate::error::ResumeError;
use crate::guards::{Place, Reopened, Resuming};
use crate::handle::{Kept, SessionHandle};
use crate::recorded::{Arrival, Recorded};
use crate::registry::{Reopening, Unusable};

/// A place for a session that is to be resumed, what was kept of it, and the session as its next engine is to find it.
struct Granted<F: SessionFactory> {
    place: Place<F>,
    kept: Arc<Kept>,
    session: ManagedSession,
}

impl<F: SessionFactory> SessionManager<F> {
    /// The first of the three steps of a resume: the session gets a place and an engine again, under its own id. It is not
    /// open before the resume is [completed](Resuming::complete).
    ///
    /// A resume is an admission: the limits hold, and somebody may have to give way. Of two at once one goes ahead, and the
    /// other waits for what comes of it.
    pub async fn begin_resume(&self, session: SessionId) -> Result<Resuming<F>, ResumeError> {
        let granted = self.reopen(session).await?;
        let manager = self.clone();
        self.carry_out(async move { manager.engine_again(granted).await }).await
    }

    async fn reopen(&self, session: SessionId) -> Result<Granted<F>, ResumeError> {
        let within = self.inner.options.answer_within;
        let mut changes = self.subscribe();
        let mut crowded = false;
        let asked = timeout(within, async {
            loop {
                match self.ask_to_reopen(session)? {
                    Reopening::Reserved(granted) => return Ok(granted),
                    Reopening::Live => return Err(ResumeError::AlreadyLive(session)),
                    Reopening::After(victim) => {
                        crowded = true;
                        self.give_way(victim).await;
                    }
                    Reopening::Wait => {
                        // The sender is ours: it cannot be gone.
                        let _still_there = changes.changed().await;
                    }
                }
            }
        });
        match (asked.await, crowded) {
            (Ok(answer), _) => answer,
            (Err(_), true) => Err(self.crowded_out(session)),
            (Err(_), false) => Err(ResumeError::NotReady { session, within }),
        }
    }

    fn ask_to_reopen(&self, session: SessionId) -> Result<Reopening<Granted<F>>, ResumeError> {
        let now = self.steady_now();
        let mut state = self.lock();
        if state.parting.is_some() {
            return Err(ResumeError::Leaving(session));
        }
        let before = state.registry.get(session).map(|entry| entry.state);
        let answer = match state.registry.reopen(now, session) {
            Ok(Ok(answer)) => answer,
            Ok(Err(refused)) => return Err(ResumeError::Capacity { session, refused }),
            Err(Unusable::Unknown | Unusable::Suspended | Unusable::Moving) => {
                return Err(ResumeError::Unknown(session));
            }
        };
        Ok(match answer {
            Reopening::Reserved(kept) => {
                let place = Place::new(self.clone(), session);
                let known = kept.session();
                let state = before.map_or(known.state, |state| self.in_wall_time(state));
                Reopening::Reserved(Granted { place, kept, session: ManagedSession { state, ..known } })
            }
            Reopening::After(victim) => Reopening::After(victim),
            Reopening::Wait => Reopening::Wait,
            Reopening::Live => Reopening::Live,
        })
    }

    fn crowded_out(&self, session: SessionId) -> ResumeError {
        let owner = self.lock().registry.get(session).map(|entry| entry.owner);
        match owner {
            Some(owner) => ResumeError::Capacity { session, refused: self.no_room(&owner.principal) },
            None => ResumeError::Unknown(session),
        }
    }

    async fn engine_again(&self, granted: Granted<F>) -> Result<Resuming<F>, ResumeError> {
        let Granted { place, kept, session: record } = granted;
        let session = record.id;
        let engine = match self.make_engine(record.clone()).await {
            Ok(engine) => engine,
            Err(NoEngine::Failed(source)) => {
                self.settle_given_up(&kept, place).await;
                return Err(ResumeError::Engine { session, source });
            }
            Err(NoEngine::Ended(reason)) => {
                self.settle_given_up(&kept, place).await;
                return Err(ResumeError::Ended { session, reason });
            }
        };
        let handle = Arc::new(SessionHandle::new(record, kept, engine));
        if let Err(source) = self.record_step(handle.kept(), ResumeStep::Opened).await {
            self.give_up(handle, place, &source).await;
            return Err(ResumeError::Record { session, source });
        }
        let resuming = Resuming::new(self.clone(), Arc::clone(&handle), place);
        let (manager, place) = (self.clone(), Arc::clone(resuming.place()));
        self.spawn(async move { manager.watch_over(handle, &place).await });
        Ok(resuming)
    }

    /// Rolls a resume back as soon as somebody ends the session, however long whoever resumes it takes.
    async fn watch_over(&self, handle: HandleOf<F>, place: &Reopened<F>) {
        let session = handle.id();
        let ended = self.until(|state| {
            let doomed = state.registry.doomed(session).map(Some);
            doomed.or_else(|| place.is_taken().then_some(None))
        });
        if let Some(reason) = ended.await
            && let Some(place) = place.end(reason)
        {
            self.roll_back(&handle, place).await;
        }
    }

    /// The last step of a resume. To be called in a task of the manager's.
    pub(crate) async fn complete_resume(
        &self,
        handle: HandleOf<F>,
        place: Place<F>,
    ) -> Result<HandleOf<F>, ResumeError> {
        let session = handle.id();
        let mut written = self.record_step(handle.kept(), ResumeStep::Restored).await;
        if written.is_ok() {
            written = self.record(handle.kept(), Arrival::Resumed).await;
        }
        if let Err(source) = written {
            self.give_up(handle, place, &source).await;
            return Err(ResumeError::Record { session, source });
        }
        match place.open(Arc::clone(&handle)) {
            Ok(()) => Ok(handle),
            Err(reason) => {
                self.abandon(handle, reason, !self.leaves_records()).await;
                Err(ResumeError::Ended { session, reason })
            }
        }
    }

    /// Gives a resume up that could not be recorded. A session whose record is no longer ours is let go of.
    async fn give_up(&self, handle: HandleOf<F>, place: Place<F>, error: &SinkError) {
        if let SinkError::Superseded(_) = error {
            *handle.kept().recorded.lock().await = Recorded::Elsewhere;
        }
        self.roll_back(&handle, place).await;
    }

    /// Puts a session back to where it was before its resume, and lets go of the engine.
    pub(crate) async fn roll_back(&self, handle: &HandleOf<F>, place: Place<F>) {
        handle.end();
        // What went wrong is in the log.
        let _given_up = self.release(handle, Release::Abandoned).await;
        handle.kept().forget_history();
        self.settle_given_up(handle.kept(), place).await;
    }

    /// Gives the place of a resume back, and records what the session is by that: suspended as before, or over. The record
    /// is held meanwhile, so that another resume is recorded after this.
    async fn settle_given_up(&self, kept: &Kept, place: Place<F>) {
        let session = kept.id();
        let mut recorded = kept.recorded.lock().await;
        if *recorded == Recorded::PerhapsSuspended && self.lock().registry.doomed(session).is_none() {
            // The last step may be recorded.
            let ttl = self.inner.options.limits.suspended_ttl.unwrap_or(SignedDuration::MAX);
            let suspended = Arrival::Suspended { ttl, by_time: false };
            if let Err(error) = self.bring(session, &mut recorded, suspended).await {
                tracing::warn!(%session, %error, "a session whose resume was given up may be recorded as active");
            }
        }
        if *recorded == Recorded::Elsewhere {
            let killed = TerminationReason::Killed;
            self.change(|state, _| state.registry.begin_terminate(session, killed).is_ok());
        }
        let ended = place.give_back();
        let written = match ended {
            Some(reason) if !self.leaves_records() => {
                self.bring(session, &mut recorded, Arrival::Over(reason)).await
            }
            Some(_) | None => self.record_step_of(session, *recorded, ResumeStep::RolledBack).await,
        };
        if ended.is_some() {
            self.change(|state, _| state.registry.over(session));
        }
        if let Err(error) = written {
            tracing::warn!(%session, %error, "a resume that was given up could not be recorded as such");
        }
    }
}
