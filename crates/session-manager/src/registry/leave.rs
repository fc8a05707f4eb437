//! How sessions leave: suspended, made to give way, or ended. Each engine is let go of by exactly one caller.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use session_core::SessionId;
use session_core::names::Principal;
use session_core::state::TerminationReason;

use super::slot::{Dormant, Next, Phase, Slot};
use super::{Registry, Unusable, later};
use crate::eviction::{Fate, Victim};
use crate::options::Limits;

/// For so long an engine that refused to be suspended is left in peace, or for the idle timeout if that is shorter.
const PEACE_AFTER_REFUSAL: SignedDuration = SignedDuration::from_mins(1);

/// What an attempt to have a session give way came to.
#[derive(Debug)]
pub enum Evicting<H> {
    /// Have the engine write out what is still to be written, then say so with [`Registry::flushed`].
    Flush(H),
    /// Record its end and let go of the engine, then say so with [`Registry::over`].
    Close(H),
    /// Nothing: it is not as it was when it was chosen. Ask for room again.
    Stays,
}

/// What an attempt to suspend came to.
#[derive(Debug)]
pub enum Suspending<H> {
    /// Have the engine write out what is still to be written, then say so with [`Registry::flushed`].
    Flush(H),
    /// It has a run in flight.
    InUse,
    /// It is suspended already.
    Already,
}

/// What is to be done once an engine has written everything out.
#[derive(Debug)]
pub enum Flushed<H> {
    /// Let go of the engine, then say so with [`Registry::closed`].
    Close(H),
    /// Nothing: its engine refused, or it was used meanwhile, and it goes on.
    Goes,
    /// Nothing: somebody ended it meanwhile, and lets go of the engine.
    Ended,
}

/// What is to be done to end a session.
#[derive(Debug)]
pub enum Terminating<H, D> {
    /// Record its end and let go of the engine, then say so with [`Registry::over`].
    Close(H),
    /// It has none: record its end, then say so with [`Registry::over`]. What is kept of it.
    Record(D),
    /// Whoever is at it ends it: wait until it is gone.
    Later,
}

/// What became of a session whose engine was let go of.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed<D> {
    /// It is suspended. `evicted` had to make room among its principal's suspended ones, and are over: record that, then say
    /// so with [`Registry::over`].
    Suspended {
        /// Until when.
        expires_at: Timestamp,
        /// Who had to make room.
        evicted: Vec<(SessionId, D)>,
    },
    /// Somebody ended it meanwhile: record that, then say so with [`Registry::over`].
    Terminated(TerminationReason),
}

impl<H: Clone, D: Clone> Registry<H, D> {
    /// The session is to give way, as it was chosen to: only if nothing has happened in it since.
    pub fn begin_evict(&mut self, victim: Victim) -> Evicting<H> {
        let Some(slot) = self.slots.get_mut(&victim.session) else { return Evicting::Stays };
        let Phase::Live { handle, idle_since } = &slot.phase else { return Evicting::Stays };
        if slot.in_flight > 0 || slot.version != victim.version {
            return Evicting::Stays;
        }
        let (handle, idle_since) = (handle.clone(), *idle_since);
        match victim.fate {
            Fate::Suspended => {
                slot.phase = Phase::Flushing { handle: handle.clone(), idle_since, uses: slot.version.uses };
                Evicting::Flush(handle)
            }
            Fate::Terminated => {
                let next = Next::Terminated(TerminationReason::Evicted);
                slot.phase = Phase::Closing { handle: handle.clone(), idle_since, next };
                self.deadlines.disarm(victim.session, slot);
                Evicting::Close(handle)
            }
        }
    }

    /// Somebody wants the session suspended now.
    pub fn begin_suspend(&mut self, session: SessionId) -> Result<Suspending<H>, Unusable> {
        let slot = self.slots.get_mut(&session).ok_or(Unusable::Unknown)?;
        match &slot.phase {
            Phase::Live { .. } if slot.in_flight > 0 => Ok(Suspending::InUse),
            Phase::Live { handle, idle_since } => {
                let (handle, idle_since) = (handle.clone(), *idle_since);
                slot.phase = Phase::Flushing { handle: handle.clone(), idle_since, uses: slot.version.uses };
                Ok(Suspending::Flush(handle))
            }
            Phase::Suspended(_) => Ok(Suspending::Already),
            Phase::Opening { .. } | Phase::Flushing { .. } | Phase::Closing { .. } | Phase::Ending { .. } => {
                Err(Unusable::Moving)
            }
        }
    }

    /// The engine has written everything out (`written`), or refused to. Unless the session was used or ended meanwhile,
    /// its engine is to be let go of now. If it refused, the session goes on as it was: for a minute, or the idle timeout
    /// if that is shorter, it is neither due to be suspended nor asked to give way.
    pub fn flushed(&mut self, now: Timestamp, session: SessionId, written: bool) -> Flushed<H> {
        let Some(slot) = self.slots.get_mut(&session) else { return Flushed::Ended };
        let Phase::Flushing { handle, idle_since, uses } = &slot.phase else { return Flushed::Ended };
        let (handle, idle_since) = (handle.clone(), *idle_since);
        if written && slot.in_flight == 0 && slot.version.uses == *uses {
            slot.phase = Phase::Closing { handle: handle.clone(), idle_since, next: Next::Suspended };
            self.deadlines.disarm(session, slot);
            return Flushed::Close(handle);
        }
        slot.phase = Phase::Live { handle, idle_since };
        if !written {
            slot.in_peace_until = later(now, peace(&self.limits));
        }
        self.deadlines.arm(session, slot, &self.limits);
        Flushed::Goes
    }

