//! What holds for a session and can be changed while it lives: its limits, what a person allowed or forbade in it, and the
//! limit over all sessions.

use std::sync::Arc;

use jiff::Timestamp;
use session_core::SessionId;
use session_core::approvals::Grant;
use session_core::budget::BudgetChange;
use session_core::context::SessionContext;
use session_core::grants::DirectoryGrants;
use session_core::names::Principal;
use session_core::ports::{LifecycleEvent, SessionFactory, SinkError};

use super::SessionManager;
use crate::error::ChangeError;
use crate::handle::Kept;
use crate::registry::Part;

/// One hour of minutes.
const MINUTES: i64 = 60;

impl<F: SessionFactory> SessionManager<F> {
    /// Changes what a session may use up, on behalf of `by`. It is recorded first, and nothing changes if that fails. What is
    /// set aside or used already stays so, also beyond a lower limit.
    pub async fn change_budget(
        &self,
        session: SessionId,
        change: BudgetChange,
        by: Principal,
    ) -> Result<(), ChangeError> {
        let kept = self.kept(session).ok_or(ChangeError::Unknown(session))?;
        let manager = self.clone();
        let event = LifecycleEvent::BudgetChanged { session, change, by };
        self.carry_out(async move {
            manager.change_recorded(&kept, event, |_| Ok(()), |kept| kept.meter.change(change)).await
        })
        .await
    }

    /// Takes over an answer that a person gave for the rest of the session. It is recorded first, and nothing is granted if
    /// that fails.
    pub async fn grant(&self, session: SessionId, grant: Grant) -> Result<(), ChangeError> {
        let kept = self.kept(session).ok_or(ChangeError::Unknown(session))?;
        if let Grant::Directory { path, access } = &grant {
            // What no session can be granted is not recorded either.
            let tried = DirectoryGrants::default().grant(path, *access);
            tried.map_err(|source| ChangeError::Directory { session, source })?;
        }
        let manager = self.clone();
        let event = LifecycleEvent::Granted { session, grant: grant.clone() };
        let asked = grant.clone();
        let check = move |kept: &Kept| {
            if has_room(&kept.context(), &asked) { Ok(()) } else { Err(ChangeError::Full(session)) }
        };
        let taken = self.carry_out(async move {
            manager.change_recorded(&kept, event, check, |kept| kept.context().answer(grant)).await
        });
        if taken.await? { Ok(()) } else { Err(ChangeError::Full(session)) }
    }

    /// Books what was used before this manager began, by the minute since the epoch: after a restart the limit of an hour goes
    /// on where it stood. To be called once; what is older than an hour, or lies in the future, is left out.
    pub fn seed_hourly(&self, minutes: impl IntoIterator<Item = (i64, u64)>) {
        let now = self.steady_now();
        let oldest = now.as_second().saturating_sub(MINUTES * 60);
        let mut state = self.lock();
        for (minute, tokens) in minutes {
            let second = minute.checked_mul(60).and_then(|second| Timestamp::from_second(second).ok());
            let at = second.map(|at| self.inner.steady.of_wall(at));
            // What was booked under a clock that ran ahead would stand in the way until it is caught up with, and an hour more.
            if let Some(at) = at.filter(|at| at.as_second() > oldest && *at <= now) {
                state.hourly.book(at, tokens);
            }
        }
    }

    /// Records a change of what holds for a session, then makes it; unless `check` finds that it cannot be made. Two changes are made in the order in which they are
    /// recorded.
    async fn change_recorded<T>(
        &self,
        kept: &Kept,
        event: LifecycleEvent,
        check: impl FnOnce(&Kept) -> Result<(), ChangeError>,
        change: impl FnOnce(&Kept) -> T,
    ) -> Result<T, ChangeError> {
        let session = kept.id();
        let mut recorded = kept.recorded.lock().await;
        check(kept)?;
        match self.write(event).await {
            Ok(()) => Ok(change(kept)),
            Err(source) => {
                if let SinkError::Superseded(_) = &source {
                    if !recorded.disown() {
                        return Err(ChangeError::Unknown(session));
                    }
                    self.let_go(session);
                }
                Err(ChangeError::Record { session, source })
            }
        }
    }

    /// What outlives the engines of a session, live or suspended.
    pub(super) fn kept(&self, session: SessionId) -> Option<Arc<Kept>> {
        let state = self.lock();
        match state.registry.part(session)? {
            Part::Live(handle) => Some(Arc::clone(handle.kept())),
            Part::Kept(kept) => Some(Arc::clone(kept)),
        }
    }
}

/// Whether the session remembers one more answer of this kind, or this one already.
fn has_room(context: &SessionContext, grant: &Grant) -> bool {
    match grant {
        Grant::Tool { name, .. } => context.approvals.has_room_for_tool(name),
        Grant::Command { signature, .. } => context.approvals.has_room_for_command(signature),
        Grant::Directory { path, .. } => context.grants.has_room_for(path),
    }
}
