//! The residency of a session: one of the two state machines (SPEC section 2).
//!
//! `active → idle → suspended → terminated`, and back to `active` on use. The whole table is the one match in
//! [`SessionState::on`]; `docs/state-machines.md` is written from it by a test.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

/// Where a session is in its life. Each state carries its own times, so that none can be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// In use, or used a short while ago.
    Active,
    /// Not used for the idle timeout.
    Idle {
        /// Since when.
        since: Timestamp,
    },
    /// Its worker is disposed of and its memory freed; its record and history stay.
    Suspended {
        /// Since when.
        since: Timestamp,
        /// When it is terminated if nobody comes back.
        expires_at: Timestamp,
    },
    /// Over, for good.
    Terminated {
        /// Since when.
        at: Timestamp,
        /// Why.
        reason: TerminationReason,
    },
}

/// What can happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// It was used, while its worker was there.
    Activity,
    /// Nothing for the idle timeout.
    IdleTimeout,
    /// Nothing for twice the idle timeout more.
    GraceElapsed {
        /// How long it may stay suspended.
        ttl: SignedDuration,
    },
    /// Somebody asks to let go of the worker now.
    Suspend {
        /// How long it may stay suspended.
        ttl: SignedDuration,
    },
    /// It is used or resumed, with a new worker.
    Resume,
    /// It was suspended for as long as it may be.
    TtlExpired,
    /// Somebody or something ends it.
    Terminate(TerminationReason),
}

impl SessionState {
    /// The state after `trigger`, or why there is none. Total: every pair of state and trigger is decided here.
    ///
    /// A time that would lie beyond the calendar is the last one in it.
    pub fn on(self, trigger: Trigger, now: Timestamp) -> Result<Self, InvalidTransition> {
        let suspended = |ttl: SignedDuration| Self::Suspended {
            since: now,
            expires_at: now.saturating_add(ttl).unwrap_or(Timestamp::MAX),
        };
        match (self, trigger) {
            (Self::Active | Self::Idle { .. }, Trigger::Activity)
            | (Self::Idle { .. } | Self::Suspended { .. }, Trigger::Resume) => Ok(Self::Active),
            (Self::Active, Trigger::IdleTimeout) => Ok(Self::Idle { since: now }),
            (Self::Idle { .. }, Trigger::GraceElapsed { ttl })
            | (Self::Active | Self::Idle { .. }, Trigger::Suspend { ttl }) => Ok(suspended(ttl)),
            (Self::Suspended { .. }, Trigger::TtlExpired) => {
                Ok(Self::Terminated { at: now, reason: TerminationReason::TtlExpired })
            }
            (Self::Active | Self::Idle { .. } | Self::Suspended { .. }, Trigger::Terminate(reason)) => {
                Ok(Self::Terminated { at: now, reason })
            }
            (Self::Active, Trigger::GraceElapsed { .. } | Trigger::Resume | Trigger::TtlExpired)
            | (Self::Idle { .. }, Trigger::IdleTimeout | Trigger::TtlExpired)
            | (
                Self::Suspended { .. },
                Trigger::Activity
                | Trigger::IdleTimeout
                | Trigger::GraceElapsed { .. }
                | Trigger::Suspend { .. },
            )
            | (Self::Terminated { .. }, _) => {
                Err(InvalidTransition { machine: "session", from: self.name(), trigger: trigger.name() })
            }
        }
    }

    /// The state's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Idle { .. } => "idle",
            Self::Suspended { .. } => "suspended",
            Self::Terminated { .. } => "terminated",
        }
    }

    /// Whether the session is over for good.
    #[must_use]
    pub fn is_terminated(self) -> bool {
        matches!(self, Self::Terminated { .. })
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Trigger {
    /// The trigger's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Activity => "activity",
            Self::IdleTimeout => "idle timeout",
            Self::GraceElapsed { .. } => "grace elapsed",
            Self::Suspend { .. } => "suspend",
            Self::Resume => "resume",
            Self::TtlExpired => "ttl expired",
            Self::Terminate(_) => "terminate",
        }
    }
}

impl Trigger {
    /// Whether it may happen only to a session that nobody works in: it is refused while a run is not over.
    #[must_use]
    pub fn wants_rest(self) -> bool {
        match self {
            Self::IdleTimeout
            | Self::GraceElapsed { .. }
            | Self::Suspend { .. }
            | Self::TtlExpired
            | Self::Terminate(TerminationReason::CleanedUp) => true,
            Self::Activity | Self::Resume | Self::Terminate(_) => false,
        }
    }
}

impl Trigger {
    /// Whether it ends a session of which nobody asked that: it is refused while anything works below it, which would be
    /// ended with it.
    #[must_use]
    pub fn wants_rest_below(self) -> bool {
        matches!(self, Self::TtlExpired | Self::Terminate(TerminationReason::CleanedUp))
    }
}

