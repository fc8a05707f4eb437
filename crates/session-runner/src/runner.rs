//! The runner: claims runs, has each executed, keeps the claims alive, passes orders on, and leaves in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::budget::Usage;
use session_core::error::{StoreError, StoreResult};
use session_core::ports::{ClaimedRun, Directive};
use session_core::run::{Fence, StopMode};
use session_core::{RunId, RunnerId, SessionId};
use session_manager::recovery::OnHostLoss;
use session_manager::{Dispatcher, Heard, Holding};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::confinement::Launcher;
use crate::door::{DirectOrder, Door};
use crate::egress::SystemResolver;
use crate::executors::Order;
use crate::executors::execution::{Execution, Start};
use crate::held::HeldRuns;
use crate::process::KeeperProgram;
use crate::progress::Progress;
use crate::recover::Recovery;
use crate::scope::Machine;
use crate::slots::Slots;
use crate::tally::Tally;
use crate::under_way::UnderWay;
use crate::wires::Wires;
use crate::workspace::log::LogRotation;
use crate::workspace::{Git, Layout};

/// Settings of a runner.
#[derive(Debug, Clone)]
pub struct RunnerOptions {
    /// How many runs execute at once.
    pub runs_at_once: usize,
    /// Between asking a process to end and forcing it.
    pub grace: Duration,
    /// git, with the environment that it runs in.
    pub git: Git,
    /// When the logs of sessions are rotated.
    pub log: LogRotation,
    /// What becomes of running processes when this process goes away.
    pub on_host_loss: OnHostLoss,
    /// The same program as the launcher of sandboxes.
    pub launcher: Arc<Launcher>,
    /// The program that keeps each run.
    pub keeper: KeeperProgram,
    /// How often claims are renewed, and for how long the queue and orders are waited for at a time: at most a third of the
    /// lease.
    pub renew_every: Duration,
    /// Where the service is served over TCP on this machine, if it is: sessions whose network is open reach it.
    pub api: Option<String>,
    /// What this machine gives to sessions that any runner may execute.
    pub machine: Machine,
}

/// After a failed look into the queue, or for orders, the next one comes after this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How many orders for runs that are not here are kept in mind: a run whose claim is on its way may be ordered to end.
const EARLY_MAX: usize = 1_024;
/// How many orders may wait for one execution: each kind is passed on once.
const ORDERS_MAX: usize = 8;

/// How many direct orders may wait; further ones are refused.
const DIRECT_ORDERS_MAX: usize = 1_024;

/// How an execution is reached.
struct Reach {
    orders: mpsc::Sender<Order>,
    /// What its run may use in all, once a renewal told it.
    left: watch::Sender<Option<Usage>>,
    /// What its run has used.
    tally: Tally,
}

/// Claims runs and has each executed.
pub struct Runner {
    dispatcher: Arc<dyn Dispatcher>,
    layout: Layout,
    profile: RunnerProfile,
    options: Arc<RunnerOptions>,
    progress: Progress,
    resolver: Arc<SystemResolver>,
    door: Arc<dyn Door>,
    held: HeldRuns<Reach>,
    slots: Slots,
    executions: JoinSet<()>,
    /// Which claim each task executes.
    tasks: HashMap<task::Id, Fence>,
    /// The next run, as soon as there is one; and what ends the wait for it.
    claiming: UnderWay<StoreResult<Option<ClaimedRun>>>,
    enough: CancellationToken,
    claim_at: Option<Instant>,
    /// The next orders.
    listening: UnderWay<StoreResult<Vec<(RunId, StopMode)>>>,
    listen_at: Option<Instant>,
    /// A sign of life.
    beating: UnderWay<StoreResult<Vec<Heard>>>,
    /// A run has used more than is set aside for it: the next sign of life is due.
    beat_due: Arc<Notify>,
    /// Orders for runs that are not here.
    early: HashMap<RunId, StopMode>,
    direct: (mpsc::Sender<DirectOrder>, mpsc::Receiver<DirectOrder>),
    drain: CancellationToken,
    wires: Option<Arc<dyn Wires>>,
    /// The last look into the queue failed: said once, not at each try.
    queue_failed: bool,
}

impl Runner {
    /// A runner for this machine. Its executions get into their sessions through `door`.
    #[must_use]
    pub fn new(
        dispatcher: Arc<dyn Dispatcher>,
        layout: Layout,
        profile: RunnerProfile,
        options: RunnerOptions,
        door: Arc<dyn Door>,
    ) -> Self {
        let (held, slots) = (HeldRuns::new(options.runs_at_once), Slots::new(options.runs_at_once));
        Self {
            dispatcher,
            layout,
            profile,
            options: Arc::new(options),
            progress: Progress::default(),
            resolver: Arc::new(SystemResolver::new()),
            door,
            held,
            slots,
            executions: JoinSet::new(),
            tasks: HashMap::new(),
            claiming: UnderWay::default(),
            enough: CancellationToken::new(),
            claim_at: None,
            listening: UnderWay::default(),
            listen_at: None,
            beating: UnderWay::default(),
            beat_due: Arc::default(),
            early: HashMap::new(),
            direct: mpsc::channel(DIRECT_ORDERS_MAX),
            drain: CancellationToken::new(),
            wires: None,
            queue_failed: false,
        }
    }