    /// A session that was to be suspended, and whose engine is not let go of yet, goes on as it was, because somebody waits to
    /// use it: unless somebody ended it meanwhile. Then that reason comes back, and its engine is to be let go of. When time
    /// had it suspended, it is left in peace for another idle timeout; else for a minute, or the idle timeout if that is
    /// shorter.
    pub fn stays(&mut self, now: Timestamp, session: SessionId, by_time: bool) -> Option<TerminationReason> {
        let slot = self.slots.get_mut(&session)?;
        let Phase::Closing { handle, idle_since, next } = &slot.phase else { return None };
        if let Next::Terminated(reason) = *next {
            return Some(reason);
        }
        slot.phase = Phase::Live { handle: handle.clone(), idle_since: *idle_since };
        let timeout = self.limits.idle_timeout.filter(|_| by_time);
        slot.in_peace_until = later(now, timeout.unwrap_or_else(|| peace(&self.limits)));
        self.deadlines.arm(session, slot, &self.limits);
        None
    }

    /// Somebody or something ends the session.
    pub fn begin_terminate(
        &mut self,
        session: SessionId,
        reason: TerminationReason,
    ) -> Result<Terminating<H, D>, Unusable> {
        let slot = self.slots.get_mut(&session).ok_or(Unusable::Unknown)?;
        match &mut slot.phase {
            Phase::Opening { doomed, .. } => {
                doomed.get_or_insert(reason);
                Ok(Terminating::Later)
            }
            Phase::Live { handle, idle_since } | Phase::Flushing { handle, idle_since, .. } => {
                let (handle, idle_since) = (handle.clone(), *idle_since);
                let next = Next::Terminated(reason);
                slot.phase = Phase::Closing { handle: handle.clone(), idle_since, next };
                self.deadlines.disarm(session, slot);
                Ok(Terminating::Close(handle))
            }
            Phase::Closing { next, .. } => {
                if *next == Next::Suspended {
                    *next = Next::Terminated(reason);
                }
                Ok(Terminating::Later)
            }
            Phase::Suspended(_) => {
                self.begin_end(session, reason).map(Terminating::Record).ok_or(Unusable::Unknown)
            }
            Phase::Ending { .. } => Ok(Terminating::Later),
        }
    }

    /// Runs in flight in a session that is being let go of.
    #[must_use]
    pub fn in_flight(&self, session: SessionId) -> u32 {
        self.slots.get(&session).map_or(0, |slot| slot.in_flight)
    }

    /// The engine of a session that is to be suspended was let go of; `record` is what is kept of it. `None` when that was not
    /// due.
    pub fn closed(&mut self, now: Timestamp, session: SessionId, record: D) -> Option<Closed<D>> {
        let slot = self.slots.get_mut(&session)?;
        let Phase::Closing { next, .. } = &slot.phase else { return None };
        match *next {
            Next::Terminated(reason) => {
                self.change_phase(session, |_| Phase::Ending { record, reason });
                Some(Closed::Terminated(reason))
            }
            Next::Suspended => {
                let expires_at = later(now, self.limits.suspended_ttl.unwrap_or(SignedDuration::MAX));
                let owner = Arc::clone(&slot.owner);
                self.change_phase(session, |_| {
                    Phase::Suspended(Dormant { record, since: now, expires_at, not_before: now })
                });
                let evicted = self.make_room_among_suspended(&owner.principal, None);
                Some(Closed::Suspended { expires_at, evicted })
            }
        }
    }

    /// The session's end is recorded, and its engine, if it had one, was let go of: it is gone, and its key is free. `false`
    /// when that was not due.
    pub fn over(&mut self, session: SessionId) -> bool {
        let due = self.slots.get(&session).is_some_and(|slot| match &slot.phase {
            Phase::Closing { next, .. } => *next != Next::Suspended,
            Phase::Ending { .. } => true,
            Phase::Opening { .. } | Phase::Live { .. } | Phase::Flushing { .. } | Phase::Suspended(_) => {
                false
            }
        });
        due && self.remove(session).is_some()
    }

    /// Ends those of the principal's suspended sessions that are too many: those that came first, and never `but`.
    pub(super) fn make_room_among_suspended(
        &mut self,
        principal: &Principal,
        but: Option<SessionId>,
    ) -> Vec<(SessionId, D)> {
        let mut evicted = Vec::new();
        let Some(max) = self.limits.suspended_per_principal_max else { return evicted };
        while self.count(principal).suspended > max
            && let Some(first) = self.books.first_suspended(principal)
            && but != Some(first)
            && let Some(record) = self.begin_end(first, TerminationReason::Evicted)
        {
            evicted.push((first, record));
        }
        evicted
    }

    /// A session without an engine is over, but for its record. What is kept of it.
    pub(super) fn begin_end(&mut self, session: SessionId, reason: TerminationReason) -> Option<D> {
        let slot = self.remove(session)?;
        let record = slot.phase.into_dormant()?.record;
        let kept = record.clone();
        self.insert(session, Slot { phase: Phase::Ending { record, reason }, ..slot });
        Some(kept)
    }
}

/// For how long an engine that refused is left in peace.
fn peace(limits: &Limits) -> SignedDuration {
    limits.idle_timeout.map_or(PEACE_AFTER_REFUSAL, |timeout| timeout.min(PEACE_AFTER_REFUSAL))
}
