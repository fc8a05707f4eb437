//! The host of a runner, as `session-runner` is one: registers, recovers, claims while it has room, keeps its claims alive,
//! passes orders on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use session_core::error::StoreError;
use session_core::ports::{ClaimedRun, Directive, Store, Sweep};
use session_core::run::{Epoch, Fence, StopMode};
use session_core::testing::ManualClock;
use session_core::wake::Topic;
use session_core::{Clock as _, Env, RunId, StoreResult};
use session_manager::{Coordinator, DispatchOptions};
use tokio::sync::Notify;

use crate::execution::Execution;
use crate::machine::Machine;
use crate::recovery;
use crate::wire::Wire;
use crate::world::World;

/// How many runs one runner executes at once.
const RUNS_AT_ONCE: usize = 2;
/// How often claims are renewed, in milliseconds: a third of the lease.
pub(crate) const RENEW_EVERY: u64 = 30_000;
/// After what did not get through, the next try comes after this long.
pub(crate) const RETRY_AFTER: u64 = 1_000;
/// How long a session stays active without use.
const IDLE_TIMEOUT: SignedDuration = SignedDuration::from_secs(40);

/// One host of a runner, from its start to its end.
pub(crate) struct Host {
    pub(crate) world: Arc<World>,
    pub(crate) place: usize,
    pub(crate) coordinator: Coordinator,
    held: Mutex<BTreeMap<RunId, Held>>,
    /// A run is held no more.
    released: Notify,
}

/// A run that is held.
struct Held {
    fence: Fence,
    stop: Option<StopMode>,
    ordered: Arc<Notify>,
}

/// A coordinator on this machine, whose store lies behind the wire.
pub(crate) fn coordinator(world: &Arc<World>, place: usize) -> Coordinator {
    let store: Arc<dyn Store> = Arc::new(Wire::new(world, place));
    Coordinator::new(world.env(place), store, DispatchOptions::default())
}

/// Starts the host of a runner.
pub(crate) fn start(world: &Arc<World>, place: usize) {
    let host = Arc::new(Host {
        world: Arc::clone(world),
        place,
        coordinator: coordinator(world, place),
        held: Mutex::default(),
        released: Notify::new(),
    });
    world.begin(place, format!("host {place}"), Box::pin(host.run()));
}

impl Host {
    pub(crate) fn machine(&self) -> &Machine {
        &self.world.machines[self.place]
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.coordinator.store()
    }

    pub(crate) fn env(&self) -> &Env {
        self.coordinator.env()
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        self.world.note(self.place, what);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<RunId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>) {
        let instance = loop {
            let version = "1.0.0".parse().unwrap();
            match self.store().register(self.machine().profile.clone(), version, self.env().now()).await {
                Ok(record) => break record.instance,
                Err(error) => self.failed("it could not register", &error).await,
            }
        };
        let adopted = loop {
            match recovery::recover(&self).await {
                Ok(adopted) => break adopted,
                Err(error) => self.failed("it could not recover", &error).await,
            }
        };
        for claimed in adopted {
            self.execute(claimed, true);
        }
        let (claims, orders) = (Arc::clone(&self), Arc::clone(&self));
        self.world.begin(self.place, format!("claims {}", self.place), Box::pin(claims.claim()));
        self.world.begin(self.place, format!("orders {}", self.place), Box::pin(orders.pass_orders()));
        loop {
            self.world.sleep(RENEW_EVERY).await;
            self.keep_claims().await;
            if let Err(error) = self.look_after(instance).await {
                self.note(|| format!("it could not look after things: {error}"));
            }
        }
    }

    async fn failed(&self, what: &str, error: &StoreError) {
        self.note(|| format!("{what}: {error}"));
        self.world.sleep(RETRY_AFTER).await;
    }

