//! What a runner asks of whoever gives it its runs: the coordinator in its own process, or one on another machine.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use session_core::affinity::RunnerProfile;
use session_core::approval::{Approval, NewApproval, Withdrawal};
use session_core::budget::Usage;
use session_core::error::{StoreError, StoreResult};
use session_core::event::{Event, Payload, Seq};
use session_core::ids::ApprovalId;
use session_core::ports::{ClaimedRun, Directive, RunProgress};
use session_core::run::{Ending, Fence, Run, StopMode};
use session_core::session::Binding;
use session_core::wake::Topic;
use session_core::{Env, ManagedSession, NewEvent, RunId, RunnerId, SessionId};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Coordinator, DispatchError};

/// Gives runs to a runner, and takes what it reports of them.
///
/// A report that this takes is not lost: it is in the store, or it is on its way there and survives this process. Reports of
/// one run count in the order in which they were made. What an error says of the claim ([`StoreError::Fenced`] and the
/// like) is final; after one that may pass the same can be said again. Every wait has an end.
#[async_trait]
pub trait Dispatcher: Send + Sync + fmt::Debug + 'static {
    /// The outside world.
    fn env(&self) -> &Env;

    /// The next run that this runner may execute, as soon as there is one and after `wait` at the latest. When `enough` fires
    /// nothing more is waited for; what was got by then comes back all the same. Not to be dropped while it goes on: a run
    /// may be claimed that nobody hears of.
    async fn claim(
        &self,
        runner: &RunnerProfile,
        wait: Duration,
        enough: CancellationToken,
    ) -> StoreResult<Option<ClaimedRun>>;

    /// A sign of life of a runner that holds these claims: each is prolonged, and what becomes of it comes back. An error
    /// says that none was heard of.
    async fn heartbeat(&self, runner: RunnerId, held: Vec<Holding>) -> StoreResult<Vec<Heard>>;

    /// The orders to end runs of this runner that are other than it knows, as soon as there are any; none after `wait`.
    /// May be dropped.
    async fn orders(
        &self,
        runner: RunnerId,
        known: Vec<(RunId, StopMode)>,
        wait: Duration,
    ) -> StoreResult<Vec<(RunId, StopMode)>>;

    /// The runs that this runner holds, each with its session, oldest first.
    async fn held(&self, runner: RunnerId) -> StoreResult<Vec<ClaimedRun>>;

    /// Gives a run in flight to the same runner's new host.
    async fn take_over(&self, run: RunId, runner: RunnerId) -> StoreResult<Run>;

    /// Gives a run that has not begun back to its place in the queue.
    async fn give_back(&self, fence: Fence) -> StoreResult<Run>;

    /// A claimed run has come this far. Returns it as it is then.
    async fn advance(&self, fence: Fence, to: RunProgress) -> StoreResult<Run>;

    /// The token of a claim, which the run's own processes show; `None` if it has none.
    async fn run_token(&self, session: &ManagedSession, run: &Run) -> StoreResult<Option<String>>;

    /// Binds the session of a claim to a framework's own conversation.
    async fn bind(&self, fence: Fence, binding: Binding) -> StoreResult<()>;

    /// The conversation to which the session of a claim is bound can be resumed from now on.
    async fn resumable(&self, fence: Fence) -> StoreResult<()>;

    /// Appends to the log of the session that a claim belongs to. Each event has an origin, so that it is there once.
    async fn append(&self, fence: Fence, batch: Vec<NewEvent>) -> StoreResult<()>;

    /// Ends a run. Returns it as it is then.
    async fn finish(&self, fence: Fence, ending: Ending, result: Option<Payload>) -> StoreResult<Run>;

    /// Asks a person on behalf of a claim.
    async fn ask(&self, fence: Fence, new: NewApproval) -> Result<Approval, DispatchError>;

    /// A question of a claim as soon as it is closed, and after `wait` as it is then; `None` if there is none. May be
    /// dropped.
    async fn answered(
        &self,
        fence: Fence,
        session: SessionId,
        id: ApprovalId,
        wait: Duration,
    ) -> StoreResult<Option<Approval>>;

    /// Takes a question of a claim back. Returns it as it is now: an answer that came first counts.
    async fn withdraw(&self, fence: Fence, id: ApprovalId, why: Withdrawal) -> StoreResult<Approval>;

    /// A session as it is recorded.
    async fn session(&self, id: SessionId) -> StoreResult<Option<ManagedSession>>;

    /// The events of a session behind `after`, in order, at most `limit`; none means that there are no more.
    async fn read(&self, session: SessionId, after: Seq, limit: u32) -> StoreResult<Vec<Event>>;

    /// Books as used what the session has set aside: whoever set it aside is gone.
    async fn forfeit(&self, session: SessionId) -> StoreResult<()>;
}

/// A claim that a runner holds, as it says with a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The claim.
    pub fence: Fence,
    /// What its run needs of the session's budget by now: what it has used, and is about to use.
    pub spending: Usage,
}

impl From<Fence> for Holding {
    /// Of a run that needs no more than was set aside for it.
    fn from(fence: Fence) -> Self {
        Self { fence, spending: Usage::NONE }
    }
}

/// What became of a claim with a sign of life.
#[derive(Debug)]
pub struct Heard {
    /// The claim.
    pub fence: Fence,
    /// What to do with its run; an error that it could not be prolonged.
    pub directive: StoreResult<Directive>,
}

