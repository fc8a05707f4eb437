//! What lies between a host and the store: everything arrives and is answered some time, or is lost on its way. Whoever
//! calls waits twice, before the call is carried out and before its answer is there, so that it may crash at either.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use session_core::affinity::RunnerProfile;
use session_core::approval::{Approval, NewApproval, Reply, Withdrawal};
use session_core::budget::{Account, BudgetChange, Usage};
use session_core::error::{StoreError, StoreResult};
use session_core::event::{Event, NewEvent, Note, Payload, Seq};
use session_core::family::Callback;
use session_core::identity::IdentityKey;
use session_core::names::{Label, Principal, ProgramVersion};
use session_core::ports::{
    Appended, ApprovalFilter, ApprovalStore, Author, ClaimedRun, Directive, EventStore, FamilyStore,
    Idempotency, Ledger, Listing, NewCrew, NewRun, NotePart, Page, RunProgress, RunStore, RunnerStore,
    SessionFilter, SessionStore, Spent, Sweep, Swept, TokenStore, Wakes,
};
use session_core::run::{Ending, Epoch, Fence, Run, StopMode};
use session_core::runner::RunnerRecord;
use session_core::session::{Binding, Keyed, ManagedSession, NewSession, OpenSession, Opened, Validity};
use session_core::state::Trigger;
use session_core::token::{NewToken, SigningKey, TokenRecord};
use session_core::wake::{Listener, Topic};
use session_core::{ApprovalId, ClaimId, Digest, RunId, RunnerId, SessionId, SessionRef, TokenId};

use crate::world::{Weather, World, give_way};

/// A store that is wrong in one way, so that it can be seen that it would be noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The fence of a write is taken for the one that counts.
    FenceUnchecked,
    /// A callback whose delivery fails is forgotten.
    CallbackDropped,
    /// A batch that repeats another one is appended again.
    OriginIgnored,
    /// Now and then an append is acknowledged that was not made.
    AppendLost,
    /// A delivered callback stays due.
    DeliveredTwice,
}

/// The longest time in milliseconds that a report is under way: well below a lease, as any request's time limit is.
const LATE_MAX: u64 = 25_000;

/// One host's connection with the store.
#[derive(Clone)]
pub(crate) struct Wire {
    world: Arc<World>,
    machine: usize,
}

/// A call as the witness hears of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// The claim that it speaks for.
    pub(crate) fence: Option<Fence>,
}

/// The first argument of a report: on whose behalf it is made.
trait Speaks: Clone + Send {
    /// The claim that it speaks for.
    fn fence(&self) -> Option<Fence> {
        None
    }

    /// The same for another claim.
    fn by(self, _: Epoch) -> Self {
        self
    }
}

impl Speaks for RunId {}
impl Speaks for ApprovalId {}

impl Speaks for Fence {
    fn fence(&self) -> Option<Fence> {
        Some(*self)
    }

    fn by(self, epoch: Epoch) -> Self {
        Self { epoch, ..self }
    }
}

impl Speaks for Author {
    fn fence(&self) -> Option<Fence> {
        match self {
            Self::Run(fence) => Some(*fence),
            Self::Session(_) | Self::Live(_) => None,
        }
    }

    fn by(self, epoch: Epoch) -> Self {
        match self {
            Self::Run(fence) => Self::Run(fence.by(epoch)),
            Self::Session(_) | Self::Live(_) => self,
        }
    }
}

/// What a change answers.
trait Change {
    /// There was nothing to be changed.
    fn is_nothing(&self) -> bool {
        false
    }
}

impl<T> Change for Vec<T> {
    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Change for Option<T> {
    fn is_nothing(&self) -> bool {
        self.is_none()
    }
}

impl Change for RunnerRecord {
    /// No session and no run is another because of it.
    fn is_nothing(&self) -> bool {
        true
    }
}

impl Change for u32 {
    fn is_nothing(&self) -> bool {
        *self == 0
    }
}

impl Change for () {}
impl Change for Account {}
impl Change for Appended {}
impl Change for Approval {}
impl Change for Directive {}
impl Change for Keyed {}
impl Change for ManagedSession {}
impl Change for Opened {}
impl Change for Run {}
impl Change for SigningKey {}
impl Change for TokenRecord {}

impl Wire {
    pub(crate) fn new(world: &Arc<World>, machine: usize) -> Self {
        Self { world: Arc::clone(world), machine }
    }

    /// A question that changes nothing.
    async fn read<T>(
        &self,
        name: &'static str,
        look: impl Future<Output = StoreResult<T>> + Send,
    ) -> StoreResult<T> {
        self.on_its_way(name).await?;
        let answer = look.await;
        self.on_its_way(name).await?;
        answer
    }

