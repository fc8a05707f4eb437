//! The questions of agents in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::draft::Draft;
use super::{Data, MemoryStore};
use crate::approval::{Approval, ApprovalState, NewApproval, OPEN_MAX, Reply, Withdrawal};
use crate::error::{Conflict, StoreError, StoreResult};
use crate::ids::{ApprovalId, RunId, SessionId};
use crate::ports::{APPROVALS_PAGE_MAX, ApprovalFilter, ApprovalStore};
use crate::record;
use crate::run::Fence;

#[async_trait]
impl ApprovalStore for MemoryStore {
    async fn ask(&self, fence: Fence, new: NewApproval, now: Timestamp) -> StoreResult<Approval> {
        self.write(|draft| {
            let run = draft.held(fence, "ask")?.clone();
            if let Some(known) = draft.data.approvals.get(&new.id) {
                return if known.is_repeated(run.id, &new) {
                    Ok(known.clone())
                } else {
                    Err(Conflict::Exists(new.id.to_string()).into())
                };
            }
            if draft.data.open_approvals(run.session).count() >= OPEN_MAX {
                return Err(Conflict::ApprovalsFull(run.session).into());
            }
            let principal = draft.session(run.session)?.principal.clone();
            let approval = Approval::asked(new, &run, principal, now);
            draft.data.approvals.insert(approval.id, approval.clone());
            draft.record(run.session, record::permission(&approval), now);
            Ok(approval)
        })
    }

    async fn answer(&self, id: ApprovalId, reply: Reply, now: Timestamp) -> StoreResult<Approval> {
        self.write(|draft| {
            let approval = draft.approval(id)?;
            match &approval.state {
                ApprovalState::Open => {}
                ApprovalState::Answered { reply: first, .. } if first.agrees(&reply) => {
                    return Ok(approval.clone());
                }
                closed @ (ApprovalState::Answered { .. } | ApprovalState::Withdrawn { .. }) => {
                    return Err(Conflict::Answered { approval: id, phase: closed.phase() }.into());
                }
            }
            let events = record::permission_answered(approval, &reply);
            approval.state = ApprovalState::Answered { at: now, reply };
            let answered = approval.clone();
            for event in events {
                draft.record(answered.session, event, now);
            }
            Ok(answered)
        })
    }

    async fn withdraw(
        &self,
        fence: Fence,
        id: ApprovalId,
        why: Withdrawal,
        now: Timestamp,
    ) -> StoreResult<Approval> {
        self.write(|draft| {
            let run = draft.held(fence, "withdraw")?.id;
            let approval = draft.approval(id)?;
            if approval.run != run {
                return Err(StoreError::UnknownApproval(id));
            }
            if approval.is_open() {
                draft.close(id, why, now)?;
            }
            Ok(draft.approval(id)?.clone())
        })
    }

    async fn approval(&self, id: ApprovalId) -> StoreResult<Option<Approval>> {
        Ok(self.read(|data| data.approvals.get(&id).cloned()))
    }

    async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<ApprovalId>,
        limit: u32,
    ) -> StoreResult<Vec<Approval>> {
        let ApprovalFilter { session, principal, open } = filter;
        let shows = |approval: &&Approval| {
            after.is_none_or(|after| approval.id < after)
                && session.is_none_or(|session| approval.session == session)
                && principal.as_ref().is_none_or(|principal| approval.principal == *principal)
                && (!open || approval.is_open())
        };
        let limit = usize::try_from(limit.min(APPROVALS_PAGE_MAX)).unwrap_or(usize::MAX);
        Ok(self.read(|data| data.approvals.values().rev().filter(shows).take(limit).cloned().collect()))
    }
}

impl Draft {
    fn approval(&mut self, id: ApprovalId) -> StoreResult<&mut Approval> {
        self.data.approvals.get_mut(&id).ok_or(StoreError::UnknownApproval(id))
    }

    /// Closes an open question without an answer.
    fn close(&mut self, id: ApprovalId, why: Withdrawal, now: Timestamp) -> StoreResult<()> {
        let approval = self.approval(id)?;
        approval.state = ApprovalState::Withdrawn { at: now, why };
        let (session, run) = (approval.session, approval.run);
        self.record(session, record::permission_withdrawn(run, id, why), now);
        Ok(())
    }

    /// Nobody waits any more for what a run asked.
    pub(super) fn close_those_of(
        &mut self,
        session: SessionId,
        run: RunId,
        now: Timestamp,
    ) -> StoreResult<()> {
        let of_run = self.data.open_approvals(session).filter(|approval| approval.run == run);
        let open: Vec<_> = of_run.map(|approval| approval.id).collect();
        open.into_iter().try_for_each(|id| self.close(id, Withdrawal::Withdrawn, now))
    }
}

impl Data {
    fn open_approvals(&self, session: SessionId) -> impl Iterator<Item = &Approval> {
        self.approvals.values().filter(move |approval| approval.session == session && approval.is_open())
    }
}
