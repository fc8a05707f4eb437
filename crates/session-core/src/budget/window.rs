//! The limit over all sessions: tokens of the last hour, by the minute.

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

/// How many minutes count.
const MINUTES: i64 = 60;

/// Tokens of the last hour over all sessions: a sliding window of sixty minutes. Sums saturate.
#[derive(Debug, Clone)]
pub struct HourlyWindow {
    limit: u64,
    /// The minute since the epoch that each bucket counts for, and its tokens.
    buckets: [(i64, u64); 60],
}

impl HourlyWindow {
    /// An empty window; the default limit of an installation is 1 000 000 tokens. 0 refuses everything, and
    /// [`u64::MAX`] nothing.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, buckets: [(i64::MIN, 0); 60] }
    }

    /// A window that goes on after a restart: minutes since the epoch, each with its tokens, in any order.
    #[must_use]
    pub fn from_minutes(limit: u64, minutes: impl IntoIterator<Item = (i64, u64)>) -> Self {
        let mut window = Self::new(limit);
        for (minute, tokens) in minutes {
            let bucket = window.bucket(minute);
            if bucket.0 < minute {
                *bucket = (minute, tokens);
            } else if bucket.0 == minute {
                bucket.1 = bucket.1.saturating_add(tokens);
            }
        }
        window
    }

    /// Books tokens, or says after how long there is room for them again. Nothing asked for is never refused.
    pub fn take(&mut self, now: Timestamp, tokens: u64) -> Result<(), HourlyLimit> {
        let minute = minute_of(now);
        let fits = |at: i64| self.used_in(at).saturating_add(tokens) <= self.limit;
        if tokens > 0 && !fits(minute) {
            // There is more room only when a bucket ceases to count. One that a clock which ran ahead has booked does so
            // in more than an hour from now, and whoever is told less tries in vain.
            let frees = self.buckets.iter().map(|&(booked, _)| booked.saturating_add(MINUTES));
            let first = frees.filter(|&at| at > minute && fits(at)).min();
            let wait =
                first.map(|at| SignedDuration::from_secs(at.saturating_sub(minute).saturating_mul(60)));
            return Err(HourlyLimit { limit: self.limit, retry_after: wait });
        }
        self.book(now, tokens);
        Ok(())
    }

    /// Books tokens whatever the limit: what was really used beyond what was taken.
    pub fn book(&mut self, now: Timestamp, tokens: u64) {
        let minute = minute_of(now);
        let bucket = self.bucket(minute);
        *bucket = if counts(bucket.0, minute) {
            // A clock that was set back must not resurrect or lose what was booked: the future counts as now.
            (bucket.0.max(minute), bucket.1.saturating_add(tokens))
        } else {
            (minute, tokens)
        };
    }

    /// Gives back tokens that were taken at `booked_at` and not used, never more than are booked there. Without effect
    /// when that minute counts no more.
    pub fn give_back(&mut self, now: Timestamp, booked_at: Timestamp, tokens: u64) {
        let (now, booked) = (minute_of(now), minute_of(booked_at));
        let bucket = self.bucket(booked);
        // After a clock was set back the booking stands under a later minute of the same bucket.
        if counts(booked, now) && bucket.0 >= booked {
            bucket.1 = bucket.1.saturating_sub(tokens);
        }
    }

    /// Tokens of the last hour.
    #[must_use]
    pub fn used(&self, now: Timestamp) -> u64 {
        self.used_in(minute_of(now))
    }

    /// Tokens that count in this minute.
    fn used_in(&self, minute: i64) -> u64 {
        let booked = self.buckets.iter().filter(|&&(at, _)| counts(at, minute));
        booked.fold(0_u64, |sum, &(_, tokens)| sum.saturating_add(tokens))
    }

    fn bucket(&mut self, minute: i64) -> &mut (i64, u64) {
        let index = usize::try_from(minute.rem_euclid(MINUTES)).unwrap_or_default();
        &mut self.buckets[index]
    }
}

/// The minute since the epoch in which a time lies: what tokens are booked by.
#[must_use]
pub fn minute_of(at: Timestamp) -> i64 {
    at.as_second().div_euclid(60)
}

/// Whether what was booked in the minute `at` still counts in the minute `now`.
fn counts(at: i64, now: i64) -> bool {
    at > now.saturating_sub(MINUTES)
}

/// All sessions together used what they may in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the limit of {limit} tokens an hour over all sessions is reached; {}", when(.retry_after.as_ref()))]
pub struct HourlyLimit {
    /// The limit.
    pub limit: u64,
    /// After how long there is room if nobody else takes it, in whole minutes; `None` when there never will be.
    pub retry_after: Option<SignedDuration>,
}