    /// A change. Its answer may be lost after it was made.
    async fn write<T: Change>(
        &self,
        call: Call,
        change: impl Future<Output = StoreResult<T>> + Send,
    ) -> StoreResult<T> {
        self.on_its_way(call.name).await?;
        let answer = change.await;
        self.made("", call, &answer);
        self.on_its_way(call.name).await?;
        answer
    }

    /// Something was done, or refused. What came to nothing is seen with the next change.
    fn made<T: Change>(&self, how: &str, call: Call, answer: &StoreResult<T>) {
        // What is only waiting its turn gets a later time, and is not told.
        if call.name != "unclaimed" && answer.as_ref().is_ok_and(Change::is_nothing) {
            return;
        }
        let error = answer.as_ref().err();
        self.world.note(self.machine, || format!("{how}{}", told(call, error)));
        self.world.witness().saw(&self.world, call, error);
    }

    /// A report, which may be delivered later or once more beside.
    async fn report<T, F, W>(&self, call: Call, make: F) -> StoreResult<T>
    where
        F: Fn(Option<Epoch>) -> W,
        W: Future<Output = StoreResult<T>> + Send + 'static,
        T: Change + Send + 'static,
    {
        let misty = self.world.weather() != Weather::Clear;
        let forged = self.forged(call);
        if misty && self.world.one_in(12) {
            let (wire, change) = (self.clone(), make(forged));
            let deliver = async move { wire.made("(late) ", call, &change.await) };
            self.world.post(self.world.below(LATE_MAX), Box::pin(deliver));
            if self.world.one_in(2) {
                self.on_its_way(call.name).await?;
                self.world.note(self.machine, || format!("{} does not get through in time", call.name));
                return Err(lost());
            }
        }
        self.write(call, make(forged)).await
    }

    /// The epoch that a store would take which checks no fence.
    fn forged(&self, call: Call) -> Option<Epoch> {
        let fence = call.fence.filter(|_| self.world.fault == Some(Fault::FenceUnchecked))?;
        self.world.witness().epoch(fence.run)
    }

