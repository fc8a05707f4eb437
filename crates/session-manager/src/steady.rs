//! The manager's own timeline: it starts at the wall clock's time and then only goes forward, as fast as time passes.
//!
//! Everything that waits is measured on it, so that a wall clock that is stepped by a day moves no timer. What is shown or
//! comes from a record is in wall time, and is carried over by its distance from now.

use jiff::{SignedDuration, Timestamp};
use session_core::Env;

/// A timeline that nobody can step.
#[derive(Debug, Clone)]
pub(crate) struct Steady {
    env: Env,
    /// The time at which this timeline's clock stood at nothing.
    zero: Timestamp,
}

impl Steady {
    /// Begins at the wall clock's time.
    pub(crate) fn new(env: Env) -> Self {
        let zero = earlier(env.now(), elapsed(&env));
        Self { env, zero }
    }

    /// Now, on this timeline.
    pub(crate) fn now(&self) -> Timestamp {
        later(self.zero, elapsed(&self.env))
    }

    /// The wall time that lies as far from now as `at` does on this timeline. What never comes stays so.
    pub(crate) fn to_wall(&self, at: Timestamp) -> Timestamp {
        carry(at, self.now(), self.env.now())
    }

    /// The time on this timeline that lies as far from now as `at` does by the wall clock. What never comes stays so.
    pub(crate) fn of_wall(&self, at: Timestamp) -> Timestamp {
        carry(at, self.env.now(), self.now())
    }
}

fn elapsed(env: &Env) -> SignedDuration {
    SignedDuration::try_from(env.elapsed()).unwrap_or(SignedDuration::MAX)
}

fn carry(at: Timestamp, from: Timestamp, to: Timestamp) -> Timestamp {
    if at == Timestamp::MAX { at } else { later(to, at.duration_since(from)) }
}

fn later(from: Timestamp, by: SignedDuration) -> Timestamp {
    let end = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    from.saturating_add(by).unwrap_or(end)
}

fn earlier(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use session_core::testing;

    use super::*;

    #[test]
    fn a_stepped_wall_clock_moves_nothing() {
        let (env, clock) = testing::env();
        clock.advance(SignedDuration::from_hours(5));
        let steady = Steady::new(env.clone());
        let start = steady.now();
        assert_eq!(start, env.now());
        clock.set(env.now() + SignedDuration::from_hours(24));
        assert_eq!(steady.now(), start);
        clock.set(env.now() - SignedDuration::from_hours(48));
        clock.advance(SignedDuration::from_millis(7));
        assert_eq!(steady.now(), start + SignedDuration::from_millis(7));
    }

    #[test]
    fn times_keep_their_distance_from_now() {
        let (env, clock) = testing::env();
        let steady = Steady::new(env.clone());
        let hour = SignedDuration::from_hours(1);
        clock.set(env.now() - SignedDuration::from_hours(24));
        let (wall, now) = (env.now(), steady.now());
        assert_eq!(steady.of_wall(wall + hour), now + hour);
        assert_eq!(steady.to_wall(now - hour), wall - hour);
        assert_eq!(steady.of_wall(Timestamp::MAX), Timestamp::MAX);
        assert_eq!(steady.to_wall(Timestamp::MAX), Timestamp::MAX);
        assert_eq!(steady.to_wall(Timestamp::MIN), Timestamp::MIN);
    }
}
