//! The runner: claims runs, has each executed, keeps the claims alive, passes orders on, and leaves in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::error::StoreError;
use session_core::ports::{ClaimedRun, Directive};
use session_core::run::{Fence, StopMode};
use session_core::wake::Topic;
use session_core::{RunId, RunnerId, SessionId};
use session_manager::Coordinator;
use session_manager::recovery::OnHostLoss;
use tokio::sync::mpsc;
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
use crate::slots::Slots;
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
    /// How often claims are renewed, and those that ran out are looked for: at most a third of the lease.
    pub renew_every: Duration,
}

/// After a failed look into the queue, the next one comes after this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How many orders may wait for one execution: each kind is passed on once.
const ORDERS_MAX: usize = 8;

/// How many direct orders may wait; further ones are refused.
const DIRECT_ORDERS_MAX: usize = 1_024;

/// Claims runs and has each executed.
pub struct Runner {
    coordinator: Coordinator,
    layout: Layout,
    profile: RunnerProfile,
    options: Arc<RunnerOptions>,
    progress: Progress,
    resolver: Arc<SystemResolver>,
    door: Arc<dyn Door>,
    held: HeldRuns<mpsc::Sender<Order>>,
    slots: Slots,
    executions: JoinSet<()>,
    /// Which claim each task executes.
    tasks: HashMap<task::Id, Fence>,
    retry_at: Option<Instant>,
    direct: (mpsc::Sender<DirectOrder>, mpsc::Receiver<DirectOrder>),
    /// The last look into the queue failed: said once, not at each try.
    queue_failed: bool,
}

impl Runner {
    /// A runner for this machine. Its executions get into their sessions through `door`.
    #[must_use]
    pub fn new(
        coordinator: Coordinator,
        layout: Layout,
        profile: RunnerProfile,
        options: RunnerOptions,
        door: Arc<dyn Door>,
    ) -> Self {
        let (held, slots) = (HeldRuns::new(options.runs_at_once), Slots::new(options.runs_at_once));
        Self {
            coordinator,
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
            retry_at: None,
            direct: mpsc::channel(DIRECT_ORDERS_MAX),
            queue_failed: false,
        }
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
        let mut queue = self.coordinator.listen(Topic::Queue);
        let mut orders = self.coordinator.listen(Topic::Runner(self.id()));
        let mut renewal = interval_at(Instant::now() + self.options.renew_every, self.options.renew_every);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for adopted in recovery.adopted {
            self.begin(adopted.claimed, Start::Adopted(Box::new(adopted.keeper)));
        }
        let mut waiting = self.slots.changes();
        let mut leaving = false;
        loop {
            if !leaving {
                self.claim().await;
            } else if self.executions.is_empty() {
                return;
            }
            tokio::select! {
                () = stop.cancelled(), if !leaving => {
                    leaving = true;
                    self.leave();
                }
                Some(ended) = self.executions.join_next_with_id(), if !self.executions.is_empty() => self.ended(ended),
                () = queue.woken(), if !leaving => {}
                Ok(()) = waiting.changed(), if !leaving => waiting.mark_unchanged(),
                () = orders.woken() => self.pass_orders().await,
                Some(order) = self.direct.1.recv() => self.pass_direct(order),
                () = at(self.retry_at), if !leaving => self.retry_at = None,
                _ = renewal.tick() => self.keep_claims().await,
            }
        }
    }

    fn id(&self) -> RunnerId {
        self.profile.id
    }

    /// Takes runs for as long as there is room and there are any.
    async fn claim(&mut self) {
        while self.held.free(self.slots.given_up()) > 0 && self.retry_at.is_none() {
            match self.coordinator.claim(&self.profile).await {
                Ok(Some(claimed)) => {
                    self.queue_failed = false;
                    self.begin(claimed, Start::Fresh);
                }
                Ok(None) => {
                    self.queue_failed = false;
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.queue_failed, true) {
                        tracing::warn!(error = &error as &dyn std::error::Error, "the queue cannot be read");
                    }
                    self.retry_at = Some(Instant::now() + RETRY_AFTER);
                }
            }
        }
    }

    fn begin(&mut self, claimed: ClaimedRun, start: Start) {
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        let (fence, session): (Fence, SessionId) = (claimed.run.fence(), claimed.session.id);
        self.held.hold(fence, session, sender.clone());
        self.progress.begin(fence.run);
        let execution = Execution {
            coordinator: self.coordinator.clone(),
            layout: self.layout.clone(),
            profile: self.profile.clone(),
            options: Arc::clone(&self.options),
            progress: self.progress.clone(),
            resolver: Arc::clone(&self.resolver),
            door: Arc::clone(&self.door),
            slots: self.slots.clone(),
            orders,
            ordering: sender,
            fence,
            session: claimed.session,
            run: claimed.run,
        };
        let task = self.executions.spawn(execution.execute(start));
        self.tasks.insert(task.id(), fence);
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

    /// Renews what is held, and only then looks for claims that ran out: after a pause of the machine, or a step of
    /// its clock, our own would be among them.
    async fn keep_claims(&mut self) {
        let mut renewed = true;
        for fence in self.held.fences() {
            match self.coordinator.renew(fence).await {
                Ok(Directive::Continue) => {}
                Ok(Directive::Stop(mode)) => self.order(fence.run, mode),
                Err(StoreError::Fenced { .. } | StoreError::UnknownRun(_) | StoreError::Transition(_)) => {
                    tracing::warn!(run = %fence.run, "the run belongs to another claim; its processes are ended");
                    self.order(fence.run, StopMode::Kill);
                }
                Err(error) => {
                    renewed = false;
                    tracing::warn!(
                        run = %fence.run,
                        error = &error as &dyn std::error::Error,
                        "a claim could not be renewed"
                    );
                }
            }
        }
        if renewed {
            self.reap().await;
        }
    }

    async fn pass_orders(&mut self) {
        match self.coordinator.store().in_flight(self.id()).await {
            Ok(runs) => {
                for run in runs {
                    if let Some(stop) = run.stop {
                        self.order(run.id, stop.mode);
                    }
                }
            }
            // The next renewal brings them as well.
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "orders could not be read");
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
        let order = match self.options.on_host_loss {
            OnHostLoss::End => Order::HostEnds,
            OnHostLoss::Adopt => Order::Leave,
        };
        for held in self.held.iter() {
            send(&held.handle, order);
        }
    }

    async fn reap(&self) {
        match self.coordinator.reap().await {
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

/// An execution that has no room for an order has enough of them, and one that is gone needs none.
fn send(handle: &mpsc::Sender<Order>, order: Order) {
    if let Err(error) = handle.try_send(order) {
        tracing::debug!(%error, "an order was not needed any more");
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
