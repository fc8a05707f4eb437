//! What time does to sessions, and when it does it next.

use jiff::Timestamp;
use session_core::SessionId;

use super::slot::Phase;
use super::{Registry, later};

/// Something that time brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due<H, D> {
    /// The session is idle: to be recorded.
    Idled(SessionId),
    /// The session was idle for long enough: have the engine write out what is still to be written, then say so with
    /// [`Registry::flushed`].
    Suspend(SessionId, H),
    /// The session was suspended for as long as it may be, and is gone: to be recorded.
    Expired(SessionId, D),
}

impl<H: Clone, D> Registry<H, D> {
    /// What is due at `now`, oldest first, at most `limit` entries. What is returned has happened here; fewer than `limit`
    /// means that nothing more is due.
    ///
    /// A session whose idle timeout and grace have both passed is idled and suspended in one go, and its grace counts from
    /// the moment at which it was to be idle, not from the sweep that noticed it.
    pub fn due(&mut self, now: Timestamp, limit: usize) -> Vec<Due<H, D>> {
        let mut due = Vec::new();
        while due.len() < limit
            && let Some(&(at, session)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(slot) = self.slots.get_mut(&session) {
                slot.armed = None;
                due.extend(self.fired(at, session));
            }
        }
        due
    }

    /// When something may be due next. Never later than that; possibly earlier, because a use does not move a deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// The session's entry, which lay at `at`, is gone. If the deadline has moved on, so does the entry.
    fn fired(&mut self, at: Timestamp, session: SessionId) -> Option<Due<H, D>> {
        let deadline = self.deadline(session)?;
        if deadline > at {
            self.arm_at(session, deadline);
            return None;
        }
        let slot = self.slots.get_mut(&session)?;
        match &mut slot.phase {
            Phase::Live { idle_since: idle @ None, .. } => {
                *idle = Some(deadline);
                self.arm(session);
                Some(Due::Idled(session))
            }
            Phase::Live { handle, idle_since: Some(since) } => {
                let (handle, since) = (handle.clone(), *since);
                let idle_since = Some(since);
                slot.phase = Phase::Flushing { handle: handle.clone(), idle_since, uses: slot.uses };
                Some(Due::Suspend(session, handle))
            }
            Phase::Suspended(_) => {
                let dormant = self.remove(session)?.phase.into_dormant()?;
                Some(Due::Expired(session, dormant.record))
            }
            Phase::Opening { .. } | Phase::Flushing { .. } | Phase::Closing { .. } => None,
        }
    }

    /// The true deadline of a session, if it has one now. The last time in the calendar never comes.
    pub(super) fn deadline(&self, session: SessionId) -> Option<Timestamp> {
        let slot = self.slots.get(&session)?;
        let at = match &slot.phase {
            Phase::Live { .. } if slot.in_flight > 0 => return None,
            Phase::Live { idle_since: None, .. } => later(slot.last_used, self.limits.idle_timeout?),
            Phase::Live { idle_since: Some(since), .. } => {
                later(*since, self.limits.grace()?).max(slot.in_peace_until)
            }
            Phase::Suspended(dormant) => dormant.expires_at,
            Phase::Opening { .. } | Phase::Flushing { .. } | Phase::Closing { .. } => return None,
        };
        (at < Timestamp::MAX).then_some(at)
    }

    /// Sees to it that the session has an entry that does not lie behind its deadline.
    pub(super) fn arm(&mut self, session: SessionId) {
        let Some(deadline) = self.deadline(session) else { return };
        self.arm_at(session, deadline);
    }

    fn arm_at(&mut self, session: SessionId, at: Timestamp) {
        let Some(slot) = self.slots.get_mut(&session) else { return };
        match slot.armed {
            Some(armed) if armed <= at => return,
            Some(armed) => {
                self.deadlines.remove(&(armed, session));
            }
            None => {}
        }
        slot.armed = Some(at);
        self.deadlines.insert((at, session));
    }

    pub(super) fn disarm(&mut self, session: SessionId) {
        if let Some(slot) = self.slots.get_mut(&session)
            && let Some(armed) = slot.armed.take()
        {
            self.deadlines.remove(&(armed, session));
        }
    }
}
