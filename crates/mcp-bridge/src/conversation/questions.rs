//! Until when the questions may be answered that a server has asked. Which there are the router knows: what is answered or
//! withdrawn is not kept here for longer than until the next one.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// By our number.
#[derive(Debug, Default)]
pub(super) struct Questions(BTreeMap<u64, Instant>);

impl Questions {
    /// A question is asked.
    pub(super) fn ask(&mut self, number: u64, until: Instant, is_asked: impl Fn(u64) -> bool) {
        self.0.retain(|number, _| is_asked(*number));
        self.0.insert(number, until);
    }

    /// Those that nobody has answered in time; they are kept no more.
    pub(super) fn late(&mut self, now: Instant, is_asked: impl Fn(u64) -> bool) -> Vec<u64> {
        self.0.retain(|number, _| is_asked(*number));
        self.0.extract_if(.., |_, until| *until <= now).map(|(number, _)| number).collect()
    }

    /// When the first of them is late.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    /// Nobody asks any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_answered_is_kept_no_more_and_what_is_not_is_late_once() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        for number in 0..1_000 {
            questions.ask(number, later, |asked| asked >= number);
        }
        assert_eq!(questions.0.len(), 1);
        questions.ask(1_000, later, |_| true);
        assert_eq!(questions.next(), Some(later));
        assert_eq!(questions.late(now, |_| true), [] as [u64; 0]);
        assert_eq!(questions.late(later, |number| number == 1_000), [1_000]);
        assert_eq!(questions.next(), None);
    }
}
