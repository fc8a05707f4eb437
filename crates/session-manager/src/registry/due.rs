//! What time does to sessions, and when it does it next.

use std::collections::BTreeSet;

use jiff::Timestamp;
use session_core::SessionId;
use session_core::state::TerminationReason;

use super::Registry;
use super::slot::{Phase, Slot};
use crate::options::Limits;

/// When to look at which session: at most one entry a slot, never behind its true deadline.
#[derive(Debug, Default)]
pub(super) struct Deadlines(pub(super) BTreeSet<(Timestamp, SessionId)>);

impl Deadlines {
    /// Sees to it that the session has an entry that does not lie behind its deadline.
    pub(super) fn arm<H, D>(&mut self, session: SessionId, slot: &mut Slot<H, D>, limits: &Limits) {
        let Some(at) = slot.deadline(limits) else { return };
        if slot.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        self.disarm(session, slot);
        slot.armed = Some(at);
        self.0.insert((at, session));
    }

    pub(super) fn disarm<H, D>(&mut self, session: SessionId, slot: &mut Slot<H, D>) {
        if let Some(armed) = slot.armed.take() {
            self.0.remove(&(armed, session));
        }
    }
}

/// Something that time brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due<H, D> {
    /// The session is idle: to be recorded.
    Idled(SessionId),
    /// The session was idle for long enough: have the engine write out what is still to be written, then say so with
    /// [`Registry::flushed`].
    Suspend(SessionId, H),
    /// The session was suspended for as long as it may be, and is over: record that, then say so with [`Registry::over`].
    Expired(SessionId, D),
}

impl<H: Clone, D: Clone> Registry<H, D> {
    /// What is due at `now`, oldest first, at most `limit` entries. What is returned has happened here; fewer than `limit`
    /// means that nothing more is due.
    ///
    /// A session whose idle timeout and grace have both passed is idled and suspended in one go, and its grace counts from
    /// the moment at which it was to be idle, not from the sweep that noticed it.
    pub fn due(&mut self, now: Timestamp, limit: usize) -> Vec<Due<H, D>> {
        let entries = self.deadlines.0.iter().take_while(|&&(at, _)| at <= now).take(limit);
        // Looked up side by side first: one by one, each would wait for memory.
        let there =
            entries.filter(|(_, session)| self.slots.get(session).is_some_and(|slot| slot.armed.is_some()));
        let mut due = Vec::with_capacity(there.count());
        while due.len() < limit
            && let Some(&(at, session)) = self.deadlines.0.first()
            && at <= now
        {
            self.deadlines.0.pop_first();
            due.extend(self.fired(at, session));
        }
        due
    }

    /// When something may be due next. Never later than that; possibly earlier, because a use does not move a deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.0.first().map(|&(at, _)| at)
    }

    /// The session's entry, which lay at `at`, is gone. If the deadline has moved on, so does the entry.
    fn fired(&mut self, at: Timestamp, session: SessionId) -> Option<Due<H, D>> {
        let slot = self.slots.get_mut(&session)?;
        slot.armed = None;
        let deadline = slot.deadline(&self.limits)?;
        if deadline > at {
            self.deadlines.arm(session, slot, &self.limits);
            return None;
        }
        match &mut slot.phase {
            Phase::Live { idle_since: idle @ None, .. } => {
                *idle = Some(deadline);
                self.deadlines.arm(session, slot, &self.limits);
                Some(Due::Idled(session))
            }
            Phase::Live { handle, idle_since } => {
                let (handle, idle_since) = (handle.clone(), *idle_since);
                slot.phase = Phase::Flushing { handle: handle.clone(), idle_since, uses: slot.version.uses };
                Some(Due::Suspend(session, handle))
            }
            Phase::Suspended(_) => {
                let record = self.begin_end(session, TerminationReason::TtlExpired)?;
                Some(Due::Expired(session, record))
            }
            Phase::Opening { .. } | Phase::Flushing { .. } | Phase::Closing { .. } | Phase::Ending { .. } => {
                None
            }
        }
    }
}
