//! Which sessions rested for long enough to be moved on, decided over plain values.

use jiff::{SignedDuration, Timestamp};

use crate::ids::{RunnerId, SessionId};
use crate::state::{SessionState, Trigger};

/// What one sweep looks for. A time of `None` never comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Only sessions whose workspace lies on this runner, or on none yet.
    pub runner: RunnerId,
    /// For how long a session stays active after its last use. An idle one is suspended after twice that time more.
    pub idle_timeout: Option<SignedDuration>,
    /// For how long a session that is suspended now may stay so. One that was suspended before keeps its time.
    pub suspended_ttl: Option<SignedDuration>,
    /// None of these, however long they rest: they live in somebody's process.
    pub except: Vec<SessionId>,
    /// At most so many sessions.
    pub limit: u32,
}

/// A session that was moved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// The session.
    pub session: SessionId,
    /// Where it is now.
    pub state: SessionState,
}

impl Sweep {
    /// The last use at which an active session is due.
    #[must_use]
    pub fn active_cutoff(&self, now: Timestamp) -> Option<Timestamp> {
        self.idle_timeout.map(|timeout| before(now, timeout))
    }

    /// The beginning of its rest at which an idle session is due.
    #[must_use]
    pub fn idle_cutoff(&self, now: Timestamp) -> Option<Timestamp> {
        self.idle_timeout.map(|timeout| before(before(now, timeout), timeout))
    }

    /// The next step of a session that nobody works in, if it is due. It is idle since its deadline, not since the
    /// moment of the sweep: who sweeps late lets it rest no longer.
    #[must_use]
    pub fn next(&self, state: SessionState, active_at: Timestamp, now: Timestamp) -> Option<SessionState> {
        let due = |at: Timestamp, cutoff: Option<Timestamp>| cutoff.is_some_and(|cutoff| at <= cutoff);
        let step = match state {
            SessionState::Active if due(active_at, self.active_cutoff(now)) => {
                let deadline = active_at.saturating_add(self.idle_timeout?).unwrap_or(now);
                state.on(Trigger::IdleTimeout, deadline)
            }
            SessionState::Idle { since } if due(since, self.idle_cutoff(now)) => {
                let ttl = self.suspended_ttl.unwrap_or(SignedDuration::MAX);
                state.on(Trigger::GraceElapsed { ttl }, now)
            }
            SessionState::Suspended { expires_at, .. } if expires_at <= now => {
                state.on(Trigger::TtlExpired, now)
            }
            SessionState::Active
            | SessionState::Idle { .. }
            | SessionState::Suspended { .. }
            | SessionState::Terminated { .. } => return None,
        };
        step.ok()
    }
}

/// So long before; a time that would lie before the calendar is the first one in it.
fn before(now: Timestamp, timeout: SignedDuration) -> Timestamp {
    now.saturating_sub(timeout).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::TerminationReason;

    const TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
    const TTL: SignedDuration = SignedDuration::from_hours(24);
    const TICK: SignedDuration = SignedDuration::from_millis(1);

    fn sweep(idle_timeout: Option<SignedDuration>, suspended_ttl: Option<SignedDuration>) -> Sweep {
        let runner = RunnerId::from_uuid(uuid::Uuid::from_u128(7)).unwrap();
        Sweep { runner, idle_timeout, suspended_ttl, except: Vec::new(), limit: 10 }
    }

    #[test]
    fn each_step_comes_at_its_time_and_not_before() {
        let (sweep, start) = (sweep(Some(TIMEOUT), Some(TTL)), Timestamp::UNIX_EPOCH);
        let next = |state, now| sweep.next(state, start, now);
        let idle = SessionState::Idle { since: start + TIMEOUT };
        assert_eq!(next(SessionState::Active, start + TIMEOUT - TICK), None);
        assert_eq!(next(SessionState::Active, start + TIMEOUT * 9), Some(idle));
        assert_eq!(next(idle, start + TIMEOUT * 3 - TICK), None);
        let now = start + TIMEOUT * 3;
        let suspended = SessionState::Suspended { since: now, expires_at: now + TTL };
        assert_eq!(next(idle, now), Some(suspended));
        assert_eq!(next(suspended, now + TTL - TICK), None);
        let over = SessionState::Terminated { at: now + TTL, reason: TerminationReason::TtlExpired };
        assert_eq!(next(suspended, now + TTL), Some(over));
        assert_eq!(next(over, Timestamp::MAX), None);
    }

    #[test]
    fn a_time_of_none_never_comes() {
        let (start, idle) = (Timestamp::UNIX_EPOCH, SessionState::Idle { since: Timestamp::UNIX_EPOCH });
        let never = sweep(None, Some(TTL));
        assert_eq!(never.next(SessionState::Active, start, Timestamp::MAX), None);
        assert_eq!(never.next(idle, start, Timestamp::MAX), None);
        let endless = sweep(Some(TIMEOUT), None);
        let suspended = endless.next(idle, start, start + TIMEOUT * 2).unwrap();
        assert_eq!(
            suspended,
            SessionState::Suspended { since: start + TIMEOUT * 2, expires_at: Timestamp::MAX }
        );
        let longest = sweep(Some(SignedDuration::MAX), None);
        assert_eq!(longest.next(SessionState::Active, start, Timestamp::MAX), None);
    }
}
