//! The manager's settings: how many sessions, for how long, and who gives way.

use std::time::Duration;

use jiff::SignedDuration;
use thiserror::Error;

/// The settings of a manager. The defaults are those of SPEC section 5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerOptions {
    /// How many sessions there may be, and for how long.
    pub limits: Limits,
    /// Tokens that all sessions together may use in any sixty minutes.
    pub tokens_per_hour: u64,
    /// How long an engine, its factory or the sink may take for one answer.
    pub answer_within: Duration,
    /// How long a turn in flight is given to end before its session's engine is shut down.
    pub drain_within: Duration,
    /// How long an engine may take to shut down. After that it is given up, and said so.
    pub shutdown_within: Duration,
}

impl Default for ManagerOptions {
    /// 1 000 000 tokens an hour; 30 s for an answer, 10 s to drain, 30 s to shut down.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            tokens_per_hour: 1_000_000,
            answer_within: Duration::from_secs(30),
            drain_within: Duration::from_secs(10),
            shutdown_within: Duration::from_secs(30),
        }
    }
}

/// How many sessions there may be, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sessions with an engine, of all principals together. With 0 none can be opened.
    pub active_max: u64,
    /// Sessions with an engine of one principal; `None` for no limit of its own.
    pub active_per_principal_max: Option<u64>,
    /// Suspended sessions of one principal; `None` for no limit. When one more is suspended, the one that nobody asked for
    /// longest is over.
    pub suspended_per_principal_max: Option<u64>,
    /// After how long without use a session is idle; twice as long again, and it is suspended. `None` for never.
    pub idle_timeout: Option<SignedDuration>,
    /// For how long a session may stay suspended before it is over. `None` for as long as it likes.
    pub suspended_ttl: Option<SignedDuration>,
    /// Who gives way when there is no room.
    pub eviction: EvictionStrategy,
}

impl Default for Limits {
    /// 10 active sessions, 3 of one principal; idle after 15 minutes, suspended after 45, over after 24 hours more.
    fn default() -> Self {
        Self {
            active_max: 10,
            active_per_principal_max: Some(3),
            suspended_per_principal_max: None,
            idle_timeout: Some(SignedDuration::from_mins(15)),
            suspended_ttl: Some(SignedDuration::from_hours(24)),
            eviction: EvictionStrategy::SuspendOldestIdle,
        }
    }
}

impl Limits {
    /// How long an idle session is left alone before it is suspended: twice the idle timeout.
    #[must_use]
    pub fn grace(&self) -> Option<SignedDuration> {
        self.idle_timeout.map(|timeout| timeout.checked_mul(2).unwrap_or(SignedDuration::MAX))
    }
}

/// Who gives way when there is no room for one more active session. Never one with a run in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EvictionStrategy {
    /// The session that has been idle longest is suspended; if none is idle, the one that was used longest ago. One's own
    /// before another principal's.
    #[default]
    SuspendOldestIdle,
    /// Nobody: whoever comes is refused.
    RejectNew,
    /// One's own session that was created first is terminated. Never another principal's: it could not be undone.
    TerminateOldest,
}

impl EvictionStrategy {
    /// Every strategy.
    pub const ALL: [Self; 3] = [Self::SuspendOldestIdle, Self::RejectNew, Self::TerminateOldest];

    /// The name in settings and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SuspendOldestIdle => "suspend_oldest_idle",
            Self::RejectNew => "reject_new",
            Self::TerminateOldest => "terminate_oldest",
        }
    }
}

impl ManagerOptions {
    /// The settings as they are, or the first that makes no sense.
    pub fn checked(self) -> Result<Self, OptionsError> {
        let Self { limits, answer_within, drain_within: _, shutdown_within, .. } = &self;
        for (name, duration) in
            [("idle_timeout", limits.idle_timeout), ("suspended_ttl", limits.suspended_ttl)]
        {
            if let Some(found) = duration.filter(|duration| *duration <= SignedDuration::ZERO) {
                return Err(OptionsError { name, found: format!("{found:#}") });
            }
        }
        // A turn may be given no time to end; an engine must be given some.
        for (name, bound) in [("answer_within", answer_within), ("shutdown_within", shutdown_within)] {
            if bound.is_zero() {
                return Err(OptionsError { name, found: "nothing".into() });
            }
        }
        Ok(self)
    }
}

/// A setting makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name} is {found}: it must be longer than nothing; leave it out for no limit")]
pub struct OptionsError {
    /// Which setting.
    pub name: &'static str,
    /// What it is.
    pub found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        let options = ManagerOptions::default().checked().unwrap();
        assert_eq!(options.limits.idle_timeout, Some(SignedDuration::from_mins(15)));
        assert_eq!(options.limits.grace(), Some(SignedDuration::from_mins(30)));
        assert_eq!(options.limits.eviction.as_str(), "suspend_oldest_idle");
    }

    #[test]
    fn durations_that_make_no_sense_are_named() {
        let with = |idle: SignedDuration| {
            let limits = Limits { idle_timeout: Some(idle), ..Limits::default() };
            ManagerOptions { limits, ..ManagerOptions::default() }.checked()
        };
        assert!(with(SignedDuration::ZERO).unwrap_err().to_string().starts_with("idle_timeout is 0s"));
        assert!(with(SignedDuration::from_secs(-1)).is_err());
        let longest = with(SignedDuration::MAX).unwrap();
        assert_eq!(longest.limits.grace(), Some(SignedDuration::MAX));
        let hurried = ManagerOptions { answer_within: Duration::ZERO, ..ManagerOptions::default() };
        assert_eq!(hurried.checked().unwrap_err().name, "answer_within");
    }
}
