//! What is expected of an attempt, and the tests that are made of it.

use super::room::{Guard, Room, Who, skipped};

/// What becomes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It fails.
    Held,
    /// It succeeds: at `off` as it should, elsewhere as a gap that the report names.
    Leaks,
    /// It succeeds for root alone.
    LeaksForRoot,
    /// It succeeds for an ordinary user alone.
    LeaksForUser,
    /// It depends on the machine, or would do harm.
    Unjudged,
}

/// Makes the attempt for every user there is. `attempt` returns whether it got out.
pub(crate) fn check(guard: Guard, expected: Expected, attempt: impl Fn(&Room) -> bool) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let should = match expected {
            Expected::Held => false,
            Expected::Leaks => true,
            Expected::LeaksForRoot => who == Who::Root,
            Expected::LeaksForUser => who == Who::User,
            Expected::Unjudged => continue,
        };
        let got_out = attempt(&Room::new(guard, who));
        assert_eq!(got_out, should, "{who:?} at {guard:?}: got out = {got_out}, expected = {should}");
    }
}

/// One module for each attempt, with a test for each level: `name: off, floor, full => attempt`.
macro_rules! escapes {
    ($($name:ident: $off:ident, $floor:ident, $full:ident => $attempt:ident;)*) => {$(
        mod $name {
            #[test]
            fn off() {
                crate::escape::check(crate::room::Guard::Off, crate::escape::Expected::$off, super::$attempt);
            }

            #[test]
            fn floor() {
                crate::escape::check(crate::room::Guard::Floor, crate::escape::Expected::$floor, super::$attempt);
            }

            #[test]
            fn full() {
                crate::escape::check(crate::room::Guard::Full, crate::escape::Expected::$full, super::$attempt);
            }
        }
    )*};
}

pub(crate) use escapes;
