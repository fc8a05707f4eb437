//! Making engines, and letting go of those whose session never opened.

use std::sync::Arc;

use session_core::ManagedSession;
use session_core::ports::{Engine as _, EngineError, Release, SessionFactory};
use session_core::state::TerminationReason;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{HandleOf, SessionManager, broken};
use crate::recorded::Arrival;

/// Why there is no engine.
pub(super) enum NoEngine {
    /// The factory failed, panicked or took too long.
    Failed(EngineError),
    /// Somebody ended the session meanwhile.
    Ended(TerminationReason),
}

impl<F: SessionFactory> SessionManager<F> {
    /// Has the factory make a session's engine. Nobody waits for it longer than for any answer, nor once the session is
    /// ended; an engine that comes later is let go of.
    pub(super) async fn make_engine(&self, session: ManagedSession) -> Result<F::Engine, NoEngine> {
        let (id, within) = (session.id, self.inner.options.answer_within);
        if let Some(reason) = self.lock().registry.doomed(id) {
            return Err(NoEngine::Ended(reason));
        }
        let factory = Arc::clone(&self.inner.factory);
        let mut making = self.spawn(async move { factory.create(&session).await });
        let doomed = self.until(|state| state.registry.doomed(id));
        let missed = tokio::select! {
            // An engine that is there is looked at first: it must not be lost.
            biased;
            made = timeout(within, &mut making) => match made {
                Ok(Ok(made)) => return made.map_err(NoEngine::Failed),
                Ok(Err(error)) => return Err(NoEngine::Failed(broken(error))),
                Err(_) => NoEngine::Failed(EngineError::TimedOut(within)),
            },
            reason = doomed => NoEngine::Ended(reason),
        };
        let manager = self.clone();
        self.spawn(async move { manager.receive_late(making).await });
        Err(missed)
    }

    /// Lets go of an engine that nobody waits for any more, if it comes. Once the manager leaves, whoever makes it has as
    /// long as an engine has to shut down.
    async fn receive_late(&self, mut making: JoinHandle<Result<F::Engine, EngineError>>) {
        let within = self.inner.options.shutdown_within;
        let too_late = async {
            self.leaving().cancelled().await;
            tokio::time::sleep(within).await;
        };
        tokio::select! {
            biased;
            made = &mut making => if let Ok(Ok(engine)) = made {
                let shutdown = self.guarded(within, async move { engine.shutdown(Release::Abandoned).await });
                if let Err(error) = shutdown.await {
                    tracing::warn!(%error, "an engine that came too late did not shut down: it is given up");
                }
            },
            () = too_late => making.abort(),
        }
    }

    /// Ends a session that somebody ended before it was open, and says so in its record if `records`. The registry has
    /// marked it.
    pub(super) async fn abandon(&self, handle: HandleOf<F>, reason: TerminationReason, records: bool) {
        let kept = Arc::clone(handle.kept());
        handle.end();
        if records && let Err(error) = self.record(&kept, Arrival::Over(reason)).await {
            tracing::warn!(session = %kept.id(), %error, "a session that did not open could not be recorded as over");
        }
        // What went wrong is in the log.
        let _given_up = self.release(&handle, Release::Abandoned).await;
        self.change(|state, _| state.registry.over(kept.id()));
    }
}
