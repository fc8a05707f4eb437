//! The sessions of one process: which there are, what is going on with each, and what must happen next. Pure: no clock,
//! no lock, no I/O, nothing awaited.
//!
//! Whoever calls a method that begins something (`admit`, `reopen`, `begin_suspend`, `begin_evict`, `begin_terminate`,
//! `due`) acts on the answer outside the lock and reports back (`opened`, `failed`, `flushed`, `stays`, `closed`, `over`).
//! What is going on with a session is kept in one place, so each engine is let go of by exactly one caller, whoever races.
//!
//! ```text
//!            admit            opened                 due / begin_suspend       flushed             closed
//!   (none) ────────▶ Opening ────────▶ Live ◀──────────────────────▶ Flushing ─────────▶ Closing ────────▶ Suspended
//!            reopen     │ failed         │   used meanwhile, or                            ▲  │ over      due / │
//!   Suspended ──────────┘                │   the engine refused                            │  ▼  begin_terminate│
//!                                        └─────────── begin_terminate ─────────────────────┘ (none) ◀── Ending ◀┘
//! ```
//!
//! From Closing a session may go back to Live (`stays`) while its engine is still there: its record did not let it go. A
//! suspended one that ends is kept with its key until that is recorded (`over`), and is Ending till then.
//!
//! Deadlines are lazy: a use only stores its time. An entry that fires is checked against the slot and put back if the
//! session was used meanwhile, so a sweep costs what is due and a use costs next to nothing.

mod books;
mod due;
mod leave;
mod look;
mod open;
mod slot;
mod spread;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use session_core::names::{ExternalKey, Principal};
use session_core::{SessionId, SessionState};

pub use books::Count;
pub use due::Due;
pub use leave::{Closed, Evicting, Flushed, Suspending, Terminating};
pub use look::Part;
pub(crate) use open::RETRY_WHEN_ALL_ARE_BUSY;
pub use open::{Admission, Failed, Refused, Reopening, Tracked};
pub use slot::Owner;

use crate::options::Limits;
use books::Books;
use due::Deadlines;
use slot::{Phase, Slot};
use spread::Spread;

/// The sessions of one process. `H` is the live half of a session, handed to its users; `D` what is kept of it while it is
/// suspended.
#[derive(Debug)]
pub struct Registry<H, D> {
    limits: Limits,
    /// Boxed: the map is half empty at worst, and its empty places are small.
    slots: HashMap<SessionId, Box<Slot<H, D>>, Spread>,
    /// One session per owner and key, for as long as that session is here.
    keys: HashMap<Arc<Owner>, SessionId>,
    deadlines: Deadlines,
    /// How each slot counts. Kept, not computed: there may be a million slots.
    books: Books,
    /// Engines that were ever here: the number of the last.
    engines: u64,
}

/// A session as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The session.
    pub session: SessionId,
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// Its state.
    pub state: SessionState,
    /// When it was last used.
    pub last_used: Timestamp,
    /// Runs in flight.
    pub in_flight: u32,
}

/// Why a session cannot be used, suspended or ended right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// It is not here: it never was, or it is over.
    Unknown,
    /// It has no engine: resume it.
    Suspended,
    /// It is being opened, suspended or ended: ask again when something has changed.
    Moving,
}

/// What a use of a session changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Used {
    /// Nothing: it was active.
    Stayed,
    /// It was idle and is active.
    Woke,
}

/// A use that began.
#[derive(Debug, PartialEq, Eq)]
pub struct Begun<H> {
    /// What it changed.
    pub used: Used,
    /// The live half of the session.
    pub handle: H,
    /// Which engine is used: to be given to [`Registry::end_use`].
    pub generation: u64,
}

