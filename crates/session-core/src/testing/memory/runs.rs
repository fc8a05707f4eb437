//! The queue of runs in memory.

use std::cmp::Reverse;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};

use super::draft::{Draft, no_step};
use super::{Data, MemoryStore, QueuedRun};
use crate::affinity::{Affinity, Place, RunnerProfile};
use crate::budget::{Budget, Usage};
use crate::error::{Conflict, StoreError, StoreResult};
use crate::event::{EventKind, NewEvent, Payload};
use crate::ids::{ClaimId, CrewId, RunId, RunnerId, SessionId};
use crate::ports::{
    ClaimedRun, Directive, Idempotency, NewCrew, NewRun, RunOf, RunProgress, RunStore, Spent,
};
use crate::record;
use crate::run::{
    EndKind, Ending, Epoch, Fence, Lease, ReasonCode, Run, RunKind, RunPhase, RunState, RunStep, StopMode,
};
use crate::runner::unmatched;
use crate::session::Binding;
use crate::state::{SessionState, Trigger};

#[async_trait]
impl RunStore for MemoryStore {
    async fn enqueue_once(
        &self,
        batch: Vec<NewRun>,
        crew: Option<NewCrew>,
        once: Option<Idempotency>,
        now: Timestamp,
    ) -> StoreResult<Vec<Run>> {
        self.write(|draft| match once {
            Some(once) => match draft.recall(&once, &batch, now)? {
                Some(runs) => Ok(runs),
                None => draft.enqueue(batch, crew, now),
            },
            None => draft.enqueue(batch, crew, now),
        })
    }

