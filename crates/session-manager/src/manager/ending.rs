//! How sessions leave: suspended, ended one by one or all at once, and their engines let go of.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use session_core::SessionId;
use session_core::names::Principal;
use session_core::ports::{EngineError, Release, SessionFactory, SinkError};
use session_core::state::TerminationReason;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{HandleOf, SessionManager};
use crate::error::StateError;
use crate::eviction::Victim;
use crate::handle::Kept;
use crate::recorded::{Arrival, Recorded};
use crate::registry::{Closed, Evicting, Failed, Flushed, Suspending, Terminating, Unusable};

/// How many sessions without an engine are ended at once: for each there is only a record to write.
const RECORDS_AT_ONCE: usize = 32;

/// What the end of several sessions came to.
#[derive(Debug, Default)]
pub struct Terminated {
    /// Those that are over without a flaw, in no order.
    pub sessions: Vec<SessionId>,
    /// Those with which something went wrong. They are over all the same, unless the error says otherwise.
    pub faults: Vec<(SessionId, StateError)>,
}

impl<F: SessionFactory> SessionManager<F> {
    /// Suspends a session now: its engine writes out what is left and is let go of; the session can be resumed for as long
    /// as suspended sessions may stay. One that is suspended already stays so. Refused while a run is in flight, or waits to
    /// begin as its record says.
    pub async fn suspend(&self, session: SessionId) -> Result<(), StateError> {
        let manager = self.clone();
        self.carry_out(async move { manager.suspend_here(session).await }).await
    }

    /// Ends a session for good. Its record says so first; then a run in flight may end by itself for as long as the settings
    /// say (not at all when it was killed, spent its budget or left its sandbox), and the engine is shut down.
    ///
    /// Returns when nothing of it is left here. Of two callers at once, the first one's reason counts.
    pub async fn terminate(&self, session: SessionId, reason: TerminationReason) -> Result<(), StateError> {
        let manager = self.clone();
        self.carry_out(async move { manager.terminate_here(session, reason).await }).await
    }

    /// The kill switch: ends every session, or every session of one principal, all at once. Those that are being opened or
    /// suspended are among them.
    pub async fn terminate_all(&self, of: Option<&Principal>, reason: TerminationReason) -> Terminated {
        let concerned = |owner: &Principal| of.is_none_or(|of| of == owner);
        let all: Vec<_> = {
            let state = self.lock();
            let entries = state.registry.iter().filter(|entry| concerned(&entry.owner.principal));
            entries.map(|entry| entry.session).collect()
        };
        let mut done = Terminated::default();
        let mut ends = self
            .each(all, move |manager, session| async move { manager.terminate_here(session, reason).await });
        while let Some(end) = ends.recv().await {
            done.add(end);
        }
        done
    }

    /// Does something that ends a session to each of these: to all that have an engine at once, to the others a number at a
    /// time. What was begun goes on though nobody receives what came of it.
    pub(super) fn each<D, E>(&self, sessions: Vec<SessionId>, end: D) -> mpsc::Receiver<End>
    where
        D: Fn(Self, SessionId) -> E + Clone + Send + 'static,
        E: Future<Output = Result<(), StateError>> + Send,
    {
        let (resident, dormant): (Vec<_>, Vec<_>) = {
            let state = self.lock();
            sessions.into_iter().partition(|&session| state.registry.is_resident(session))
        };
        let (sender, receiver) = mpsc::channel(RECORDS_AT_ONCE);
        let shares = resident.into_iter().map(|session| vec![session]);
        let rest = (0..RECORDS_AT_ONCE)
            .map(|first| dormant.iter().skip(first).step_by(RECORDS_AT_ONCE).copied().collect::<Vec<_>>())
            .filter(|share| !share.is_empty());
        for share in shares.chain(rest) {
            let (manager, end, sender) = (self.clone(), end.clone(), sender.clone());
            self.spawn(async move {
                for session in share {
                    let answer = end(manager.clone(), session).await;
                    let _nobody_asks = sender.send((session, answer)).await;
                }
            });
        }
        receiver
    }

    pub(crate) async fn suspend_here(&self, session: SessionId) -> Result<(), StateError> {
        let within = self.inner.options.answer_within;
        let begun = timeout(
            within,
            self.until(|state| match state.registry.begin_suspend(session) {
                Err(Unusable::Moving) => None,
                answer => Some(answer),
            }),
        );
        match begun.await {
            Err(_) => Err(StateError::NotReady { session, within }),
            Ok(Err(Unusable::Unknown)) => Err(StateError::Unknown(session)),
            Ok(Ok(Suspending::InUse)) => Err(StateError::InUse(session)),
            Ok(Ok(Suspending::Already) | Err(Unusable::Suspended | Unusable::Moving)) => Ok(()),
            Ok(Ok(Suspending::Flush(handle))) => self.flush(handle, false).await,
        }
    }

