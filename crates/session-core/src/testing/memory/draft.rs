//! A change in the making: what every port's methods are composed of.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Data, QueuedRun};
use crate::budget::Usage;
use crate::error::{Conflict, StoreError, StoreResult};
use crate::event::{Event, NewEvent, Payload, Seq};
use crate::ids::{RunId, RunnerId, SessionId};
use crate::record;
use crate::run::{
    EndKind, Ending, Fence, Lease, ReasonCode, Run, RunPhase, RunState, RunStep, StopMode, StopOrder,
};
use crate::session::{Generation, ManagedSession, NewSession, WorkspaceSpec};
use crate::state::{InvalidTransition, SessionState, TerminationReason, Trigger};
use crate::wake::Topic;

/// A copy of everything on which a change is made, and whom to wake when it is done.
pub(super) struct Draft {
    pub(super) data: Data,
    wakes: BTreeSet<Wake>,
}

/// [`Topic`] with an order, so that each is woken once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Queue,
    Runner(RunnerId),
    Session(SessionId),
    Family,
    Tokens,
}

impl Draft {
    pub(super) fn of(data: &Data) -> Self {
        Self { data: data.clone(), wakes: BTreeSet::new() }
    }

    /// Puts the change in the original's place; returns whom to wake.
    pub(super) fn commit(self, data: &mut Data) -> Vec<Topic> {
        *data = self.data;
        let topic = |wake| match wake {
            Wake::Queue => Topic::Queue,
            Wake::Runner(id) => Topic::Runner(id),
            Wake::Session(id) => Topic::Session(id),
            Wake::Family => Topic::Family,
            Wake::Tokens => Topic::Tokens,
        };
        self.wakes.into_iter().map(topic).collect()
    }

    pub(super) fn wake_runner(&mut self, id: RunnerId) {
        self.wakes.insert(Wake::Runner(id));
    }

    pub(super) fn wake_queue(&mut self) {
        self.wakes.insert(Wake::Queue);
    }

    pub(super) fn wake_tokens(&mut self) {
        self.wakes.insert(Wake::Tokens);
    }

    pub(super) fn wake_family(&mut self) {
        self.wakes.insert(Wake::Family);
    }

    /// Appends an event with the next number of the session's log.
    pub(super) fn record(&mut self, session: SessionId, body: NewEvent, at: Timestamp) -> Seq {
        self.wakes.insert(Wake::Session(session));
        let log = Arc::make_mut(self.data.logs.entry(session).or_default());
        let seq = log.last().next();
        log.push(Event { session, seq, at, body })
    }

    // Sessions.

    pub(super) fn session(&mut self, id: SessionId) -> StoreResult<&mut ManagedSession> {
        self.data.sessions.get_mut(&id).ok_or(StoreError::UnknownSession(id))
    }

    /// Puts a new session into the registry, without any event.
    pub(super) fn insert_session(
        &mut self,
        new: NewSession,
        generation: Option<Generation>,
        state: SessionState,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        if self.data.sessions.contains_key(&new.id) {
            return Err(Conflict::Exists(new.id.to_string()).into());
        }
        let depth = self.depth(&new)?;
        if let Some(key) = &new.key
            && self.data.by_key(&new.principal, key).is_some()
        {
            return Err(Conflict::key_taken(&new.principal, key).into());
        }
        self.allot(&new)?;
        let session = ManagedSession {
            id: new.id,
            principal: new.principal,
            state,
            key: new.key,
            label: new.label,
            agent: new.agent,
            workspace: WorkspaceSpec { kind: new.kind, project: new.project, runner: None, removed_at: None },
            sandbox: new.sandbox,
            metadata: new.metadata,
            budget: new.budget,
            usage: Usage::NONE,
            reserved: Usage::NONE,
            allotted: Usage::NONE,
            parent: new.parent.map(|parent| parent.session),
            depth,
            callback: new.parent.is_some_and(|parent| parent.callback),
            forked_from: None,
            generation,
            binding: None,
            created_at: now,
            active_at: now,
        };
        self.data.sessions.insert(session.id, session.clone());
        Ok(session)
    }

