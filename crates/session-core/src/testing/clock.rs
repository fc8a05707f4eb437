//! A clock that moves only when it is told to.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::env::Clock;

/// A clock that moves only when it is told to. Share it with [`Arc`](std::sync::Arc).
#[derive(Debug)]
pub struct ManualClock {
    milliseconds: AtomicI64,
    elapsed: AtomicU64,
}

impl ManualClock {
    /// Where every new clock stands: 2026-01-01T00:00:00Z, in milliseconds.
    const START: i64 = 1_767_225_600_000;

    /// Lets time pass, by whole milliseconds (what is finer is cut off). A negative time only sets the clock back.
    ///
    /// # Panics
    ///
    /// When the time would lie beyond the calendar.
    pub fn advance(&self, by: SignedDuration) {
        let before = self.now();
        self.set(before + by);
        let passed = self.now().as_millisecond() - before.as_millisecond();
        self.elapsed.fetch_add(u64::try_from(passed).unwrap_or_default(), Ordering::SeqCst);
    }

    /// Sets the clock, forward or back, to a whole millisecond (what is finer is cut off), as if somebody had stepped
    /// it: no time passes.
    pub fn set(&self, to: Timestamp) {
        self.milliseconds.store(to.as_millisecond(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { milliseconds: AtomicI64::new(Self::START), elapsed: AtomicU64::new(0) }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        // Only times of the calendar are ever stored.
        Timestamp::from_millisecond(self.milliseconds.load(Ordering::SeqCst)).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.elapsed.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_until_it_is_moved_and_holds_whole_milliseconds() {
        let clock = ManualClock::default();
        assert_eq!(clock.now().to_string(), "2026-01-01T00:00:00Z");
        clock.advance(SignedDuration::from_micros(1_500));
        assert_eq!(clock.now().to_string(), "2026-01-01T00:00:00.001Z");
        clock.advance(SignedDuration::from_millis(-1));
        assert_eq!(clock.now(), ManualClock::default().now());
        clock.set("2030-02-03T04:05:06.789999Z".parse().unwrap());
        assert_eq!(clock.now().to_string(), "2030-02-03T04:05:06.789Z");
        assert_eq!(clock.elapsed(), Duration::from_millis(1), "a step is no time that passes");
    }
}