    /// Has the engine of a session that is to be suspended write out what is left, and closes it unless it was used or ended
    /// meanwhile.
    pub(crate) async fn flush(&self, handle: HandleOf<F>, by_time: bool) -> Result<(), StateError> {
        let session = handle.id();
        let engine = Arc::clone(&handle);
        let flushing = async move { engine.write_out().await };
        let answer = self.guarded(self.inner.options.answer_within, flushing).await.and_then(|answer| answer);
        let written = answer.is_ok();
        match self.change(|state, now| state.registry.flushed(now, session, written)) {
            Flushed::Close(handle) => self.close_suspended(handle, by_time).await,
            Flushed::Goes => Err(match answer {
                Ok(()) => StateError::InUse(session),
                Err(source) => StateError::Flush { session, source },
            }),
            Flushed::Ended => Err(StateError::Ended(session)),
        }
    }

    /// Suspends a session whose engine has written everything out, and that nobody can use meanwhile. Its record is asked
    /// first: if somebody waits to use it, its engine stays, and it goes on.
    async fn close_suspended(&self, handle: HandleOf<F>, by_time: bool) -> Result<(), StateError> {
        let (session, kept) = (handle.id(), Arc::clone(handle.kept()));
        let ttl = self.inner.options.limits.suspended_ttl.unwrap_or(SignedDuration::MAX);
        let recorded = self.record(&kept, Arrival::Suspended { ttl, by_time }).await;
        if let Err(SinkError::Busy(_)) = &recorded {
            return match self.change(|state, now| state.registry.stays(now, session, by_time)) {
                None => Err(StateError::InUse(session)),
                Some(reason) => self.end(handle, reason).await.and(Err(StateError::Ended(session))),
            };
        }
        let elsewhere = matches!(recorded, Err(SinkError::Superseded(_)));
        let why = if elsewhere { Release::HostLeaves } else { Release::Suspended };
        let released = self.release(&handle, why).await;
        kept.forget_history();
        let closed = self.change(|state, now| {
            if elsewhere {
                // It is being closed: this only says what it will be then.
                let _later = state.registry.begin_terminate(session, TerminationReason::Killed);
            }
            state.registry.closed(now, session, Arc::clone(&kept))
        });
        match closed {
            Some(Closed::Suspended { evicted, .. }) => self.record_evicted(evicted),
            Some(Closed::Terminated(reason)) => {
                handle.end();
                self.record_end(&kept, reason).await.map_err(|error| unrecorded(session, error))?;
            }
            None => {}
        }
        outcome(session, released, recorded)
    }

    /// Records the end of a session without an engine. It is here, and bears its key, until the sink has answered, whatever
    /// that answer is.
    pub(crate) async fn record_end(&self, kept: &Kept, reason: TerminationReason) -> Result<(), SinkError> {
        let recorded = self.record(kept, Arrival::Over(reason)).await;
        self.change(|state, _| state.registry.over(kept.id()));
        recorded
    }

    /// Records the end of suspended sessions that had to make room among their principal's.
    pub(crate) fn record_evicted(&self, evicted: Vec<(SessionId, Arc<Kept>)>) {
        for (session, _) in evicted {
            self.end_soon(session, TerminationReason::Evicted);
        }
    }

    /// Records the end of a session without an engine, if it is still here, and waits for nothing.
    pub(crate) fn end_soon(&self, session: SessionId, reason: TerminationReason) {
        let Some(kept) = self.kept(session) else { return };
        if self.leaves_records() {
            self.change(|state, _| state.registry.over(session));
            return;
        }
        let manager = self.clone();
        self.spawn(async move {
            if let Err(error) = manager.record_end(&kept, reason).await {
                tracing::warn!(%session, %error, "the end of a suspended session could not be recorded");
            }
        });
    }

    /// A session did not open: its place is given back. A reason comes back when somebody ended it meanwhile.
    pub(crate) fn failed(&self, session: SessionId) -> Option<TerminationReason> {
        let Failed { doomed, evicted } = self.change(|state, _| state.registry.failed(session));
        self.record_evicted(evicted);
        doomed
    }

    /// Ends a session without waiting for it.
    pub(crate) fn terminate_soon(&self, session: SessionId, reason: TerminationReason) {
        let manager = self.clone();
        self.spawn(async move {
            match manager.terminate_here(session, reason).await {
                Ok(()) | Err(StateError::Unknown(_)) => {}
                Err(error) => tracing::warn!(%session, %error, "a session that nobody waits for ended badly"),
            }
        });
    }

