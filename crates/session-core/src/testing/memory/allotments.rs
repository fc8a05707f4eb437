//! What sessions have for their children, in memory.

use jiff::Timestamp;

use super::Data;
use super::draft::Draft;
use crate::error::{StoreError, StoreResult};
use crate::family::allot;
use crate::ids::SessionId;
use crate::record;
use crate::session::NewSession;

impl Draft {
    /// Sets aside what a new session is to have of its parent's, if the run that starts it still may.
    pub(super) fn allot(&mut self, new: &NewSession) -> StoreResult<()> {
        let Some(wish) = new.parent else { return Ok(()) };
        if let Some(by) = wish.by
            && self.held(by, "start a child")?.session != wish.session
        {
            return Err(StoreError::UnknownRun(by.run));
        }
        if let Some(allotment) = allot(self.session(wish.session)?, new, &wish)? {
            self.data.allotments.insert(new.id, allotment);
        }
        Ok(())
    }

    /// Settles with its parent what a session used, if nobody works in it or below it any more; then the parent may be the
    /// next.
    pub(super) fn rest(&mut self, child: SessionId, now: Timestamp) -> StoreResult<()> {
        let Some(mut allotment) = self.data.allotments.get(&child).copied() else { return Ok(()) };
        let session = self.session(child)?;
        let (account, over, parent) = (session.account(), session.state.is_terminated(), session.parent);
        let Some(parent) = parent.filter(|_| !self.data.is_at_work_for(child)) else { return Ok(()) };
        let mut above = self.session(parent)?.account();
        let closed = allotment.close(&account, &mut above);
        if over {
            self.data.allotments.remove(&child);
        } else {
            self.data.allotments.insert(child, allotment);
        }
        let Some((actual, settled)) = closed else { return Ok(()) };
        self.session(parent)?.set_account(above);
        for event in record::usage_of_child(child, actual, &above, &settled) {
            self.record(parent, event, now);
        }
        self.rest(parent, now)
    }

    /// A session is used again: it gets back what it had of its parent's, and that what it had of its own parent's first.
    pub(super) fn reopen(&mut self, child: SessionId, now: Timestamp) -> StoreResult<()> {
        let Some(mut allotment) = self.data.allotments.get(&child).copied() else { return Ok(()) };
        let Some(parent) = self.session(child)?.parent.filter(|_| !allotment.open) else { return Ok(()) };
        if self.session(parent)?.state.is_terminated() {
            return Ok(());
        }
        self.reopen(parent, now)?;
        let (mut below, mut above) = (self.session(child)?.account(), self.session(parent)?.account());
        let from = below.budget;
        let first = allotment.at_first(self.data.made_with(child));
        allotment.reopen(first, &mut below, &mut above);
        self.data.allotments.insert(child, allotment);
        self.session(child)?.set_account(below);
        self.session(parent)?.set_account(above);
        if below.budget != from {
            self.record(child, record::session_budget_short(from, below.budget, parent), now);
        }
        Ok(())
    }
}

impl Data {
    /// Whether a run of this session is not over, or a session below it spends from its budget.
    fn is_at_work_for(&self, session: SessionId) -> bool {
        let below = |(child, allotment): (&SessionId, &crate::budget::Allotment)| {
            allotment.open && self.sessions.get(child).is_some_and(|child| child.parent == Some(session))
        };
        self.run_not_over(session).is_some() || self.allotments.iter().any(below)
    }
}
