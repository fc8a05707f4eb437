//! Who has how many sessions: one entry for each slot that counts, so that neither admission nor eviction looks at sessions that are
//! not concerned.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use session_core::SessionId;
use session_core::names::Principal;

use super::Owner;

/// Whose session, and which of theirs came first.
type Place = (u64, u64);

/// Which sessions take a place, and which are suspended, each principal's together and in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Books {
    of: HashMap<Principal, Of>,
    active: BTreeMap<Place, SessionId>,
    suspended: BTreeMap<Place, SessionId>,
    /// Numbers given out, to principals and to entries: none is given out twice.
    numbered: u64,
}

#[derive(Debug)]
struct Of {
    number: u64,
    count: Count,
    /// The owner of all their sessions without a key.
    keyless: Arc<Owner>,
}

/// How many sessions a principal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// With an engine, or about to have one.
    pub active: u64,
    /// Suspended.
    pub suspended: u64,
}

/// How a session counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It takes one of the active places.
    Active,
    /// It is suspended.
    Suspended,
}

impl Books {
    /// The owner, as it is kept: one for all sessions without a key that a principal has.
    pub(super) fn owner(&self, owner: Owner) -> Arc<Owner> {
        match self.of.get(&owner.principal) {
            Some(of) if owner.key.is_none() => Arc::clone(&of.keyless),
            Some(_) | None => Arc::new(owner),
        }
    }

    /// Enters a session, behind all others of its principal. What comes back is needed to have it leave.
    pub(super) fn enter(&mut self, owner: &Arc<Owner>, session: SessionId, standing: Standing) -> u64 {
        self.numbered += 1;
        let order = self.numbered;
        // Most principals are here already: their names are not copied again.
        if let Some(of) = self.of.get_mut(&owner.principal) {
            *of.count.of(standing) += 1;
            let number = of.number;
            self.places(standing).insert((number, order), session);
            return order;
        }
        let principal = owner.principal.clone();
        let keyless = match &owner.key {
            None => Arc::clone(owner),
            Some(_) => Arc::new(Owner { principal: principal.clone(), key: None }),
        };
        let mut count = Count::default();
        *count.of(standing) += 1;
        self.of.insert(principal, Of { number: order, count, keyless });
        self.places(standing).insert((order, order), session);
        order
    }

    pub(super) fn leave(&mut self, principal: &Principal, order: u64, standing: Standing) {
        let Some(of) = self.of.get_mut(principal) else { return };
        let number = of.number;
        let count = of.count.of(standing);
        *count = count.saturating_sub(1);
        if of.count == Count::default() {
            self.of.remove(principal);
        }
        self.places(standing).remove(&(number, order));
    }

    /// The sessions that take a place: a principal's, or everybody's.
    pub(super) fn resident(&self, of: Option<&Principal>) -> impl Iterator<Item = SessionId> {
        let (from, to) = match of {
            // Who is not here has none: no number is 0.
            Some(principal) => {
                let number = self.of.get(principal).map_or(0, |of| of.number);
                (number, number)
            }
            None => (0, u64::MAX),
        };
        self.active.range((from, 0)..=(to, u64::MAX)).map(|(_, &session)| session)
    }

    pub(super) fn active(&self) -> u64 {
        u64::try_from(self.active.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn suspended(&self) -> u64 {
        u64::try_from(self.suspended.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn count(&self, principal: &Principal) -> Count {
        self.of.get(principal).map_or_else(Count::default, |of| of.count)
    }

    /// The principal's suspended session that came first.
    pub(super) fn first_suspended(&self, principal: &Principal) -> Option<SessionId> {
        let number = self.of.get(principal)?.number;
        self.suspended.range((number, 0)..=(number, u64::MAX)).next().map(|(_, &session)| session)
    }

    fn places(&mut self, standing: Standing) -> &mut BTreeMap<Place, SessionId> {
        match standing {
            Standing::Active => &mut self.active,
            Standing::Suspended => &mut self.suspended,
        }
    }

    /// How many principals have sessions, and how many sessions have entries.
    #[cfg(test)]
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.of.len(), self.active.len() + self.suspended.len())
    }
}

impl Count {
    fn of(&mut self, standing: Standing) -> &mut u64 {
        match standing {
            Standing::Active => &mut self.active,
            Standing::Suspended => &mut self.suspended,
        }
    }
}
