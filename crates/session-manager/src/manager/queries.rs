//! Looking at sessions, without touching them.

use jiff::Timestamp;
use session_core::budget::{Budget, Usage};
use session_core::names::{AgentKey, ExternalKey, Label, Principal};
use session_core::ports::SessionFactory;
use session_core::{SessionId, SessionState};

use super::{HandleOf, SessionManager, State};
use crate::registry::{Entry, Part};

/// How many sessions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// With an engine, or about to have one.
    pub active: u64,
    /// Suspended.
    pub suspended: u64,
}

/// A session as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub session: SessionId,
    /// Who owns it.
    pub principal: Principal,
    /// The owner's own name for it.
    pub key: Option<ExternalKey>,
    /// Where it is in its life, in wall time.
    pub state: SessionState,
    /// When it was last used here, in wall time.
    pub last_used: Timestamp,
    /// Runs in flight.
    pub in_flight: u32,
    /// Free text for people.
    pub label: Option<Label>,
    /// The agent that works in it.
    pub agent: Option<AgentKey>,
    /// The session that started it.
    pub parent: Option<SessionId>,
    /// What it may use up.
    pub budget: Budget,
    /// What it used up so far.
    pub usage: Usage,
}

impl<F: SessionFactory> SessionManager<F> {
    /// The live half of a session that can be used. Looking it up is no use of the session: whoever works in it
    /// [acquires](Self::acquire) it.
    #[must_use]
    pub fn get(&self, session: SessionId) -> Option<HandleOf<F>> {
        self.lock().registry.handle(session)
    }

    /// One session; `None` for one that is not here, and for a new one that is not open yet.
    #[must_use]
    pub fn view(&self, session: SessionId) -> Option<SessionView> {
        let state = self.lock();
        state.registry.get(session).and_then(|entry| self.seen(&state, &entry))
    }

    /// Every session, by id. New ones that are not open yet are left out.
    #[must_use]
    pub fn list(&self) -> Vec<SessionView> {
        let mut views: Vec<_> = {
            let state = self.lock();
            state.registry.iter().filter_map(|entry| self.seen(&state, &entry)).collect()
        };
        views.sort_unstable_by_key(|view| view.session);
        views
    }

    /// How many sessions there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts { active: state.registry.active(), suspended: state.registry.suspended() }
    }

    /// How many more sessions could be opened now by somebody who has none yet, those that would give way included. A hint:
    /// the next call may find it otherwise.
    #[must_use]
    pub fn vacancies(&self) -> u64 {
        let now = self.steady_now();
        let state = self.lock();
        if state.parting.is_some() { 0 } else { state.registry.vacancies(now) }
    }

    fn seen(&self, state: &State<F>, entry: &Entry) -> Option<SessionView> {
        let kept = match state.registry.part(entry.session)? {
            Part::Live(handle) => handle.kept(),
            Part::Kept(kept) => kept,
        };
        // Both at one moment: a change of the budget lies before both or after both.
        let (told, account) = (kept.told(), kept.meter.account());
        Some(SessionView {
            session: entry.session,
            principal: entry.owner.principal.clone(),
            key: entry.owner.key.clone(),
            state: self.in_wall_time(entry.state),
            last_used: self.inner.steady.to_wall(entry.last_used),
            in_flight: entry.in_flight,
            label: told.label.clone(),
            agent: told.agent.clone(),
            parent: told.parent,
            budget: account.budget,
            usage: account.used,
        })
    }

    /// The same state with its times by the wall clock.
    pub(super) fn in_wall_time(&self, state: SessionState) -> SessionState {
        let wall = |at| self.inner.steady.to_wall(at);
        match state {
            SessionState::Active => SessionState::Active,
            SessionState::Idle { since } => SessionState::Idle { since: wall(since) },
            SessionState::Suspended { since, expires_at } => {
                SessionState::Suspended { since: wall(since), expires_at: wall(expires_at) }
            }
            SessionState::Terminated { at, reason } => SessionState::Terminated { at: wall(at), reason },
        }
    }
}
