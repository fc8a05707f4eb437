//! How it is found out whether an attempt got out.

use super::attempts::Attempt;
use super::inside::Did;
use super::outside::{Place, SECRET};
use crate::gap::Gap;
use crate::trial::Outcome;

/// What an attempt is judged by.
#[derive(Clone, Copy)]
pub(super) enum Judge {
    /// What the kernel told inside: there is no other trace.
    Told,
    /// Whether it got what nobody inside may read.
    Secret,
    /// Whether it got this word.
    Says(&'static str),
    /// Whether the file outside with the attempt's name has other content.
    Changed,
    /// Whether the file outside with the attempt's name is there.
    Made,
    /// Whether it is no longer there.
    Removed,
    /// Whether the listener of this number heard of it.
    Tcp(usize),
    /// Whether the victim of this number has ended.
    Ended(usize),
    /// Something else that it did outside.
    Seen(fn(&Place) -> bool),
    /// It listens on the port that it told, and the host tries to get there.
    Port,
    /// It should succeed, and this is seen of it.
    Works(fn(&Place) -> bool),
}

/// Whether a promise is kept, from what was told inside and what is seen outside. `open` are the gaps of the report.
pub(super) fn outcome(attempt: &Attempt, did: Option<&Did>, place: &Place, open: &[Gap]) -> Outcome {
    let got = match did {
        Some(Did::Done(text)) => Some(text.as_str()),
        Some(Did::Refused(_)) => None,
        Some(Did::Cannot(why)) => return Outcome::NotTried { why: why.clone() },
        None => return Outcome::NotTried { why: "the program inside had ended before".to_owned() },
    };
    let got_out = match attempt.judge {
        Judge::Told => got.is_some(),
        Judge::Secret => got.is_some_and(|text| text.contains(SECRET)),
        Judge::Says(word) => got.is_some_and(|text| text.contains(word)),
        Judge::Changed => place.is_other(attempt.name),
        Judge::Made => place.is_there(attempt.name),
        Judge::Removed => !place.is_there(attempt.name),
        Judge::Tcp(number) => place.hears_tcp(number),
        Judge::Ended(number) => place.has_ended(number, got.is_some()),
        Judge::Seen(seen) => seen(place),
        Judge::Port => got.and_then(|port| port.parse().ok()).is_some_and(|port| place.reaches(port)),
        Judge::Works(seen) => !seen(place),
    };
    match attempt.gap {
        _ if !got_out => Outcome::Held,
        Some(gap) if open.contains(&gap) => Outcome::Gap { gap },
        Some(_) | None => Outcome::GotOut,
    }
}
