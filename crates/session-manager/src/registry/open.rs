//! Who may come in: admission of new sessions, return of suspended ones, and what happens when there is no room.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use session_core::SessionId;
use session_core::names::Principal;
use session_core::state::TerminationReason;
use thiserror::Error;

use super::slot::{Dormant, Next, Owner, Phase, Slot};
use super::{Registry, Unusable, later};
use crate::eviction::{self, Candidate, Victim};
use crate::options::EvictionStrategy;

/// After this long whoever found every session with a run in flight may ask again: nobody knows when one ends.
pub(crate) const RETRY_WHEN_ALL_ARE_BUSY: SignedDuration = SignedDuration::from_secs(5);

/// For so long a session that was told of is not over, where there is no idle timeout.
const TIME_TO_RESUME: SignedDuration = SignedDuration::from_mins(1);

/// What came of asking for a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It has its place: make the engine, then say `opened` or `failed`.
    Reserved,
    /// This session bears the key already, or is the very one that was asked for.
    Existing(SessionId),
    /// There is room once this session has given way: see to that and ask again.
    After(Victim),
    /// A place is just becoming free: ask again when something has changed.
    Wait,
}

/// What came of telling of a session that is recorded elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub enum Tracked<D> {
    /// It is known as suspended from now on.
    New {
        /// Who had to make room among its principal's suspended ones: as for [`Closed::Suspended`](super::Closed).
        evicted: Vec<(SessionId, D)>,
    },
    /// It was known as suspended before. What is kept of it, to be brought up to date.
    Again(D),
    /// It is live or on its way somewhere, and stays as it is.
    Known,
}

/// What became of a session that did not open.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed<D> {
    /// Somebody ended it meanwhile. A new one is gone; of one that was to come back the end is to be recorded, and then
    /// [`Registry::over`] to be said.
    pub doomed: Option<TerminationReason>,
    /// Who had to make room among its principal's suspended ones: as for [`Closed::Suspended`](super::Closed).
    pub evicted: Vec<(SessionId, D)>,
}

/// What came of asking for a suspended session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reopening<D> {
    /// It has its place: make the engine from what was kept, then say `opened` or `failed`.
    Reserved(D),
    /// There is room once this session has given way: see to that and ask again.
    After(Victim),
    /// A place is just becoming free, or the session is on its way: ask again when something has changed.
    Wait,
    /// It has an engine.
    Live,
}

/// There is no room, and nobody who could give way.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} active sessions{} are allowed, and none of them can give way{}", limit, of_whom(*own), hint(*retry_after))]
pub struct Refused {
    /// How many are allowed.
    pub limit: u64,
    /// It is the principal's own limit, not that of all.
    pub own: bool,
    /// After how long there may be room; `None` when there never will be.
    pub retry_after: Option<SignedDuration>,
}

fn of_whom(own: bool) -> &'static str {
    if own { " of one principal" } else { "" }
}

fn hint(retry_after: Option<SignedDuration>) -> String {
    retry_after.map_or_else(String::new, |after| format!("; try again in {after:#}"))
}

impl<H: Clone, D: Clone> Registry<H, D> {
    /// Asks for a place for a new session. A session that is here already stays as it is.
    pub fn admit(&mut self, now: Timestamp, session: SessionId, owner: Owner) -> Result<Admission, Refused> {
        if self.slots.contains_key(&session) {
            return Ok(Admission::Existing(session));
        }
        if owner.key.is_some()
            && let Some(&existing) = self.keys.get(&owner)
        {
            return Ok(Admission::Existing(existing));
        }
        match self.room(now, &owner.principal)? {
            Room::Free => {
                let phase = Phase::Opening { from: None, doomed: None };
                self.insert(session, Slot::new(self.books.owner(owner), phase, now));
                Ok(Admission::Reserved)
            }
            Room::After(victim) => Ok(Admission::After(victim)),
            Room::Soon => Ok(Admission::Wait),
        }
    }

    /// A suspended session that is recorded elsewhere is known here from now on. Of one that is known as suspended already the
    /// time is replaced; a live one stays as it is, and so does a key that another session bears here. For the idle timeout
    /// (a minute, if there is none) it is not over, even if its time is: whoever told of it can resume it.
    ///
    /// It comes in however many there are; others have to make room for it.
    pub fn track(
        &mut self,
        now: Timestamp,
        session: SessionId,
        mut owner: Owner,
        record: D,
        expires_at: Timestamp,
    ) -> Tracked<D> {
        let not_before = later(now, self.limits.idle_timeout.unwrap_or(TIME_TO_RESUME));
        if let Some(slot) = self.slots.get_mut(&session) {
            let Phase::Suspended(dormant) = &mut slot.phase else { return Tracked::Known };
            (dormant.expires_at, dormant.not_before) = (expires_at, not_before);
            let record = dormant.record.clone();
            self.deadlines.arm(session, slot, &self.limits);
            return Tracked::Again(record);
        }
        if self.keys.contains_key(&owner) {
            owner.key = None;
        }
        let phase = Phase::Suspended(Dormant { record, since: now, expires_at, not_before });
        let owner = self.books.owner(owner);
        self.insert(session, Slot::new(Arc::clone(&owner), phase, now));
        Tracked::New { evicted: self.make_room_among_suspended(&owner.principal, Some(session)) }
    }

