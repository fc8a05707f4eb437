//! What the outside world gives: the time and fresh ids. Both are arguments everywhere else.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::{Builder, Uuid};

use crate::digest::Digest;
use crate::ids::{ApprovalId, ClaimId, CrewId, RunId, RunnerId, SessionId, TokenId};

/// Where the current time comes from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current time, in whole milliseconds: that is what is stored and compared everywhere.
    fn now(&self) -> Timestamp;
    /// The time that has passed since a fixed moment: never goes back, and nobody can set it. What waits is measured
    /// by it, so that a wall clock that is stepped neither ends a session nor keeps it for ever.
    fn elapsed(&self) -> Duration;
}

/// Where random bits come from.
pub trait IdSource: Send + Sync + fmt::Debug {
    /// A random (v4) UUID.
    fn uuid_v4(&self) -> Uuid;
    /// A UUID that sorts by `now` (v7).
    fn uuid_v7(&self, now: Timestamp) -> Uuid;
}

/// The outside world as one cheap value.
#[derive(Clone, Debug)]
pub struct Env {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Fresh ids.
    pub ids: Arc<dyn IdSource>,
}

impl Env {
    /// The real clock and real randomness.
    #[must_use]
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), ids: Arc::new(RandomIds) }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The time since a fixed moment, by a clock that nobody can set.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// A fresh session id.
    #[must_use]
    pub fn session_id(&self) -> SessionId {
        fresh(|| self.ids.uuid_v4(), SessionId::from_uuid)
    }

    /// A fresh run id.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        fresh(|| self.ids.uuid_v7(self.now()), RunId::from_uuid)
    }

    /// A fresh runner id.
    #[must_use]
    pub fn runner_id(&self) -> RunnerId {
        fresh(|| self.ids.uuid_v7(self.now()), RunnerId::from_uuid)
    }

    /// A fresh crew id.
    #[must_use]
    pub fn crew_id(&self) -> CrewId {
        fresh(|| self.ids.uuid_v7(self.now()), CrewId::from_uuid)
    }

    /// A fresh approval id.
    #[must_use]
    pub fn approval_id(&self) -> ApprovalId {
        fresh(|| self.ids.uuid_v7(self.now()), ApprovalId::from_uuid)
    }

    /// A fresh claim id.
    #[must_use]
    pub fn claim_id(&self) -> ClaimId {
        fresh(|| self.ids.uuid_v4(), ClaimId::from_uuid)
    }

    /// A fresh token id.
    #[must_use]
    pub fn token_id(&self) -> TokenId {
        fresh(|| self.ids.uuid_v7(self.now()), TokenId::from_uuid)
    }

    /// 32 bytes that nobody can guess: for secrets and keys.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        // Three of them hold 366 random bits; the digest spreads them over 256.
        let drawn = [(); 3].map(|()| self.ids.uuid_v4().into_bytes());
        Digest::of(drawn.as_flattened()).to_bytes()
    }
}

/// Draws until the source gives something that is not nil.
fn fresh<T>(draw: impl Fn() -> Uuid, make: impl Fn(Uuid) -> Option<T>) -> T {
    loop {
        if let Some(id) = make(draw()) {
            return id;
        }
    }
}

/// Cuts a time to whole milliseconds, the unit in which times are stored.
#[must_use]
pub fn whole_milliseconds(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place where the time is read")]
    fn now(&self) -> Timestamp {
        whole_milliseconds(Timestamp::now())
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where the time is read")]
    fn elapsed(&self) -> Duration {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        FIRST.get_or_init(Instant::now).elapsed()
    }
}

/// The operating system's randomness.
#[derive(Debug, Clone, Copy)]
pub struct RandomIds;

impl IdSource for RandomIds {
    #[expect(clippy::disallowed_methods, reason = "the one place where randomness is drawn")]
    fn uuid_v4(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn uuid_v7(&self, now: Timestamp) -> Uuid {
        let [b0, b1, b2, b3, b4, b5, _, _, _, b9, b10, b11, b12, ..] = self.uuid_v4().into_bytes();
        // Only bytes that carry none of v4's fixed bits.
        let random = [b0, b1, b2, b3, b4, b5, b9, b10, b11, b12];
        let milliseconds = u64::try_from(now.as_millisecond()).unwrap_or_default();
        Builder::from_unix_timestamp_millis(milliseconds, &random).into_uuid()
    }
}