/// When to try again, for a person.
fn when(retry_after: Option<&SignedDuration>) -> String {
    match retry_after.map(SignedDuration::as_mins) {
        Some(1) => "try again in 1 minute".into(),
        Some(minutes) => format!("try again in {minutes} minutes"),
        None => "so many at once never fit, raise the limit".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60 + 5).unwrap()
    }

    #[test]
    fn the_window_slides() {
        let mut window = HourlyWindow::new(100);
        window.take(at(0), 60).unwrap();
        window.take(at(30), 40).unwrap();
        let full = window.take(at(59), 1).unwrap_err();
        assert_eq!(full.retry_after, Some(SignedDuration::from_mins(1)));
        window.take(at(60), 60).unwrap();
        assert_eq!(window.take(at(61), 101).unwrap_err().retry_after, None);
        let refused = window.take(at(10), 1).unwrap_err();
        let then = Some(SignedDuration::from_mins(80));
        assert_eq!(refused.retry_after, then, "a clock set back frees nothing, and it is not for ever");
        assert_eq!((window.used(at(60)), window.used(at(90)), window.used(at(120))), (100, 60, 0));
    }

    #[test]
    fn a_refusal_says_when_to_try_again() {
        let mut window = HourlyWindow::new(100);
        window.take(at(0), 99).unwrap();
        let mut refused = |minute, tokens| window.take(at(minute), tokens).unwrap_err().to_string();
        let reached = "the limit of 100 tokens an hour over all sessions is reached";
        assert_eq!(refused(59, 2), format!("{reached}; try again in 1 minute"));
        assert_eq!(refused(5, 2), format!("{reached}; try again in 55 minutes"));
        assert_eq!(refused(0, 101), format!("{reached}; so many at once never fit, raise the limit"));
    }

    #[test]
    fn what_a_clock_that_ran_ahead_has_booked_is_waited_for_in_full() {
        let mut window = HourlyWindow::from_minutes(100, [(600, 100), (3, 50)]);
        for (minute, tokens, wait) in [(5, 1, 655), (600, 1, 60), (659, 100, 1)] {
            let refused = window.take(at(minute), tokens).unwrap_err();
            assert_eq!(refused.retry_after, Some(SignedDuration::from_mins(wait)), "in minute {minute}");
        }
        window.take(at(660), 100).unwrap();
        let mut absurd = HourlyWindow::from_minutes(1, [(i64::MAX, 1), (i64::MIN, 1)]);
        absurd.take(at(0), 1).unwrap_err();
    }

    #[test]
    fn the_least_and_the_largest_limit() {
        let mut none = HourlyWindow::new(0);
        none.take(at(0), 0).unwrap();
        assert_eq!(none.take(at(0), 1).unwrap_err().retry_after, None);
        none.book(at(0), 5);
        assert_eq!(none.take(at(0), u64::MAX).unwrap_err().retry_after, None);
        none.take(at(0), 0).unwrap();
        let mut endless = HourlyWindow::new(u64::MAX);
        for minute in 0..3 {
            endless.take(at(minute), u64::MAX).unwrap();
        }
        assert_eq!(endless.used(at(2)), u64::MAX);
    }

    #[test]
    fn what_was_not_used_is_given_back_to_its_own_minute() {
        let mut window = HourlyWindow::new(100);
        window.take(at(0), 100).unwrap();
        window.give_back(at(5), at(0), 70);
        assert_eq!(window.used(at(5)), 30);
        window.give_back(at(5), at(1), 30);
        window.give_back(at(60), at(0), 30);
        assert_eq!(
            (window.used(at(5)), window.used(at(60))),
            (30, 0),
            "another minute, and one that is over"
        );
        window.give_back(at(5), at(0), u64::MAX);
        assert_eq!(window.used(at(5)), 0);
        window.take(at(60), 10).unwrap();
        window.give_back(at(60), at(0), 10);
        assert_eq!(window.used(at(60)), 10, "the bucket is another minute's by now");
    }

    #[test]
    fn a_booking_under_a_clock_that_was_set_back_is_given_back_too() {
        let mut window = HourlyWindow::new(100);
        window.take(at(60), 10).unwrap();
        window.take(at(0), 50).unwrap();
        assert_eq!(window.used(at(60)), 60, "the future counts as now");
        window.give_back(at(1), at(0), 50);
        assert_eq!(window.used(at(60)), 10);
    }

    #[test]
    fn a_restart_goes_on_from_the_minutes() {
        let minutes = [(59, 5), (0, 1_000), (60, 7), (60, 1), (i64::MIN, 3)];
        let mut window = HourlyWindow::from_minutes(20, minutes);
        assert_eq!((window.used(at(60)), window.used(at(119)), window.used(at(120))), (13, 8, 0));
        assert_eq!(window.take(at(60), 8).unwrap_err().retry_after, Some(SignedDuration::from_mins(59)));
        window.take(at(60), 7).unwrap();
    }

    proptest! {
        /// Against a plain list of bookings, with a clock that goes forward.
        #[test]
        fn the_window_is_the_sum_of_the_last_hour(
            limit in 0_u64..300, steps in prop::collection::vec((0_i64..40, 0_u64..100, 0_u64..100), 1..60)
        ) {
            let (mut window, mut minute) = (HourlyWindow::new(limit), 0);
            let mut booked: Vec<(i64, u64)> = Vec::new();
            for (ahead, tokens, unused) in steps {
                minute += ahead;
                let sum = |booked: &[(i64, u64)], minute| -> u64 {
                    booked.iter().filter(|(at, _)| *at > minute - 60).map(|(_, tokens)| tokens).sum()
                };
                let used = sum(&booked, minute);
                prop_assert_eq!(window.used(at(minute)), used);
                match window.take(at(minute), tokens) {
                    Ok(()) => {
                        prop_assert!(tokens == 0 || used + tokens <= limit);
                        let unused = unused.min(tokens);
                        booked.push((minute, tokens - unused));
                        window.give_back(at(minute), at(minute), unused);
                    }
                    Err(refused) => {
                        prop_assert!(used + tokens > limit);
                        match refused.retry_after {
                            None => prop_assert!(tokens > limit),
                            Some(wait) => {
                                let then = minute + wait.as_mins();
                                prop_assert!(sum(&booked, then) + tokens <= limit);
                                prop_assert!(sum(&booked, then - 1) + tokens > limit);
                            }
                        }
                    }
                }
                let restarted = HourlyWindow::from_minutes(limit, booked.iter().copied());
                prop_assert_eq!(restarted.used(at(minute)), window.used(at(minute)));
            }
        }
    }
}
