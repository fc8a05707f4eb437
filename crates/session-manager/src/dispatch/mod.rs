//! The use-cases of runs over the ports: one object that every front end and every runner goes through.

mod approvals;
mod dispatcher;
mod family;
mod submit;
mod telling;
mod tokens;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use session_core::affinity::RunnerProfile;
use session_core::error::{StoreError, StoreResult};
use session_core::event::Payload;
use session_core::ports::{Author, ClaimedRun, Directive, Idempotency, RunProgress};
use session_core::run::{Ending, Fence, Run, StopMode};
use session_core::session::Binding;
use session_core::state::{TerminationReason, Trigger};
use session_core::wake::{Listener, Topic};
use session_core::{ClaimId, Env, ManagedSession, NewEvent, RunId, RunPhase, RunnerId, SessionId, Store};
use thiserror::Error;

pub use dispatcher::{Dispatcher, Heard, Holding};
pub use submit::{Draft, Submission, Task, TaskSession};

/// Settings of dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchOptions {
    /// For how long a claim holds without being renewed.
    pub lease: SignedDuration,
    /// For how long a further run of a session waits for a runner that may take it, unless it says otherwise; `None` for as
    /// long as it takes.
    pub resume_within: Option<SignedDuration>,
    /// For how long after its start a coordinator takes no claim for one that ran out: so long has a runner to come back
    /// that could reach nobody. A lease where there are runners on other machines, nothing otherwise.
    pub patience: Duration,
    /// The same for a session's first run.
    pub claim_within: Option<SignedDuration>,
}

impl Default for DispatchOptions {
    /// A lease of a minute, and half a minute by which the clocks of hosts that share a store may differ; ten minutes for a
    /// further run.
    fn default() -> Self {
        Self {
            lease: SignedDuration::from_secs(90),
            resume_within: Some(SignedDuration::from_mins(10)),
            patience: Duration::ZERO,
            claim_within: None,
        }
    }
}

