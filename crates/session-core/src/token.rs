//! Tokens: what a caller shows to say who it is and what it may do.
//!
//! There are two kinds. **Opaque** ones (`rmt_…`, here) are given to people, services and runners: random, kept in the
//! store by their digest alone, listed and revoked there. **Signed** ones (`rmr_…`, [`RunToken`]) are given to
//! executors: they name one claim of one run, are stored nowhere, and count for as long as that claim does.

mod run;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use thiserror::Error;

pub use self::run::{RunAct, RunToken, RunTokenError, SigningKey};
use crate::digest::Digest;
use crate::ids::{RunnerId, TokenId};
use crate::names::{IdempotencyKey, Label, Principal};
use crate::state::{UnknownCode, code_enum};

code_enum! {
    /// One thing that a token is for. No verb implies another.
    Verb ("verb of a token") {
        /// See one's own sessions: every `GET` of sessions, runs, logs, results, approvals and children.
        Read = "read",
        /// Make work: `POST /v1/runs`, for new sessions, further runs and children.
        Run = "run",
        /// Change what is there: stop, suspend, terminate, fork, label, top up budgets.
        Control = "control",
        /// Answer the questions of agents: `POST /v1/approvals/{id}`.
        Approve = "approve",
        /// Be a runner: everything below `/v1/runners/{id}` of one's own, and the reports of the runs that it holds.
        Runner = "runner",
        /// Do it to everybody's: the sessions of all principals, tokens, the fleet of runners, the kill switch.
        Admin = "admin",
    }
}

/// A set of verbs. As text: their names with blanks between them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Verbs(u8);

impl Verbs {
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Every verb.
    #[must_use]
    pub fn all() -> Self {
        Verb::ALL.iter().copied().collect()
    }

    /// Whether this verb is among them.
    #[must_use]
    pub fn has(self, verb: Verb) -> bool {
        self.0 & bit(verb) != 0
    }

    /// Those that are not in the other set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the other set has all of them.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.without(other) == Self::NONE
    }

    /// One after the other, in the order of [`Verb::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.iter().copied().filter(move |verb| self.has(*verb))
    }
}

fn bit(verb: Verb) -> u8 {
    1 << verb as u8
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Self {
        Self(verbs.into_iter().fold(0, |bits, verb| bits | bit(verb)))
    }
}

impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, verb) in self.iter().enumerate() {
            write!(f, "{}{verb}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

impl FromStr for Verbs {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        text.split_whitespace().map(Verb::from_str).collect()
    }
}

/// The first bytes of what the token of a repeatable call is derived from.
const DERIVED: &[u8] = b"roomette token of a call\0";

/// The text of an opaque token: shown once, to whom it is given, and kept nowhere.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    const PREFIX: &'static str = "rmt_";

    /// The token of these bytes, which must be random: [`Env::secret`](crate::Env::secret).
    #[must_use]
    pub fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// The token that a call makes which its caller may repeat: the same for the same principal, the same token that it
    /// showed and the same name of the call, and for nobody else.
    #[must_use]
    pub fn of_call(
        key: &SigningKey,
        principal: &Principal,
        shown: Option<TokenId>,
        call: &IdempotencyKey,
    ) -> Self {
        let shown = shown.map(|id| id.to_string()).unwrap_or_default();
        Self(key.derived(DERIVED, &[principal.as_str(), &shown, call.as_str()]))
    }

    /// The token itself: `rmt_` and 64 hex digits.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{}{}", Self::PREFIX, Digest::from_bytes(self.0))
    }

    /// What the store knows of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(self.reveal())
    }
}

/// Says nothing of what it is: it may come into a log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A text is no opaque token. It is not repeated: it may be one that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a token is rmt_ and 64 hex digits")]
pub struct SecretError;

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let digits = text.strip_prefix(Self::PREFIX).ok_or(SecretError)?;
        digits.parse().map(|bytes: Digest| Self(bytes.to_bytes())).map_err(|_| SecretError)
    }
}

/// Whom a token speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A principal, as itself.
    Principal,
    /// One runner, which a principal lets in. It may claim runs of everybody.
    Runner(RunnerId),
}

