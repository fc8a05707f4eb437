//! What undoes itself when it is dropped: a place that was given out, a session that nobody took, a resume that was not
//! completed, a run in flight.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use session_core::context::Restored;
use session_core::ports::{ResumeStep, SessionFactory};
use session_core::state::TerminationReason;
use session_core::{ManagedSession, SessionId};

use crate::error::ResumeError;
use crate::handle::SessionHandle;
use crate::manager::{HandleOf, SessionManager};

/// A place in the registry for a session that is being opened.
pub(crate) struct Place<F: SessionFactory> {
    manager: SessionManager<F>,
    session: SessionId,
    held: bool,
}

impl<F: SessionFactory> Place<F> {
    /// Guards a place that the registry has just given out.
    pub(crate) fn new(manager: SessionManager<F>, session: SessionId) -> Self {
        Self { manager, session, held: true }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// The session is open, unless somebody ended it meanwhile: then its engine is to be let go of, and `over` to be said.
    pub(crate) fn open(mut self, handle: HandleOf<F>) -> Result<(), TerminationReason> {
        self.held = false;
        let session = self.session;
        self.manager.change(|state, now| state.registry.opened(now, session, handle))
    }

    /// Gives the place back. A reason comes back when somebody ended the session meanwhile: unless it was new, its end is to
    /// be recorded, and the registry to be told when it is.
    pub(crate) fn give_back(mut self) -> Option<TerminationReason> {
        self.held = false;
        self.manager.failed(self.session)
    }
}

impl<F: SessionFactory> Drop for Place<F> {
    fn drop(&mut self) {
        if self.held
            && let Some(reason) = self.manager.failed(self.session)
        {
            self.manager.end_soon(self.session, reason);
        }
    }
}

/// Somebody waits for a session of which nobody else knows: if they leave, it is ended.
pub(crate) struct Waiting<F: SessionFactory> {
    manager: SessionManager<F>,
    session: Option<SessionId>,
}

impl<F: SessionFactory> Waiting<F> {
    pub(crate) fn new(manager: SessionManager<F>, session: SessionId) -> Self {
        Self { manager, session: Some(session) }
    }

    /// They have it, or know that there is none.
    pub(crate) fn over(mut self) {
        self.session = None;
    }
}

impl<F: SessionFactory> Drop for Waiting<F> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.manager.terminate_soon(session, TerminationReason::Stopped);
        }
    }
}

/// A session that has an engine again and is not yet open for work: the first of the three steps of a resume is done.
///
/// The second is to reconstruct the conversation and to [`restore`](Self::restore) it, the third to have the engine take it
/// over; then [`complete`](Self::complete) opens the session. Dropped before that, wherever it may be, the session is
/// suspended as before.
#[must_use = "a resume that is not completed is rolled back"]
pub struct Resuming<F: SessionFactory> {
    manager: SessionManager<F>,
    handle: HandleOf<F>,
    place: Arc<Reopened<F>>,
}

/// The place of a session that is being resumed. Whoever takes it settles what becomes of the session: the one who resumes
/// it, or whoever ends it meanwhile.
pub(crate) struct Reopened<F: SessionFactory> {
    place: Mutex<Option<Place<F>>>,
    ended: OnceLock<TerminationReason>,
}

impl<F: SessionFactory> Reopened<F> {
    pub(crate) fn take(&self) -> Option<Place<F>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes the place for somebody who ends the session.
    pub(crate) fn end(&self, reason: TerminationReason) -> Option<Place<F>> {
        let place = self.take()?;
        let _first = self.ended.set(reason);
        Some(place)
    }

    fn error(&self, session: SessionId) -> ResumeError {
        // Only whoever ends the session takes the place of a resume that goes on.
        let reason = self.ended.get().copied().unwrap_or(TerminationReason::Killed);
        ResumeError::Ended { session, reason }
    }
}

