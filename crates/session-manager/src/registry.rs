//! The sessions of one process: which there are, what is going on with each, and what must happen next. Pure: no clock,
//! no lock, no I/O, nothing awaited.
//!
//! Whoever calls a method that begins something (`admit`, `reopen`, `begin_suspend`, `begin_terminate`, `due`) acts on
//! the answer outside the lock and reports back (`opened`, `failed`, `flushed`, `closed`). What is going on with a session
//! is kept in one place, so each engine is let go of by exactly one caller, whoever races.
//!
//! ```text
//!            admit            opened                 due / begin_suspend       flushed             closed
//!   (none) ────────▶ Opening ────────▶ Live ◀──────────────────────▶ Flushing ─────────▶ Closing ────────▶ Suspended
//!            reopen     │ failed         │   used meanwhile, or                            ▲  │ closed          │
//!   Suspended ──────────┘                │   the engine refused                            │  ▼                 │
//!                                        └─────────── begin_terminate ─────────────────────┘ (none) ◀───────────┘
//! ```
//!
//! Deadlines are lazy: a use only stores its time. An entry that fires is checked against the slot and put back if the
//! session was used meanwhile, so a sweep costs what is due and a use costs next to nothing.

mod books;
mod due;
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
use session_core::state::TerminationReason;
use session_core::{SessionId, SessionState};

pub use books::Count;
pub use due::Due;
pub use look::Part;
pub(crate) use open::RETRY_WHEN_ALL_ARE_BUSY;
pub use open::{Admission, Refused, Reopening};
pub use slot::Owner;

use crate::eviction::{Fate, Victim};
use crate::options::Limits;
use books::Books;
use due::Deadlines;
use slot::{Dormant, Next, Phase, Slot};
use spread::Spread;

/// For so long an engine that refused to be suspended is left in peace, or for the idle timeout if that is shorter.
const PEACE_AFTER_REFUSAL: SignedDuration = SignedDuration::from_mins(1);

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

/// What an attempt to have a session give way came to.
#[derive(Debug)]
pub enum Evicting<H> {
    /// Have the engine write out what is still to be written, then say so with [`Registry::flushed`].
    Flush(H),
    /// Let go of the engine, then say so with [`Registry::closed`].
    Close(H),
    /// Nothing: it is not as it was when it was chosen. Ask for room again.
    Stays,
}

/// What an attempt to suspend came to.
#[derive(Debug)]
pub enum Suspending<H> {
    /// Have the engine write out what is still to be written, then say so with [`Registry::flushed`].
    Flush(H),
    /// It has a run in flight.
    InUse,
    /// It is suspended already.
    Already,
}

/// What is to be done once an engine has written everything out.
#[derive(Debug)]
pub enum Flushed<H> {
    /// Let go of the engine, then say so with [`Registry::closed`].
    Close(H),
    /// Nothing: its engine refused, or it was used meanwhile, and it goes on.
    Goes,
    /// Nothing: somebody ended it meanwhile, and lets go of the engine.
    Ended,
}

/// What is to be done to end a session.
#[derive(Debug)]
pub enum Terminating<H, D> {
    /// Let go of the engine, then say so with [`Registry::closed`].
    Close(H),
    /// It had none and is gone. What was kept of it.
    Gone(D),
    /// Whoever is at it ends it: wait until it is gone.
    Later,
}

/// What became of a session whose engine was let go of.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed<D> {
    /// It is suspended. `evicted` had to make room among its principal's suspended ones, and are gone.
    Suspended {
        /// Until when.
        expires_at: Timestamp,
        /// Who had to make room.
        evicted: Vec<(SessionId, D)>,
    },
    /// It is gone.
    Terminated(TerminationReason),
}

impl<H: Clone, D> Registry<H, D> {
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

    /// How many sessions there are, suspended ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// There is no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
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
            Phase::Opening { .. } | Phase::Suspended(_) => None,
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

    // Suspending and ending.

