//! The revisions of the protocol, and what each wants of its transport.

use std::fmt;

/// A revision of the Model Context Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Revision {
    /// 2025-03-26: the first with this transport.
    V2025_03_26,
    /// 2025-06-18.
    V2025_06_18,
    /// 2025-11-25: the last with a handshake.
    V2025_11_25,
    /// 2026-07-28: every request stands for itself.
    V2026_07_28,
}

impl Revision {
    /// All, oldest first.
    pub const ALL: [Self; 4] = [Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The revision of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|revision| revision.name() == name)
    }

    /// A session begins with `initialize` and has an id.
    #[must_use]
    pub fn has_sessions(self) -> bool {
        self < Self::V2026_07_28
    }

    /// Several messages may come in one body.
    #[must_use]
    pub fn has_batches(self) -> bool {
        self == Self::V2025_03_26
    }

    /// A stream begins with an event that has an id and says nothing, so that it can be gone on with from its start.
    #[must_use]
    pub fn primes_streams(self) -> bool {
        self == Self::V2025_11_25
    }

    /// The revision as which a session goes on whose server answered the handshake with this one: servers that are older than
    /// the transport are spoken to as the first that has it, and what nobody knows yet as the last with a handshake.
    #[must_use]
    pub fn of_answer(name: &str) -> Self {
        match Self::named(name) {
            Some(revision) if revision.has_sessions() => revision,
            None if name <= OLDER => Self::V2025_03_26,
            Some(_) | None => Self::V2025_11_25,
        }
    }

    /// The revision of a request in a session, by its header: who sends none speaks 2025-03-26, or what the handshake came
    /// to, and one client never sends it.
    pub fn of_request(header: Option<&str>, negotiated: Self) -> Result<Self, UnknownRevision> {
        let Some(name) = header else { return Ok(negotiated) };
        // What an older server made of the handshake, its client says from then on.
        if name == OLDER && negotiated == Self::V2025_03_26 {
            return Ok(negotiated);
        }
        Self::named(name)
            .filter(|revision| revision.has_sessions())
            .ok_or_else(|| UnknownRevision(name.to_owned()))
    }
}

/// The revision before the first with this transport: its messages are the same.
const OLDER: &str = "2024-11-05";

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A revision that is not spoken here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MCP-Protocol-Version {0:?} is not spoken in a session: 2025-03-26, 2025-06-18 and 2025-11-25 are")]
pub struct UnknownRevision(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_sort_by_time() {
        for revision in Revision::ALL {
            assert_eq!(Revision::named(revision.name()), Some(revision));
        }
        assert!(Revision::ALL.is_sorted() && Revision::ALL.map(Revision::name).is_sorted());
        assert_eq!(Revision::named("2024-11-05"), None);
    }

    #[test]
    fn a_request_without_a_header_speaks_what_was_agreed_on() {
        let agreed = Revision::V2025_06_18;
        assert_eq!(Revision::of_request(None, agreed), Ok(agreed));
        assert_eq!(Revision::of_request(Some("2025-11-25"), agreed), Ok(Revision::V2025_11_25));
        for name in ["", "1", "2026-07-28", "2024-11-05", " 2025-06-18"] {
            assert_eq!(
                Revision::of_request(Some(name), agreed),
                Err(UnknownRevision(name.into())),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_server_that_is_older_than_the_transport_is_spoken_to_as_the_first_that_has_it() {
        for (answer, revision) in [
            ("2024-11-05", Revision::V2025_03_26),
            ("2024-10-07", Revision::V2025_03_26),
            ("2025-06-18", Revision::V2025_06_18),
            ("2026-07-28", Revision::V2025_11_25),
            ("2031-01-01", Revision::V2025_11_25),
        ] {
            assert_eq!(Revision::of_answer(answer), revision, "{answer}");
        }
        assert_eq!(
            Revision::of_request(Some("2024-11-05"), Revision::V2025_03_26),
            Ok(Revision::V2025_03_26)
        );
    }
}
