//! The port of the runner over HTTP.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use session_api::claims::{Amounts, BindingView, EndingView};
use session_api::paths;
use session_api::runners::{
    AnswerWait, Answered, Asked, ClaimFate, ClaimRequest, Claimed, Ended, Heartbeat, Heartbeaten, HeldClaim,
    HeldRuns, OrderView, Orders, OrdersRequest, Report, ReportedEvent, SessionChange, SessionRead,
    SessionReport, SessionRequest, TakeOver,
};
use session_core::affinity::RunnerProfile;
use session_core::approval::{Approval, NewApproval, Withdrawal};
use session_core::budget::Usage;
use session_core::error::{Conflict, StoreError, StoreResult};
use session_core::event::{Event, Payload, Seq};
use session_core::ports::{ClaimedRun, Directive, RunProgress};
use session_core::run::{Ending, Fence, Run, RunState, StopMode};
use session_core::session::Binding;
use session_core::{ApprovalId, Env, ManagedSession, NewEvent, RunId, RunnerId, SessionId};
use session_manager::{DispatchError, Dispatcher, Heard, Holding};
use tokio_util::sync::CancellationToken;

use super::Remote;
use super::answers::{About, approval, garbled, over, store_error};
use super::delivery::Patience;

impl Remote {
    pub(super) async fn ask_for<Q, A>(&self, path: &str, question: &Q, about: About) -> StoreResult<A>
    where
        Q: serde::Serialize + Sync,
        A: serde::de::DeserializeOwned,
    {
        self.ask_and_wait(path, question, about, Duration::ZERO).await
    }

    async fn ask_and_wait<Q, A>(
        &self,
        path: &str,
        question: &Q,
        about: About,
        wait: Duration,
    ) -> StoreResult<A>
    where
        Q: serde::Serialize + Sync,
        A: serde::de::DeserializeOwned,
    {
        let answer = self.inner.client.post(&self.path(path), question, wait).await;
        answer.map_err(|error| {
            if let session_api::client::ClientError::Refused(problem) = &error
                && problem.code == session_api::Code::Superseded
            {
                self.inner.superseded.cancel();
            }
            store_error(error, about)
        })
    }

    fn about_us(&self) -> About {
        About::Runner(self.inner.runner)
    }

    /// Keeps what is known of a run that is held here from now on.
    fn holds(&self, view: &session_api::claims::ClaimView) -> StoreResult<ClaimedRun> {
        let claimed = ClaimedRun::try_from(view).map_err(|error| garbled(&error))?;
        let mut state = self.state();
        state.runs.insert(claimed.run.id, claimed.run.clone());
        if let Some(token) = &view.token {
            state.tokens.insert(claimed.run.fence(), token.clone());
        }
        Ok(claimed)
    }

    /// The run of a claim as it is known here, after this change.
    fn changed(&self, fence: Fence, change: impl FnOnce(&mut Run)) -> StoreResult<Run> {
        let mut state = self.state();
        let run = state.runs.get_mut(&fence.run).filter(|run| run.epoch == fence.epoch).ok_or_else(over)?;
        change(run);
        Ok(run.clone())
    }

    async fn read_session(&self, id: SessionId, after: Option<Seq>) -> StoreResult<SessionRead> {
        let request = SessionRequest { session_id: id.to_string(), after: after.map(|seq| seq.0) };
        self.ask_for(paths::RUNNER_SESSION, &request, About::Session(id)).await
    }
}

fn milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

fn raw(payload: &Payload) -> Option<Box<RawValue>> {
    RawValue::from_string(payload.as_str().into()).ok()
}

#[async_trait]
impl Dispatcher for Remote {
    fn env(&self) -> &Env {
        &self.inner.env
    }

    async fn claim(
        &self,
        _runner: &RunnerProfile,
        wait: Duration,
        enough: CancellationToken,
    ) -> StoreResult<Option<ClaimedRun>> {
        let id = *self.state().claim.get_or_insert_with(|| self.inner.env.claim_id());
        let request = ClaimRequest {
            instance: self.inner.instance,
            claim_id: id.to_string(),
            wait_ms: milliseconds(wait),
        };
        let asked = self.ask_and_wait(paths::RUNNER_CLAIM, &request, self.about_us(), wait);
        let claimed: Claimed = tokio::select! {
            claimed = asked => claimed?,
            // What it may have got comes with the next request, under the same id, or goes back with its lease.
            () = enough.cancelled() => return Ok(None),
        };
        let Some(view) = claimed.claim else { return Ok(None) };
        let claimed = self.holds(&view)?;
        self.state().claim = None;
        Ok(Some(claimed))
    }

