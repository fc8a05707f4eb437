//! Who has how many sessions: one entry for each slot, so that neither admission nor eviction looks at sessions that are
//! not concerned.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use session_core::SessionId;
use session_core::names::Principal;

/// Which sessions take a place, and whose are suspended since when.
#[derive(Debug, Default)]
pub(super) struct Books {
    resident: HashSet<SessionId>,
    of: HashMap<Principal, Of>,
}

#[derive(Debug, Default)]
struct Of {
    active: u64,
    suspended: BTreeSet<(Timestamp, SessionId)>,
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
    /// It is suspended since then.
    Suspended(Timestamp),
}

impl Books {
    pub(super) fn enter(&mut self, principal: &Principal, session: SessionId, standing: Standing) {
        // Most principals are here already: their names are not copied again.
        if !self.of.contains_key(principal) {
            self.of.insert(principal.clone(), Of::default());
        }
        let Some(of) = self.of.get_mut(principal) else { return };
        match standing {
            Standing::Active => {
                of.active += 1;
                self.resident.insert(session);
            }
            Standing::Suspended(since) => {
                of.suspended.insert((since, session));
            }
        }
    }

    pub(super) fn leave(&mut self, principal: &Principal, session: SessionId, standing: Standing) {
        let Some(of) = self.of.get_mut(principal) else { return };
        match standing {
            Standing::Active => {
                of.active = of.active.saturating_sub(1);
                self.resident.remove(&session);
            }
            Standing::Suspended(since) => {
                of.suspended.remove(&(since, session));
            }
        }
        if of.active == 0 && of.suspended.is_empty() {
            self.of.remove(principal);
        }
    }

    /// The sessions that take a place.
    pub(super) fn resident(&self) -> impl Iterator<Item = SessionId> {
        self.resident.iter().copied()
    }

    pub(super) fn active(&self) -> u64 {
        u64::try_from(self.resident.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn count(&self, principal: &Principal) -> Count {
        self.of.get(principal).map_or_else(Count::default, |of| Count {
            active: of.active,
            suspended: u64::try_from(of.suspended.len()).unwrap_or(u64::MAX),
        })
    }

    /// The principal's session that was suspended first.
    pub(super) fn first_suspended(&self, principal: &Principal) -> Option<SessionId> {
        self.of.get(principal)?.suspended.first().map(|&(_, session)| session)
    }

    /// How many principals have sessions.
    #[cfg(test)]
    pub(super) fn principals(&self) -> usize {
        self.of.len()
    }
}
