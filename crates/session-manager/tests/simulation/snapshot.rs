//! What is in the store at one moment, and which steps of it are legal: by the tables of the two state machines, and by
//! nothing that the store says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use session_core::approval::Approval;
use session_core::family::Callback;
use session_core::ports::{
    ApprovalFilter, ApprovalStore as _, EventStore as _, FamilyStore as _, Page, RunStore as _,
    SessionFilter, SessionStore as _,
};
use session_core::run::{EndKind, RunPhase, RunStep};
use session_core::state::{SessionState, TerminationReason, Trigger};
use session_core::testing::MemoryStore;
use session_core::{ApprovalId, Event, ManagedSession, Run, RunId, Seq, SessionId, SessionSummary};

use crate::world::at_once;

/// More than any list of a simulation holds.
const ALL: u32 = 1_000;

/// Everything that can change, but for the logs, which only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) sessions: BTreeMap<SessionId, Arc<ManagedSession>>,
    pub(crate) runs: BTreeMap<RunId, Arc<Run>>,
    pub(crate) approvals: BTreeMap<ApprovalId, Approval>,
    pub(crate) callbacks: Vec<Callback>,
}

impl Snapshot {
    /// What there is now. Of each session the last run is looked at: all others were over before that was enqueued, and
    /// stand as they were in the snapshot before.
    pub(crate) fn after(&self, store: &MemoryStore) -> Self {
        let listing = at_once(store.list(&SessionFilter::default(), &Page::first(ALL))).unwrap();
        let (mut sessions, mut runs) = (BTreeMap::new(), self.runs.clone());
        for SessionSummary { session, last_run } in listing.items {
            if let Some(run) = last_run {
                keep(&mut runs, run.id, &self.runs, run);
            }
            keep(&mut sessions, session.id, &self.sessions, session);
        }
        let approvals = at_once(store.approvals(&ApprovalFilter::default(), None, ALL)).unwrap();
        let approvals = approvals.into_iter().map(|approval| (approval.id, approval)).collect();
        let parents: BTreeSet<_> = sessions.values().filter_map(|session| session.parent).collect();
        let callbacks =
            parents.into_iter().flat_map(|id| at_once(store.callbacks(id, ALL)).unwrap()).collect();
        Self { sessions, runs, approvals, callbacks }
    }

    /// The same with every run that there is.
    pub(crate) fn whole(store: &MemoryStore) -> Self {
        let last = Self::default().after(store);
        let runs = last.sessions.keys().flat_map(|id| at_once(store.runs(*id, ALL)).unwrap());
        let runs = runs.map(|run| (run.id, Arc::new(run))).collect();
        Self { runs, ..last }
    }

    /// The events of a session behind that place.
    pub(crate) fn events(store: &MemoryStore, session: SessionId, after: Seq) -> Vec<Event> {
        at_once(store.read(session, after, u32::MAX)).unwrap()
    }

    /// The number of a session's last event.
    pub(crate) fn last_event(store: &MemoryStore, session: SessionId) -> Option<Seq> {
        at_once(store.tail(session, 1)).unwrap().pop().map(|event| event.seq)
    }

    /// The runs of this session that are not over.
    pub(crate) fn open_runs(&self, session: SessionId) -> impl Iterator<Item = &Run> {
        let runs = self.runs.values().map(AsRef::as_ref);
        runs.filter(move |run: &&Run| run.session == session && !run.state.phase().is_ended())
    }
}

/// Puts a value into a map; where it is as it was before, the one that is there.
fn keep<K: Ord, T: PartialEq>(map: &mut BTreeMap<K, Arc<T>>, key: K, before: &BTreeMap<K, Arc<T>>, value: T) {
    let same = before.get(&key).filter(|before| ***before == value).cloned();
    map.insert(key, same.unwrap_or_else(|| Arc::new(value)));
}

/// Whether a run goes from one phase to another in one step. From none it goes into the queue.
pub(crate) fn run_steps(from: Option<RunPhase>, to: RunPhase) -> bool {
    const STEPS: [RunStep; 8] = [
        RunStep::Claim,
        RunStep::Start,
        RunStep::Ready,
        RunStep::Requeue,
        RunStep::End(EndKind::Completed),
        RunStep::End(EndKind::Failed),
        RunStep::End(EndKind::Stopped),
        RunStep::End(EndKind::Lost),
    ];
    match from {
        None => to == RunPhase::Pending,
        Some(from) => STEPS.iter().any(|step| from.on(*step) == Ok(to)),
    }
}

/// Whether a session goes from one state to another in one step, by their names.
pub(crate) fn session_steps(from: &str, to: &str) -> bool {
    let (at, ttl, reason) = (Timestamp::UNIX_EPOCH, SignedDuration::ZERO, TerminationReason::Killed);
    let states = [
        SessionState::Active,
        SessionState::Idle { since: at },
        SessionState::Suspended { since: at, expires_at: at },
        SessionState::Terminated { at, reason },
    ];
    let triggers = [
        Trigger::Activity,
        Trigger::IdleTimeout,
        Trigger::GraceElapsed { ttl },
        Trigger::Suspend { ttl },
        Trigger::Resume,
        Trigger::TtlExpired,
        Trigger::Terminate(reason),
    ];
    let of_name = states.into_iter().filter(|state| state.name() == from);
    let mut reached = of_name.flat_map(|state| triggers.map(|trigger| state.on(trigger, at)));
    reached.any(|reached| reached.is_ok_and(|state| state.name() == to))
}

#[test]
fn the_legal_steps_are_those_of_the_tables() {
    assert!(run_steps(None, RunPhase::Pending) && !run_steps(None, RunPhase::Claimed));
    assert!(run_steps(Some(RunPhase::Claimed), RunPhase::Pending));
    assert!(!run_steps(Some(RunPhase::Claimed), RunPhase::Completed));
    assert!(!run_steps(Some(RunPhase::Lost), RunPhase::Pending));
    assert!(session_steps("suspended", "active") && session_steps("active", "terminated"));
    assert!(!session_steps("active", "active ") && !session_steps("suspended", "idle"));
    assert!(!session_steps("terminated", "active"));
}
