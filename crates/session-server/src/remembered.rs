//! What was looked up a moment ago, so that not every request of one client costs a look into the store: its token, and whose
//! the session is that it speaks of.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session_core::digest::Digest;
use session_core::error::StoreResult;
use session_core::names::Principal;
use session_core::token::TokenRecord;
use session_core::wake::Listener;
use session_core::{ManagedSession, SessionId};

/// How long a token is believed without another look. A revocation is known at once where it was made, and elsewhere as soon
/// as the word of it comes: this bounds what a lost word can do.
pub(crate) const BELIEVED: Duration = Duration::from_secs(1);
/// As many are remembered of each; with one more, all are forgotten.
const REMEMBERED_MAX: usize = 4_096;

/// Tokens and owners that were looked up lately.
pub(crate) struct Remembered {
    // Std mutexes: held for a look into a map, never across an await.
    tokens: Mutex<Tokens>,
    owners: Mutex<HashMap<SessionId, Principal>>,
}

struct Tokens {
    revocations: Listener,
    /// How often everything was forgotten.
    forgotten: u64,
    known: HashMap<Digest, (TokenRecord, Duration)>,
}

impl Tokens {
    fn forget_revoked(&mut self) {
        // Which of them, and what was issued with it, the word does not say.
        if self.revocations.changed() {
            self.known.clear();
            self.forgotten += 1;
        }
    }
}

impl Remembered {
    /// Remembers nothing yet; `revocations` tells when a token is revoked.
    pub(crate) fn new(revocations: Listener) -> Self {
        let tokens = Tokens { revocations, forgotten: 0, known: HashMap::new() };
        Self { tokens: Mutex::new(tokens), owners: Mutex::default() }
    }

    /// The token with this digest: what is remembered of it at this moment of the process's own clock, else what `read` finds.
    /// One that is not there is looked for each time.
    pub(crate) async fn token(
        &self,
        digest: Digest,
        at: Duration,
        read: impl Future<Output = StoreResult<Option<TokenRecord>>>,
    ) -> StoreResult<Option<TokenRecord>> {
        let forgotten = {
            let mut tokens = locked(&self.tokens);
            tokens.forget_revoked();
            if let Some((record, since)) = tokens.known.get(&digest)
                && at.saturating_sub(*since) < BELIEVED
            {
                return Ok(Some(record.clone()));
            }
            tokens.forgotten
        };
        let found = read.await?;
        let mut tokens = locked(&self.tokens);
        tokens.forget_revoked();
        if let Some(record) = &found
            && tokens.forgotten == forgotten
        {
            make_room(&mut tokens.known);
            tokens.known.insert(digest, (record.clone(), at));
        }
        Ok(found)
    }

    /// Whose the session is: that never changes. `None` where there is none.
    pub(crate) async fn owner(
        &self,
        session: SessionId,
        read: impl Future<Output = StoreResult<Option<ManagedSession>>>,
    ) -> StoreResult<Option<Principal>> {
        if let Some(owner) = locked(&self.owners).get(&session) {
            return Ok(Some(owner.clone()));
        }
        let Some(found) = read.await? else { return Ok(None) };
        let mut owners = locked(&self.owners);
        make_room(&mut owners);
        owners.insert(session, found.principal.clone());
        Ok(Some(found.principal))
    }
}

fn make_room<K, V>(map: &mut HashMap<K, V>) {
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing can be left half done by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembered").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use session_core::Env;
    use session_core::token::{NewToken, Subject, Verbs};
    use session_core::wake::{Topic, WakeHub};

    use super::*;

    struct World {
        hub: WakeHub,
        remembered: Remembered,
        record: TokenRecord,
        reads: Cell<usize>,
    }

    impl World {
        fn new() -> Self {
            let hub = WakeHub::default();
            let remembered = Remembered::new(hub.listen(Topic::Tokens));
            let new = NewToken {
                id: Env::system().token_id(),
                digest: Digest::of(b"a secret"),
                name: "laptop".parse().unwrap(),
                subject: Subject::Principal,
                principal: "alice".parse().unwrap(),
                verbs: Verbs::all(),
                expires_at: None,
                parent: None,
            };
            let record = new.issued(jiff::Timestamp::UNIX_EPOCH);
            Self { hub, remembered, record, reads: Cell::new(0) }
        }

        /// Looks for it at this many milliseconds; what the store has then is `there`, and `meanwhile` happens while it looks.
        async fn look(&self, at: u64, there: bool, meanwhile: impl FnOnce()) -> bool {
            let read = async {
                self.reads.set(self.reads.get() + 1);
                meanwhile();
                Ok(there.then(|| self.record.clone()))
            };
            let found = self.remembered.token(self.record.digest, Duration::from_millis(at), read).await;
            found.unwrap().is_some()
        }
    }

    #[tokio::test]
    async fn a_token_is_believed_for_a_while_and_no_longer() {
        let world = World::new();
        for (at, reads) in [(0, 1), (500, 1), (999, 1), (1_000, 2), (1_999, 2), (2_000, 3)] {
            assert!(world.look(at, true, || ()).await);
            assert_eq!(world.reads.get(), reads, "at {at} ms");
        }
    }

    #[tokio::test]
    async fn a_revocation_is_known_at_once_also_while_somebody_looks() {
        let world = World::new();
        assert!(world.look(0, true, || ()).await);
        world.hub.wake(Topic::Tokens);
        assert!(!world.look(1, false, || ()).await);
        // It is revoked just after it was read.
        assert!(world.look(2, true, || world.hub.wake(Topic::Tokens)).await);
        assert!(!world.look(3, false, || ()).await);
        assert_eq!(world.reads.get(), 4);
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_remembered() {
        let world = World::new();
        for at in 0..3 {
            assert!(!world.look(at, false, || ()).await);
        }
        assert_eq!(world.reads.get(), 3);
        assert!(
            world
                .remembered
                .token(world.record.digest, Duration::ZERO, async { Ok(None) })
                .await
                .unwrap()
                .is_none()
        );
    }
}
