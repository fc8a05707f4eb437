//! Ids: a type prefix, `_`, and a whole UUID as 32 hex digits (SPEC section 1).
//!
//! Ids are made by us from an [`IdSource`](crate::env::IdSource) and are never taken from a caller as a name
//! for something new. They are not secrets: an id alone authorises nothing.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// The text has another kind's prefix, or none where one is needed.
    #[error("expected {expected}_… (a {what}), got {found:?}")]
    WrongPrefix {
        /// The prefix that belongs here, without the underscore.
        expected: &'static str,
        /// What the id names, in words.
        what: &'static str,
        /// The beginning of what was given.
        found: String,
    },
    /// The part after the prefix is not 32 hex digits.
    #[error("a {what} is {prefix}_ and 32 hex digits, got {found:?}")]
    Malformed {
        /// The prefix of this kind.
        prefix: &'static str,
        /// What the id names, in words.
        what: &'static str,
        /// The beginning of what was given.
        found: String,
    },
    /// All bits are zero: that is "no id", never an id.
    #[error("the nil id names no {0}")]
    Nil(&'static str),
}

/// The beginning of a foreign text, short enough for an error message.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 48;
    if text.chars().count() <= LONGEST {
        return text.into();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}

/// What every id type has in common.
pub trait Id: Copy + Eq + fmt::Display + FromStr<Err = IdError> {
    /// The type prefix, without the underscore.
    const PREFIX: &'static str;
    /// What the id names, for messages.
    const WHAT: &'static str;

    /// The UUID inside.
    fn uuid(self) -> Uuid;
}

fn parse(text: &str, prefix: &'static str, what: &'static str) -> Result<Uuid, IdError> {
    let malformed = || IdError::Malformed { prefix, what, found: excerpt(text) };
    let uuid = if let Some((given, digits)) = text.split_once('_') {
        if given != prefix {
            return Err(IdError::WrongPrefix { expected: prefix, what, found: excerpt(text) });
        }
        if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        Uuid::try_parse(digits).map_err(|_| malformed())?
    } else {
        // A bare UUID is taken too: other programs print ours without the prefix.
        Uuid::try_parse(text).map_err(|_| malformed())?
    };
    if uuid.is_nil() {
        return Err(IdError::Nil(what));
    }
    Ok(uuid)
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// The id around this UUID; `None` for the nil UUID, which names nothing.
            #[must_use]
            pub fn from_uuid(uuid: Uuid) -> Option<Self> {
                (!uuid.is_nil()).then_some(Self(uuid))
            }
        }

        impl Id for $name {
            const PREFIX: &'static str = $prefix;
            const WHAT: &'static str = $what;

            fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse(text, $prefix, $what).map(Self)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id_type! {
    /// One session. Random (UUID v4), because it also serves where an id must not be guessable.
    SessionId, "ses", "session id"
}
id_type! {
    /// One run of a session. UUID v7: sorts by creation.
    RunId, "run", "run id"
}
id_type! {
    /// One runner, minted once per installation and kept on disk. UUID v7.
    RunnerId, "rnr", "runner id"
}
id_type! {
    /// One crew: runs that were submitted together. UUID v7.
    CrewId, "crw", "crew id"
}
id_type! {
    /// One approval: an agent's question whether it may do something. UUID v7: sorts by when it was asked.
    ApprovalId, "apr", "approval id"
}
id_type! {
    /// One attempt of a runner to claim a run, by which a repeated one is known. Random (UUID v4).
    ClaimId, "clm", "claim id"
}
id_type! {
    /// One token, which is not its secret. UUID v7: sorts by when it was issued.
    TokenId, "tok", "token id"
}

/// How a person names a session: a whole id, the beginning of one, or a label (SPEC section 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionRef {
    /// A whole id.
    Id(SessionId),
    /// The first hex digits of an id, lower case, and the text as given where that may also be a label.
    Prefix {
        /// At least [`SessionRef::SHORTEST_PREFIX`] lower-case hex digits.
        digits: String,
        /// The same text as a label; `None` when it was written with the `ses_` prefix.
        label: Option<String>,
    },
    /// A label.
    Label(String),
}

/// Why a text cannot name a session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionRefError {
    /// It says what kind of id it is, and is not a well-formed one.
    #[error(transparent)]
    Id(#[from] IdError),
    /// Fewer digits than [`SessionRef::SHORTEST_PREFIX`].
    #[error("{0:?} is too short: give at least {min} hex digits of the session id", min = SessionRef::SHORTEST_PREFIX)]
    TooShort(String),
    /// A path, a control character, or nothing at all.
    #[error("{0:?} is neither a session id, nor the beginning of one, nor a label")]
    NotAName(String),
}