    /// Takes runs for as long as there is room and there are any.
    async fn claim(self: Arc<Self>) {
        let mut queue = self.coordinator.listen(Topic::Queue);
        // Half of the hosts name their claims.
        let named = self.place.is_multiple_of(2);
        let mut name = None;
        loop {
            while self.held().len() < RUNS_AT_ONCE {
                let profile = &self.machine().profile;
                let claimed = if named {
                    let id = *name.get_or_insert_with(|| self.env().claim_id());
                    let (lease, now) = (self.coordinator.lease(), self.env().now());
                    self.store().claim_once(profile, Some(id), lease, now).await
                } else {
                    self.coordinator.claim(profile).await
                };
                match claimed {
                    Ok(Some(claimed)) => {
                        name = None;
                        Arc::clone(&self).execute(claimed, false);
                    }
                    Ok(None) => break,
                    Err(error) => self.failed("it could not claim", &error).await,
                }
            }
            tokio::select! {
                biased;
                () = queue.woken() => {}
                () = self.released.notified() => {}
            }
        }
    }

    fn execute(self: &Arc<Self>, claimed: ClaimedRun, adopted: bool) {
        let (fence, ordered) = (claimed.run.fence(), Arc::new(Notify::new()));
        let held = Held { fence, stop: None, ordered: Arc::clone(&ordered) };
        self.held().insert(fence.run, held);
        let execution = Execution::new(Arc::clone(self), claimed, ordered);
        let name = format!("execution of {} on {}", fence.run, self.place);
        self.world.begin(self.place, name, Box::pin(execution.execute(adopted)));
    }

    /// Lets go of a claim that is over. A later claim on the same run stays.
    pub(crate) fn release(&self, fence: Fence) {
        let mut held = self.held();
        if held.get(&fence.run).is_some_and(|held| held.fence == fence) {
            held.remove(&fence.run);
        }
        drop(held);
        self.released.notify_one();
    }

    /// What was ordered for a claim so far.
    pub(crate) fn ordered(&self, fence: Fence) -> Option<StopMode> {
        self.held().get(&fence.run).filter(|held| held.fence == fence)?.stop
    }

    fn order(&self, run: RunId, mode: StopMode) {
        if let Some(held) = self.held().get_mut(&run)
            && held.stop < Some(mode)
        {
            held.stop = Some(mode);
            held.ordered.notify_one();
        }
    }

    /// Renews what is held, and only then looks for claims that ran out.
    async fn keep_claims(&self) {
        let mut renewed = true;
        let fences: Vec<_> = self.held().values().map(|held| held.fence).collect();
        for fence in fences {
            match self.coordinator.renew(fence).await {
                Ok(Directive::Continue { .. }) => {}
                Ok(Directive::Stop(mode)) => self.order(fence.run, mode),
                Err(error) if error.may_pass() => renewed = false,
                Err(_) => self.order(fence.run, StopMode::Kill),
            }
        }
        if renewed && let Err(error) = self.coordinator.reap().await {
            self.note(|| format!("claims could not be checked: {error}"));
        }
    }

    async fn pass_orders(self: Arc<Self>) {
        let mut orders = self.coordinator.listen(Topic::Runner(self.machine().profile.id));
        loop {
            orders.woken().await;
            match self.store().in_flight(self.machine().profile.id).await {
                Ok(runs) => {
                    for run in runs {
                        if let Some(stop) = run.stop {
                            self.order(run.id, stop.mode);
                        }
                    }
                }
                Err(error) => self.note(|| format!("orders could not be read: {error}")),
            }
        }
    }

    /// Says that it lives, and moves on the sessions that rested here for long enough.
    async fn look_after(&self, instance: Epoch) -> StoreResult<()> {
        let id = self.machine().profile.id;
        let _record = self.store().seen(id, instance, self.env().now()).await?;
        let sweep = Sweep {
            runner: id,
            idle_timeout: Some(IDLE_TIMEOUT),
            suspended_ttl: None,
            except: Vec::new(),
            limit: 100,
        };
        // By a clock that nobody sets.
        let now = ManualClock::default().now() + self.env().elapsed();
        self.store().sweep(&sweep, now).await.map(drop)
    }
}