    /// Makes a session that starts active.
    pub(super) fn create(
        &mut self,
        new: NewSession,
        generation: Option<Generation>,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        let created = record::session_created(&new, generation.as_ref());
        let session = self.insert_session(new, generation, SessionState::Active, now)?;
        self.record(session.id, created, now);
        Ok(session)
    }

    /// Moves a session through its state machine, with all that follows from it.
    pub(super) fn transition(
        &mut self,
        id: SessionId,
        trigger: Trigger,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        if trigger.wants_rest()
            && let Some(run) = self.data.run_not_over(id)
        {
            return Err(StoreError::Busy { session: id, run: run.id, phase: run.state.phase() });
        }
        if trigger.wants_rest_below()
            && let Some(run) = self.data.at_work_below(id)
        {
            return Err(StoreError::Busy { session: run.session, run: run.id, phase: run.state.phase() });
        }
        let to = self.session(id)?.state.on(trigger, now)?;
        self.move_to(id, to, now)
    }

    /// Puts a session into another state, with all that follows from it.
    pub(super) fn move_to(
        &mut self,
        id: SessionId,
        to: SessionState,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        let session = self.session(id)?;
        let from = std::mem::replace(&mut session.state, to);
        if to == SessionState::Active {
            session.active_at = now;
        }
        if to != from {
            self.record(id, record::session_state(from, to), now);
        }
        if to.is_terminated() {
            self.end_runs_of(id, now)?;
            self.drop_callbacks(id);
            self.rest(id, now)?;
            self.wake_family();
        }
        Ok(self.session(id)?.clone())
    }

    /// Terminates a session unless that has happened before.
    pub(super) fn terminate(
        &mut self,
        id: SessionId,
        reason: TerminationReason,
        now: Timestamp,
    ) -> StoreResult<()> {
        if !self.session(id)?.state.is_terminated() {
            self.transition(id, Trigger::Terminate(reason), now)?;
        }
        Ok(())
    }

