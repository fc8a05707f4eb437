//! The reference implementation of every port: plain data behind one mutex.
//!
//! It prefers being obviously right to being fast: every change is made on a copy of everything, which takes the
//! original's place when it succeeded.

mod allotments;
mod approvals;
mod draft;
mod events;
mod families;
mod idempotency;
mod keys;
mod ledger;
mod runners;
mod runs;
mod sessions;
mod sweep;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use self::draft::Draft;
use self::families::Owed;
use self::idempotency::Remembered;
use self::runners::Known;
use crate::approval::Approval;
use crate::budget::Allotment;
use crate::error::StoreResult;
use crate::event::{Event, Origin, Seq};
use crate::identity::IdentityKey;
use crate::ids::{ApprovalId, ClaimId, CrewId, RunId, RunnerId, SessionId, TokenId};
use crate::ports::Wakes;
use crate::run::Run;
use crate::session::ManagedSession;
use crate::token::{SigningKey, TokenRecord};
use crate::wake::{Listener, Topic, WakeHub};

/// A store that forgets everything when the program ends. Clones share one content.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    // A std mutex: nothing is awaited while it is held.
    data: Arc<Mutex<Data>>,
    hub: WakeHub,
}

/// What a database would hold.
#[derive(Debug, Clone, Default)]
struct Data {
    sessions: BTreeMap<SessionId, ManagedSession>,
    /// Which run bound each session.
    bound_by: BTreeMap<SessionId, RunId>,
    registrations: BTreeMap<IdentityKey, Registration>,
    /// In the order of enqueueing.
    runs: Vec<QueuedRun>,
    crews: BTreeMap<CrewId, Option<u32>>,
    /// In the order of their ends.
    callbacks: Vec<Owed>,
    /// The sessions that are left in peace until they are used again.
    held: BTreeSet<SessionId>,
    /// What sessions have for their children, by child.
    allotments: BTreeMap<SessionId, Allotment>,
    runners: BTreeMap<RunnerId, Known>,
    approvals: BTreeMap<ApprovalId, Approval>,
    /// Calls under a key, each key of a principal once.
    calls: Vec<Remembered>,
    tokens: BTreeMap<TokenId, TokenRecord>,
    signing_key: Option<SigningKey>,
    /// Shared with the copy, so that a change copies only the logs that it touches.
    logs: BTreeMap<SessionId, Arc<Log>>,
    /// The tokens of each minute since the epoch.
    minutes: BTreeMap<i64, u64>,
}

/// A run, the runs that it waits for, and under which name it was claimed.
#[derive(Debug, Clone)]
struct QueuedRun {
    run: Run,
    after: Vec<RunId>,
    claim: Option<ClaimId>,
}

/// What an identity leads to at the moment.
#[derive(Debug, Clone, Copy)]
struct Registration {
    session: SessionId,
    expires_at: Timestamp,
    stamped_at: Timestamp,
}

/// The log of one session.
#[derive(Debug, Clone, Default)]
struct Log {
    events: Vec<Event>,
    origins: BTreeMap<(String, u64), Seq>,
}

impl Log {
    fn push(&mut self, event: Event) -> Seq {
        let seq = event.seq;
        if let Some(Origin { producer, seq: number }) = &event.body.origin {
            self.origins.entry((producer.as_str().into(), *number)).or_insert(seq);
        }
        self.events.push(event);
        seq
    }

    fn by_origin(&self, origin: &Origin) -> Option<&Event> {
        let seq = self.origins.get(&(origin.producer.as_str().into(), origin.seq))?;
        self.events.iter().find(|event| event.seq == *seq)
    }

    fn last(&self) -> Seq {
        self.events.last().map_or(Seq::START, |event| event.seq)
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn read<T>(&self, look: impl FnOnce(&Data) -> T) -> T {
        look(&self.lock())
    }

    /// Makes a change, all of it or nothing, and wakes those who wait for it.
    fn write<T>(&self, change: impl FnOnce(&mut Draft) -> StoreResult<T>) -> StoreResult<T> {
        let mut data = self.lock();
        let mut draft = Draft::of(&data);
        let answer = change(&mut draft)?;
        let wakes = draft.commit(&mut data);
        drop(data);
        for topic in wakes {
            self.hub.wake(topic);
        }
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        // A change takes the original's place as a whole: a panic cannot leave it half done.
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wakes for MemoryStore {
    fn listen(&self, topic: Topic) -> Listener {
        self.hub.listen(topic)
    }
}