    /// A moment in which others are first, in which the host may crash, and in which what is under way may be lost.
    async fn on_its_way(&self, name: &'static str) -> StoreResult<()> {
        give_way().await;
        if self.world.weather() != Weather::Clear && self.world.one_in(40) {
            self.world.note(self.machine, || format!("{name} is lost on its way"));
            return Err(lost());
        }
        Ok(())
    }
}

fn lost() -> StoreError {
    StoreError::Unavailable("the connection was lost".into())
}

fn told(Call { name, fence }: Call, error: Option<&StoreError>) -> String {
    let of = fence.map(|fence| format!(" {} at epoch {}", fence.run, fence.epoch)).unwrap_or_default();
    match error {
        None => format!("{name}{of}"),
        Some(error) => format!("{name}{of}: {error}"),
    }
}

/// Ports whose methods go through the wire: each a question, a change, or a report on somebody's behalf.
macro_rules! ports {
    ($($port:ident { $($how:ident $method:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)* } { $($own:item)* })*) => {$(
        #[async_trait]
        impl $port for Wire {
            $(async fn $method(&self, $($arg: $ty),*) -> StoreResult<$ret> {
                ports!(@$how $port self $method $($arg)*)
            })*
            $($own)*
        }
    )*};
    (@read $port:ident $self:ident $method:ident $($arg:ident)*) => {
        $self.read(stringify!($method), $port::$method(&$self.world.store, $($arg),*)).await
    };
    (@write $port:ident $self:ident $method:ident $($arg:ident)*) => {{
        let call = Call { name: stringify!($method), fence: None };
        $self.write(call, $port::$method(&$self.world.store, $($arg),*)).await
    }};
    (@report $port:ident $self:ident $method:ident $by:ident $($arg:ident)*) => {{
        let call = Call { name: stringify!($method), fence: $by.fence() };
        let store = $self.world.store.clone();
        $self.report(call, move |forged| {
            let (store, by) = (store.clone(), forged.map_or($by.clone(), |epoch| $by.clone().by(epoch)));
            $(let $arg = $arg.clone();)*
            async move { $port::$method(&store, by, $($arg),*).await }
        }).await
    }};
}

ports! {
    SessionStore {
        write open(request: OpenSession, now: Timestamp) -> Opened;
        write opened(key: IdentityKey, used: Option<Validity>, now: Timestamp) -> Option<Opened>;
        write open_key(new: NewSession, now: Timestamp) -> Keyed;
        write create(new: NewSession, now: Timestamp) -> ManagedSession;
        write import(new: NewSession, events: Vec<Event>, imported: Payload, now: Timestamp) -> ManagedSession;
        write fork(source: SessionId, upto: Option<Seq>, new: NewSession, now: Timestamp) -> ManagedSession;
        read session(id: SessionId) -> Option<ManagedSession>;
        read find(name: &SessionRef, limit: u32) -> Vec<SessionId>;
        read list(filter: &SessionFilter, page: &Page) -> Listing;
        write transition(id: SessionId, trigger: Trigger, now: Timestamp) -> ManagedSession;
        write sweep(sweep: &Sweep, now: Timestamp) -> Vec<Swept>;
        write relabel(id: SessionId, label: Option<Label>, now: Timestamp) -> ();
        write workspace_removed(id: SessionId, now: Timestamp) -> ();
        write expire_identities(now: Timestamp, limit: u32) -> Vec<SessionId>;
    } {}
    RunStore {
        write forget_idempotency(now: Timestamp, limit: u32) -> u32;
        write unclaimed(now: Timestamp, live: SignedDuration, limit: u32) -> Vec<Run>;
        report advance(fence: Fence, to: RunProgress, now: Timestamp) -> Run;
        report bind(fence: Fence, binding: Binding, now: Timestamp) -> ();
        report resumable(fence: Fence, now: Timestamp) -> ();
        report renew_spending(
            fence: Fence, spending: Usage, lease: SignedDuration, now: Timestamp
        ) -> Directive;
        report finish(fence: Fence, ending: Ending, result: Option<Payload>, now: Timestamp) -> Run;
        report finish_and_settle(
            fence: Fence, ending: Ending, result: Option<Payload>, spent: Option<Spent>, now: Timestamp
        ) -> Run;
        report request_stop(run: RunId, mode: StopMode, now: Timestamp) -> Run;
        read in_flight(runner: RunnerId) -> Vec<Run>;
        write take_over(run: RunId, runner: RunnerId, lease: SignedDuration, now: Timestamp) -> Run;
        report requeue(fence: Fence, now: Timestamp) -> Run;
        write reap(now: Timestamp, limit: u32) -> Vec<Run>;
        read run(id: RunId) -> Option<Run>;
        read runs(session: SessionId, limit: u32) -> Vec<Run>;
        read runs_before(session: SessionId, before: RunId, limit: u32) -> Vec<Run>;
        read recall(once: &Idempotency, now: Timestamp) -> Option<Vec<Run>>;
        read has_work(runner: RunnerId) -> bool;
    } {
        async fn enqueue_once(
            &self,
            batch: Vec<NewRun>,
            crew: Option<NewCrew>,
            once: Option<Idempotency>,
            now: Timestamp,
        ) -> StoreResult<Vec<Run>> {
            let call = Call { name: "enqueue_once", fence: None };
            let delivered: Vec<_> = batch.iter().flat_map(|new| new.delivers.clone()).collect();
            let (key, world) = (once.as_ref().map(|once| once.key.clone()), &self.world);
            if world.fault == Some(Fault::CallbackDropped) && !delivered.is_empty() && world.one_in(3) {
                world.note(self.machine, || format!("{delivered:?} are forgotten"));
                world.witness().dropped.extend(delivered);
                return Err(lost());
            }
            let batch = self.as_it_is_taken(batch);
            let change = async {
                let runs = world.store.enqueue_once(batch, crew, once, now).await?;
                world.witness().enqueued(&runs, crew, key.as_ref(), &delivered);
                Ok(runs)
            };
            self.write(call, change).await
        }

        async fn claim_once(
            &self,
            runner: &RunnerProfile,
            claim: Option<ClaimId>,
            lease: SignedDuration,
            now: Timestamp,
        ) -> StoreResult<Option<ClaimedRun>> {
            let call = Call { name: "claim_once", fence: None };
            let (store, runner) = (self.world.store.clone(), runner.clone());
            self.report(call, move |_| {
                let (store, runner) = (store.clone(), runner.clone());
                async move { store.claim_once(&runner, claim, lease, now).await }
            })
            .await
        }
    }
    EventStore {
        read read(session: SessionId, after: Seq, limit: u32) -> Vec<Event>;
        read tail(session: SessionId, limit: u32) -> Vec<Event>;
        read notes(session: SessionId, note: Note, part: NotePart) -> Vec<Event>;
    } {
        async fn append(&self, author: Author, batch: Vec<NewEvent>, now: Timestamp) -> StoreResult<Appended> {
            let call = Call { name: "append", fence: author.fence() };
            let (store, fault) = (self.world.store.clone(), self.world.fault);
            let untrue = fault == Some(Fault::AppendLost) && self.world.one_in(10);
            self.report(call, move |forged| {
                let (store, author) = (store.clone(), forged.map_or(author, |epoch| author.by(epoch)));
                let mut batch = if untrue { Vec::new() } else { batch.clone() };
                if fault == Some(Fault::OriginIgnored) {
                    for event in &mut batch {
                        event.origin = None;
                    }
                }
                async move { store.append(author, batch, now).await }
            })
            .await
        }
    }
    ApprovalStore {
        report ask(fence: Fence, new: NewApproval, now: Timestamp) -> Approval;
        report answer(id: ApprovalId, reply: Reply, now: Timestamp) -> Approval;
        report withdraw(fence: Fence, id: ApprovalId, why: Withdrawal, now: Timestamp) -> Approval;
        read approval(id: ApprovalId) -> Option<Approval>;
        read approvals(filter: &ApprovalFilter, after: Option<ApprovalId>, limit: u32) -> Vec<Approval>;
    } {}
    TokenStore {
        write issue(new: NewToken, now: Timestamp) -> TokenRecord;
        read token(digest: Digest) -> Option<TokenRecord>;
        read tokens(principal: Option<&Principal>, after: Option<TokenId>, limit: u32) -> Vec<TokenRecord>;
        write revoke(id: TokenId, now: Timestamp) -> TokenRecord;
        write signing_key(candidate: SigningKey) -> SigningKey;
    } {}
    RunnerStore {
        write register(profile: RunnerProfile, version: ProgramVersion, now: Timestamp) -> RunnerRecord;
        write seen(id: RunnerId, instance: Epoch, now: Timestamp) -> RunnerRecord;
        write drain(id: RunnerId, draining: bool) -> RunnerRecord;
        write forget(id: RunnerId) -> Vec<SessionId>;
        read runner(id: RunnerId) -> Option<RunnerRecord>;
        read runners() -> Vec<RunnerRecord>;
    } {}
    FamilyStore {
        read callbacks_due(limit: u32) -> Vec<SessionId>;
        read orphaned(limit: u32) -> Vec<SessionId>;
        write hold_callbacks(sessions: &[SessionId]) -> ();
    } {
        async fn callbacks_heard(&self, parent: SessionId, ends: &[RunId]) -> StoreResult<()> {
            let call = Call { name: "callbacks_heard", fence: None };
            let store = &self.world.store;
            let change = async {
                // Until now they were due.
                self.world.witness().hears(parent, ends);
                if self.world.fault == Some(Fault::DeliveredTwice) {
                    return Ok(());
                }
                store.callbacks_heard(parent, ends).await
            };
            self.write(call, change).await
        }

        async fn callbacks(&self, parent: SessionId, limit: u32) -> StoreResult<Vec<Callback>> {
            let due = self.read("callbacks", FamilyStore::callbacks(&self.world.store, parent, limit)).await?;
            let witness = self.world.witness();
            Ok(due.into_iter().filter(|callback| !witness.dropped.contains(&callback.run)).collect())
        }
    }
    Ledger {
        write set_budget(session: SessionId, change: BudgetChange, by: &Principal, now: Timestamp) -> Account;
        write forfeit(session: SessionId, now: Timestamp) -> Account;
        write reserve(session: SessionId, worst: Usage, now: Timestamp) -> Account;
        read tokens_by_minute(since: Timestamp) -> Vec<(i64, u64)>;
    } {
        async fn settle(
            &self,
            session: SessionId,
            worst: Usage,
            actual: Usage,
            run: Option<RunId>,
            now: Timestamp,
        ) -> StoreResult<Account> {
            let call = Call { name: "settle", fence: None };
            let change = async {
                self.world.witness().settles(session, worst, actual);
                self.world.store.settle(session, worst, actual, run, now).await
            };
            self.write(call, change).await
        }
    }
}

impl Wire {
    /// A batch as the store takes it.
    fn as_it_is_taken(&self, mut batch: Vec<NewRun>) -> Vec<NewRun> {
        if self.world.fault == Some(Fault::DeliveredTwice) {
            for new in &mut batch {
                new.delivers.clear();
            }
        }
        batch
    }
}

impl Wakes for Wire {
    fn listen(&self, topic: Topic) -> Listener {
        self.world.store.listen(topic)
    }
}
