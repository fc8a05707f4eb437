//! Signed tokens: what an executor shows that works on one claim of one run.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;

use super::{Verb, Verbs};
use crate::ids::{RunId, SessionId};
use crate::names::Principal;
use crate::run::{Epoch, Fence};

/// The token of one claim of one run. As text: `rmr_`, what it says, `.`, and the signature under that, both in base64url
/// without padding.
///
/// It admits little ([`RunToken::admits`]): to bind, to append, to renew, to finish and to ask for approvals under its own
/// run and epoch, to read its own session and that session's children, and to start children where it has the verb `run`.
/// It can be read by whoever holds it; it cannot be made or changed without the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunToken {
    /// The run's session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The claim.
    pub epoch: Epoch,
    /// Who owns the session.
    pub principal: Principal,
    /// What it is for beyond the reports of its run.
    pub verbs: Verbs,
    /// From when on it counts no more, in whole milliseconds.
    pub expires_at: Timestamp,
}

/// What a run's token is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAct {
    /// A report: bind, append, renew, finish, ask for an approval or withdraw it.
    Report(Fence),
    /// A child of this session is to be started.
    StartChild(SessionId),
    /// This session, which has this parent, is to be read.
    Read {
        /// The session.
        session: SessionId,
        /// Its parent.
        parent: Option<SessionId>,
    },
}

/// The key under which run tokens are signed. Of all that share a store it is the same.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey([u8; 32]);

impl SigningKey {
    /// The key of these bytes, which must be random: [`Env::secret`](crate::Env::secret).
    #[must_use]
    pub fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// Its bytes, for the store alone.
    #[must_use]
    pub fn reveal(&self) -> [u8; 32] {
        self.0
    }

    /// Bytes that nobody knows without the key, the same each time for the same parts.
    pub(crate) fn derived(&self, domain: &[u8], parts: &[&str]) -> [u8; 32] {
        let mac = self.under(domain);
        let with_length = |mac: Hmac<Sha256>, part: &&str| {
            mac.chain_update((part.len() as u64).to_be_bytes()).chain_update(part)
        };
        parts.iter().fold(mac, with_length).finalize().into_bytes().into()
    }

    fn mac(&self, payload: &str) -> Hmac<Sha256> {
        self.under(DOMAIN).chain_update(payload)
    }

    fn under(&self, domain: &[u8]) -> Hmac<Sha256> {
        // A shorter key is filled up with zeros by definition.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        Hmac::<Sha256>::new(&block.into()).chain_update(domain)
    }
}

/// Says nothing of what it is: it may come into a log.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

/// Why a text is no token of a run that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RunTokenError {
    /// It does not look like one.
    #[error("a token of a run is rmr_, what it says, a dot and its signature")]
    Malformed,
    /// Its signature is not ours.
    #[error("the token was not signed by this service")]
    Forged,
    /// It says what only another version of the program understands.
    #[error("the token is of version {0}, this program knows version {VERSION}")]
    Version(u32),
    /// Its time is over.
    #[error("the token ended at {0}")]
    Expired(Timestamp),
}

const PREFIX: &str = "rmr_";
const VERSION: u32 = 1;
/// So that nothing else that is signed with the key is ever taken for a token.
const DOMAIN: &[u8] = b"roomette run token\0";
/// Longer than any token is.
const TEXT_MAX: usize = 4_096;

/// What is signed.
#[derive(Serialize, Deserialize)]
struct Said {
    v: u32,
    ses: SessionId,
    run: RunId,
    epoch: u32,
    sub: Principal,
    verbs: String,
    exp_ms: i64,
}

impl RunToken {
    /// The token's text, signed.
    #[must_use]
    pub fn seal(&self, key: &SigningKey) -> String {
        let said = Said {
            v: VERSION,
            ses: self.session,
            run: self.run,
            epoch: self.epoch.0,
            sub: self.principal.clone(),
            verbs: self.verbs.to_string(),
            exp_ms: self.expires_at.as_millisecond(),
        };
        // Ids, names and numbers: there is nothing that JSON could not hold.
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&said).unwrap_or_default());
        let mac = URL_SAFE_NO_PAD.encode(key.mac(&payload).finalize().into_bytes());
        format!("{PREFIX}{payload}.{mac}")
    }

    /// What a text says, if it is signed with this key and its time is not over. Nothing of it is looked at before the
    /// signature, which is compared in a time that does not depend on it.
    pub fn open(text: &str, key: &SigningKey, now: Timestamp) -> Result<Self, RunTokenError> {
        let parts = text.strip_prefix(PREFIX).filter(|_| text.len() <= TEXT_MAX);
        let (payload, mac) = parts.and_then(|text| text.split_once('.')).ok_or(RunTokenError::Malformed)?;
        // There is one text for these bytes: another one with spare bits or padding is refused.
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| RunTokenError::Malformed)?;
        key.mac(payload).verify_slice(&mac).map_err(|_| RunTokenError::Forged)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| RunTokenError::Malformed)?;
        let Version { v } = serde_json::from_slice(&payload).map_err(|_| RunTokenError::Malformed)?;
        if v != VERSION {
            return Err(RunTokenError::Version(v));
        }
        let said: Said = serde_json::from_slice(&payload).map_err(|_| RunTokenError::Malformed)?;
        let expires_at = Timestamp::from_millisecond(said.exp_ms).map_err(|_| RunTokenError::Malformed)?;
        if now >= expires_at {
            return Err(RunTokenError::Expired(expires_at));
        }
        Ok(Self {
            session: said.ses,
            run: said.run,
            epoch: Epoch(said.epoch),
            principal: said.sub,
            verbs: said.verbs.parse().map_err(|_| RunTokenError::Malformed)?,
            expires_at,
        })
    }

    /// The claim that it speaks for.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence { run: self.run, epoch: self.epoch }
    }

    /// Whether it may be shown for this.
    #[must_use]
    pub fn admits(&self, act: RunAct) -> bool {
        match act {
            RunAct::Report(fence) => fence == self.fence(),
            RunAct::StartChild(parent) => parent == self.session && self.verbs.has(Verb::Run),
            RunAct::Read { session, parent } => session == self.session || parent == Some(self.session),
        }
    }
}