    /// Asks for a place for a suspended session.
    pub fn reopen(
        &mut self,
        now: Timestamp,
        session: SessionId,
    ) -> Result<Result<Reopening<D>, Refused>, Unusable> {
        let slot = self.slots.get(&session).ok_or(Unusable::Unknown)?;
        let record = match &slot.phase {
            Phase::Live { .. } | Phase::Flushing { .. } => return Ok(Ok(Reopening::Live)),
            Phase::Opening { .. } | Phase::Closing { .. } | Phase::Ending { .. } => {
                return Ok(Ok(Reopening::Wait));
            }
            Phase::Suspended(dormant) => dormant.record.clone(),
        };
        Ok(self.room(now, &slot.owner.principal).map(|room| match room {
            Room::Free => {
                self.change_phase(session, |phase| Phase::Opening {
                    from: phase.into_dormant(),
                    doomed: None,
                });
                Reopening::Reserved(record)
            }
            Room::After(victim) => Reopening::After(victim),
            Room::Soon => Reopening::Wait,
        }))
    }

    /// The engine is there: the session is active. If somebody ended it meanwhile, the engine is to be let go of, and
    /// `over` to be said.
    pub fn opened(&mut self, now: Timestamp, session: SessionId, handle: H) -> Result<(), TerminationReason> {
        let Some(slot) = self.slots.get_mut(&session) else { return Err(TerminationReason::Killed) };
        let Phase::Opening { doomed, .. } = &slot.phase else { return Err(TerminationReason::Killed) };
        if let Some(reason) = *doomed {
            slot.phase = Phase::Closing { handle, idle_since: None, next: Next::Terminated(reason) };
            return Err(reason);
        }
        slot.phase = Phase::Live { handle, idle_since: None };
        self.engines += 1;
        slot.version.generation = self.engines;
        slot.used(now);
        self.deadlines.arm(session, slot, &self.limits);
        Ok(())
    }

    /// The engine could not be made, or was let go of before the session opened: a new session is gone, a suspended one is
    /// suspended again for as long as it was to be, unless somebody ended it meanwhile.
    pub fn failed(&mut self, session: SessionId) -> Failed<D> {
        let mut failed = Failed { doomed: None, evicted: Vec::new() };
        let Some(slot) = self.slots.get(&session) else { return failed };
        let Phase::Opening { doomed, from } = &slot.phase else { return failed };
        failed.doomed = *doomed;
        if let (Some(reason), true) = (failed.doomed, from.is_some()) {
            self.begin_end(session, reason);
        } else if let Some(slot) = self.remove(session) {
            let owner = Arc::clone(&slot.owner);
            if let Some(dormant) = slot.phase.into_dormant() {
                self.insert(session, Slot { phase: Phase::Suspended(dormant), ..slot });
                failed.evicted = self.make_room_among_suspended(&owner.principal, None);
            }
        }
        failed
    }

    fn room(&self, now: Timestamp, principal: &Principal) -> Result<Room, Refused> {
        let own_max = self.limits.active_per_principal_max;
        let own = own_max.filter(|&max| self.count(principal).active >= max);
        let Some(limit) = own.or((self.active() >= self.limits.active_max).then_some(self.limits.active_max))
        else {
            return Ok(Room::Free);
        };
        let own = own.is_some();
        // With a limit of nothing no place that becomes free helps.
        if limit == 0 {
            return Err(Refused { limit, own, retry_after: None });
        }
        let in_the_way = || {
            let resident = self.books.resident(own.then_some(principal));
            resident.filter_map(|session| Some((session, &**self.slots.get(&session)?)))
        };
        let closing = || in_the_way().any(|(_, slot)| matches!(slot.phase, Phase::Closing { .. }));
        let flushing = || in_the_way().any(|(_, slot)| matches!(slot.phase, Phase::Flushing { .. }));
        let strategy = self.limits.eviction;
        // What is ended does not come back: none is, while a place becomes free without that.
        if strategy == EvictionStrategy::TerminateOldest && closing() {
            return Ok(Room::Soon);
        }
        let candidates = in_the_way().filter_map(|(session, slot)| candidate(now, session, slot));
        if let Some(victim) = eviction::pick_victim(strategy, principal, candidates) {
            return Ok(Room::After(victim));
        }
        if closing() || flushing() {
            return Ok(Room::Soon);
        }
        let retry_after = Some(self.retry_after(now, principal, in_the_way().map(|(_, slot)| slot)));
        Err(Refused { limit, own, retry_after })
    }

    /// A short while if one of those in the way gives way as soon as its run ends; else when the first of them is suspended
    /// by itself, at the latest.
    fn retry_after<'r>(
        &self,
        now: Timestamp,
        principal: &Principal,
        in_the_way: impl Iterator<Item = &'r Slot<H, D>>,
    ) -> SignedDuration
    where
        H: 'r,
        D: 'r,
    {
        let mut first: Option<Timestamp> = None;
        for slot in in_the_way {
            if eviction::may_give_way(self.limits.eviction, principal, &slot.owner.principal) {
                return RETRY_WHEN_ALL_ARE_BUSY;
            }
            first = first.into_iter().chain(slot.leaves_at(&self.limits)).min();
        }
        first.map_or(RETRY_WHEN_ALL_ARE_BUSY, |at| {
            at.duration_since(now).clamp(SignedDuration::from_millis(1), SignedDuration::from_hours(24))
        })
    }
}

enum Room {
    Free,
    After(Victim),
    Soon,
}

pub(super) fn candidate<H, D>(
    now: Timestamp,
    session: SessionId,
    slot: &Slot<H, D>,
) -> Option<Candidate<'_>> {
    match &slot.phase {
        Phase::Live { idle_since, .. } if slot.in_flight == 0 => Some(Candidate {
            session,
            principal: &slot.owner.principal,
            idle_since: *idle_since,
            last_used: slot.last_used,
            opened_at: slot.opened_at,
            refused: slot.in_peace_until > now,
            version: slot.version,
        }),
        Phase::Live { .. }
        | Phase::Opening { .. }
        | Phase::Flushing { .. }
        | Phase::Closing { .. }
        | Phase::Suspended(_)
        | Phase::Ending { .. } => None,
    }
}