/// A pair of state and trigger that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a {from} {machine} does not take \"{trigger}\"")]
pub struct InvalidTransition {
    /// `session` or `run`.
    pub machine: &'static str,
    /// The state it is in.
    pub from: &'static str,
    /// What was asked of it.
    pub trigger: &'static str,
}

macro_rules! code_enum {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The stable code, as it stands in rows, events and output.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.code())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::state::UnknownCode;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|value| value.code() == text).ok_or_else(|| {
                    $crate::state::UnknownCode { what: $what, found: $crate::ids::excerpt(text) }
                })
            }
        }
    };
}
pub(crate) use code_enum;

/// A text is none of the codes of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{found:?} is no {what}")]
pub struct UnknownCode {
    /// What kind of code was expected.
    pub what: &'static str,
    /// The beginning of what was found.
    pub found: String,
}

code_enum! {
    /// Why a session is over.
    TerminationReason ("termination reason") {
        /// Somebody ended it, with its turn drained first.
        Stopped = "stopped",
        /// Somebody ended it at once.
        Killed = "killed",
        /// It stayed suspended for as long as it may.
        TtlExpired = "ttl_expired",
        /// Its identity expired; the next call makes a new generation.
        IdentityExpired = "identity_expired",
        /// Its budget is spent, and the policy ends it then.
        BudgetExhausted = "budget_exhausted",
        /// It tried to leave its sandbox, and the policy ends it then.
        SandboxViolation = "sandbox_violation",
        /// The session that started it is over.
        ParentEnded = "parent_ended",
        /// It made room for another.
        Evicted = "evicted",
        /// Whatever was to be alive behind it could not be made.
        EngineFailed = "engine_failed",
        /// Its workspace was removed by a cleanup.
        CleanedUp = "cleaned_up",
        /// Its client changed its roots after they were locked.
        RootsChangeRejected = "roots_change_rejected",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn matrix() -> String {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let ttl = SignedDuration::from_hours(24);
        let states = [
            SessionState::Active,
            SessionState::Idle { since: at(1) },
            SessionState::Suspended { since: at(2), expires_at: at(2) + ttl },
            SessionState::Terminated { at: at(3), reason: TerminationReason::Killed },
        ];
        let triggers = [
            Trigger::Activity,
            Trigger::IdleTimeout,
            Trigger::GraceElapsed { ttl },
            Trigger::Suspend { ttl },
            Trigger::Resume,
            Trigger::TtlExpired,
            Trigger::Terminate(TerminationReason::Killed),
        ];
        crate::golden::matrix(&states.map(SessionState::name), &triggers.map(Trigger::name), |row, column| {
            states[row].on(triggers[column], at(9)).ok().map(SessionState::name)
        })
    }

    #[test]
    fn states_carry_their_times() {
        let now = Timestamp::from_second(100).unwrap();
        let idle = SessionState::Active.on(Trigger::IdleTimeout, now).unwrap();
        assert_eq!(idle, SessionState::Idle { since: now });
        let ttl = SignedDuration::from_secs(50);
        let suspended = idle.on(Trigger::GraceElapsed { ttl }, now + ttl).unwrap();
        assert_eq!(suspended, SessionState::Suspended { since: now + ttl, expires_at: now + ttl + ttl });
        let far = SessionState::Active.on(Trigger::Suspend { ttl: SignedDuration::MAX }, now).unwrap();
        assert_eq!(far, SessionState::Suspended { since: now, expires_at: Timestamp::MAX });
    }

    #[test]
    fn a_state_has_a_name_and_only_the_last_is_final() {
        let at = Timestamp::UNIX_EPOCH;
        let states = [
            (SessionState::Active, "active", false),
            (SessionState::Idle { since: at }, "idle", false),
            (SessionState::Suspended { since: at, expires_at: at }, "suspended", false),
            (SessionState::Terminated { at, reason: TerminationReason::Killed }, "terminated", true),
        ];
        for (state, name, over) in states {
            assert_eq!((state.to_string().as_str(), state.is_terminated()), (name, over));
        }
    }

    #[test]
    fn what_time_and_cleanups_do_waits_for_runs_and_what_people_do_does_not() {
        let ttl = SignedDuration::from_hours(24);
        let cleanup = Trigger::Terminate(TerminationReason::CleanedUp);
        let waits = [
            Trigger::IdleTimeout,
            Trigger::GraceElapsed { ttl },
            Trigger::Suspend { ttl },
            Trigger::TtlExpired,
        ];
        assert!(waits.into_iter().chain([cleanup]).all(Trigger::wants_rest));
        let kill = Trigger::Terminate(TerminationReason::Killed);
        assert!(![Trigger::Activity, Trigger::Resume, kill].into_iter().any(Trigger::wants_rest));
    }

    #[test]
    fn terminated_is_final() {
        let over = SessionState::Terminated { at: Timestamp::UNIX_EPOCH, reason: TerminationReason::Evicted };
        let error = over.on(Trigger::Resume, Timestamp::UNIX_EPOCH).unwrap_err();
        assert_eq!(error.to_string(), "a terminated session does not take \"resume\"");
    }
}