/// As much of what is signed as every version has.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::Id as _;

    const KEY: [u8; 32] = [7; 32];

    fn token() -> RunToken {
        RunToken {
            session: "ses_0123456789abcdef0123456789abcdef".parse().unwrap(),
            run: "run_00000000000070008000000000000001".parse().unwrap(),
            epoch: Epoch(3),
            principal: "alice \"é\"".parse().unwrap(),
            verbs: "read run".parse().unwrap(),
            expires_at: Timestamp::from_millisecond(1_000).unwrap(),
        }
    }

    fn open(text: &str) -> Result<RunToken, RunTokenError> {
        RunToken::open(text, &SigningKey::new(KEY), Timestamp::UNIX_EPOCH)
    }

    fn signed(payload: &str) -> String {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let mac = SigningKey::new(KEY).mac(&payload).finalize().into_bytes();
        format!("{PREFIX}{payload}.{}", URL_SAFE_NO_PAD.encode(mac))
    }

    /// Made with another implementation of HMAC.
    #[test]
    fn the_text_is_as_it_was_in_the_first_version() {
        let text = concat!(
            "rmr_eyJ2IjoxLCJzZXMiOiJzZXNfMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWYiLCJydW4iOiJydW5fMD",
            "AwMDAwMDAwMDAwNzAwMDgwMDAwMDAwMDAwMDAwMDEiLCJlcG9jaCI6Mywic3ViIjoiYWxpY2UgXCLDqVwiIiwidmVy",
            "YnMiOiJyZWFkIHJ1biIsImV4cF9tcyI6MTAwMH0.gsJZcigU9nd82B-TJ5pO5Z5vBywHw7UID6HkxPhbNEA",
        );
        assert_eq!(token().seal(&SigningKey::new(KEY)), text);
        assert_eq!(open(text), Ok(token()));
    }

    #[test]
    fn what_is_not_ours_is_refused_with_its_reason() {
        let text = token().seal(&SigningKey::new(KEY));
        let other = SigningKey::new([8; 32]);
        assert_eq!(RunToken::open(&text, &other, Timestamp::UNIX_EPOCH), Err(RunTokenError::Forged));
        let end = token().expires_at;
        let late = RunToken::open(&text, &SigningKey::new(KEY), end);
        assert_eq!(late, Err(RunTokenError::Expired(end)));
        assert_eq!(open(&signed(r#"{"v":2,"new":true}"#)), Err(RunTokenError::Version(2)));
        for malformed in ["{}", "nonsense", r#"{"v":1}"#] {
            assert_eq!(open(&signed(malformed)), Err(RunTokenError::Malformed), "{malformed}");
        }
        let long = format!("{text}{}", "A".repeat(TEXT_MAX));
        for malformed in ["", "rmr_", "rmr_.", &text[4..], &format!("{text}="), &format!("{text}.x"), &long] {
            let refused = open(malformed).unwrap_err();
            assert!(matches!(refused, RunTokenError::Malformed | RunTokenError::Forged), "{malformed}");
        }
        assert!(!format!("{:?}", SigningKey::new(KEY)).contains('7'));
    }

    #[test]
    fn it_admits_its_own_run_and_little_else() {
        let token = token();
        let other = SessionId::from_uuid(uuid::Uuid::from_u128(token.run.uuid().as_u128())).unwrap();
        let own = token.session;
        assert!(token.admits(RunAct::Report(token.fence())));
        assert!(!token.admits(RunAct::Report(Fence { epoch: Epoch(4), ..token.fence() })));
        assert!(token.admits(RunAct::StartChild(own)) && !token.admits(RunAct::StartChild(other)));
        let alone = RunToken { verbs: Verbs::NONE, ..token.clone() };
        assert!(!alone.admits(RunAct::StartChild(own)));
        for (session, parent, expected) in [(own, None, true), (other, Some(own), true), (other, None, false)]
        {
            assert_eq!(token.admits(RunAct::Read { session, parent }), expected);
        }
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_refused(place in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut bytes = token().seal(&SigningKey::new(KEY)).into_bytes();
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            // What is no text cannot come here.
            if let Ok(text) = String::from_utf8(bytes) {
                prop_assert!(open(&text).is_err(), "{text}");
            }
        }

        #[test]
        fn no_text_panics(text in "(rmr_)?[A-Za-z0-9_.-]{0,200}") {
            prop_assert!(open(&text).is_err());
        }

        #[test]
        fn a_token_survives_a_round_trip(
            ids in (1_u128.., 1_u128..), epoch: u32, principal in "[^\\p{C}\\p{Z}]{1,20}", bits: u8, end in 1_i64..1 << 45
        ) {
            let token = RunToken {
                session: SessionId::from_uuid(uuid::Uuid::from_u128(ids.0)).unwrap(),
                run: RunId::from_uuid(uuid::Uuid::from_u128(ids.1)).unwrap(),
                epoch: Epoch(epoch),
                principal: principal.parse().unwrap(),
                verbs: Verb::ALL.iter().copied().filter(|verb| bits & super::super::bit(*verb) != 0).collect(),
                expires_at: Timestamp::from_millisecond(end).unwrap(),
            };
            prop_assert_eq!(open(&token.seal(&SigningKey::new(KEY))), Ok(token));
        }
    }
}
