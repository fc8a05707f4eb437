//! The queue of runs.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};

use crate::affinity::{Affinity, RunnerProfile};
use crate::asked::Asked;
use crate::budget::Usage;
use crate::digest::Digest;
use crate::error::StoreResult;
use crate::event::Payload;
use crate::ids::{ClaimId, CrewId, RunId, RunnerId, SessionId};
use crate::names::{IdempotencyKey, Principal};
use crate::run::{Ending, Fence, Run, RunSpec, RunStep, StopMode};
use crate::session::{Binding, ManagedSession, NewSession};

/// The queue of runs. Every change of a run's state is a compare-and-set on state and epoch, in one transaction
/// with the `run.state` event that records it.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Enqueues runs, their new sessions and their crew in one transaction: all of them or none.
    ///
    /// A run of an existing session, also of one that is found by its key, uses that session: `idle` becomes `active`,
    /// and `active_at` is now. A `suspended` one stays so: whoever claims the run brings it back to work. The first run
    /// of a session is its `start`, each later one a `resume`. `Busy` if it has a run that is not over,
    /// `UnknownSession` if there is none, `Transition` if it is terminated. It demands what [`Affinity::of`] says, wherever
    /// it was to go: `Conflict::Executor` if that is another executor. Its files are with the runner of its workspace, once a
    /// run of it was `running`, unless a cleanup removed them or that runner is forgotten. `Conflict::Dependencies` if `after` does
    /// not name earlier runs of the same batch; one that is named twice counts once. `Conflict::Otherwise` if the session that a
    /// key finds is not as was asked for. `Conflict::Exists` if an id, or
    /// the key of a new session, is taken; `Conflict::NotDue` if a run delivers what is not due to its session. Wakes
    /// `Topic::Queue`.
    async fn enqueue(
        &self,
        batch: Vec<NewRun>,
        crew: Option<NewCrew>,
        now: Timestamp,
    ) -> StoreResult<Vec<Run>> {
        self.enqueue_once(batch, crew, None, now).await
    }

    /// [`enqueue`](Self::enqueue), at most once a key. The same call again, within [`IDEMPOTENCY_KEPT`] of the first,
    /// makes nothing and returns the runs of the first one as they are now, whatever ids it brings; any number of callers
    /// at once make one batch. Another call under the same key is `Conflict::Reused`. A call that is refused is not
    /// remembered.
    async fn enqueue_once(
        &self,
        batch: Vec<NewRun>,
        crew: Option<NewCrew>,
        once: Option<Idempotency>,
        now: Timestamp,
    ) -> StoreResult<Vec<Run>>;

    /// What [`enqueue_once`](Self::enqueue_once) would answer because of an earlier call; `None` if there was none.
    async fn recall(&self, once: &Idempotency, now: Timestamp) -> StoreResult<Option<Vec<Run>>>;

    /// Forgets at most `limit` calls whose time is over, the oldest first; returns how many. Fewer than `limit` means
    /// that none is left.
    async fn forget_idempotency(&self, now: Timestamp, limit: u32) -> StoreResult<u32>;

    /// Takes the next run that this runner may execute: highest priority first, then in the order of enqueueing.
    /// It is `claimed` until `now + lease`, under the next epoch. Never one that waits for another, whose session
    /// has a run in flight, whose crew has as many in flight as it may, or that was asked to stop. A runner that drains
    /// gets none.
    async fn claim(
        &self,
        runner: &RunnerProfile,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Option<ClaimedRun>> {
        self.claim_once(runner, None, lease, now).await
    }

    /// [`claim`](Self::claim) for a caller to whom the answer may get lost. As long as the run that `claim` got is
    /// `claimed` by that very claim, the same runner gets it again under the same id, and no other run; so do any number
    /// of such callers at once. Then the lease is as it was, also if the runner drains meanwhile.
    async fn claim_once(
        &self,
        runner: &RunnerProfile,
        claim: Option<ClaimId>,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Option<ClaimedRun>>;

    /// Deals with at most `limit` runs that nobody took in time: that are pending, wait for no other run, and whose
    /// `claim_by` is past (checked again inside the update). Where a registered runner that was seen within `live` and
    /// does not drain admits it, the run is only waiting its turn: its `claim_by` becomes `now + live`. Otherwise it is
    /// `failed` with `no_matching_runner`, with a sentence that says what it needs and which runners there are. Returns
    /// those that failed.
    async fn unclaimed(&self, now: Timestamp, live: SignedDuration, limit: u32) -> StoreResult<Vec<Run>>;

    /// `claimed → starting`, or `starting → running`; the latter sets `started_at` and the run's `sandbox`, and appends
    /// a `run.sandbox` event before the `run.state` event where one is given. `UnknownRun`, `Fenced`, `Transition`.
    ///
    /// With `running` the session's workspace is recorded to lie on the claim's runner, and no longer as removed. So it is with
    /// `starting` as long as no run of the session ever ran: nothing lies anywhere else.
    async fn advance(&self, fence: Fence, to: RunProgress, now: Timestamp) -> StoreResult<Run>;

    /// Binds the session to a framework's own conversation, not resumable yet, and appends a `bound` event. Once: the same
    /// binding again is a no-op, another one is `Conflict::Bound`. Only a run whose turn begins a new conversation
    /// (`from_history`) replaces, likewise once, what an earlier run made. Only while the run is in flight: `UnknownRun`,
    /// `Fenced`, `Transition`.
    async fn bind(&self, fence: Fence, binding: Binding, now: Timestamp) -> StoreResult<()>;

    /// Records that the conversation to which the session is bound can be resumed from now on; again is a no-op. Only
    /// while the run is in flight. `UnknownRun`, `Fenced`, `Transition`, `Conflict::Unbound`.
    async fn resumable(&self, fence: Fence, now: Timestamp) -> StoreResult<()>;

    /// Prolongs the lease to `now + lease`, and says whether somebody asked for the run's end. Only while the run
    /// is in flight, also when the lease has run out and nobody noticed. `UnknownRun`, `Fenced`, `Transition`.
    async fn renew(&self, fence: Fence, lease: SignedDuration, now: Timestamp) -> StoreResult<Directive> {
        self.renew_spending(fence, Usage::NONE, lease, now).await
    }

    /// [`renew`](Self::renew) of a run that needs `spending` for itself by now: what it has used, and is about to use. Where
    /// less is set aside for the session's own work, that much is from now on, beyond its limits too, so that it is given to
    /// no child. Whoever settles for the run gives that back: the most that it said.
    async fn renew_spending(
        &self,
        fence: Fence,
        spending: Usage,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Directive>;

    /// Ends the run, which must be in flight, and appends `result` (where given) as a `result` event before the
    /// `run.state` event.
    ///
    /// When it completed, the runs that wait for it wait for one less. When it ended otherwise they fail with
    /// `dependency_failed`, and those that wait for them likewise. `UnknownRun`, `Fenced`, `Transition`.
    ///
    /// The end of a run, by whichever method, is told to the parent of its session where that wants to hear of it: in the
    /// same transaction, once, as a `child.ended` event in the parent's log and as a callback that is due; see
    /// [`FamilyStore`](crate::ports::FamilyStore).
    ///
    /// The end of a run, by whichever method, is use of its session unless that is terminated: `active_at` is now, so
    /// that its rest begins when its work ends.
    async fn finish(
        &self,
        fence: Fence,
        ending: Ending,
        result: Option<Payload>,
        now: Timestamp,
    ) -> StoreResult<Run> {
        self.finish_and_settle(fence, ending, result, None, now).await
    }

    /// [`finish`](Self::finish), and in the same transaction [`settle`](crate::ports::Ledger::settle) for what the run
    /// used, where that is given: as the end comes once, so it is booked once.
    async fn finish_and_settle(
        &self,
        fence: Fence,
        ending: Ending,
        result: Option<Payload>,
        spent: Option<Spent>,
        now: Timestamp,
    ) -> StoreResult<Run>;

    /// Asks for the end of a run. A pending one ends at once (`stopped`, `stopped_by_user`), and those that wait
    /// for it fail; for one in flight the order is recorded and its runner woken (`Topic::Runner`). An order may
    /// become harder, never softer; the same one again changes nothing. A run that is over stays as it is.
    /// `UnknownRun`.
    async fn request_stop(&self, run: RunId, mode: StopMode, now: Timestamp) -> StoreResult<Run>;

    /// The runs that this runner holds, oldest first.
    async fn in_flight(&self, runner: RunnerId) -> StoreResult<Vec<Run>>;

    /// Gives a run in flight to the same runner under a new epoch, until `now + lease`: after its host was replaced,
    /// nothing that the old one still sends counts. `UnknownRun`, `Transition` if it is not in flight with this
    /// runner.
    async fn take_over(
        &self,
        run: RunId,
        runner: RunnerId,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<Run>;

    /// Gives a run that is `claimed` or `starting` back to its place in the queue, whatever its lease, and touches no
    /// other: whoever holds it cannot begin it. One whose end was asked for is `stopped` instead. Either way the claim
    /// counts no more. Wakes `Topic::Queue`. `UnknownRun`, `Fenced`, `Transition`, also if it is `running`.
    async fn requeue(&self, fence: Fence, now: Timestamp) -> StoreResult<Run>;

    /// Deals with at most `limit` runs whose lease ran out (`until < now`, checked again inside the update): one
    /// whose end was asked for is `stopped`; one that was only claimed goes back to its place in the queue; one that
    /// had begun is `lost` with `lease_expired`. Returns them as they are now.
    async fn reap(&self, now: Timestamp, limit: u32) -> StoreResult<Vec<Run>>;

    /// One run.
    async fn run(&self, id: RunId) -> StoreResult<Option<Run>>;

    /// The newest runs of a session, newest first, at most `limit`.
    async fn runs(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Run>>;

    /// The runs of a session that were enqueued before this one of its runs, newest first, at most `limit`. None where it has
    /// no such run.
    async fn runs_before(&self, session: SessionId, before: RunId, limit: u32) -> StoreResult<Vec<Run>>;

    /// Whether any run of this runner is claimed, or pending and only for it: something is left to do for its host.
    async fn has_work(&self, runner: RunnerId) -> StoreResult<bool>;
}

/// For how long a call is remembered under its idempotency key: 24 hours.
pub const IDEMPOTENCY_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// By what a repeated call is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// Whose call it is: another principal's keys are others.
    pub principal: Principal,
    /// The caller's name for it.
    pub key: IdempotencyKey,
    /// The digest of the request in its canonical form, by which another one under the same key is told apart.
    pub digest: Digest,
}

impl Idempotency {
    /// Whether a call of that time is remembered now.
    #[must_use]
    pub fn is_kept(at: Timestamp, now: Timestamp) -> bool {
        now.duration_since(at) < IDEMPOTENCY_KEPT
    }
}

/// A run before it is in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// A fresh id.
    pub id: RunId,
    /// Whose run.
    pub of: RunOf,
    /// What to execute.
    pub spec: RunSpec,
    /// Higher ones are claimed first.
    pub priority: i32,
    /// Who may claim it.
    pub affinity: Affinity,
    /// Which runs of the same batch must complete before, by their index; each smaller than its own.
    pub after: Vec<usize>,
    /// Until when a runner must take it; see [`RunStore::unclaimed`].
    pub claim_by: Option<Timestamp>,
    /// Which ends of its children's runs it tells its session of: they are delivered when it is enqueued.
    pub delivers: Vec<RunId>,
}

/// Whose run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOf {
    /// The first of a new session.
    New(Box<NewSession>),
    /// A further one of this session.
    Existing(SessionId),
    /// One of the session with this key, found or made as by
    /// [`open_key`](crate::ports::SessionStore::open_key); found, as a further one.
    Keyed(Box<NewSession>, Box<Asked>),
}

/// Runs that are submitted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewCrew {
    /// A fresh id.
    pub id: CrewId,
    /// How many of them may be in flight at once; `None` for as many as the runner takes.
    pub at_once: Option<u32>,
}

