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
    /// It is active or idle: an answer was lost.
    Awake,
    /// It is suspended.
    Suspended,
    /// It is suspended, or else what it was before or after that: an answer was lost.
    PerhapsSuspended,
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
            (Self::Active | Self::Awake, Arrival::Idled) => Some((Trigger::IdleTimeout, Self::Idle)),
            (Self::Idle | Self::Awake, Arrival::Used)
            | (Self::Active | Self::Idle | Self::Awake, Arrival::Resumed) => {
                Some((Trigger::Activity, Self::Active))
            }
            (Self::Suspended | Self::PerhapsSuspended, Arrival::Resumed) => {
                Some((Trigger::Resume, Self::Active))
            }
            (Self::Idle, Arrival::Suspended { ttl, by_time: true }) => {
                Some((Trigger::GraceElapsed { ttl }, Self::Suspended))
            }
            (Self::Active | Self::Awake | Self::PerhapsSuspended, Arrival::Suspended { ttl, .. })
            | (Self::Idle, Arrival::Suspended { ttl, by_time: false }) => {
                Some((Trigger::Suspend { ttl }, Self::Suspended))
            }
            (Self::Suspended, Arrival::Over(TerminationReason::TtlExpired)) => {
                Some((Trigger::TtlExpired, Self::Over))
            }
            (
                Self::Active | Self::Idle | Self::Awake | Self::Suspended | Self::PerhapsSuspended,
                Arrival::Over(reason),
            ) => Some((Trigger::Terminate(reason), Self::Over)),
            (Self::Active, Arrival::Used)
            | (Self::Idle, Arrival::Idled)
            | (Self::Suspended, Arrival::Used | Arrival::Idled | Arrival::Suspended { .. })
            | (Self::PerhapsSuspended, Arrival::Used | Arrival::Idled)
            | (Self::Over | Self::Elsewhere, _) => None,
        }
    }
}

impl Recorded {
    /// Somebody else changed the record. `false` when it is over: that is not undone.
    pub(crate) fn disown(&mut self) -> bool {
        let ours = *self != Self::Over;
        if ours {
            *self = Self::Elsewhere;
        }
        ours
    }

    /// What the record has to be taken for when nobody knows whether it was brought from here to `next`: whatever is
    /// recorded from there is taken by the one as well as by the other, or is there already.
    pub(crate) fn unless(self, next: Self) -> Self {
        match (self, next) {
            (Self::Over | Self::Elsewhere, _) => self,
            (_, Self::Over | Self::Elsewhere) => next,
            (Self::Suspended | Self::PerhapsSuspended, _) | (_, Self::Suspended | Self::PerhapsSuspended) => {
                Self::PerhapsSuspended
            }
            (Self::Active | Self::Idle | Self::Awake, Self::Active | Self::Idle | Self::Awake) => Self::Awake,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use session_core::SessionState;

    use super::*;

    const ARRIVALS: [Arrival; 7] = [
        Arrival::Used,
        Arrival::Idled,
        Arrival::Suspended { ttl: TTL, by_time: true },
        Arrival::Suspended { ttl: TTL, by_time: false },
        Arrival::Resumed,
        Arrival::Over(TerminationReason::TtlExpired),
        Arrival::Over(TerminationReason::Killed),
    ];
    const TTL: SignedDuration = SignedDuration::from_hours(24);

    fn states() -> [(Recorded, SessionState); 4] {
        let now = Timestamp::UNIX_EPOCH;
        [
            (Recorded::Active, SessionState::Active),
            (Recorded::Idle, SessionState::Idle { since: now }),
            (Recorded::Suspended, SessionState::Suspended { since: now, expires_at: now }),
            (Recorded::Over, SessionState::Terminated { at: now, reason: TerminationReason::Stopped }),
        ]
    }

    fn name(wanted: Recorded) -> &'static str {
        states().iter().find(|(recorded, _)| *recorded == wanted).unwrap().1.name()
    }

    /// Every change that is chosen is one that the state machine takes, and leads to where the record then is.
    #[test]
    fn every_change_is_one_of_the_table() {
        let mut changes = 0;
        for (recorded, state) in states() {
            for arrival in ARRIVALS {
                let Some((trigger, next)) = recorded.towards(arrival) else { continue };
                let reached = state.on(trigger, Timestamp::UNIX_EPOCH).unwrap();
                assert_eq!(reached.name(), name(next), "{recorded:?} {arrival:?}");
                changes += 1;
            }
        }
        assert_eq!(changes, 15);
        assert!(ARRIVALS.iter().all(|&arrival| Recorded::Elsewhere.towards(arrival).is_none()));
    }

    /// Whether an answer was lost before or after the change was made: what is recorded next is taken, or is there already.
    #[test]
    fn after_a_lost_answer_the_next_change_is_taken_either_way() {
        let mut changes = 0;
        for (before, state) in states() {
            for lost in ARRIVALS {
                let Some((trigger, after)) = before.towards(lost) else { continue };
                let recorded = before.unless(after);
                let made = state.on(trigger, Timestamp::UNIX_EPOCH).unwrap();
                // What is over stays so, and nobody asks for it again.
                for next in ARRIVALS.into_iter().filter(|_| after != Recorded::Over) {
                    let Some((trigger, reached)) = recorded.towards(next) else { continue };
                    for record in [state, made] {
                        let taken = record.on(trigger, Timestamp::UNIX_EPOCH);
                        let is_there = record.name() == name(reached);
                        assert!(taken.is_ok() || is_there, "{before:?} {lost:?} {next:?} {record:?}");
                    }
                    changes += 1;
                }
            }
        }
        assert!(changes > 30, "{changes}");
    }
}