#[async_trait]
impl Dispatcher for Coordinator {
    fn env(&self) -> &Env {
        self.env()
    }

    async fn claim(
        &self,
        runner: &RunnerProfile,
        wait: Duration,
        enough: CancellationToken,
    ) -> StoreResult<Option<ClaimedRun>> {
        let mut queue = self.listen(Topic::Queue);
        let until = Instant::now() + wait;
        loop {
            if let Some(claimed) = self.claim(runner).await? {
                return Ok(Some(claimed));
            }
            tokio::select! {
                () = queue.woken() => {}
                () = enough.cancelled() => return Ok(None),
                () = sleep_until(until) => return Ok(None),
            }
        }
    }

    /// Renews what is held, and only then looks for claims that ran out: after a pause of the machine, or a step of its clock, those of this very runner would be among them.
    async fn heartbeat(&self, _runner: RunnerId, held: Vec<Holding>) -> StoreResult<Vec<Heard>> {
        let heard = self.renew_all(held).await;
        let is_out_of_reach = |heard: &Heard| heard.directive.as_ref().is_err_and(StoreError::may_pass);
        if !heard.iter().any(is_out_of_reach) {
            self.reap_and_tell().await;
        }
        Ok(heard)
    }

    async fn orders(
        &self,
        runner: RunnerId,
        known: Vec<(RunId, StopMode)>,
        wait: Duration,
    ) -> StoreResult<Vec<(RunId, StopMode)>> {
        let mut changes = self.listen(Topic::Runner(runner));
        let until = Instant::now() + wait;
        loop {
            let runs = self.store().in_flight(runner).await?;
            let ordered = runs.iter().filter_map(|run| Some((run.id, run.stop?.mode)));
            let news: Vec<_> = ordered.filter(|order| !known.contains(order)).collect();
            if !news.is_empty() {
                return Ok(news);
            }
            tokio::select! {
                () = changes.woken() => {}
                () = sleep_until(until) => return Ok(news),
            }
        }
    }

    async fn held(&self, runner: RunnerId) -> StoreResult<Vec<ClaimedRun>> {
        let mut held = Vec::new();
        for run in self.store().in_flight(runner).await? {
            if let Some(session) = self.store().session(run.session).await? {
                held.push(ClaimedRun { session, run });
            }
        }
        Ok(held)
    }

    async fn take_over(&self, run: RunId, runner: RunnerId) -> StoreResult<Run> {
        self.take_over(run, runner).await
    }

    async fn give_back(&self, fence: Fence) -> StoreResult<Run> {
        self.give_back(fence).await
    }

    async fn advance(&self, fence: Fence, to: RunProgress) -> StoreResult<Run> {
        self.advance(fence, to).await
    }

    async fn run_token(&self, session: &ManagedSession, run: &Run) -> StoreResult<Option<String>> {
        self.run_token(session, run).await.map(Some)
    }

    async fn bind(&self, fence: Fence, binding: Binding) -> StoreResult<()> {
        self.bind(fence, binding).await
    }

    async fn resumable(&self, fence: Fence) -> StoreResult<()> {
        self.resumable(fence).await
    }

    async fn append(&self, fence: Fence, batch: Vec<NewEvent>) -> StoreResult<()> {
        self.append(fence, batch).await
    }

    async fn finish(&self, fence: Fence, ending: Ending, result: Option<Payload>) -> StoreResult<Run> {
        self.finish(fence, ending, result).await
    }

    async fn ask(&self, fence: Fence, new: NewApproval) -> Result<Approval, DispatchError> {
        self.ask(fence, new).await
    }

    async fn answered(
        &self,
        _fence: Fence,
        session: SessionId,
        id: ApprovalId,
        wait: Duration,
    ) -> StoreResult<Option<Approval>> {
        let mut changes = self.listen(Topic::Session(session));
        let until = Instant::now() + wait;
        loop {
            let found = self.store().approval(id).await?;
            if found.as_ref().is_none_or(|approval| !approval.is_open()) {
                return Ok(found);
            }
            tokio::select! {
                () = changes.woken() => {}
                () = sleep_until(until) => return Ok(found),
            }
        }
    }

    async fn withdraw(&self, fence: Fence, id: ApprovalId, why: Withdrawal) -> StoreResult<Approval> {
        self.withdraw(fence, id, why).await
    }

    async fn session(&self, id: SessionId) -> StoreResult<Option<ManagedSession>> {
        self.store().session(id).await
    }

    async fn read(&self, session: SessionId, after: Seq, limit: u32) -> StoreResult<Vec<Event>> {
        self.store().read(session, after, limit).await
    }

    async fn forfeit(&self, session: SessionId) -> StoreResult<()> {
        self.store().forfeit(session, self.env().now()).await.map(drop)
    }
}

impl Coordinator {
    /// Prolongs each of these claims.
    pub async fn renew_all(&self, held: Vec<Holding>) -> Vec<Heard> {
        let mut heard = Vec::with_capacity(held.len());
        for holding in held {
            heard.push(Heard { fence: holding.fence, directive: self.renew(holding).await });
        }
        heard
    }

    /// Deals with claims that ran out, and says in the log what became of their runs.
    pub async fn reap_and_tell(&self) {
        match self.reap().await {
            Ok(reaped) => {
                for run in reaped {
                    tracing::info!(run = %run.id, state = %run.state.phase(), "a claim ran out");
                }
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "claims could not be checked");
            }
        }
    }
}