    async fn forget_idempotency(&self, now: Timestamp, limit: u32) -> StoreResult<u32> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.write(|draft| Ok(u32::try_from(draft.forget_calls(now, limit)).unwrap_or(u32::MAX)))
    }

    async fn claim_once(
        &self,
        runner: &RunnerProfile,
        claim: Option<ClaimId>,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Option<ClaimedRun>> {
        self.write(|draft| {
            if let Some(run) = claim.and_then(|claim| draft.data.claimed_as(runner.id, claim)).cloned() {
                let session = draft.session(run.session)?.clone();
                return Ok(Some(ClaimedRun { session, run }));
            }
            if draft
                .data
                .runners
                .get(&runner.id)
                .is_some_and(|known| known.forgotten || known.runner.draining)
            {
                return Ok(None);
            }
            let claimable = draft.data.runs().filter(|run| draft.data.is_claimable(run, runner));
            // The first of equals is the one that was enqueued first.
            let Some(next) = claimable.min_by_key(|run| Reverse(run.priority)).map(|run| run.id) else {
                return Ok(None);
            };
            draft.name_claim(next, claim);
            let run = draft.run(next)?;
            run.epoch = Epoch(run.epoch.0 + 1);
            let run = draft.step(next, RunStep::Claim, Some(lease_of(runner.id, lease, now)), now)?;
            let session = draft.session(run.session)?.clone();
            Ok(Some(ClaimedRun { session, run }))
        })
    }

    async fn unclaimed(&self, now: Timestamp, live: SignedDuration, limit: u32) -> StoreResult<Vec<Run>> {
        self.write(|draft| {
            let runners: Vec<_> = draft.data.runners.values().filter(|known| !known.forgotten).collect();
            let runners: Vec<_> = runners.into_iter().map(|known| known.runner.clone()).collect();
            let late = |run: &&Run| {
                run.state.phase() == RunPhase::Pending
                    && run.waiting_for == 0
                    && run.claim_by.is_some_and(|by| by < now)
            };
            let mut due: Vec<_> = draft.data.runs().filter(late).map(|run| (run.claim_by, run.id)).collect();
            due.sort_by_key(|(by, _)| *by);
            due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            let mut failed = Vec::new();
            for (_, id) in due {
                let run = draft.run(id)?;
                if runners.iter().any(|runner| runner.takes(&run.affinity, now, live)) {
                    run.claim_by = Some(now.saturating_add(live).unwrap_or(Timestamp::MAX));
                } else {
                    let ending = unmatched(&run.affinity, &runners, now, live);
                    draft.end(id, &ending, None, now)?;
                    failed.push(draft.run(id)?.clone());
                }
            }
            Ok(failed)
        })
    }

    async fn advance(&self, fence: Fence, to: RunProgress, now: Timestamp) -> StoreResult<Run> {
        self.write(|draft| {
            let step = to.step();
            let run = draft.held(fence, step.name())?;
            let (session, lease) = (run.session, run.state.lease());
            if let RunProgress::Running { sandbox } = to {
                run.state.phase().on(step)?;
                (run.started_at, run.sandbox) = (Some(now), sandbox.clone());
                if let Some(report) = sandbox {
                    draft.record(session, record::run_sandbox(fence.run, report), now);
                }
            }
            let run = draft.step(fence.run, step, lease, now)?;
            if step == RunStep::Ready || !draft.data.ever_ran(session) {
                draft.session(session)?.workspace.runner = lease.map(|lease| lease.runner);
            }
            if step == RunStep::Ready {
                draft.session(session)?.workspace.removed_at = None;
            }
            Ok(run)
        })
    }

    async fn bind(&self, fence: Fence, binding: Binding, now: Timestamp) -> StoreResult<()> {
        self.write(|draft| {
            let run = draft.held(fence, "bind")?.clone();
            let id = run.session;
            let by = draft.data.bound_by.get(&id).copied();
            let held = draft.session(id)?.binding.as_ref().map(|held| (held, by));
            let Some(binding) = binding.bind(id, held, &run)? else { return Ok(()) };
            let event = record::bound(run.id, &binding);
            draft.session(id)?.binding = Some(binding);
            draft.data.bound_by.insert(id, run.id);
            draft.record(id, event, now);
            Ok(())
        })
    }

    async fn resumable(&self, fence: Fence, _: Timestamp) -> StoreResult<()> {
        self.write(|draft| {
            let id = draft.held(fence, "resumable")?.session;
            draft.session(id)?.binding.as_mut().ok_or(Conflict::Unbound(id))?.resumable = true;
            Ok(())
        })
    }

    async fn renew_spending(
        &self,
        fence: Fence,
        spending: Usage,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Directive> {
        self.write(|draft| {
            let run = draft.held(fence, "renew")?;
            run.state = with_lease(&run.state, |held| lease_of(held.runner, lease, now));
            let (session, stop) = (run.session, run.stop);
            let mut account = draft.session(session)?.account();
            account.need(spending);
            draft.session(session)?.set_account(account);
            let left = Some(account.in_hand());
            Ok(stop.map_or(Directive::Continue { left }, |order| Directive::Stop(order.mode)))
        })
    }

    async fn finish_and_settle(
        &self,
        fence: Fence,
        ending: Ending,
        result: Option<Payload>,
        spent: Option<Spent>,
        now: Timestamp,
    ) -> StoreResult<Run> {
        self.write(|draft| {
            let session = draft.held(fence, RunStep::End(ending.kind).name())?.session;
            if let Some(Spent { worst, actual }) = spent {
                draft.settle(session, worst, actual, Some(fence.run), now)?;
            }
            if let Some(payload) = result.clone() {
                let result =
                    NewEvent { run: Some(fence.run), kind: EventKind::Result, payload, origin: None };
                draft.record(session, result, now);
            }
            draft.end(fence.run, &ending, result.as_ref(), now)?;
            Ok(draft.run(fence.run)?.clone())
        })
    }

    async fn request_stop(&self, run: RunId, mode: StopMode, now: Timestamp) -> StoreResult<Run> {
        self.write(|draft| {
            let phase = draft.run(run)?.state.phase();
            if phase == RunPhase::Pending {
                draft.end(run, &stopped_by_user("it was stopped before a runner took it"), None, now)?;
            } else if phase.is_in_flight() {
                draft.order_stop(run, mode, now)?;
            }
            Ok(draft.run(run)?.clone())
        })
    }

    async fn in_flight(&self, runner: RunnerId) -> StoreResult<Vec<Run>> {
        Ok(self.read(|data| data.held_by(runner).cloned().collect()))
    }

    async fn take_over(
        &self,
        id: RunId,
        runner: RunnerId,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Run> {
        self.write(|draft| {
            let run = draft.run(id)?;
            if run.state.lease().is_none_or(|held| held.runner != runner) {
                return Err(no_step(run.state.phase(), "take over"));
            }
            // Whoever claimed it before does not get it again.
            draft.name_claim(id, None);
            let run = draft.run(id)?;
            run.epoch = Epoch(run.epoch.0 + 1);
            run.state = with_lease(&run.state, |_| lease_of(runner, lease, now));
            Ok(run.clone())
        })
    }

    async fn requeue(&self, fence: Fence, now: Timestamp) -> StoreResult<Run> {
        self.write(|draft| {
            let step = RunStep::Requeue;
            let run = draft.held(fence, step.name())?;
            if run.state.phase() == RunPhase::Running {
                return Err(no_step(RunPhase::Running, step.name()));
            }
            if run.stop.is_some() {
                draft.end_as_ordered(fence.run, "its end was asked for before it began", now)?;
            } else {
                draft.step(fence.run, step, None, now)?;
                draft.wake_queue();
            }
            Ok(draft.run(fence.run)?.clone())
        })
    }

    async fn reap(&self, now: Timestamp, limit: u32) -> StoreResult<Vec<Run>> {
        self.write(|draft| {
            let expired = |run: &&Run| run.state.lease().is_some_and(|lease| lease.until < now);
            let mut due: Vec<_> = draft.data.runs().filter(expired).map(|run| run.id).collect();
            due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            for &id in &due {
                draft.reap_one(id, now)?;
            }
            due.into_iter().map(|id| draft.run(id).map(|run| run.clone())).collect()
        })
    }

    async fn run(&self, id: RunId) -> StoreResult<Option<Run>> {
        Ok(self.read(|data| data.runs().find(|run| run.id == id).cloned()))
    }

    async fn runs(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Run>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.read(|data| {
            data.runs().rev().filter(|run| run.session == session).take(limit).cloned().collect()
        }))
    }

    async fn runs_before(&self, session: SessionId, before: RunId, limit: u32) -> StoreResult<Vec<Run>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.read(|data| {
            let of_session = data.runs().rev().filter(|run| run.session == session);
            of_session.skip_while(|run| run.id != before).skip(1).take(limit).cloned().collect()
        }))
    }

    async fn recall(&self, once: &Idempotency, now: Timestamp) -> StoreResult<Option<Vec<Run>>> {
        self.read(|data| data.recalled(once, now))
    }

    async fn has_work(&self, runner: RunnerId) -> StoreResult<bool> {
        Ok(self.read(|data| {
            let waits = |run: &Run| {
                run.state.phase() == RunPhase::Pending && run.affinity.place == Place::Runner(runner)
            };
            data.held_by(runner).next().is_some() || data.runs().any(waits)
        }))
    }
}

