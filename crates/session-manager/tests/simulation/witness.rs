//! The witness: sees every change of the store as it is made, and says what must not be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use session_core::approval::ApprovalPhase;
use session_core::budget::{Resource, Usage};
use session_core::error::StoreError;
use session_core::event::EventKind;
use session_core::names::IdempotencyKey;
use session_core::ports::NewCrew;
use session_core::run::{Epoch, Fence};
use session_core::{
    ApprovalId, CrewId, Event, ManagedSession, NewEvent, Run, RunId, RunPhase, Seq, SessionId, SessionState,
};

use crate::machine::{Machine, Role};
use crate::snapshot::{Snapshot, run_steps, session_steps};
use crate::wire::Call;
use crate::world::World;

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Witness {
    pub(crate) seen: Arc<Snapshot>,
    pub(crate) logs: BTreeMap<SessionId, Vec<Event>>,
    /// By the log: where each run and each session stands.
    run_phases: BTreeMap<RunId, RunPhase>,
    session_states: BTreeMap<SessionId, String>,
    /// Which runs tell of which ends; none where a session was told by its log alone.
    pub(crate) delivered: BTreeMap<RunId, Vec<RunId>>,
    crews: BTreeMap<CrewId, u32>,
    calls: BTreeMap<IdempotencyKey, Vec<RunId>>,
    /// Appends whose answer was received, in the order of the answers.
    pub(crate) acknowledged: Vec<(SessionId, NewEvent)>,
    /// What somebody acted on as the answer to a question.
    pub(crate) acted: Vec<(ApprovalId, ApprovalPhase)>,
    /// How often the processes of each run were started.
    started: BTreeMap<RunId, u32>,
    /// By how much the use of a session may pass its limit: it was used by somebody who had not set it aside any more.
    excess: BTreeMap<SessionId, Usage>,
    /// Callbacks that a faulty store forgot.
    pub(crate) dropped: BTreeSet<RunId>,
    /// A machine crashed, halted, or had its clock stepped.
    pub(crate) disturbed: bool,
    violation: Option<String>,
}