    /// Prolongs also those claims that are over here and of which something waits to be delivered.
    async fn heartbeat(&self, _runner: RunnerId, mut held: Vec<Holding>) -> StoreResult<Vec<Heard>> {
        for fence in self.undelivered() {
            if !held.iter().any(|holding| holding.fence == fence) {
                held.push(fence.into());
            }
        }
        held.truncate(session_api::runners::HELD_MAX);
        let asked = self.state().asks_spending;
        let claim = |Holding { fence, spending }: &Holding| HeldClaim {
            run_id: fence.run.to_string(),
            epoch: fence.epoch.0,
            spending: Some(*spending).filter(|spending| asked && *spending != Usage::NONE).map(Amounts::from),
        };
        let request = Heartbeat { instance: self.inner.instance, claims: held.iter().map(claim).collect() };
        let heard: Heartbeaten = self.ask_for(paths::RUNNER_HEARTBEAT, &request, self.about_us()).await?;
        self.state().asks_spending = heard.asks_spending;
        let mut told = Vec::with_capacity(held.len());
        for (Holding { fence, .. }, (fate, left)) in held.into_iter().zip(heard.fates()) {
            let directive = match fate {
                ClaimFate::Continue => Ok(Directive::Continue { left }),
                ClaimFate::Stop => Ok(Directive::Stop(StopMode::Graceful)),
                ClaimFate::Kill => Ok(Directive::Stop(StopMode::Kill)),
                ClaimFate::Gone => {
                    self.disown(fence).await;
                    Err(over())
                }
                ClaimFate::Unknown => {
                    let error = std::io::Error::other("the coordinator could not say");
                    Err(StoreError::Unavailable(Box::new(error)))
                }
            };
            told.push(Heard { fence, directive });
        }
        Ok(told)
    }

    async fn orders(
        &self,
        _runner: RunnerId,
        known: Vec<(RunId, StopMode)>,
        wait: Duration,
    ) -> StoreResult<Vec<(RunId, StopMode)>> {
        let order =
            |(run, mode): (RunId, StopMode)| OrderView { run_id: run.to_string(), mode: mode.code().into() };
        let request = OrdersRequest {
            instance: self.inner.instance,
            known: known.into_iter().take(session_api::runners::HELD_MAX).map(order).collect(),
            wait_ms: milliseconds(wait),
        };
        let orders: Orders = self.ask_and_wait(paths::RUNNER_ORDERS, &request, self.about_us(), wait).await?;
        // What is not understood is a newer version's, and in nobody's way.
        let read = |order: &OrderView| Some((order.run_id.parse().ok()?, order.mode.parse().ok()?));
        Ok(orders.items.iter().filter_map(read).collect())
    }

    async fn held(&self, _runner: RunnerId) -> StoreResult<Vec<ClaimedRun>> {
        let held: Result<HeldRuns, _> = self.inner.client.get(&self.path(paths::RUNNER_RUNS)).await;
        let held = held.map_err(|error| store_error(error, self.about_us()))?;
        held.items.iter().map(|view| ClaimedRun::try_from(view).map_err(|error| garbled(&error))).collect()
    }

    async fn take_over(&self, run: RunId, _runner: RunnerId) -> StoreResult<Run> {
        let request = TakeOver { instance: self.inner.instance, run_id: run.to_string() };
        let claimed: Claimed = self.ask_for(paths::RUNNER_TAKE_OVER, &request, About::Run(run)).await?;
        let view = claimed.claim.ok_or_else(over)?;
        Ok(self.holds(&view)?.run)
    }

    async fn give_back(&self, fence: Fence) -> StoreResult<Run> {
        self.report(fence, Report::GivenBack, Patience::Spool).await?;
        let run = self.changed(fence, |run| run.state = RunState::Pending)?;
        let mut state = self.state();
        state.runs.remove(&fence.run);
        state.tokens.remove(&fence);
        Ok(run)
    }

    /// That a run begins is said before it does; that it runs may wait.
    async fn advance(&self, fence: Fence, to: RunProgress) -> StoreResult<Run> {
        let now = self.inner.env.now();
        match to {
            RunProgress::Starting => {
                self.report(fence, Report::Starting, Patience::Answer).await?;
                self.changed(fence, |run| {
                    if let RunState::Claimed(lease) = run.state {
                        run.state = RunState::Starting(lease);
                    }
                })
            }
            RunProgress::Running { sandbox } => {
                let report = Report::Running { sandbox: sandbox.as_ref().and_then(raw) };
                self.report(fence, report, Patience::Spool).await?;
                self.changed(fence, |run| {
                    if let Some(lease) = run.state.lease() {
                        run.state = RunState::Running(lease);
                    }
                    run.started_at = Some(now);
                    run.sandbox = sandbox;
                })
            }
        }
    }