    fn end_runs_of(&mut self, session: SessionId, now: Timestamp) -> StoreResult<()> {
        let Some(run) = self.data.run_not_over(session).map(|run| run.id) else { return Ok(()) };
        if self.run(run)?.state.phase() == RunPhase::Pending {
            let message = "the session was terminated before the run began; start it in another session";
            let ending = Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, message);
            self.end(run, &ending, None, now)
        } else {
            self.order_stop(run, StopMode::Kill, now)
        }
    }

    // Runs.

    pub(super) fn run(&mut self, id: RunId) -> StoreResult<&mut Run> {
        let found = self.data.runs.iter_mut().find(|queued| queued.run.id == id);
        found.map(|queued| &mut queued.run).ok_or(StoreError::UnknownRun(id))
    }

    /// The run that this fence speaks for, if its claim still holds it.
    pub(super) fn held(&mut self, fence: Fence, step: &'static str) -> StoreResult<&mut Run> {
        let run = self.run(fence.run)?;
        if run.epoch != fence.epoch {
            return Err(StoreError::Fenced { run: fence.run, held: run.epoch, given: fence.epoch });
        }
        if run.state.lease().is_none() {
            return Err(no_step(run.state.phase(), step));
        }
        Ok(run)
    }

    /// Moves a run to another state that is not an end, and records it.
    pub(super) fn step(
        &mut self,
        id: RunId,
        step: RunStep,
        lease: Option<Lease>,
        now: Timestamp,
    ) -> StoreResult<Run> {
        let run = self.run(id)?;
        let from = run.state.phase();
        let to = from.on(step)?;
        run.state = match (to, lease) {
            (RunPhase::Pending, _) => RunState::Pending,
            (RunPhase::Claimed, Some(lease)) => RunState::Claimed(lease),
            (RunPhase::Starting, Some(lease)) => RunState::Starting(lease),
            (RunPhase::Running, Some(lease)) => RunState::Running(lease),
            (
                RunPhase::Claimed
                | RunPhase::Starting
                | RunPhase::Running
                | RunPhase::Completed
                | RunPhase::Failed
                | RunPhase::Stopped
                | RunPhase::Lost,
                _,
            ) => return Err(no_step(from, step.name())),
        };
        let run = run.clone();
        if to == RunPhase::Pending {
            self.close_those_of(run.session, id, now)?;
        }
        self.record(run.session, record::run_state(id, Some(from), to, None), now);
        Ok(run)
    }

    /// Ends a run, and deals with those that wait for it.
    /// `result` is what it came to.
    pub(super) fn end(
        &mut self,
        id: RunId,
        ending: &Ending,
        result: Option<&Payload>,
        now: Timestamp,
    ) -> StoreResult<()> {
        let mut ends = vec![(id, ending.clone())];
        let first = id;
        while let Some((id, ending)) = ends.pop() {
            let to = self.end_one(id, &ending, now)?;
            self.call_back(id, result.filter(|_| id == first), now)?;
            let session = self.run(id)?.session;
            self.rest(session, now)?;
            let waiting: Vec<_> = self.data.waiting_for(id).map(|run| run.id).collect();
            for next in waiting {
                if to == RunPhase::Completed {
                    self.run(next)?.waiting_for -= 1;
                } else if ends.iter().all(|(other, _)| *other != next) {
                    let message =
                        format!("{id}, for which it waited, is {to}; enqueue it again when that is mended");
                    let failed =
                        Ending::because(EndKind::Failed, ReasonCode::DependencyFailed, None, message);
                    ends.push((next, failed));
                }
            }
        }
        Ok(())
    }

    fn end_one(&mut self, id: RunId, ending: &Ending, now: Timestamp) -> StoreResult<RunPhase> {
        let run = self.run(id)?;
        let (session, from) = (run.session, run.state.phase());
        let to = from.on(RunStep::End(ending.kind))?;
        run.stop = None;
        run.state = RunState::Ended { at: now, ending: ending.clone() };
        self.close_those_of(session, id, now)?;
        self.record(session, record::run_state(id, Some(from), to, Some(ending)), now);
        let session = self.session(session)?;
        if !session.state.is_terminated() {
            session.active_at = now;
        }
        // A place in its crew may have become free, or a run that waited for it; or its session can be told of its children.
        self.wake_queue();
        self.wake_family();
        Ok(to)
    }

    /// Records that the end of a run in flight is asked for. An order never becomes softer.
    pub(super) fn order_stop(&mut self, id: RunId, mode: StopMode, now: Timestamp) -> StoreResult<()> {
        let run = self.run(id)?;
        if let Some(lease) = run.state.lease()
            && run.stop.is_none_or(|order| order.mode < mode)
        {
            run.stop = Some(StopOrder { mode, at: now });
            self.wakes.insert(Wake::Runner(lease.runner));
        }
        Ok(())
    }
}

impl Data {
    pub(super) fn runs(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.iter().map(|queued| &queued.run)
    }

    /// The one run of a session that is pending or in flight.
    pub(super) fn run_not_over(&self, session: SessionId) -> Option<&Run> {
        self.runs().find(|run| run.session == session && !run.state.phase().is_ended())
    }

    /// The runs in the queue that wait for this one, in the order of enqueueing.
    fn waiting_for(&self, id: RunId) -> impl Iterator<Item = &Run> {
        let pending = move |queued: &&QueuedRun| {
            queued.after.contains(&id) && queued.run.state.phase() == RunPhase::Pending
        };
        self.runs.iter().filter(pending).map(|queued| &queued.run)
    }
}

/// The refusal of a step that a run in this phase does not take.
pub(super) fn no_step(from: RunPhase, trigger: &'static str) -> StoreError {
    InvalidTransition { machine: "run", from: from.code(), trigger }.into()
}