impl<H: Clone, D: Clone> Registry<H, D> {
    /// An empty registry.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: HashMap::default(),
            keys: HashMap::new(),
            deadlines: Deadlines::default(),
            books: Books::default(),
            engines: 0,
        }
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    // Looking.

    /// How many sessions there are, also suspended ones and those whose end is being recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// There is no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many sessions are suspended.
    #[must_use]
    pub fn suspended(&self) -> u64 {
        self.books.suspended()
    }

    /// How many sessions have an engine, or are about to have one.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.books.active()
    }

    /// How many sessions a principal has.
    #[must_use]
    pub fn count(&self, principal: &Principal) -> Count {
        self.books.count(principal)
    }

    /// The session that bears this key.
    #[must_use]
    pub fn by_key(&self, principal: &Principal, key: &ExternalKey) -> Option<SessionId> {
        let owner = Owner { principal: principal.clone(), key: Some(key.clone()) };
        self.keys.get(&owner).copied()
    }

    /// One session.
    #[must_use]
    pub fn get(&self, session: SessionId) -> Option<Entry> {
        self.slots.get(&session).map(|slot| entry(session, slot))
    }

    /// Every session, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.slots.iter().map(|(&session, slot)| entry(session, slot))
    }

    /// The live half of a session that can be used.
    #[must_use]
    pub fn handle(&self, session: SessionId) -> Option<H> {
        self.slots.get(&session)?.handle().cloned()
    }

    /// The live half of every session that has an engine, also of those that are being let go of.
    pub fn handles(&self) -> impl Iterator<Item = (SessionId, H)> {
        self.slots.iter().filter_map(|(&session, slot)| match &slot.phase {
            Phase::Live { handle, .. } | Phase::Flushing { handle, .. } | Phase::Closing { handle, .. } => {
                Some((session, handle.clone()))
            }
            Phase::Opening { .. } | Phase::Suspended(_) | Phase::Ending { .. } => None,
        })
    }

    // Using.

    /// The session was used: if it was idle it is active.
    pub fn touch(&mut self, now: Timestamp, session: SessionId) -> Result<Used, Unusable> {
        let slot = self.slots.get_mut(&session).ok_or(Unusable::Unknown)?;
        let used = slot.wake(now)?;
        // It may be idle again before the end of the grace that it was given.
        if used == Used::Woke {
            self.deadlines.arm(session, slot, &self.limits);
        }
        Ok(used)
    }

    /// A run begins in the session. Until [`end_use`](Self::end_use) it is neither idle nor suspended nor evicted.
    pub fn begin_use(&mut self, now: Timestamp, session: SessionId) -> Result<Begun<H>, Unusable> {
        let slot = self.slots.get_mut(&session).ok_or(Unusable::Unknown)?;
        let used = slot.wake(now)?;
        let handle = slot.handle().ok_or(Unusable::Moving)?.clone();
        slot.in_flight = slot.in_flight.saturating_add(1);
        Ok(Begun { used, handle, generation: slot.version.generation })
    }

    /// A run in the session ended, which used the engine of this generation. The idle time begins now, unless another run goes
    /// on. Nothing ends without a run, or when the session has another engine by now.
    pub fn end_use(&mut self, now: Timestamp, session: SessionId, generation: u64) {
        if let Some(slot) = self.slots.get_mut(&session)
            && slot.version.generation == generation
            && let Some(rest) = slot.in_flight.checked_sub(1)
        {
            slot.in_flight = rest;
            slot.used(now);
            self.deadlines.arm(session, slot, &self.limits);
        }
    }

    // Keeping the books: a slot, its count, its key and its deadline always go together.

    fn insert(&mut self, session: SessionId, mut slot: Slot<H, D>) {
        if let Some(standing) = slot.standing() {
            slot.order = self.books.enter(&slot.owner, session, standing);
        }
        if slot.owner.key.is_some() {
            self.keys.insert(Arc::clone(&slot.owner), session);
        }
        self.deadlines.arm(session, &mut slot, &self.limits);
        self.slots.insert(session, Box::new(slot));
    }

    fn remove(&mut self, session: SessionId) -> Option<Slot<H, D>> {
        let mut slot = *self.slots.remove(&session)?;
        self.deadlines.disarm(session, &mut slot);
        if let Some(standing) = slot.standing() {
            self.books.leave(&slot.owner.principal, slot.order, standing);
        }
        // Whoever has a key here bears it: nobody comes in under one that is taken.
        if slot.owner.key.is_some() {
            self.keys.remove(&slot.owner);
        }
        Some(slot)
    }

    /// Replaces what is going on with a session, where that changes how it counts. What it was is handed over.
    fn change_phase(&mut self, session: SessionId, change: impl FnOnce(Phase<H, D>) -> Phase<H, D>) {
        if let Some(slot) = self.remove(session) {
            self.insert(session, Slot { phase: change(slot.phase), ..slot });
        }
    }
}

fn entry<H, D>(session: SessionId, slot: &Slot<H, D>) -> Entry {
    Entry {
        session,
        owner: Arc::clone(&slot.owner),
        state: slot.state(),
        last_used: slot.last_used,
        in_flight: slot.in_flight,
    }
}

/// A time that lies so much later; beyond the calendar, the last one in it, which never comes.
fn later(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}
