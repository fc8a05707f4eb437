//! The queue of runs: which way each of its methods takes.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use session_core::StoreResult;
use session_core::affinity::RunnerProfile;
use session_core::budget::Usage;
use session_core::event::Payload;
use session_core::ids::{ClaimId, RunId, RunnerId, SessionId};
use session_core::ports::{
    ClaimedRun, Directive, Idempotency, NewCrew, NewRun, RunProgress, RunStore, Spent,
};
use session_core::run::{Ending, Fence, Run, StopMode};
use session_core::session::Binding;

use super::{SqlStore, Writing};
use crate::claim::AtOnce;
use crate::{bindings, claim, enqueue, idempotency, leases, runners, runs};

#[async_trait]
impl RunStore for SqlStore {
    async fn enqueue_once(
        &self,
        batch: Vec<NewRun>,
        crew: Option<NewCrew>,
        once: Option<Idempotency>,
        now: Timestamp,
    ) -> StoreResult<Vec<Run>> {
        change!(self, [batch, once], tx => {
            enqueue::enqueue_once(tx, &batch, crew, once.as_ref().as_ref(), now)
        })
        .await
    }

    async fn forget_idempotency(&self, now: Timestamp, limit: u32) -> StoreResult<u32> {
        change!(self, [], tx => idempotency::forget(tx, now, limit)).await
    }

    async fn claim_once(
        &self,
        runner: &RunnerProfile,
        claim: Option<ClaimId>,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Option<ClaimedRun>> {
        if let Writing::Pool(_, changes) = &self.inner.writing {
            match changes.claim(runner.clone(), claim, lease, now).await? {
                AtOnce::Claimed(claimed) | AtOnce::Repeated(claimed) => return Ok(Some(*claimed)),
                AtOnce::Nothing => return Ok(None),
                AtOnce::Undecided => {}
            }
        }
        let runner = runner.clone();
        change!(self, [runner], tx => claim::claim(tx, &runner, claim, lease, now)).await
    }

    async fn unclaimed(&self, now: Timestamp, live: SignedDuration, limit: u32) -> StoreResult<Vec<Run>> {
        change!(self, [], tx => runners::unclaimed(tx, now, live, limit)).await
    }

    async fn advance(&self, fence: Fence, to: RunProgress, now: Timestamp) -> StoreResult<Run> {
        change!(self, [to], tx => runs::advance(tx, fence, &to, now)).await
    }

    async fn bind(&self, fence: Fence, binding: Binding, now: Timestamp) -> StoreResult<()> {
        change!(self, [binding], tx => bindings::bind(tx, fence, &binding, now)).await
    }

    async fn resumable(&self, fence: Fence, now: Timestamp) -> StoreResult<()> {
        change!(self, [], tx => bindings::resumable(tx, fence, now)).await
    }

    async fn renew_spending(
        &self,
        fence: Fence,
        spending: Usage,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Directive> {
        change!(self, [], tx => leases::renew(tx, fence, spending, lease, now)).await
    }

    async fn finish_and_settle(
        &self,
        fence: Fence,
        ending: Ending,
        result: Option<Payload>,
        spent: Option<Spent>,
        now: Timestamp,
    ) -> StoreResult<Run> {
        change!(self, [ending, result], tx => {
            runs::finish(tx, fence, &ending, result.as_ref().as_ref(), spent, now)
        })
        .await
    }

    async fn request_stop(&self, run: RunId, mode: StopMode, now: Timestamp) -> StoreResult<Run> {
        change!(self, [], tx => runs::request_stop(tx, run, mode, now)).await
    }

    async fn runs_before(&self, session: SessionId, before: RunId, limit: u32) -> StoreResult<Vec<Run>> {
        runs::runs_before(&mut self.connection().await?.conn(), session, before, limit).await
    }

    async fn recall(&self, once: &Idempotency, now: Timestamp) -> StoreResult<Option<Vec<Run>>> {
        idempotency::look(&mut self.connection().await?.conn(), once, now).await
    }

    async fn in_flight(&self, runner: RunnerId) -> StoreResult<Vec<Run>> {
        runs::in_flight(&mut self.connection().await?.conn(), runner).await
    }

    async fn take_over(
        &self,
        run: RunId,
        runner: RunnerId,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Run> {
        change!(self, [], tx => leases::take_over(tx, run, runner, lease, now)).await
    }

    async fn requeue(&self, fence: Fence, now: Timestamp) -> StoreResult<Run> {
        change!(self, [], tx => runs::requeue(tx, fence, now)).await
    }

    async fn reap(&self, now: Timestamp, limit: u32) -> StoreResult<Vec<Run>> {
        change!(self, [], tx => runs::reap(tx, now, limit)).await
    }

    async fn run(&self, id: RunId) -> StoreResult<Option<Run>> {
        runs::run(&mut self.connection().await?.conn(), id).await
    }

    async fn runs(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Run>> {
        runs::runs(&mut self.connection().await?.conn(), session, limit).await
    }

    async fn has_work(&self, runner: RunnerId) -> StoreResult<bool> {
        runs::has_work(&mut self.connection().await?.conn(), runner).await
    }
}
