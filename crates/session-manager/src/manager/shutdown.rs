//! How the manager leaves: nothing new comes in, sweeps end, and every engine is let go of.

use std::time::Duration;

use session_core::SessionId;
use session_core::ports::SessionFactory;
use session_core::state::TerminationReason;
use tokio::time::timeout;

use super::{SessionManager, Terminated};
use crate::error::StateError;
use crate::recorded::Recorded;
use crate::registry::{Part, Terminating};

/// What becomes of the sessions of a manager that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// They are over, suspended ones included.
    Terminate(TerminationReason),
    /// Their engines are let go of, and their records stay as they are: they go on in another process.
    Leave,
}

/// What a shutdown came to.
#[derive(Debug, Default)]
#[must_use = "a shutdown may have had to give something up"]
pub struct ShutdownReport {
    /// Sessions that are gone from here without a flaw.
    pub ended: Vec<SessionId>,
    /// Sessions with which something went wrong.
    pub faults: Vec<(SessionId, StateError)>,
    /// Sessions that were not gone by the deadline: something of their engines may be left.
    pub given_up: Vec<SessionId>,
    /// Every task of the manager's had ended by the deadline.
    pub joined: bool,
}

impl<F: SessionFactory> SessionManager<F> {
    /// Leaves: from now on nobody comes in, and nothing is swept. All sessions are let go of at once, each within the bounds
    /// of the settings and all within `deadline`; what is not done by then is reported, and goes on for as long as the
    /// runtime does. Called again, it waits for what is left; how the manager leaves is decided by the first call.
    pub async fn shutdown(&self, parting: Parting, deadline: Duration) -> ShutdownReport {
        let parting = self.change(|state, _| *state.parting.get_or_insert(parting));
        self.leaving().cancel();
        self.inner.tasks.close();
        let all = self.lock().registry.iter().map(|entry| entry.session).collect();
        let mut ends = self.each(all, move |manager, session| async move {
            match parting {
                Parting::Terminate(reason) => manager.terminate_here(session, reason).await,
                Parting::Leave => manager.leave_here(session).await,
            }
        });
        let mut done = Terminated::default();
        let leaving = async {
            while let Some(end) = ends.recv().await {
                done.add(end);
            }
            self.inner.tasks.wait().await;
        };
        let joined = timeout(deadline, leaving).await.is_ok();
        let given_up = self.left_behind(parting);
        ShutdownReport { ended: done.sessions, faults: done.faults, given_up, joined }
    }

    /// Lets go of a session and leaves its record as it is.
    async fn leave_here(&self, session: SessionId) -> Result<(), StateError> {
        let reason = TerminationReason::Stopped;
        let begun = self.change(|state, _| {
            let closing = matches!(state.registry.part(session), Some(Part::Live(_)))
                && state.registry.handle(session).is_none();
            // What is being closed already goes where it is on its way to.
            (!closing).then(|| state.registry.begin_terminate(session, reason))
        });
        match begun {
            Some(Ok(Terminating::Close(handle))) => {
                *handle.kept().recorded.lock().await = Recorded::Elsewhere;
                self.end(handle, reason).await
            }
            Some(Ok(Terminating::Record(_))) => {
                self.change(|state, _| state.registry.over(session));
                Ok(())
            }
            Some(Err(_)) => Ok(()),
            Some(Ok(Terminating::Later)) | None => {
                let within = self.longest_end();
                let left = self.until(|state| {
                    let stays = state.registry.handle(session).is_some();
                    (stays || !state.registry.is_resident(session)).then_some(stays)
                });
                match timeout(within, left).await {
                    Ok(false) => Ok(()),
                    // It could not be suspended after all.
                    Ok(true) => Box::pin(self.leave_here(session)).await,
                    Err(_) => Err(StateError::NotReady { session, within }),
                }
            }
        }
    }

    fn left_behind(&self, parting: Parting) -> Vec<SessionId> {
        let state = self.lock();
        let mut left: Vec<_> = state.registry.iter().map(|entry| entry.session).collect();
        if parting == Parting::Leave {
            // A suspended session has nothing that could be left.
            left.retain(|&session| state.registry.is_resident(session));
        }
        left.sort_unstable();
        left
    }

    /// Whether records stay as they are, because the manager leaves its sessions to others.
    pub(super) fn leaves_records(&self) -> bool {
        matches!(self.lock().parting, Some(Parting::Leave))
    }
}