    pub(super) async fn terminate_here(
        &self,
        session: SessionId,
        reason: TerminationReason,
    ) -> Result<(), StateError> {
        match self.change(|state, _| state.registry.begin_terminate(session, reason)) {
            Err(Unusable::Unknown | Unusable::Suspended | Unusable::Moving) => {
                Err(StateError::Unknown(session))
            }
            Ok(Terminating::Close(handle)) => self.end(handle, reason).await,
            Ok(Terminating::Record(kept)) => {
                self.record_end(&kept, reason).await.map_err(|error| unrecorded(session, error))
            }
            Ok(Terminating::Later) => {
                let within = self.longest_end();
                let gone = self.gone(session, within).await;
                if gone { Ok(()) } else { Err(StateError::NotReady { session, within }) }
            }
        }
    }

    /// Ends a session that the registry has marked. To be called in a task of the manager's.
    pub(crate) async fn end(&self, handle: HandleOf<F>, reason: TerminationReason) -> Result<(), StateError> {
        let (session, kept) = (handle.id(), Arc::clone(handle.kept()));
        handle.end();
        let recorded = self.record(&kept, Arrival::Over(reason)).await;
        let elsewhere = *kept.recorded.lock().await == Recorded::Elsewhere;
        if drains(reason) {
            let drained = self.until(|state| (state.registry.in_flight(session) == 0).then_some(()));
            if timeout(self.inner.options.drain_within, drained).await.is_err() {
                tracing::info!(%session, "the run in flight did not end in time: its engine is shut down now");
            }
        }
        let why = if elsewhere { Release::HostLeaves } else { Release::Terminated(reason) };
        let released = self.release(&handle, why).await;
        self.change(|state, _| state.registry.over(session));
        outcome(session, released, recorded)
    }

    /// Lets go of an engine, within the time that it has. One that was let go of already is left alone.
    pub(crate) async fn release(&self, handle: &HandleOf<F>, why: Release) -> Result<(), EngineError> {
        let released = Arc::clone(handle);
        let shutdown = async move { released.release(why).await };
        let answer = self.guarded(self.inner.options.shutdown_within, shutdown).await;
        if let Err(error) = &answer {
            tracing::warn!(session = %handle.id(), %error, "an engine did not shut down: it is given up");
        }
        answer
    }

    /// Has a session give way, if it is still as it was when it was chosen. Whether it did, the registry knows: one that
    /// refused is not asked again for a while.
    pub(super) async fn give_way(&self, victim: Victim) {
        let (manager, session) = (self.clone(), victim.session);
        let answer = self.carry_out(async move {
            match manager.change(|state, _| state.registry.begin_evict(victim)) {
                Evicting::Flush(handle) => manager.flush(handle, false).await,
                Evicting::Close(handle) => manager.end(handle, TerminationReason::Evicted).await,
                Evicting::Stays => Ok(()),
            }
        });
        if let Err(error) = answer.await {
            tracing::debug!(%session, %error, "a session that was to give way");
        }
    }

    /// How long the end of a session that somebody else is at may take.
    pub(super) fn longest_end(&self) -> Duration {
        let options = &self.inner.options;
        // One report, one drain, one shutdown and one more report.
        let parts =
            [options.answer_within, options.drain_within, options.shutdown_within, options.answer_within];
        parts.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }
}

/// What became of one session that was to be ended.
pub(super) type End = (SessionId, Result<(), StateError>);

impl Terminated {
    pub(super) fn add(&mut self, (session, answer): End) {
        match answer {
            // Whoever was there first ended it.
            Ok(()) | Err(StateError::Unknown(_)) => self.sessions.push(session),
            Err(error) => self.faults.push((session, error)),
        }
    }
}

/// Whether a run in flight is given time to end by itself.
fn drains(reason: TerminationReason) -> bool {
    match reason {
        TerminationReason::Killed
        | TerminationReason::ParentEnded
        | TerminationReason::BudgetExhausted
        | TerminationReason::SandboxViolation => false,
        TerminationReason::Stopped
        | TerminationReason::TtlExpired
        | TerminationReason::IdentityExpired
        | TerminationReason::Evicted
        | TerminationReason::EngineFailed
        | TerminationReason::CleanedUp
        | TerminationReason::RootsChangeRejected => true,
    }
}

/// What went wrong with a session that is suspended or over all the same. An engine that may still be there comes first.
fn outcome(
    session: SessionId,
    released: Result<(), EngineError>,
    recorded: Result<(), SinkError>,
) -> Result<(), StateError> {
    released.map_err(|source| StateError::Shutdown { session, source })?;
    recorded.map_err(|error| unrecorded(session, error))
}

pub(super) fn unrecorded(session: SessionId, source: SinkError) -> StateError {
    StateError::Record { session, source }
}