impl Witness {
    /// What is wrong, if something is.
    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.clone()
    }

    /// Says that something is wrong. What is said first counts.
    pub(crate) fn complain(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Says that something is wrong unless it holds.
    pub(crate) fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.complain(what());
        }
    }

    pub(crate) fn epoch(&self, run: RunId) -> Option<Epoch> {
        self.seen.runs.get(&run).map(|run| run.epoch)
    }

    /// A call was carried out, or refused.
    pub(crate) fn saw(&mut self, world: &World, call: Call, error: Option<&StoreError>) {
        let now = Arc::new(self.seen.after(&world.store));
        let before = std::mem::replace(&mut self.seen, Arc::clone(&now));
        if let Some(error) = error {
            self.demand(before == now, || {
                format!("{} was refused ({error}), and changed something", call.name)
            });
            let faulty = matches!(error, StoreError::Backend(_) | StoreError::Corrupt { .. });
            return self.demand(!faulty, || format!("{}: {error}", call.name));
        }
        if let Some(fence) = call.fence {
            self.speaks_for_the_claim(&before, call.name, fence);
        }
        for (id, run) in now.runs.iter().filter(|(id, run)| !is_same(before.runs.get(id), run)) {
            self.run_went(before.runs.get(id).map(AsRef::as_ref), run, &now, &world.machines);
        }
        for (id, session) in &now.sessions {
            self.log_grew(world, *id);
            let run = now.open_runs(*id).next().and_then(|run| now.runs.get(&run.id));
            let run_is_same = run.is_none_or(|run| is_same(before.runs.get(&run.id), run));
            if !run_is_same || !is_same(before.sessions.get(id), session) {
                self.session_went(before.sessions.get(id).map(AsRef::as_ref), session, &now);
            }
        }
        for run in now.runs.values().filter(|run| !is_same(before.runs.get(&run.id), run)) {
            self.is_told(run);
        }
        self.crews_are_kept(&now);
        for (id, approval) in &now.approvals {
            let closed = before.approvals.get(id).filter(|before| !before.is_open());
            self.demand(closed.is_none_or(|before| before == approval), || {
                format!("{id} changed after it was closed")
            });
            let in_flight = now.runs.get(&approval.run).is_some_and(|run| run.state.phase().is_in_flight());
            self.demand(in_flight || !approval.is_open(), || {
                format!("{id} is open, and its run is not in flight")
            });
        }
    }

    /// A write of a run counts only while its claim holds the run.
    fn speaks_for_the_claim(&mut self, before: &Snapshot, name: &str, fence: Fence) {
        let run = before.runs.get(&fence.run);
        let holds = run.is_some_and(|run| run.epoch == fence.epoch && run.state.phase().is_in_flight());
        let held = run.map(|run| (run.epoch, run.state.phase()));
        self.demand(holds, || {
            format!("{name} of {} was taken at epoch {}, which is {held:?}", fence.run, fence.epoch)
        });
    }

    fn run_went(&mut self, before: Option<&Run>, run: &Run, now: &Snapshot, machines: &[Machine]) {
        let (id, to) = (run.id, run.state.phase());
        let from = before.map(|before| before.state.phase());
        if from == Some(to) {
            let same_end = !to.is_ended() || before == Some(run);
            self.demand(same_end, || format!("{id} is {to}, and changed all the same"));
        } else {
            self.demand(run_steps(from, to), || format!("{id} went from {from:?} to {to}"));
        }
        if let Some(before) = before {
            self.demand(before.epoch <= run.epoch, || format!("{id} went back to epoch {}", run.epoch));
            let same =
                before.session == run.session && before.spec == run.spec && before.affinity == run.affinity;
            self.demand(same, || format!("{id} is another run than it was"));
            if (from, to) == (Some(RunPhase::Pending), RunPhase::Claimed) {
                let next = run.epoch == Epoch(before.epoch.0 + 1) && before.waiting_for == 0;
                self.demand(next, || format!("{id} was claimed at epoch {} while it waited", run.epoch));
            }
        }
        if let Some(lease) = run.state.lease() {
            let holder = machines.iter().find(|machine| machine.profile.id == lease.runner);
            let admitted = holder
                .is_some_and(|machine| machine.role == Role::Runner && run.affinity.admits(&machine.profile));
            self.demand(admitted, || format!("{id} demands {:?} and is with {}", run.affinity, lease.runner));
            let over = now.sessions.get(&run.session).is_none_or(|session| session.state.is_terminated());
            self.demand(!over || run.stop.is_some(), || format!("{id} goes on in a session that is over"));
        }
    }

    fn session_went(&mut self, before: Option<&ManagedSession>, session: &ManagedSession, now: &Snapshot) {
        let id = session.id;
        if let Some(before) = before.filter(|before| before.state.is_terminated()) {
            self.demand(before.state == session.state, || {
                format!("{id} was terminated, and is {}", session.state)
            });
        }
        let told = self.session_states.get(&id).cloned();
        let is_told = told.as_deref() == Some(session.state.name());
        self.demand(is_told, || format!("{id} is {}, and its log says {told:?}", session.state));
        let mut open = now.open_runs(id);
        let phase = open.next().map(|run| run.state.phase());
        self.demand(open.next().is_none(), || format!("{id} has two runs that are not over"));
        let waits = session.state.is_terminated() && phase == Some(RunPhase::Pending);
        self.demand(!waits, || format!("{id} is terminated, and has a run in the queue"));
        let resting = matches!(session.state, SessionState::Idle { .. } | SessionState::Suspended { .. });
        let at_work = matches!(phase, Some(RunPhase::Starting | RunPhase::Running));
        self.demand(!resting || !at_work, || {
            format!("{id} is {}, and a run is at work in it", session.state)
        });
        let excess = self.excess.get(&id).copied().unwrap_or_default();
        let taken = session.usage.plus(session.reserved).plus(session.allotted);
        for resource in Resource::ALL {
            // A limit is lowered only by what was not used of it.
            let limit = session.budget.limit(*resource).saturating_add(excess.of(*resource));
            let within = taken.of(*resource) <= limit;
            self.demand(within, || format!("{id} took {} {resource} of {limit}", taken.of(*resource)));
        }
        if let Some(parent) = session.parent {
            let live = now
                .sessions
                .values()
                .filter(|child| child.parent == Some(parent) && !child.state.is_terminated());
            let live = live.count();
            self.demand(live <= CHILDREN_MAX, || format!("{parent} has {live} live children"));
            self.demand(session.depth <= DEPTH_MAX, || format!("{id} lies {} deep", session.depth));
        }
    }

    fn crews_are_kept(&mut self, now: &Snapshot) {
        for (crew, at_once) in self.crews.clone() {
            let of_crew = now.runs.values().filter(|run| run.crew == Some(crew));
            let in_flight = of_crew.filter(|run| run.state.phase().is_in_flight()).count();
            self.demand(in_flight <= at_once as usize, || {
                format!("{in_flight} runs of {crew} are in flight at once")
            });
        }
    }

    /// What is new in a log: dense, and telling what the records say.
    fn log_grew(&mut self, world: &World, session: SessionId) {
        let last = self.logs.get(&session).and_then(|log| log.last()).map_or(Seq::START, |event| event.seq);
        if Snapshot::last_event(&world.store, session) == Some(last) {
            return;
        }
        let mut next = last.next();
        for event in Snapshot::events(&world.store, session, last) {
            self.demand(event.seq == next, || {
                format!("{session} has event {} where {next} was due", event.seq)
            });
            next = next.next();
            self.tells(session, &event);
            self.logs.entry(session).or_default().push(event);
        }
    }

    /// The log says where a run stands.
    fn is_told(&mut self, run: &Run) {
        let phase = run.state.phase();
        let told = self.run_phases.get(&run.id).copied();
        self.demand(told == Some(phase), || format!("{} is {phase}, and its log says {told:?}", run.id));
    }

    fn tells(&mut self, session: SessionId, event: &Event) {
        let payload = event.body.payload.value().unwrap_or_default();
        let word = |name: &str| payload.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        if event.body.kind == EventKind::RunState
            && let Some(run) = event.body.run
            // The copy of a log tells of the runs of another session.
            && self.seen.runs.get(&run).is_some_and(|run| run.session == session)
        {
            let parsed = |name| word(name).and_then(|word| word.parse::<RunPhase>().ok());
            let (from, to) = (parsed("from"), parsed("to"));
            let stood = to.and_then(|to| self.run_phases.insert(run, to));
            let legal = from == stood && to.is_some_and(|to| run_steps(from, to));
            self.demand(legal, || {
                format!("{run} stood at {stood:?}, and its log goes from {from:?} to {to:?}")
            });
        }
        if matches!(event.body.kind, EventKind::SessionCreated | EventKind::SessionForked) {
            self.session_states.insert(session, "active".into());
        }
        if event.body.kind == EventKind::SessionState {
            let (from, to) = (word("from").unwrap_or_default(), word("to").unwrap_or_default());
            let stood = self.session_states.insert(session, to.clone()).unwrap_or_default();
            let copied = self
                .seen
                .sessions
                .get(&session)
                .is_some_and(|session| session.forked_from.is_some_and(|point| event.seq <= point.upto));
            let legal = copied || (stood == from && session_steps(&from, &to));
            self.demand(legal, || {
                format!("{session} stood at {stood:?}, and its log goes from {from:?} to {to:?}")
            });
        }
    }

    // What hosts and clients say of themselves.

    /// A batch was enqueued, or known from before.
    pub(crate) fn enqueued(
        &mut self,
        runs: &[Run],
        crew: Option<NewCrew>,
        key: Option<&IdempotencyKey>,
        delivered: &[RunId],
    ) {
        let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
        if let Some(key) = key {
            let first = self.calls.entry(key.clone()).or_insert_with(|| ids.clone()).clone();
            self.demand(first == ids, || format!("the call {key} made {first:?}, and then {ids:?}"));
        }
        if let Some(NewCrew { id, at_once: Some(at_once) }) = crew {
            self.crews.insert(id, at_once);
        }
        for end in delivered {
            let first = self.delivered.entry(*end).or_insert_with(|| ids.clone()).clone();
            self.demand(first == ids, || {
                format!("the end of {end} is told by {first:?}, and again by {ids:?}")
            });
        }
    }

    /// A session was told of these ends by its log alone. What is not due to it is passed over.
    pub(crate) fn hears(&mut self, parent: SessionId, ends: &[RunId]) {
        let seen = Arc::clone(&self.seen);
        let due = |end: &&RunId| seen.callbacks.iter().any(|it| it.parent == parent && it.run == **end);
        for end in ends.iter().filter(due) {
            let first = self.delivered.insert(*end, Vec::new());
            self.demand(first.is_none(), || {
                format!("the end of {end} is told by {first:?}, and again by the log")
            });
        }
    }

    /// Somebody settles: what is not set aside any more may pass the limit.
    pub(crate) fn settles(&mut self, session: SessionId, worst: Usage, actual: Usage) {
        let reserved = self.seen.sessions.get(&session).map(|session| session.reserved).unwrap_or_default();
        let given_back = reserved.minus(reserved.minus(worst));
        // What a child overshoots its parents may have to pay for.
        let (seen, mut above) = (Arc::clone(&self.seen), Some(session));
        while let Some(session) = above {
            let excess = self.excess.entry(session).or_default();
            *excess = excess.plus(actual.minus(given_back));
            above = seen.sessions.get(&session).and_then(|session| session.parent);
        }
    }

    /// The processes of a run are about to start.
    pub(crate) fn starts(&mut self, world: &World, fence: Fence, session: SessionId) {
        let times = self.started.entry(fence.run).or_default();
        *times += 1;
        let times = *times;
        self.demand(times == 1, || {
            format!("the processes of {} are started for the {times}. time", fence.run)
        });
        // Whoever halted for longer than its lease starts them all the same, and ends them when it is told.
        let open = |run: &RunId| self.seen.runs.get(run).filter(|run| !run.state.phase().is_ended());
        let holds = open(&fence.run).is_some_and(|run| run.epoch == fence.epoch);
        let living = world.machines.iter().flat_map(|machine| machine.living(world.now()));
        let beside: Vec<_> = living.filter(|(run, of)| *of == session && open(run).is_some()).collect();
        self.demand(!holds || beside.is_empty(), || format!("{} starts beside {beside:?}", fence.run));
    }
}

/// Whether a value is the one that was there before: a snapshot keeps what did not change.
fn is_same<T>(before: Option<&Arc<T>>, now: &Arc<T>) -> bool {
    before.is_some_and(|before| Arc::ptr_eq(before, now))
}

/// How many live children a session of a simulation may have.
pub(crate) const CHILDREN_MAX: usize = 3;
/// How deep a family of a simulation may be.
pub(crate) const DEPTH_MAX: u32 = 2;