impl Draft {
    fn enqueue(
        &mut self,
        batch: Vec<NewRun>,
        crew: Option<NewCrew>,
        now: Timestamp,
    ) -> StoreResult<Vec<Run>> {
        if let Some(crew) = crew {
            if self.data.crews.contains_key(&crew.id) {
                return Err(Conflict::Exists(crew.id.to_string()).into());
            }
            self.data.crews.insert(crew.id, crew.at_once);
        }
        let mut runs: Vec<Run> = Vec::new();
        for new in batch {
            let mut after = Vec::new();
            for index in &new.after {
                let earlier = runs.get(*index).ok_or(Conflict::Dependencies)?.id;
                if !after.contains(&earlier) {
                    after.push(earlier);
                }
            }
            runs.push(self.enqueue_one(new, after, crew.map(|crew| crew.id), now)?);
        }
        self.wake_queue();
        Ok(runs)
    }

    fn enqueue_one(
        &mut self,
        new: NewRun,
        after: Vec<RunId>,
        crew: Option<CrewId>,
        now: Timestamp,
    ) -> StoreResult<Run> {
        if self.data.runs().any(|run| run.id == new.id) {
            return Err(Conflict::Exists(new.id.to_string()).into());
        }
        let session = match new.of {
            RunOf::New(session) => self.create(*session, None, now)?.id,
            RunOf::Existing(id) => self.use_session(id, now)?,
            RunOf::Keyed(session, asked) => match self.find_key(&session)? {
                Some(id) => {
                    let made = self.data.made_with(id);
                    let differs = asked.differs(self.session(id)?, made);
                    if !differs.is_empty() {
                        return Err(Conflict::Otherwise { session: id, what: differs.join(", ") }.into());
                    }
                    self.use_session(id, now)?
                }
                None => self.create(*session, None, now)?.id,
            },
        };
        self.deliver(session, &new.delivers)?;
        let first = !self.data.runs().any(|run| run.session == session);
        // What was just made is not bound, and gets what was asked for.
        let files = self.data.files_of(session);
        let affinity = Affinity::of(self.session(session)?, files, &new.affinity, &new.spec)?;
        let run = Run {
            id: new.id,
            session,
            kind: if first { RunKind::Start } else { RunKind::Resume },
            spec: new.spec,
            priority: new.priority,
            affinity,
            crew,
            waiting_for: u32::try_from(after.len()).unwrap_or(u32::MAX),
            epoch: Epoch::default(),
            state: RunState::Pending,
            stop: None,
            created_at: now,
            claim_by: new.claim_by,
            started_at: None,
            sandbox: None,
        };
        self.data.runs.push(QueuedRun { run: run.clone(), after, claim: None });
        self.record(session, record::run_state(run.id, None, RunPhase::Pending, None), now);
        Ok(run)
    }