    async fn run_token(&self, _session: &ManagedSession, run: &Run) -> StoreResult<Option<String>> {
        Ok(self.state().tokens.get(&run.fence()).cloned())
    }

    async fn bind(&self, fence: Fence, binding: Binding) -> StoreResult<()> {
        let report = Report::Bound(BindingView::from(&binding));
        self.report(fence, report, Patience::Spool).await.map(drop)
    }

    async fn resumable(&self, fence: Fence) -> StoreResult<()> {
        self.report(fence, Report::Resumable, Patience::Spool).await.map(drop)
    }

    async fn append(&self, fence: Fence, batch: Vec<NewEvent>) -> StoreResult<()> {
        let events: Option<Vec<_>> = batch.iter().map(ReportedEvent::new).collect();
        let events = events.ok_or_else(|| {
            StoreError::Conflict(Conflict::Refused("an event without an origin could be there twice".into()))
        })?;
        self.report(fence, Report::Appended(events), Patience::Spool).await.map(drop)
    }

    async fn finish(&self, fence: Fence, ending: Ending, result: Option<Payload>) -> StoreResult<Run> {
        let settled = self.state().settlements.get(&fence.run).copied();
        let report = Report::Ended(Ended {
            ending: EndingView::from(&ending),
            result: result.as_ref().and_then(raw),
            settled,
        });
        self.report(fence, report, Patience::Spool).await?;
        let at = self.inner.env.now();
        let run = self.changed(fence, |run| {
            run.stop = None;
            run.state = RunState::Ended { at, ending };
        });
        let mut state = self.state();
        state.settlements.remove(&fence.run);
        state.runs.remove(&fence.run);
        state.tokens.remove(&fence);
        run
    }

    async fn ask(&self, fence: Fence, new: NewApproval) -> Result<Approval, DispatchError> {
        new.question.check().map_err(|error| DispatchError::Invalid {
            field: error.part.into(),
            reason: error.to_string(),
        })?;
        let NewApproval { id, question } = new;
        let command = question.command.as_ref();
        let asked = Asked {
            id: id.to_string(),
            tool: question.tool.to_string(),
            title: question.title,
            command: command.map(|command| (command.argv().to_vec(), command.cwd().to_string())),
            input: raw(&question.input).unwrap_or_default(),
            deadline: question.deadline,
        };
        let reported = self.report(fence, Report::Asked(asked), Patience::Answer).await?;
        let view = reported.approval.ok_or_else(over)?;
        Ok(approval(&view).map_err(|error| garbled(&error))?)
    }

    async fn answered(
        &self,
        fence: Fence,
        _session: SessionId,
        id: ApprovalId,
        wait: Duration,
    ) -> StoreResult<Option<Approval>> {
        let request = AnswerWait {
            run_id: fence.run.to_string(),
            approval_id: id.to_string(),
            wait_ms: milliseconds(wait),
        };
        let answered: Answered =
            self.ask_and_wait(paths::RUNNER_ANSWER, &request, About::Run(fence.run), wait).await?;
        answered.approval.as_ref().map(approval).transpose().map_err(|error| garbled(&error))
    }

    async fn withdraw(&self, fence: Fence, id: ApprovalId, why: Withdrawal) -> StoreResult<Approval> {
        let report = Report::Withdrawn(id.to_string(), why.code().into());
        let reported = self.report(fence, report, Patience::Answer).await?;
        approval(&reported.approval.ok_or_else(over)?).map_err(|error| garbled(&error))
    }

    async fn session(&self, id: SessionId) -> StoreResult<Option<ManagedSession>> {
        match self.read_session(id, None).await {
            Ok(read) => ManagedSession::try_from(&read.session).map(Some).map_err(|error| garbled(&error)),
            Err(StoreError::UnknownSession(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn read(&self, session: SessionId, after: Seq, _limit: u32) -> StoreResult<Vec<Event>> {
        let read = self.read_session(session, Some(after)).await?;
        read.events.iter().map(|event| event.read(session).map_err(|error| garbled(&error))).collect()
    }

    async fn forfeit(&self, session: SessionId) -> StoreResult<()> {
        let report = SessionReport { session_id: session.to_string(), what: SessionChange::Forfeit };
        let path = paths::RUNNER_SESSION_REPORTS;
        let _reported: session_api::runners::Reported =
            self.ask_for(path, &report, About::Session(session)).await?;
        Ok(())
    }
}
