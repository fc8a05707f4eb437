//! Moving on the sessions that rested for long enough, in memory.

use jiff::{SignedDuration, Timestamp};

use super::draft::Draft;
use crate::error::StoreResult;
use crate::ids::SessionId;
use crate::ports::{Sweep, Swept};
use crate::session::ManagedSession;
use crate::state::SessionState;

impl Draft {
    pub(super) fn sweep(&mut self, sweep: &Sweep, now: Timestamp) -> StoreResult<Vec<Swept>> {
        self.prolong(sweep, now);
        let concerned = |session: &&ManagedSession| {
            session.workspace.runner.is_none_or(|runner| runner == sweep.runner)
                && !sweep.except.contains(&session.id)
                && self.data.run_not_over(session.id).is_none()
        };
        let mut due: Vec<(SignedDuration, SessionId)> = Vec::new();
        for session in self.data.sessions.values().filter(concerned) {
            let Some(to) = sweep.next(session.state, session.active_at, now) else { continue };
            if !to.is_terminated() || self.data.at_work_below(session.id).is_none() {
                due.push((until_due(sweep, session, now), session.id));
            }
        }
        due.sort();
        due.truncate(usize::try_from(sweep.limit).unwrap_or(usize::MAX));
        due.into_iter().map(|(_, id)| self.move_on(sweep, id, now)).collect()
    }

    /// Takes a session that is due through every step whose time has come.
    fn move_on(&mut self, sweep: &Sweep, id: SessionId, now: Timestamp) -> StoreResult<Swept> {
        loop {
            let ManagedSession { state, active_at, .. } = *self.session(id)?;
            let stays = |to: &SessionState| to.is_terminated() && self.data.at_work_below(id).is_some();
            match sweep.next(state, active_at, now).filter(|to| !stays(to)) {
                Some(to) => self.move_to(id, to, now)?,
                None => return Ok(Swept { session: id, state }),
            };
            self.prolong(sweep, now);
        }
    }

    /// What a live identity leads to stays suspended until that expires.
    fn prolong(&mut self, sweep: &Sweep, now: Timestamp) {
        let live = self.data.registrations.values().filter(|registration| registration.expires_at > now);
        let live: Vec<_> = live.map(|registration| (registration.session, registration.expires_at)).collect();
        for (id, end) in live {
            let Some(session) = self.data.sessions.get_mut(&id) else { continue };
            let here = session.workspace.runner.is_none_or(|runner| runner == sweep.runner);
            if let SessionState::Suspended { expires_at, .. } = &mut session.state
                && *expires_at <= now
                && here
                && !sweep.except.contains(&id)
            {
                *expires_at = end;
            }
        }
    }
}

/// How long it takes until the session is due: not at all, and less the longer it is.
fn until_due(sweep: &Sweep, session: &ManagedSession, now: Timestamp) -> SignedDuration {
    let since = |at: Timestamp, cutoff: Option<Timestamp>| at.duration_since(cutoff.unwrap_or(at));
    match session.state {
        SessionState::Active => since(session.active_at, sweep.active_cutoff(now)),
        SessionState::Idle { since: at } => since(at, sweep.idle_cutoff(now)),
        SessionState::Suspended { expires_at, .. } => since(expires_at, Some(now)),
        SessionState::Terminated { .. } => SignedDuration::ZERO,
    }
}