    /// A new run uses the session, if it has no other run to do: it becomes active, unless it is suspended.
    fn use_session(&mut self, id: SessionId, now: Timestamp) -> StoreResult<SessionId> {
        self.session(id)?;
        if let Some(run) = self.data.run_not_over(id) {
            return Err(StoreError::Busy { session: id, run: run.id, phase: run.state.phase() });
        }
        let session = self.session(id)?;
        if matches!(session.state, SessionState::Suspended { .. }) {
            session.active_at = now;
        } else {
            self.transition(id, Trigger::Activity, now)?;
        }
        self.reopen(id, now)?;
        Ok(id)
    }

    /// Ends a run as somebody asked for.
    fn end_as_ordered(&mut self, id: RunId, message: &str, now: Timestamp) -> StoreResult<()> {
        let session = self.run(id)?.session;
        let over = self.session(session)?.state.is_terminated();
        let reason = if over { ReasonCode::SessionTerminated } else { ReasonCode::StoppedByUser };
        self.end(id, &Ending::because(EndKind::Stopped, reason, None, message), None, now)
    }

    /// Remembers under which name a run is claimed.
    fn name_claim(&mut self, id: RunId, claim: Option<ClaimId>) {
        if let Some(queued) = self.data.runs.iter_mut().find(|queued| queued.run.id == id) {
            queued.claim = claim;
        }
    }

    fn reap_one(&mut self, id: RunId, now: Timestamp) -> StoreResult<()> {
        let Run { stop, ref state, .. } = *self.run(id)?;
        let phase = state.phase();
        if stop.is_some() {
            return self.end_as_ordered(id, "its end was asked for, and its runner went silent", now);
        }
        if phase == RunPhase::Claimed {
            self.step(id, RunStep::Requeue, None, now)?;
            self.wake_queue();
            return Ok(());
        }
        let message = "its runner went silent; resume the session to go on";
        self.end(id, &Ending::because(EndKind::Lost, ReasonCode::LeaseExpired, None, message), None, now)
    }
}

impl Data {
    fn is_claimable(&self, run: &Run, runner: &RunnerProfile) -> bool {
        let in_flight = |which: &dyn Fn(&Run) -> bool| {
            self.runs().filter(|other| other.state.phase().is_in_flight() && which(other)).count()
        };
        let at_once = run.crew.and_then(|crew| self.crews.get(&crew).copied().flatten());
        let place_in_crew = at_once.is_none_or(|limit| {
            u32::try_from(in_flight(&|other| other.crew == run.crew)).is_ok_and(|count| count < limit)
        });
        run.state.phase() == RunPhase::Pending
            && run.stop.is_none()
            && run.waiting_for == 0
            && run.affinity.admits(runner)
            && in_flight(&|other| other.session == run.session) == 0
            && place_in_crew
    }

    /// The run that this runner has claimed under this name, and not begun.
    fn claimed_as(&self, runner: RunnerId, claim: ClaimId) -> Option<&Run> {
        let named = |queued: &&QueuedRun| {
            queued.claim == Some(claim)
                && matches!(queued.run.state, RunState::Claimed(lease) if lease.runner == runner)
        };
        self.runs.iter().find(named).map(|queued| &queued.run)
    }

    /// The limits with which a session was made.
    pub(super) fn made_with(&self, session: SessionId) -> Option<Budget> {
        record::made_with(&self.logs.get(&session)?.events.first()?.body)
    }

    fn ever_ran(&self, session: SessionId) -> bool {
        self.runs().any(|run| run.session == session && run.started_at.is_some())
    }

    /// The runner that has what earlier runs left in the session's workspace.
    fn files_of(&self, session: SessionId) -> Option<RunnerId> {
        let workspace = &self.sessions.get(&session)?.workspace;
        let forgotten = |id: &RunnerId| self.runners.get(id).is_some_and(|known| known.forgotten);
        let there = workspace.removed_at.is_none() && self.ever_ran(session);
        workspace.runner.filter(|runner| there && !forgotten(runner))
    }

    pub(super) fn held_by(&self, runner: RunnerId) -> impl Iterator<Item = &Run> {
        self.runs().filter(move |run| run.state.lease().is_some_and(|lease| lease.runner == runner))
    }
}

fn stopped_by_user(message: &str) -> Ending {
    Ending::because(EndKind::Stopped, ReasonCode::StoppedByUser, None, message)
}

fn lease_of(runner: RunnerId, lease: SignedDuration, now: Timestamp) -> Lease {
    Lease { runner, until: now.saturating_add(lease).unwrap_or(Timestamp::MAX) }
}

/// The same state with another lease, where it has one.
fn with_lease(state: &RunState, lease: impl FnOnce(Lease) -> Lease) -> RunState {
    match state {
        RunState::Claimed(held) => RunState::Claimed(lease(*held)),
        RunState::Starting(held) => RunState::Starting(lease(*held)),
        RunState::Running(held) => RunState::Running(lease(*held)),
        RunState::Pending | RunState::Ended { .. } => state.clone(),
    }
}
