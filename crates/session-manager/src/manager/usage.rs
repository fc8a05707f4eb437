//! Using sessions: a use keeps a session active, and a run in flight keeps it where it is.

use session_core::SessionId;
use session_core::ports::{SessionFactory, SinkError};
use tokio::time::timeout;

use super::{HandleOf, SessionManager};
use crate::error::UseError;
use crate::guards::InFlight;
use crate::registry::{Begun, Unusable, Used};

impl<F: SessionFactory> SessionManager<F> {
    /// A run begins in the session: until the guard is dropped, the session is neither idle nor suspended, and nobody makes
    /// it give way. A session that is just being suspended goes on if its engine is still there; if not, the answer waits
    /// until it is suspended, so that the caller can resume it and nothing that was to be said to it is lost.
    pub async fn acquire(&self, session: SessionId) -> Result<InFlight<F>, UseError> {
        let guard = self.usable(session, |manager| {
            let now = manager.steady_now();
            let mut state = manager.lock();
            if state.parting.is_some() {
                return Err(Unusable::Unknown);
            }
            state.registry.begin_use(now, session)
        });
        let Begun { handle, generation, .. } = guard.await?;
        let guard = InFlight::new(self.clone(), handle, generation);
        match self.record_use(guard.handle()).await {
            Some(source) => Err(UseError::Elsewhere { session, source }),
            None => Ok(guard),
        }
    }

    /// The session is used: if it was idle it is active, and its idle time begins anew.
    pub async fn touch(&self, session: SessionId) -> Result<(), UseError> {
        let used = self.usable(session, |manager| {
            let now = manager.steady_now();
            let mut state = manager.lock();
            let used = state.registry.touch(now, session)?;
            Ok((used == Used::Woke).then(|| state.registry.handle(session)).flatten())
        });
        let Some(handle) = used.await? else { return Ok(()) };
        match self.record_use(&handle).await {
            Some(source) => Err(UseError::Elsewhere { session, source }),
            None => Ok(()),
        }
    }

    /// Asks for a use, and waits while the session is on its way somewhere.
    async fn usable<T>(
        &self,
        session: SessionId,
        ask: impl Fn(&Self) -> Result<T, Unusable>,
    ) -> Result<T, UseError> {
        let mut changes = self.subscribe();
        let within = self.inner.options.answer_within;
        let asked = timeout(within, async {
            loop {
                match ask(self) {
                    Err(Unusable::Moving) => {
                        // The sender is ours: it cannot be gone.
                        let _still_there = changes.changed().await;
                    }
                    answer => return answer,
                }
            }
        });
        match asked.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Unusable::Suspended)) => Err(UseError::Suspended(session)),
            Ok(Err(Unusable::Unknown)) if self.lock().parting.is_some() => Err(UseError::Leaving(session)),
            Ok(Err(Unusable::Unknown)) => Err(UseError::Unknown(session)),
            Ok(Err(Unusable::Moving)) | Err(_) => Err(UseError::NotReady { session, within }),
        }
    }

    /// Records that a live session is in use, unless its record says so. An error that stands in the way of the use comes
    /// back; a record that is only out of reach does not: it is written with the next change.
    pub(super) async fn record_use(&self, handle: &HandleOf<F>) -> Option<SinkError> {
        if Self::is_recorded_active(handle) {
            return None;
        }
        let (manager, reported) = (self.clone(), handle.clone());
        let error = self.carry_out(async move { manager.report_use(&reported).await }).await.err()?;
        match error {
            SinkError::Superseded(_) => Some(error),
            SinkError::Busy(_) | SinkError::Exhausted(_) | SinkError::Unavailable(_) => {
                tracing::warn!(session = %handle.id(), %error, "a session is in use, which could not be recorded");
                None
            }
        }
    }
}