    /// The session is to give way, as it was chosen to: only if nothing has happened in it since.
    pub fn begin_evict(&mut self, victim: Victim) -> Evicting<H> {
        let Some(slot) = self.slots.get_mut(&victim.session) else { return Evicting::Stays };
        let Phase::Live { handle, idle_since } = &slot.phase else { return Evicting::Stays };
        if slot.in_flight > 0 || slot.version != victim.version {
            return Evicting::Stays;
        }
        let (handle, idle_since) = (handle.clone(), *idle_since);
        match victim.fate {
            Fate::Suspended => {
                slot.phase = Phase::Flushing { handle: handle.clone(), idle_since, uses: slot.version.uses };
                Evicting::Flush(handle)
            }
            Fate::Terminated => {
                let next = Next::Terminated(TerminationReason::Evicted);
                slot.phase = Phase::Closing { handle: handle.clone(), idle_since, next };
                self.deadlines.disarm(victim.session, slot);
                Evicting::Close(handle)
            }
        }
    }

    /// Somebody wants the session suspended now.
    pub fn begin_suspend(&mut self, session: SessionId) -> Result<Suspending<H>, Unusable> {
        let slot = self.slots.get_mut(&session).ok_or(Unusable::Unknown)?;
        match &slot.phase {
            Phase::Live { .. } if slot.in_flight > 0 => Ok(Suspending::InUse),
            Phase::Live { handle, idle_since } => {
                let (handle, idle_since) = (handle.clone(), *idle_since);
                slot.phase = Phase::Flushing { handle: handle.clone(), idle_since, uses: slot.version.uses };
                Ok(Suspending::Flush(handle))
            }
            Phase::Suspended(_) => Ok(Suspending::Already),
            Phase::Opening { .. } | Phase::Flushing { .. } | Phase::Closing { .. } => Err(Unusable::Moving),
        }
    }

    /// The engine has written everything out (`written`), or refused to. Unless the session was used or ended meanwhile,
    /// its engine is to be let go of now. If it refused, the session goes on as it was: for a minute, or the idle timeout
    /// if that is shorter, it is neither due to be suspended nor asked to give way.
    pub fn flushed(&mut self, now: Timestamp, session: SessionId, written: bool) -> Flushed<H> {
        let Some(slot) = self.slots.get_mut(&session) else { return Flushed::Ended };
        let Phase::Flushing { handle, idle_since, uses } = &slot.phase else { return Flushed::Ended };
        let (handle, idle_since) = (handle.clone(), *idle_since);
        if written && slot.in_flight == 0 && slot.version.uses == *uses {
            slot.phase = Phase::Closing { handle: handle.clone(), idle_since, next: Next::Suspended };
            self.deadlines.disarm(session, slot);
            return Flushed::Close(handle);
        }
        slot.phase = Phase::Live { handle, idle_since };
        if !written {
            slot.in_peace_until = later(now, peace(&self.limits));
        }
        self.deadlines.arm(session, slot, &self.limits);
        Flushed::Goes
    }

    /// A session that was to be suspended, and whose engine is not let go of yet, goes on as it was, because somebody waits to
    /// use it: unless somebody ended it meanwhile. Then that reason comes back, and its engine is to be let go of. When time
    /// had it suspended, it is left in peace for another idle timeout; else for a minute, or the idle timeout if that is
    /// shorter.
    pub fn stays(&mut self, now: Timestamp, session: SessionId, by_time: bool) -> Option<TerminationReason> {
        let slot = self.slots.get_mut(&session)?;
        let Phase::Closing { handle, idle_since, next } = &slot.phase else { return None };
        if let Next::Terminated(reason) = *next {
            return Some(reason);
        }
        slot.phase = Phase::Live { handle: handle.clone(), idle_since: *idle_since };
        let timeout = self.limits.idle_timeout.filter(|_| by_time);
        slot.in_peace_until = later(now, timeout.unwrap_or_else(|| peace(&self.limits)));
        self.deadlines.arm(session, slot, &self.limits);
        None
    }