/// Why something could not be done about a run or a session.
#[derive(Debug, Error)]
pub enum DispatchError {
    /// A part of what was asked for is not valid.
    #[error("{field}: {reason}")]
    Invalid {
        /// Which part, such as `tasks[2].argv`.
        field: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The use-cases of runs.
#[derive(Clone)]
pub struct Coordinator {
    env: Env,
    store: Arc<dyn Store>,
    options: DispatchOptions,
    /// When it started, by the clock that nobody sets.
    began: Duration,
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Coordinator {
    /// A coordinator over this store.
    #[must_use]
    pub fn new(env: Env, store: Arc<dyn Store>, options: DispatchOptions) -> Self {
        let began = env.elapsed();
        Self { env, store, options, began }
    }

    /// The outside world.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The store, for what needs no decision: reading.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// For how long a claim holds without being renewed.
    #[must_use]
    pub fn lease(&self) -> SignedDuration {
        self.options.lease
    }

    /// Checks a submission whole, then enqueues all of it in one transaction, in an order in which every run
    /// stands behind those it waits for. Returns the runs in the order of the submission's tasks.
    pub async fn submit(&self, submission: Submission) -> Result<Vec<Run>, DispatchError> {
        self.submit_once(submission, None).await
    }

    /// [`submit`](Self::submit), at most once a key: the same call again returns the runs of the first one.
    pub async fn submit_once(
        &self,
        submission: Submission,
        once: Option<Idempotency>,
    ) -> Result<Vec<Run>, DispatchError> {
        let mut planned = submit::plan(submission, &self.env, self.options.resume_within)?;
        let claim_by = submit::claim_by(self.options.claim_within, self.env.now());
        for run in &mut planned.batch {
            run.claim_by = run.claim_by.or(claim_by);
        }
        let runs = self.store.enqueue_once(planned.batch, planned.crew, once, self.env.now()).await?;
        let mut by_task: Vec<_> = planned.tasks.into_iter().zip(runs).collect();
        by_task.sort_by_key(|(task, _)| *task);
        Ok(by_task.into_iter().map(|(_, run)| run).collect())
    }

    /// The next run that this runner may execute.
    pub async fn claim(&self, runner: &RunnerProfile) -> StoreResult<Option<ClaimedRun>> {
        self.store.claim(runner, self.options.lease, self.env.now()).await
    }

    /// The same for a caller to whom the answer may get lost: see
    /// [`claim_once`](session_core::ports::RunStore::claim_once).
    pub async fn claim_once(
        &self,
        runner: &RunnerProfile,
        claim: ClaimId,
    ) -> StoreResult<Option<ClaimedRun>> {
        self.store.claim_once(runner, Some(claim), self.options.lease, self.env.now()).await
    }

    /// A claimed run has come this far. Said once more by the same claim it is taken as it was: the first answer may have
    /// got lost.
    pub async fn advance(&self, fence: Fence, to: RunProgress) -> StoreResult<Run> {
        let step = to.step();
        let said = self.store.advance(fence, to, self.env.now()).await;
        self.or_said_before(fence, said, |run| {
            RunPhase::ALL.iter().any(|from| from.on(step) == Ok(run.state.phase()))
        })
        .await
    }

    /// Binds the session of a claim to a framework's own conversation.
    pub async fn bind(&self, fence: Fence, binding: Binding) -> StoreResult<()> {
        self.store.bind(fence, binding, self.env.now()).await
    }

    /// The conversation to which the session of a claim is bound can be resumed from now on.
    pub async fn resumable(&self, fence: Fence) -> StoreResult<()> {
        self.store.resumable(fence, self.env.now()).await
    }

    /// Prolongs a claim.
    pub async fn renew(&self, held: impl Into<Holding>) -> StoreResult<Directive> {
        let Holding { fence, spending } = held.into();
        self.store.renew_spending(fence, spending, self.options.lease, self.env.now()).await
    }

    /// Ends a run. The same end, said once more by the same claim, is taken as it was: the first answer may have got lost.
    pub async fn finish(&self, fence: Fence, ending: Ending, result: Option<Payload>) -> StoreResult<Run> {
        let said = self.store.finish(fence, ending.clone(), result, self.env.now()).await;
        self.or_said_before(fence, said, |run| run.ended().is_some_and(|(_, ended)| *ended == ending)).await
    }

    /// Appends to the log of the session that a claim belongs to.
    pub async fn append(&self, fence: Fence, batch: Vec<NewEvent>) -> StoreResult<()> {
        self.store.append(Author::Run(fence), batch, self.env.now()).await.map(drop)
    }

    /// Gives a run in flight to the same runner's new host.
    pub async fn take_over(&self, run: RunId, runner: RunnerId) -> StoreResult<Run> {
        self.store.take_over(run, runner, self.options.lease, self.env.now()).await
    }

    /// Gives a run that has not begun back to its place in the queue; one whose end was asked for is over instead.
    /// Returns it as it is now.
    pub async fn give_back(&self, fence: Fence) -> StoreResult<Run> {
        self.store.requeue(fence, self.env.now()).await
    }

    /// Asks for the end of every run that is not over of these sessions and of all live ones below them; the sessions
    /// stay. Those that have children are left in peace until they are used again: nobody tells them of what is ended
    /// here. Returns those runs.
    ///
    /// What waits goes before what runs, and the last before the first: a place that becomes free is not taken by one
    /// that is to end as well, and nothing fails for want of a run that was stopped just before it.
    pub async fn stop(&self, sessions: &[SessionId], mode: StopMode) -> StoreResult<Vec<Run>> {
        let family = self.families(sessions).await?;
        self.store.hold_callbacks(&family).await?;
        let mut open = Vec::new();
        for session in family {
            open.extend(self.open_runs(session).await?);
        }
        open.sort_by_key(|run| (run.state.phase().is_in_flight(), std::cmp::Reverse(run.id)));
        let mut stopped = Vec::with_capacity(open.len());
        for run in open {
            stopped.push(self.store.request_stop(run.id, mode, self.env.now()).await?);
        }
        Ok(stopped)
    }

    /// Ends the session for good, and whatever runs in it at once.
    pub async fn kill(&self, session: SessionId) -> StoreResult<ManagedSession> {
        let trigger = Trigger::Terminate(TerminationReason::Killed);
        self.store.transition(session, trigger, self.env.now()).await
    }

    /// Deals with claims that ran out, everything that is due. What this host holds is to be renewed before: after
    /// a pause of the machine everything looks as if it had run out. None before the patience of a start is over.
    pub async fn reap(&self) -> StoreResult<Vec<Run>> {
        const BATCH: u32 = 100;
        let mut reaped = Vec::new();
        if self.env.elapsed().saturating_sub(self.began) < self.options.patience {
            return Ok(reaped);
        }
        loop {
            let batch = self.store.reap(self.env.now(), BATCH).await?;
            let full = batch.len() == BATCH as usize;
            reaped.extend(batch);
            if !full {
                return Ok(reaped);
            }
        }
    }

    /// Deals with the runs that no runner took in time, everything that is due: those that a runner waits to take wait on,
    /// all others fail. A runner counts that was seen within a lease. Returns those that failed.
    pub async fn unclaimed(&self) -> StoreResult<Vec<Run>> {
        const BATCH: u32 = 100;
        let mut failed = Vec::new();
        loop {
            let batch = self.store.unclaimed(self.env.now(), self.options.lease, BATCH).await?;
            if batch.is_empty() {
                return Ok(failed);
            }
            failed.extend(batch);
        }
    }

    /// Forgets the calls whose time is over.
    pub async fn forget_calls(&self) -> StoreResult<()> {
        const BATCH: u32 = 1_000;
        while self.store.forget_idempotency(self.env.now(), BATCH).await? == BATCH {}
        Ok(())
    }

    /// Listens to a topic.
    #[must_use]
    pub fn listen(&self, topic: Topic) -> Listener {
        self.store.listen(topic)
    }

    /// What a claim said, or the run as it is where the same claim had said so before.
    async fn or_said_before(
        &self,
        fence: Fence,
        said: StoreResult<Run>,
        is_so: impl FnOnce(&Run) -> bool,
    ) -> StoreResult<Run> {
        let Err(StoreError::Transition(refused)) = said else { return said };
        let run = self.store.run(fence.run).await?;
        run.filter(|run| run.epoch == fence.epoch && is_so(run)).ok_or(refused.into())
    }

    /// The runs of a session that are not over. Few: further ones are refused while one is there.
    async fn open_runs(&self, session: SessionId) -> StoreResult<Vec<Run>> {
        const NEWEST: u32 = 16;
        if self.store.session(session).await?.is_none() {
            return Err(StoreError::UnknownSession(session));
        }
        let runs = self.store.runs(session, NEWEST).await?;
        let open = |phase: RunPhase| !phase.is_ended();
        Ok(runs.into_iter().filter(|run| open(run.state.phase())).collect())
    }
}

#[cfg(test)]
mod tests {
    use session_core::affinity::{Affinity, Place};
    use session_core::budget::Budget;
    use session_core::names::ExecutorType;
    use session_core::ports::{EventStore as _, NewRun, RunOf};
    use session_core::run::{EndKind, Epoch, ReasonCode, RunSpec};
    use session_core::session::NewSession;
    use session_core::testing::{self, MemoryStore};
    use session_core::{SandboxSpec, Seq, WorkspaceKind};

    use super::*;

    /// A run of a new session, claimed.
    async fn claimed(coordinator: &Coordinator) -> Run {
        let env = coordinator.env();
        let new = NewSession {
            id: env.session_id(),
            principal: "alice".parse().unwrap(),
            key: None,
            label: None,
            agent: None,
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox: SandboxSpec::default(),
            metadata: Payload::parse("{}").unwrap(),
            budget: Budget::default(),
            parent: None,
        };
        let executor = ExecutorType::command();
        let run = NewRun {
            id: env.run_id(),
            of: RunOf::New(Box::new(new)),
            spec: RunSpec::default(),
            priority: 0,
            affinity: Affinity { place: Place::Anywhere, executor: executor.clone(), project_dir: None },
            after: Vec::new(),
            claim_by: None,
            delivers: Vec::new(),
        };
        coordinator.store().enqueue(vec![run], None, env.now()).await.unwrap();
        let (id, hostname) = (env.runner_id(), "box".parse().unwrap());
        let profile = RunnerProfile { id, hostname, executors: vec![executor], project_dirs: None };
        coordinator.claim(&profile).await.unwrap().unwrap().run
    }

    #[tokio::test]
    async fn what_a_claim_says_again_is_taken_as_it_was() {
        let store = MemoryStore::new();
        let coordinator =
            Coordinator::new(testing::env().0, Arc::new(store.clone()), DispatchOptions::default());
        let run = claimed(&coordinator).await;
        let (fence, stale) = (run.fence(), Fence { epoch: Epoch(7), ..run.fence() });
        for to in [RunProgress::Starting, RunProgress::RUNNING] {
            let first = coordinator.advance(fence, to.clone()).await.unwrap();
            assert_eq!(coordinator.advance(fence, to.clone()).await.unwrap(), first);
            assert!(matches!(coordinator.advance(stale, to).await, Err(StoreError::Fenced { .. })));
        }
        let back = coordinator.advance(fence, RunProgress::Starting).await;
        assert!(matches!(back, Err(StoreError::Transition(_))), "{back:?}");
        let (ending, result) = (Ending::completed(None), Payload::parse("{}").unwrap());
        let first = coordinator.finish(fence, ending.clone(), Some(result.clone())).await.unwrap();
        let log = store.read(run.session, Seq::START, 100).await.unwrap();
        assert_eq!(coordinator.finish(fence, ending.clone(), Some(result)).await.unwrap(), first);
        assert_eq!(store.read(run.session, Seq::START, 100).await.unwrap(), log);
        let other = Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, "no");
        assert!(matches!(coordinator.finish(fence, other, None).await, Err(StoreError::Transition(_))));
        assert!(matches!(coordinator.finish(stale, ending, None).await, Err(StoreError::Fenced { .. })));
    }
}
