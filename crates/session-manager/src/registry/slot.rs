//! One session in the registry, and what can be going on with it.

use std::sync::Arc;

use jiff::Timestamp;
use session_core::SessionState;
use session_core::names::{ExternalKey, Principal};
use session_core::state::TerminationReason;

use super::books::Standing;

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
    /// How often it was used: tells whether it was used meanwhile.
    pub(super) uses: u64,
    /// Runs in flight.
    pub(super) in_flight: u32,
    /// Its entry among the deadlines. May lie before its true deadline, never behind it.
    pub(super) armed: Option<Timestamp>,
}

/// What is going on with a session.
#[derive(Debug)]
pub(super) enum Phase<H, D> {
    /// Its engine is being made.
    Opening {
        /// What it goes back to if that fails.
        from: Origin<D>,
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
        uses: u64,
    },
    /// Its engine is being let go of; it cannot be used any more.
    Closing {
        /// The live half.
        handle: H,
        /// What it will be.
        next: Next,
    },
    /// It has no engine.
    Suspended(Dormant<D>),
}

/// Where a session that is being opened comes from.
#[derive(Debug)]
pub(super) enum Origin<D> {
    /// It is new.
    New,
    /// It was suspended.
    Suspended(Dormant<D>),
}

/// What is kept of a suspended session.
#[derive(Debug)]
pub(super) struct Dormant<D> {
    pub(super) record: D,
    pub(super) since: Timestamp,
    /// When it is over if nobody comes back.
    pub(super) expires_at: Timestamp,
}

/// What a session whose engine is being let go of will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Suspended.
    Suspended,
    /// Over.
    Terminated(TerminationReason),
}

impl<H, D> Slot<H, D> {
    pub(super) fn new(owner: Arc<Owner>, phase: Phase<H, D>, now: Timestamp) -> Self {
        Self { owner, phase, opened_at: now, last_used: now, uses: 0, in_flight: 0, armed: None }
    }

    /// How it counts: what has an engine, is about to have one or still has one takes one of the active places.
    pub(super) fn standing(&self) -> Standing {
        match &self.phase {
            Phase::Opening { .. } | Phase::Live { .. } | Phase::Flushing { .. } | Phase::Closing { .. } => {
                Standing::Active
            }
            Phase::Suspended(dormant) => Standing::Suspended(dormant.since),
        }
    }

    /// The state of the session: what is on its way somewhere is still where it comes from.
    pub(super) fn state(&self) -> SessionState {
        match &self.phase {
            Phase::Opening { from: Origin::Suspended(dormant), .. } | Phase::Suspended(dormant) => {
                SessionState::Suspended { since: dormant.since, expires_at: dormant.expires_at }
            }
            Phase::Live { idle_since: Some(since), .. } | Phase::Flushing { idle_since: Some(since), .. } => {
                SessionState::Idle { since: *since }
            }
            Phase::Opening { from: Origin::New, .. }
            | Phase::Live { idle_since: None, .. }
            | Phase::Flushing { idle_since: None, .. } => SessionState::Active,
            // No longer usable, not yet anything else.
            Phase::Closing { next: Next::Suspended, .. } => SessionState::Idle { since: self.last_used },
            Phase::Closing { next: Next::Terminated(reason), .. } => {
                SessionState::Terminated { at: self.last_used, reason: *reason }
            }
        }
    }

    /// It was used.
    pub(super) fn used(&mut self, now: Timestamp) {
        self.last_used = self.last_used.max(now);
        self.uses = self.uses.wrapping_add(1);
    }
}