impl SessionRef {
    /// The fewest digits that are taken as the beginning of an id.
    pub const SHORTEST_PREFIX: usize = 4;
}

impl FromStr for SessionRef {
    type Err = SessionRefError;

    fn from_str(text: &str) -> Result<Self, SessionRefError> {
        let hex = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_hexdigit());
        if text.trim().is_empty() || text.contains("..") || text.chars().any(char::is_control) {
            return Err(SessionRefError::NotAName(excerpt(text)));
        }
        if let Some(digits) = text.strip_prefix("ses_") {
            return match digits.len() {
                _ if !hex(digits) => Err(SessionId::from_str(text)
                    .map_or_else(SessionRefError::from, |_| SessionRefError::NotAName(excerpt(text)))),
                n if n < Self::SHORTEST_PREFIX => Err(SessionRefError::TooShort(excerpt(text))),
                n if n < 32 => Ok(Self::Prefix { digits: digits.to_ascii_lowercase(), label: None }),
                _ => Ok(Self::Id(text.parse()?)),
            };
        }
        for other in [
            RunId::PREFIX,
            RunnerId::PREFIX,
            CrewId::PREFIX,
            ApprovalId::PREFIX,
            ClaimId::PREFIX,
            TokenId::PREFIX,
        ] {
            if text.strip_prefix(other).is_some_and(|rest| rest.starts_with('_')) {
                return Err(text
                    .parse::<SessionId>()
                    .map_or_else(SessionRefError::from, |_| SessionRefError::NotAName(excerpt(text))));
            }
        }
        if Uuid::try_parse(text).is_ok() {
            return Ok(Self::Id(text.parse()?));
        }
        if hex(text) && (Self::SHORTEST_PREFIX..32).contains(&text.len()) {
            return Ok(Self::Prefix { digits: text.to_ascii_lowercase(), label: Some(text.into()) });
        }
        Ok(Self::Label(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn ids_survive_a_round_trip_and_take_bare_uuids() {
        let id: SessionId = format!("ses_{HEX}").parse().unwrap();
        assert_eq!(id.to_string(), format!("ses_{HEX}"));
        assert_eq!(id.uuid().to_string().parse::<SessionId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<SessionId>(&json).unwrap(), id);
    }

    #[test]
    fn what_is_not_an_id_says_why() {
        let cases = [
            (format!("run_{HEX}"), "expected ses_… (a session id)"),
            ("ses_0123".into(), "ses_ and 32 hex digits"),
            (format!("ses_{}", HEX.replace('f', "g")), "ses_ and 32 hex digits"),
            ("../../etc/passwd".into(), "ses_ and 32 hex digits"),
            (format!("ses_{}", "0".repeat(32)), "nil id"),
            (format!("ses_{HEX}00"), "ses_ and 32 hex digits"),
            (String::new(), "ses_ and 32 hex digits"),
        ];
        for (text, reason) in cases {
            let error = text.parse::<SessionId>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[test]
    fn references_are_ids_prefixes_or_labels() {
        let check = |text: &str, expect: Result<SessionRef, &str>| match (text.parse::<SessionRef>(), expect)
        {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{text:?}"),
            (Err(got), Err(want)) => {
                assert!(got.to_string().contains(want), "{text:?}: {got}");
            }
            (got, want) => panic!("{text:?}: {got:?}, expected {want:?}"),
        };
        let prefix = |digits: &str, label: Option<&str>| {
            Ok(SessionRef::Prefix { digits: digits.into(), label: label.map(Into::into) })
        };
        check(&format!("ses_{HEX}"), Ok(SessionRef::Id(HEX.parse().unwrap())));
        check("ses_01AB", prefix("01ab", None));
        check("beef", prefix("beef", Some("beef")));
        check("nightly build", Ok(SessionRef::Label("nightly build".into())));
        check("abc", Ok(SessionRef::Label("abc".into())));
        check("ses_01", Err("too short"));
        check("ses_xyzw", Err("32 hex digits"));
        check(&format!("run_{HEX}"), Err("expected ses_"));
        check("../secrets", Err("neither"));
        check("", Err("neither"));
        check("a\nb", Err("neither"));
    }
}
