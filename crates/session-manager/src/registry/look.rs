//! What can be seen of sessions beside their state: what they are made of, whether they are to end, how much room they
//! leave.

use jiff::Timestamp;
use session_core::SessionId;
use session_core::state::TerminationReason;

use super::Registry;
use super::books::Standing;
use super::open::candidate;
use super::slot::Phase;
use crate::options::EvictionStrategy;

/// What a session is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'r, H, D> {
    /// It has an engine: its live half.
    Live(&'r H),
    /// It has none, or not yet one again: what is kept of it.
    Kept(&'r D),
}

impl<H: Clone, D: Clone> Registry<H, D> {
    /// What a session is made of; `None` for one that is not here, and for a new one whose engine is being made.
    #[must_use]
    pub fn part(&self, session: SessionId) -> Option<Part<'_, H, D>> {
        match &self.slots.get(&session)?.phase {
            Phase::Live { handle, .. } | Phase::Flushing { handle, .. } | Phase::Closing { handle, .. } => {
                Some(Part::Live(handle))
            }
            Phase::Opening { from: Some(dormant), .. } | Phase::Suspended(dormant) => {
                Some(Part::Kept(&dormant.record))
            }
            Phase::Ending { record, .. } => Some(Part::Kept(record)),
            Phase::Opening { from: None, .. } => None,
        }
    }

    /// Why a session that is being opened is to be given up, if somebody ended it meanwhile.
    #[must_use]
    pub fn doomed(&self, session: SessionId) -> Option<TerminationReason> {
        match &self.slots.get(&session)?.phase {
            Phase::Opening { doomed, .. } => *doomed,
            Phase::Live { .. }
            | Phase::Flushing { .. }
            | Phase::Closing { .. }
            | Phase::Suspended(_)
            | Phase::Ending { .. } => None,
        }
    }

    /// Whether a session takes one of the active places.
    #[must_use]
    pub fn is_resident(&self, session: SessionId) -> bool {
        self.slots.get(&session).is_some_and(|slot| slot.standing() == Some(Standing::Active))
    }

    /// How many more sessions could be opened now, by somebody who has none yet: free places, and those of sessions that
    /// would give way to anybody.
    #[must_use]
    pub fn vacancies(&self, now: Timestamp) -> u64 {
        let gives_way = |&session: &SessionId| {
            let candidate = self.slots.get(&session).and_then(|slot| candidate(now, session, slot));
            candidate.is_some_and(|candidate| !candidate.refused)
        };
        let giving_way = match self.limits.eviction {
            EvictionStrategy::SuspendOldestIdle => self.books.resident(None).filter(gives_way).count(),
            EvictionStrategy::RejectNew | EvictionStrategy::TerminateOldest => 0,
        };
        let staying = self.active().saturating_sub(u64::try_from(giving_way).unwrap_or(u64::MAX));
        self.limits.active_max.saturating_sub(staying)
    }
}