    /// Somebody or something ends the session.
    pub fn begin_terminate(
        &mut self,
        session: SessionId,
        reason: TerminationReason,
    ) -> Result<Terminating<H, D>, Unusable> {
        let slot = self.slots.get_mut(&session).ok_or(Unusable::Unknown)?;
        match &mut slot.phase {
            Phase::Opening { doomed, .. } => {
                doomed.get_or_insert(reason);
                Ok(Terminating::Later)
            }
            Phase::Live { handle, idle_since } | Phase::Flushing { handle, idle_since, .. } => {
                let (handle, idle_since) = (handle.clone(), *idle_since);
                let next = Next::Terminated(reason);
                slot.phase = Phase::Closing { handle: handle.clone(), idle_since, next };
                self.deadlines.disarm(session, slot);
                Ok(Terminating::Close(handle))
            }
            Phase::Closing { next, .. } => {
                if *next == Next::Suspended {
                    *next = Next::Terminated(reason);
                }
                Ok(Terminating::Later)
            }
            Phase::Suspended(_) => {
                let dormant = self.remove(session).and_then(|slot| slot.phase.into_dormant());
                dormant.map(|dormant| Terminating::Gone(dormant.record)).ok_or(Unusable::Unknown)
            }
        }
    }

    /// Runs in flight in a session that is being let go of.
    #[must_use]
    pub fn in_flight(&self, session: SessionId) -> u32 {
        self.slots.get(&session).map_or(0, |slot| slot.in_flight)
    }

    /// The engine was let go of; `record` is what is kept of the session if it is suspended. `None` when that was not due.
    pub fn closed(&mut self, now: Timestamp, session: SessionId, record: D) -> Option<Closed<D>> {
        let slot = self.slots.get_mut(&session)?;
        let Phase::Closing { next, .. } = &slot.phase else { return None };
        match *next {
            Next::Terminated(reason) => {
                self.remove(session);
                Some(Closed::Terminated(reason))
            }
            Next::Suspended => {
                let expires_at = later(now, self.limits.suspended_ttl.unwrap_or(SignedDuration::MAX));
                let owner = Arc::clone(&slot.owner);
                self.change_phase(session, |_| Phase::Suspended(Dormant { record, since: now, expires_at }));
                let evicted = self.make_room_among_suspended(&owner.principal);
                Some(Closed::Suspended { expires_at, evicted })
            }
        }
    }

    /// Takes away those of the principal's suspended sessions that are too many: those that came first.
    fn make_room_among_suspended(&mut self, principal: &Principal) -> Vec<(SessionId, D)> {
        let mut evicted = Vec::new();
        let Some(max) = self.limits.suspended_per_principal_max else { return evicted };
        while self.count(principal).suspended > max
            && let Some(first) = self.books.first_suspended(principal)
            && let Some(dormant) = self.remove(first).and_then(|slot| slot.phase.into_dormant())
        {
            evicted.push((first, dormant.record));
        }
        evicted
    }

    // Keeping the books: a slot, its count, its key and its deadline always go together.

    fn insert(&mut self, session: SessionId, mut slot: Slot<H, D>) {
        slot.order = self.books.enter(&slot.owner, session, slot.standing());
        if slot.owner.key.is_some() {
            self.keys.insert(Arc::clone(&slot.owner), session);
        }
        self.deadlines.arm(session, &mut slot, &self.limits);
        self.slots.insert(session, Box::new(slot));
    }

    fn remove(&mut self, session: SessionId) -> Option<Slot<H, D>> {
        let mut slot = *self.slots.remove(&session)?;
        self.deadlines.disarm(session, &mut slot);
        self.books.leave(&slot.owner.principal, slot.order, slot.standing());
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

/// For how long an engine that refused is left in peace.
fn peace(limits: &Limits) -> SignedDuration {
    limits.idle_timeout.map_or(PEACE_AFTER_REFUSAL, |timeout| timeout.min(PEACE_AFTER_REFUSAL))
}

/// A time that lies so much later; beyond the calendar, the last one in it, which never comes.
fn later(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}
