//! One session in the registry, and what can be going on with it.

use std::sync::Arc;

use jiff::Timestamp;
use session_core::SessionState;
use session_core::names::{ExternalKey, Principal};
use session_core::state::TerminationReason;

use super::books::Standing;
use super::{Unusable, Used, later};
use crate::eviction::Version;
use crate::options::Limits;

/// Whose session, and by which name of theirs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The principal.
    pub principal: Principal,
    /// The principal's own name for it.
    pub key: Option<ExternalKey>,
}

/// One session. `H` is the live half that its users hold, `D` what is kept of it while it is suspended.
#[derive(Debug)]
pub(super) struct Slot<H, D> {
    pub(super) owner: Arc<Owner>,
    pub(super) phase: Phase<H, D>,
    /// When it was opened, or was heard of for the first time.
    pub(super) opened_at: Timestamp,
    /// When it was last used.
    pub(super) last_used: Timestamp,
    /// Its engine, and how often it was used: tells whether it was used meanwhile.
    pub(super) version: Version,
    /// Runs in flight.
    pub(super) in_flight: u32,
    /// Its entry among the deadlines. May lie before its true deadline, never behind it.
    pub(super) armed: Option<Timestamp>,
    /// Its engine refused to be suspended, or somebody waits to use it: it is left in peace until then.
    pub(super) in_peace_until: Timestamp,
    /// Which entry in the books is its own.
    pub(super) order: u64,
}

/// What is going on with a session.
#[derive(Debug)]
pub(super) enum Phase<H, D> {
    /// Its engine is being made.
    Opening {
        /// What it goes back to if that fails; `None` for a new session.
        from: Option<Dormant<D>>,
        /// Somebody ended it meanwhile.
        doomed: Option<TerminationReason>,
    },
    /// Its engine is there.
    Live {
        /// The live half.
        handle: H,
        /// Since when it is idle.
        idle_since: Option<Timestamp>,
    },
    /// Its engine writes out what is still to be written; it can still be used.
    Flushing {
        /// The live half.
        handle: H,
        /// Since when it is idle.
        idle_since: Option<Timestamp>,
        /// How often it had been used when this began.
        uses: u32,
    },
    /// Its engine is being let go of; it cannot be used any more.
    Closing {
        /// The live half.
        handle: H,
        /// Since when it was idle.
        idle_since: Option<Timestamp>,
        /// What it will be.
        next: Next,
    },
    /// It has no engine.
    Suspended(Dormant<D>),
    /// It has no engine any more, and its end is being recorded; it cannot be used, and its key is free only afterwards.
    Ending {
        /// What is kept of it.
        record: D,
        /// Why it ends.
        reason: TerminationReason,
    },
}

/// What is kept of a suspended session.
#[derive(Debug)]
pub(super) struct Dormant<D> {
    pub(super) record: D,
    pub(super) since: Timestamp,
    /// When it is over if nobody comes back.
    pub(super) expires_at: Timestamp,
    /// Whoever told of it has until then to come back, though its time may be over.
    pub(super) not_before: Timestamp,
}

/// What a session whose engine is being let go of will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Suspended.
    Suspended,
    /// Over.
    Terminated(TerminationReason),
}

impl<H, D> Phase<H, D> {
    /// What is kept of the session, if it is suspended or comes from there.
    pub(super) fn into_dormant(self) -> Option<Dormant<D>> {
        match self {
            Self::Suspended(dormant) => Some(dormant),
            Self::Opening { from, .. } => from,
            Self::Live { .. } | Self::Flushing { .. } | Self::Closing { .. } | Self::Ending { .. } => None,
        }
    }
}

impl<H, D> Slot<H, D> {
    pub(super) fn new(owner: Arc<Owner>, phase: Phase<H, D>, now: Timestamp) -> Self {
        Self {
            owner,
            phase,
            opened_at: now,
            last_used: now,
            version: Version::default(),
            in_flight: 0,
            armed: None,
            in_peace_until: Timestamp::MIN,
            order: 0,
        }
    }

