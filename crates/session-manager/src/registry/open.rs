//! Who may come in: admission of new sessions, return of suspended ones, and what happens when there is no room.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use session_core::SessionId;
use session_core::state::TerminationReason;
use thiserror::Error;

use super::slot::{Dormant, Origin, Owner, Phase, Slot};
use super::{Registry, Unusable, later};
use crate::eviction::{self, Candidate, Victim};
use crate::options::EvictionStrategy;

/// After this long whoever found every session with a run in flight may ask again: nobody knows when one ends.
pub(crate) const RETRY_WHEN_ALL_ARE_BUSY: SignedDuration = SignedDuration::from_secs(5);

/// What came of asking for a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It has its place: make the engine, then say `opened` or `failed`.
    Reserved,
    /// This session bears the key already.
    Existing(SessionId),
    /// There is room once this session has given way: see to that and ask again.
    After(Victim),
    /// A place is just becoming free: ask again when something has changed.
    Wait,
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
    /// Asks for a place for a new session. The id must be fresh.
    pub fn admit(&mut self, now: Timestamp, session: SessionId, owner: Owner) -> Result<Admission, Refused> {
        let owner = Arc::new(owner);
        if owner.key.is_some()
            && let Some(&existing) = self.keys.get(&owner)
        {
            return Ok(Admission::Existing(existing));
        }
        match self.room(now, &owner)? {
            Room::Free => {
                let phase = Phase::Opening { from: Origin::New, doomed: None };
                self.insert(session, Slot::new(owner, phase, now));
                Ok(Admission::Reserved)
            }
            Room::After(victim) => Ok(Admission::After(victim)),
            Room::Soon => Ok(Admission::Wait),
        }
    }

    /// A suspended session that is recorded elsewhere is known here from now on. What is known already stays as it is, and
    /// so does a key that another session bears here.
    pub fn track(
        &mut self,
        now: Timestamp,
        session: SessionId,
        owner: Owner,
        record: D,
        expires_at: Timestamp,
    ) -> bool {
        let mut owner = Arc::new(owner);
        if self.slots.contains_key(&session) {
            return false;
        }
        if self.keys.contains_key(&owner) {
            owner = Arc::new(Owner { key: None, principal: owner.principal.clone() });
        }
        let phase = Phase::Suspended(Dormant { record, since: now, expires_at });
        self.insert(session, Slot::new(owner, phase, now));
        true
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
            Phase::Opening { .. } | Phase::Closing { .. } => return Ok(Ok(Reopening::Wait)),
            Phase::Suspended(dormant) => dormant.record.clone(),
        };
        let owner = Arc::clone(&slot.owner);
        Ok(self.room(now, &owner).map(|room| match room {
            Room::Free => {
                self.change_phase(session, |phase| match phase {
                    Phase::Suspended(dormant) => {
                        Phase::Opening { from: Origin::Suspended(dormant), doomed: None }
                    }
                    Phase::Opening { .. }
                    | Phase::Live { .. }
                    | Phase::Flushing { .. }
                    | Phase::Closing { .. } => phase,
                });
                Reopening::Reserved(record)
            }
            Room::After(victim) => Reopening::After(victim),
            Room::Soon => Reopening::Wait,
        }))
    }

    /// The engine is there: the session is active. If somebody ended it meanwhile, the engine is to be let go of, and
    /// `closed` to be said.
    pub fn opened(&mut self, now: Timestamp, session: SessionId, handle: H) -> Result<(), TerminationReason> {
        let Some(slot) = self.slots.get_mut(&session) else { return Err(TerminationReason::Killed) };
        let Phase::Opening { doomed, .. } = &slot.phase else { return Err(TerminationReason::Killed) };
        if let Some(reason) = *doomed {
            slot.phase = Phase::Closing { handle, next: super::Next::Terminated(reason) };
            return Err(reason);
        }
        slot.phase = Phase::Live { handle, idle_since: None };
        slot.used(now);
        self.arm(session);
        Ok(())
    }

    /// The engine could not be made, or was let go of before the session opened: a new session is gone, a suspended one is
    /// suspended again for as long as it was to be, unless somebody ended it meanwhile: then that reason comes back.
    pub fn failed(&mut self, session: SessionId) -> Option<TerminationReason> {
        let slot = self.slots.get(&session)?;
        let Phase::Opening { doomed, .. } = &slot.phase else { return None };
        let doomed = *doomed;
        let slot = self.remove(session)?;
        if let (None, Phase::Opening { from: Origin::Suspended(dormant), .. }) = (doomed, slot.phase) {
            self.insert(
                session,
                Slot { phase: Phase::Suspended(dormant), in_flight: 0, armed: None, ..slot },
            );
        }
        doomed
    }

    fn room(&self, now: Timestamp, owner: &Owner) -> Result<Room, Refused> {
        let own_max = self.limits.active_per_principal_max;
        let own = own_max.filter(|&max| self.count(&owner.principal).active >= max);
        let Some(limit) = own.or((self.active() >= self.limits.active_max).then_some(self.limits.active_max))
        else {
            return Ok(Room::Free);
        };
        let own = own.is_some();
        let concerned = || {
            let resident =
                self.books.resident().filter_map(|session| Some((session, self.slots.get(&session)?)));
            resident.filter(|(_, slot)| !own || slot.owner.principal == owner.principal)
        };
        // With a limit of nothing no place that becomes free helps.
        let candidates = concerned().filter_map(candidate);
        if limit > 0
            && let Some(victim) = eviction::pick_victim(self.limits.eviction, &owner.principal, candidates)
        {
            return Ok(Room::After(victim));
        }
        let closing =
            |slot: &Slot<H, D>| matches!(slot.phase, Phase::Closing { .. } | Phase::Flushing { .. });
        if limit > 0 && concerned().any(|(_, slot)| closing(slot)) {
            return Ok(Room::Soon);
        }
        let retry_after = (limit > 0).then(|| self.retry_after(now, concerned().map(|(_, slot)| slot)));
        Err(Refused { limit, own, retry_after })
    }

    /// When the first of those that are in the way is suspended by itself, at the latest.
    fn retry_after<'r>(
        &self,
        now: Timestamp,
        concerned: impl Iterator<Item = &'r Slot<H, D>>,
    ) -> SignedDuration
    where
        H: 'r,
        D: 'r,
    {
        let leaves = |slot: &Slot<H, D>| {
            let Phase::Live { idle_since, .. } = &slot.phase else { return None };
            let idle_since = match idle_since {
                Some(since) => *since,
                None => later(slot.last_used, self.limits.idle_timeout?),
            };
            Some(later(idle_since, self.limits.grace()?)).filter(|_| slot.in_flight == 0)
        };
        // Without eviction, the wait is for time to pass; with it, for a run to end.
        let waits_for_time = self.limits.eviction == EvictionStrategy::RejectNew;
        let first = concerned.filter(|_| waits_for_time).filter_map(leaves).min();
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

fn candidate<H, D>((session, slot): (SessionId, &Slot<H, D>)) -> Option<Candidate<'_>> {
    match &slot.phase {
        Phase::Live { idle_since, .. } if slot.in_flight == 0 => Some(Candidate {
            session,
            principal: &slot.owner.principal,
            idle_since: *idle_since,
            last_used: slot.last_used,
            opened_at: slot.opened_at,
        }),
        Phase::Live { .. }
        | Phase::Opening { .. }
        | Phase::Flushing { .. }
        | Phase::Closing { .. }
        | Phase::Suspended(_) => None,
    }
}