/// An opaque token, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its id, which is no secret.
    pub id: TokenId,
    /// The digest of its text.
    pub digest: Digest,
    /// What people call it.
    pub name: Label,
    /// Whom it speaks for.
    pub subject: Subject,
    /// Whose token it is.
    pub principal: Principal,
    /// What it is for.
    pub verbs: Verbs,
    /// When it was issued.
    pub created_at: Timestamp,
    /// From when on it counts no more; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// Since when it is revoked.
    pub revoked_at: Option<Timestamp>,
    /// The token with which it was issued.
    pub parent: Option<TokenId>,
}

impl TokenRecord {
    /// Whether it counts at this time.
    #[must_use]
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// An opaque token before the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// A fresh id.
    pub id: TokenId,
    /// The digest of its text: [`Secret::digest`].
    pub digest: Digest,
    /// What people call it.
    pub name: Label,
    /// Whom it speaks for.
    pub subject: Subject,
    /// Whose token it is.
    pub principal: Principal,
    /// What it is for.
    pub verbs: Verbs,
    /// From when on it counts no more; `None` for never, or for as long as its parent.
    pub expires_at: Option<Timestamp>,
    /// The token with which it is issued.
    pub parent: Option<TokenId>,
}

impl NewToken {
    /// As it is in the store from now on.
    #[must_use]
    pub fn issued(self, now: Timestamp) -> TokenRecord {
        let Self { id, digest, name, subject, principal, verbs, expires_at, parent } = self;
        let (created_at, revoked_at) = (now, None);
        TokenRecord {
            id,
            digest,
            name,
            subject,
            principal,
            verbs,
            created_at,
            expires_at,
            revoked_at,
            parent,
        }
    }
}

/// Whom a token that was shown speaks for, once it is known to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bearer {
    /// A principal, as itself.
    Owner {
        /// Who.
        principal: Principal,
        /// What for.
        verbs: Verbs,
    },
    /// What executes a run: as long as the claim is the run's current one and the run is not over.
    Run(RunToken),
}

impl Bearer {
    /// Whose sessions it is about.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        match self {
            Self::Owner { principal, .. } => principal,
            Self::Run(token) => &token.principal,
        }
    }
}

/// What of a new token is more than the token has with which it is issued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Stronger {
    /// Verbs that the parent has not.
    #[error("it would be for `{0}`, and the token with which it is issued is not")]
    Verbs(Verbs),
    /// It would count for longer.
    #[error("it would count until {wanted}, and the token with which it is issued ends at {end}")]
    Expiry {
        /// Until when it would count.
        wanted: Timestamp,
        /// When its parent ends.
        end: Timestamp,
    },
    /// It would be somebody else's.
    #[error("it would be a token of {0}: only one with the verb `admin` issues tokens for others")]
    Principal(Principal),
    /// It would speak for somebody else than the one runner.
    #[error("a runner's token issues only tokens of the same runner")]
    Subject,
}

/// The token that `parent` may issue where `wanted` is asked for: never a stronger one. Without an end of its own it ends
/// with its parent.
pub fn weaken(parent: &TokenRecord, wanted: NewToken) -> Result<NewToken, Stronger> {
    let more = wanted.verbs.without(parent.verbs);
    if more != Verbs::NONE {
        return Err(Stronger::Verbs(more));
    }
    if wanted.principal != parent.principal && !parent.verbs.has(Verb::Admin) {
        return Err(Stronger::Principal(wanted.principal));
    }
    let same = wanted.subject == parent.subject;
    // To be a runner is a verb of its own, which was compared.
    let lets_in = parent.subject == Subject::Principal && parent.verbs.has(Verb::Runner);
    if !same && !lets_in {
        return Err(Stronger::Subject);
    }
    match (wanted.expires_at, parent.expires_at) {
        (Some(wanted), Some(end)) if wanted > end => Err(Stronger::Expiry { wanted, end }),
        (given, end) => Ok(NewToken { expires_at: given.or(end), parent: Some(parent.id), ..wanted }),
    }
}

#[cfg(test)]
mod tests;