    /// How it counts: what has an engine, is about to have one or still has one takes one of the active places. What is over
    /// but for its record counts no more.
    pub(super) fn standing(&self) -> Option<Standing> {
        match &self.phase {
            Phase::Opening { .. } | Phase::Live { .. } | Phase::Flushing { .. } | Phase::Closing { .. } => {
                Some(Standing::Active)
            }
            Phase::Suspended(_) => Some(Standing::Suspended),
            Phase::Ending { .. } => None,
        }
    }

    /// The state of the session: what is on its way somewhere is still where it comes from, unless that is its end.
    pub(super) fn state(&self) -> SessionState {
        match &self.phase {
            Phase::Opening { from: Some(dormant), .. } | Phase::Suspended(dormant) => {
                SessionState::Suspended { since: dormant.since, expires_at: dormant.expires_at }
            }
            Phase::Closing { next: Next::Terminated(reason), .. } | Phase::Ending { reason, .. } => {
                SessionState::Terminated { at: self.last_used, reason: *reason }
            }
            Phase::Live { idle_since: Some(since), .. }
            | Phase::Flushing { idle_since: Some(since), .. }
            | Phase::Closing { idle_since: Some(since), next: Next::Suspended, .. } => {
                SessionState::Idle { since: *since }
            }
            Phase::Opening { from: None, .. }
            | Phase::Live { idle_since: None, .. }
            | Phase::Flushing { idle_since: None, .. }
            | Phase::Closing { idle_since: None, next: Next::Suspended, .. } => SessionState::Active,
        }
    }

    /// When time does the next thing to it, if ever. The last time in the calendar never comes.
    pub(super) fn deadline(&self, limits: &Limits) -> Option<Timestamp> {
        let at = match &self.phase {
            Phase::Live { .. } if self.in_flight > 0 => return None,
            Phase::Live { idle_since: None, .. } => later(self.last_used, limits.idle_timeout?),
            Phase::Live { idle_since: Some(_), .. } => self.leaves_at(limits)?,
            Phase::Suspended(dormant) => dormant.expires_at.max(dormant.not_before),
            Phase::Opening { .. } | Phase::Flushing { .. } | Phase::Closing { .. } | Phase::Ending { .. } => {
                return None;
            }
        };
        (at < Timestamp::MAX).then_some(at)
    }

    /// When it is to be suspended by itself, unless it is used before or a run is in flight.
    pub(super) fn leaves_at(&self, limits: &Limits) -> Option<Timestamp> {
        let Phase::Live { idle_since, .. } = &self.phase else { return None };
        let idle_since = match idle_since {
            Some(since) => *since,
            None => later(self.last_used, limits.idle_timeout?),
        };
        let at = later(idle_since, limits.grace()?).max(self.in_peace_until);
        (self.in_flight == 0).then_some(at)
    }

    /// The live half, while it can be used.
    pub(super) fn handle(&self) -> Option<&H> {
        match &self.phase {
            Phase::Live { handle, .. } | Phase::Flushing { handle, .. } => Some(handle),
            Phase::Opening { .. } | Phase::Closing { .. } | Phase::Suspended(_) | Phase::Ending { .. } => {
                None
            }
        }
    }

    /// Uses it, if it can be used: it is idle no more.
    pub(super) fn wake(&mut self, now: Timestamp) -> Result<Used, Unusable> {
        let used = match &mut self.phase {
            Phase::Live { idle_since, .. } | Phase::Flushing { idle_since, .. } => match idle_since.take() {
                Some(_) => Used::Woke,
                None => Used::Stayed,
            },
            Phase::Opening { .. } | Phase::Closing { .. } | Phase::Ending { .. } => {
                return Err(Unusable::Moving);
            }
            Phase::Suspended(_) => return Err(Unusable::Suspended),
        };
        self.used(now);
        Ok(used)
    }

    /// It was used.
    pub(super) fn used(&mut self, now: Timestamp) {
        self.last_used = self.last_used.max(now);
        self.version.uses = self.version.uses.wrapping_add(1);
    }
}