    /// When this fires no more runs are taken, and the runner returns when those that it has are over.
    #[must_use]
    pub fn draining_with(self, drain: CancellationToken) -> Self {
        Self { drain, ..self }
    }

    /// The pipes of programs that a bridge speaks with go there.
    #[must_use]
    pub fn handing_out_to(self, wires: Arc<dyn Wires>) -> Self {
        Self { wires: Some(wires), ..self }
    }

    /// How far its runs are.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Where to send orders that the store cannot take, because it is full for example: what runs must be stoppable.
    #[must_use]
    pub fn direct_orders(&self) -> mpsc::Sender<DirectOrder> {
        self.direct.0.clone()
    }

    /// Goes on with what was recovered and works the queue off, until `stop`; then ends what runs (or leaves it
    /// to the next host, as set) and returns when no execution is left.
    pub async fn run(mut self, recovery: Recovery, stop: CancellationToken) {
        let mut renewal = interval_at(Instant::now() + self.options.renew_every, self.options.renew_every);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for adopted in recovery.adopted {
            self.begin(adopted.claimed, Start::Adopted(Box::new(adopted.keeper)));
        }
        let mut waiting = self.slots.changes();
        let (mut leaving, drain) = (false, self.drain.clone());
        let mut draining = false;
        loop {
            if (leaving || draining) && self.executions.is_empty() && self.claiming.is_idle() {
                return;
            }
            self.look_for_work(leaving || draining);
            self.listen();
            tokio::select! {
                () = stop.cancelled(), if !leaving => {
                    leaving = true;
                    self.leave();
                }
                Some(ended) = self.executions.join_next_with_id(), if !self.executions.is_empty() => self.ended(ended),
                () = drain.cancelled(), if !draining => draining = true,
                claimed = self.claiming.answer() => self.claimed(claimed, leaving),
                Ok(()) = waiting.changed(), if !leaving => waiting.mark_unchanged(),
                orders = self.listening.answer() => self.pass_orders(orders),
                Some(order) = self.direct.1.recv() => self.pass_direct(order),
                () = at(self.claim_at), if !leaving => self.claim_at = None,
                () = at(self.listen_at) => self.listen_at = None,
                heard = self.beating.answer() => self.heard(heard),
                _ = renewal.tick(), if self.beating.is_idle() => self.beat(),
                () = self.beat_due.notified(), if self.beating.is_idle() => self.beat(),
            }
        }
    }

    fn id(&self) -> RunnerId {
        self.profile.id
    }

    /// Asks for the next run where there is room for one, and no longer where there is none.
    fn look_for_work(&mut self, enough: bool) {
        if enough || self.held.free(self.slots.given_up()) == 0 {
            self.enough.cancel();
        } else if self.claiming.is_idle() && self.claim_at.is_none() {
            self.enough = CancellationToken::new();
            let (dispatcher, profile) = (Arc::clone(&self.dispatcher), self.profile.clone());
            let (wait, enough) = (self.options.renew_every, self.enough.clone());
            self.claiming.begin(async move { dispatcher.claim(&profile, wait, enough).await });
        }
    }