impl<F: SessionFactory> Resuming<F> {
    pub(crate) fn new(manager: SessionManager<F>, handle: HandleOf<F>, place: Place<F>) -> Self {
        let place = Reopened { place: Mutex::new(Some(place)), ended: OnceLock::new() };
        Self { manager, handle, place: Arc::new(place) }
    }

    pub(crate) fn place(&self) -> &Arc<Reopened<F>> {
        &self.place
    }

    /// The live half, which is not open yet.
    #[must_use]
    pub fn handle(&self) -> &SessionHandle<F::Engine> {
        &self.handle
    }

    /// The engine, to take the conversation over.
    #[must_use]
    pub fn engine(&self) -> &F::Engine {
        self.handle.engine()
    }

    /// The session as it is resumed.
    #[must_use]
    pub fn session(&self) -> &ManagedSession {
        self.handle.session()
    }

    /// The second step: takes over what the log holds of the session, and records that.
    pub async fn restore(&mut self, restored: Restored) -> Result<(), ResumeError> {
        let session = self.handle.id();
        if self.place.is_taken() {
            return Err(self.place.error(session));
        }
        let written = self.manager.record_step(self.handle.kept(), ResumeStep::Reconstructed).await;
        written.map_err(|source| ResumeError::Record { session, source })?;
        self.handle.with_context(|context| context.restore(restored));
        Ok(())
    }

    /// Opens the session, once its engine has taken the conversation over. Recorded first: if that fails, or somebody ended
    /// the session meanwhile, it is not opened.
    ///
    /// From here on dropping the future only stops the waiting: the session opens, or is rolled back, as a whole.
    pub async fn complete(self) -> Result<HandleOf<F>, ResumeError> {
        let Some(place) = self.place.take() else { return Err(self.place.error(self.handle.id())) };
        let (manager, handle) = (self.manager.clone(), Arc::clone(&self.handle));
        self.manager.carry_out(async move { manager.complete_resume(handle, place).await }).await
    }
}

impl<F: SessionFactory> Drop for Resuming<F> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let (manager, handle) = (self.manager.clone(), Arc::clone(&self.handle));
            self.manager.spawn(async move { manager.roll_back(&handle, place).await });
        }
    }
}

impl<F: SessionFactory> fmt::Debug for Resuming<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resuming").field("session", &self.handle.id()).finish_non_exhaustive()
    }
}

/// A run in flight: until this is dropped its session is neither idle nor suspended, and nobody makes it give way.
#[must_use = "the run ends when this is dropped"]
pub struct InFlight<F: SessionFactory> {
    manager: SessionManager<F>,
    handle: HandleOf<F>,
    /// Which engine is in use: another one's uses are not ended by this.
    generation: u64,
}

impl<F: SessionFactory> InFlight<F> {
    /// Guards a use that the registry has just counted.
    pub(crate) fn new(manager: SessionManager<F>, handle: HandleOf<F>, generation: u64) -> Self {
        Self { manager, handle, generation }
    }

    pub(crate) fn manager(&self) -> &SessionManager<F> {
        &self.manager
    }

    /// The session's live half.
    #[must_use]
    pub fn handle(&self) -> &HandleOf<F> {
        &self.handle
    }

    /// What is alive behind the session.
    #[must_use]
    pub fn engine(&self) -> &F::Engine {
        self.handle.engine()
    }

    /// Returns when the session is being ended: the run is to stop soon, for the engine is shut down when the time for that
    /// is over.
    pub async fn ended(&self) {
        self.handle.ended().await;
    }
}

impl<F: SessionFactory> Drop for InFlight<F> {
    fn drop(&mut self) {
        let (session, generation) = (self.handle.id(), self.generation);
        self.manager.change(|state, now| state.registry.end_use(now, session, generation));
    }
}

impl<F: SessionFactory> fmt::Debug for InFlight<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("session", &self.handle.id()).finish_non_exhaustive()
    }
}