/// A claimed run, with its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedRun {
    /// The session.
    pub session: ManagedSession,
    /// The run, `claimed`.
    pub run: Run,
}

/// How far a run has come on its runner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RunProgress {
    /// Workspace and executor are being made.
    Starting,
    /// The executor is up.
    Running {
        /// What the kernel really holds of the session's sandbox, a JSON object; `None` where nobody can say.
        sandbox: Option<Payload>,
    },
}

impl RunProgress {
    /// The executor is up, in nobody knows what.
    pub const RUNNING: Self = Self::Running { sandbox: None };

    /// The step that it is.
    #[must_use]
    pub fn step(&self) -> RunStep {
        match self {
            Self::Starting => RunStep::Start,
            Self::Running { .. } => RunStep::Ready,
        }
    }
}

/// What a run had set aside, and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spent {
    /// What is given back.
    pub worst: Usage,
    /// What is booked, also if it is more.
    pub actual: Usage,
}

/// What a runner is to do with a run that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Directive {
    /// Go on.
    Continue {
        /// What the run may use in all by now, whatever is set aside for it: see
        /// [`Account::in_hand`](crate::budget::Account::in_hand). `None` where nobody says: what was said last holds on.
        left: Option<Usage>,
    },
    /// End it.
    Stop(StopMode),
}