    fn claimed(&mut self, claimed: StoreResult<Option<ClaimedRun>>, leaving: bool) {
        match claimed {
            Ok(claimed) => {
                self.queue_failed = false;
                let Some(claimed) = claimed else { return };
                let run = claimed.run.id;
                self.begin(claimed, Start::Fresh);
                if leaving && let Some(held) = self.held.iter().find(|held| held.fence.run == run) {
                    send(&held.handle, self.leaving_order());
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.queue_failed, true) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the queue cannot be read");
                }
                self.claim_at = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }

    /// Asks for the orders that are not known here.
    fn listen(&mut self) {
        if self.listening.is_idle() && self.listen_at.is_none() {
            let (dispatcher, runner, wait) =
                (Arc::clone(&self.dispatcher), self.id(), self.options.renew_every);
            let early = self.early.iter().map(|(run, mode)| (*run, *mode));
            let known = self.held.ordered().chain(early).collect();
            self.listening.begin(async move { dispatcher.orders(runner, known, wait).await });
        }
    }

    fn begin(&mut self, claimed: ClaimedRun, start: Start) {
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        let (fence, session): (Fence, SessionId) = (claimed.run.fence(), claimed.session.id);
        let (left, of_run) = watch::channel(None);
        let tally = Tally::new(Arc::clone(&self.beat_due));
        self.held.hold(fence, session, Reach { orders: sender.clone(), left, tally: tally.clone() });
        self.progress.begin(fence.run);
        let execution = Execution {
            dispatcher: Arc::clone(&self.dispatcher),
            layout: self.layout.clone(),
            profile: self.profile.clone(),
            options: Arc::clone(&self.options),
            progress: self.progress.clone(),
            resolver: Arc::clone(&self.resolver),
            door: Arc::clone(&self.door),
            slots: self.slots.clone(),
            wires: self.wires.clone(),
            orders,
            ordering: sender,
            left: of_run,
            tally,
            fence,
            session: claimed.session,
            settlement: None,
            run: claimed.run,
        };
        let task = self.executions.spawn(execution.execute(start));
        self.tasks.insert(task.id(), fence);
        if let Some(mode) = self.early.remove(&fence.run) {
            self.order(fence.run, mode);
        }
    }

    fn ended(&mut self, ended: Result<(task::Id, ()), task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                // The keeper ends with its lifeline, and the claim, no longer renewed, runs out.
                tracing::error!(%error, "an execution failed");
                error.id()
            }
        };
        if let Some(fence) = self.tasks.remove(&id)
            && self.held.release(fence).is_some()
        {
            self.progress.end(fence.run);
        }
    }

    /// Gives a sign of life, and renews what is held.
    fn beat(&mut self) {
        let (dispatcher, runner) = (Arc::clone(&self.dispatcher), self.id());
        let (mut claims, mut telling) = (Vec::new(), Vec::new());
        for held in self.held.iter() {
            let told = held.handle.tally.tell();
            let spending = told.as_ref().map_or(Usage::NONE, |(spending, _)| *spending);
            claims.push(Holding { fence: held.fence, spending });
            telling.extend(told);
        }
        self.beating.begin(async move {
            let heard = dispatcher.heartbeat(runner, claims).await;
            drop(telling);
            heard
        });
    }

    fn heard(&mut self, heard: StoreResult<Vec<Heard>>) {
        let heard = match heard {
            Ok(heard) => heard,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the claims could not be renewed");
                return;
            }
        };
        for Heard { fence, directive } in heard {
            match directive {
                Ok(Directive::Continue { left }) => {
                    // One that does not say changes nothing.
                    if let (Some(reach), Some(_)) = (self.held.handle(fence), left) {
                        reach.left.send_replace(left);
                    }
                }
                Ok(Directive::Stop(mode)) => self.order(fence.run, mode),
                Err(StoreError::Fenced { .. } | StoreError::UnknownRun(_) | StoreError::Transition(_)) => {
                    self.disowned(fence);
                }
                Err(error) => {
                    tracing::warn!(
                        run = %fence.run,
                        error = &error as &dyn std::error::Error,
                        "a claim could not be renewed"
                    );
                }
            }
        }
    }

    /// A claim counts no more. Its run may have ended here since the claim was to be renewed.
    fn disowned(&mut self, fence: Fence) {
        if self.held.fences().contains(&fence) {
            tracing::warn!(run = %fence.run, "the run belongs to another claim; its processes are ended");
            self.order(fence.run, StopMode::Kill);
        }
    }

    fn pass_orders(&mut self, orders: StoreResult<Vec<(RunId, StopMode)>>) {
        match orders {
            Ok(orders) => {
                for (run, mode) in orders {
                    if self.held.holds(run) {
                        self.order(run, mode);
                    } else {
                        // Those that never come are asked for again: they are in nobody's way.
                        if self.early.len() >= EARLY_MAX {
                            self.early.clear();
                        }
                        self.early.insert(run, mode);
                    }
                }
            }
            // The next renewal brings them as well.
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "orders could not be read");
                self.listen_at = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }

    fn pass_direct(&mut self, order: DirectOrder) {
        let of_session = self.held.iter().filter(|held| held.session == order.session);
        for run in of_session.map(|held| held.fence.run).collect::<Vec<_>>() {
            self.order(run, order.mode);
        }
    }

    fn order(&mut self, run: RunId, mode: StopMode) {
        if let Some(handle) = self.held.order(run, mode) {
            send(handle, Order::Stop(mode));
        }
    }

    /// Tells every execution that this process goes away.
    fn leave(&self) {
        for held in self.held.iter() {
            send(&held.handle, self.leaving_order());
        }
    }

    fn leaving_order(&self) -> Order {
        match self.options.on_host_loss {
            OnHostLoss::End => Order::HostEnds,
            OnHostLoss::Adopt => Order::Leave,
        }
    }
}

/// An execution that has no room for an order has enough of them, and one that is gone needs none.
fn send(reach: &Reach, order: Order) {
    if let Err(error) = reach.orders.try_send(order) {
        tracing::debug!(%error, "an order was not needed any more");
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
