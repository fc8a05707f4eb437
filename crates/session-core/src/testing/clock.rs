//! A clock that moves only when it is told to.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

use crate::env::Clock;

/// A clock that moves only when it is told to. Share it with [`Arc`](std::sync::Arc).
#[derive(Debug)]
pub struct ManualClock {
    milliseconds: AtomicI64,
}

impl ManualClock {
    /// Where every new clock stands: 2026-01-01T00:00:00Z, in milliseconds.
    const START: i64 = 1_767_225_600_000;

    /// Moves the clock, forward or back, by whole milliseconds (what is finer is cut off).
    ///
    /// # Panics
    ///
    /// When the time would lie beyond the calendar.
    pub fn advance(&self, by: SignedDuration) {
        self.set(self.now() + by);
    }

    /// Sets the clock, forward or back, to a whole millisecond (what is finer is cut off).
    pub fn set(&self, to: Timestamp) {
        self.milliseconds.store(to.as_millisecond(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { milliseconds: AtomicI64::new(Self::START) }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        // Only times of the calendar are ever stored.
        Timestamp::from_millisecond(self.milliseconds.load(Ordering::SeqCst)).unwrap_or(Timestamp::UNIX_EPOCH)
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
    }
}
