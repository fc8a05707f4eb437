//! What a session's record says, and which change brings it to where the session is. Pure.
//!
//! A change that could not be recorded is not lost by that: the next one is chosen from what the record says, not from what
//! it should say.

use jiff::SignedDuration;
use session_core::state::{TerminationReason, Trigger};

/// What a session's record says, as far as the manager knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It is active.
    Active,
    /// It is idle.
    Idle,
    /// It is suspended.
    Suspended,
    /// It is over.
    Over,
    /// Somebody else changed it. It is no longer this manager's to write.
    Elsewhere,
}

/// Where a session has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is in use.
    Used,
    /// It is idle.
    Idled,
    /// It is suspended, and may stay so for this long.
    Suspended {
        /// How long.
        ttl: SignedDuration,
        /// Nobody asked for it: it was idle for long enough.
        by_time: bool,
    },
    /// It has an engine again.
    Resumed,
    /// It is over.
    Over(TerminationReason),
}

impl Recorded {
    /// The change to be recorded, and what the record says then. `None` when it says so already, or cannot any more.
    pub(crate) fn towards(self, arrival: Arrival) -> Option<(Trigger, Self)> {
        match (self, arrival) {
            (Self::Active, Arrival::Idled) => Some((Trigger::IdleTimeout, Self::Idle)),
            (Self::Idle, Arrival::Used) | (Self::Active | Self::Idle, Arrival::Resumed) => {
                Some((Trigger::Activity, Self::Active))
            }
            (Self::Suspended, Arrival::Resumed) => Some((Trigger::Resume, Self::Active)),
            (Self::Idle, Arrival::Suspended { ttl, by_time: true }) => {
                Some((Trigger::GraceElapsed { ttl }, Self::Suspended))
            }
            (Self::Active, Arrival::Suspended { ttl, .. })
            | (Self::Idle, Arrival::Suspended { ttl, by_time: false }) => {
                Some((Trigger::Suspend { ttl }, Self::Suspended))
            }
            (Self::Suspended, Arrival::Over(TerminationReason::TtlExpired)) => {
                Some((Trigger::TtlExpired, Self::Over))
            }
            (Self::Active | Self::Idle | Self::Suspended, Arrival::Over(reason)) => {
                Some((Trigger::Terminate(reason), Self::Over))
            }
            (Self::Active, Arrival::Used)
            | (Self::Idle, Arrival::Idled)
            | (Self::Suspended, Arrival::Used | Arrival::Idled | Arrival::Suspended { .. })
            | (Self::Over | Self::Elsewhere, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use session_core::SessionState;

    use super::*;

    /// Every change that is chosen is one that the state machine takes, and leads to where the record then is.
    #[test]
    fn every_change_is_one_of_the_table() {
        let now = Timestamp::UNIX_EPOCH;
        let ttl = SignedDuration::from_hours(24);
        let states = [
            (Recorded::Active, SessionState::Active),
            (Recorded::Idle, SessionState::Idle { since: now }),
            (Recorded::Suspended, SessionState::Suspended { since: now, expires_at: now }),
            (Recorded::Over, SessionState::Terminated { at: now, reason: TerminationReason::Stopped }),
        ];
        let arrivals = [
            Arrival::Used,
            Arrival::Idled,
            Arrival::Suspended { ttl, by_time: true },
            Arrival::Suspended { ttl, by_time: false },
            Arrival::Resumed,
            Arrival::Over(TerminationReason::TtlExpired),
            Arrival::Over(TerminationReason::Killed),
        ];
        let name =
            |wanted: Recorded| states.iter().find(|(recorded, _)| *recorded == wanted).unwrap().1.name();
        let mut changes = 0;
        for (recorded, state) in states {
            for arrival in arrivals {
                let Some((trigger, next)) = recorded.towards(arrival) else { continue };
                let reached = state.on(trigger, now).unwrap();
                assert_eq!(reached.name(), name(next), "{recorded:?} {arrival:?}");
                changes += 1;
            }
        }
        assert_eq!(changes, 15);
        assert!(arrivals.iter().all(|&arrival| Recorded::Elsewhere.towards(arrival).is_none()));
    }
}
