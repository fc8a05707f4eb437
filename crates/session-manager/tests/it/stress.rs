//! Sixteen tasks open, use, suspend, resume and end a thousand sessions for half a minute, under the sweeper and with engines
//! that fail now and then. Whatever they do, in whatever order it happens: a session has one engine at a time, each is let go
//! of exactly once, nothing is suspended in mid-turn, the record goes only ways that the state machine has, a key never
//! leads to two sessions, places and budgets add up.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use session_core::budget::{Budget, BudgetChange, Usage};
use session_core::context::Restored;
use session_core::names::{ExternalKey, Principal};
use session_core::ports::{
    Engine, EngineError, LifecycleEvent, LifecycleSink, Release, SessionFactory, SinkError,
};
use session_core::state::TerminationReason;
use session_core::{Env, ManagedSession, SessionId, SessionState};
use session_manager::options::{EvictionStrategy, Limits, ManagerOptions};
use session_manager::{
    ChangeError, InFlight, Keyed, OpenError, Parting, ResumeError, SessionManager, SessionRequest,
    SpendError, StateError, UseError,
};
use tokio_util::sync::CancellationToken;

const TASKS: u64 = 16;
const KEYS: u64 = 1_000;
const PLACES: u64 = 200;
const TOKENS: u64 = 1_000;
/// How long it goes on; `STRESS_SECONDS` sets another time.
const SECONDS: u64 = 30;

/// What everybody notes, and what must not have happened.
#[derive(Debug, Default)]
struct Notes {
    engines: Mutex<HashMap<SessionId, u32>>,
    made: AtomicU64,
    released: AtomicU64,
    records: Mutex<HashMap<SessionId, Record>>,
    faults: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct Record {
    state: SessionState,
    reserved: u64,
    used: u64,
}

impl Notes {
    fn fault(&self, what: impl Into<String>) {
        self.faults.lock().unwrap().insert(what.into());
    }
}

/// The same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Debug)]
struct Probe {
    session: SessionId,
    notes: Arc<Notes>,
    in_turn: AtomicU32,
    gone: AtomicBool,
    flaws: AtomicU64,
}

#[async_trait]
impl Engine for Probe {
    async fn suspend(&self) -> Result<(), EngineError> {
        if self.gone.load(Ordering::SeqCst) {
            self.notes.fault("an engine that was let go of was told to write out");
        }
        tokio::task::yield_now().await;
        match self.flaws.fetch_add(1, Ordering::SeqCst) % 17 {
            3 => Err(EngineError::Failed("the disk is full".into())),
            _ => Ok(()),
        }
    }

    async fn shutdown(&self, why: Release) {
        if self.gone.swap(true, Ordering::SeqCst) {
            self.notes.fault("an engine was let go of twice");
        }
        if why == Release::Suspended && self.in_turn.load(Ordering::SeqCst) > 0 {
            self.notes.fault("a session was suspended in mid-turn");
        }
        tokio::task::yield_now().await;
        self.notes.released.fetch_add(1, Ordering::SeqCst);
        *self.notes.engines.lock().unwrap().get_mut(&self.session).unwrap() -= 1;
    }
}

#[derive(Debug)]
struct Probes {
    notes: Arc<Notes>,
    turn: AtomicU64,
}

#[async_trait]
impl SessionFactory for Probes {
    type Engine = Probe;

    async fn create(&self, session: &ManagedSession) -> Result<Probe, EngineError> {
        let turn = self.turn.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if turn % 53 == 7 {
            return Err(EngineError::Failed("no engine today".into()));
        }
        {
            let mut engines = self.notes.engines.lock().unwrap();
            let here = engines.entry(session.id).or_default();
            *here += 1;
            if *here > 1 {
                self.notes.fault("a session has two engines");
            }
        }
        self.notes.made.fetch_add(1, Ordering::SeqCst);
        let (session, notes) = (session.id, Arc::clone(&self.notes));
        let (in_turn, gone, flaws) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU64::new(turn));
        Ok(Probe { session, notes, in_turn, gone, flaws })
    }
}

/// Keeps the records, and holds every change against the state machine.
#[derive(Debug)]
struct Records(Arc<Notes>, Env);

#[async_trait]
impl LifecycleSink for Records {
    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError> {
        tokio::task::yield_now().await;
        let now = self.1.now();
        let mut records = self.0.records.lock().unwrap();
        if let LifecycleEvent::Created(new) = event {
            let record = Record { state: SessionState::Active, reserved: 0, used: 0 };
            if records.insert(new.id, record).is_some() {
                self.0.fault("a session was created twice");
            }
            return Ok(());
        }
        let Some(record) = records.get_mut(&event.session()) else {
            self.0.fault("a session that was never created changed");
            return Ok(());
        };
        match event {
            LifecycleEvent::Moved { trigger, .. } => match record.state.on(*trigger, now) {
                Ok(state) => record.state = state,
                Err(error) => self.0.fault(error.to_string()),
            },
            LifecycleEvent::Reserved { worst, .. } => record.reserved += worst.tokens,
            LifecycleEvent::Settled { worst, actual, .. } => {
                record.reserved = record.reserved.checked_sub(worst.tokens).unwrap_or_else(|| {
                    self.0.fault("more was settled than set aside");
                    0
                });
                record.used += actual.tokens;
            }
            LifecycleEvent::Created(_)
            | LifecycleEvent::Resuming { .. }
            | LifecycleEvent::BudgetChanged { .. }
            | LifecycleEvent::Granted { .. } => {}
        }
        Ok(())
    }
}

/// One task: whatever the dice say, to whichever session.
struct Worker {
    manager: SessionManager<Probes>,
    notes: Arc<Notes>,
    dice: Dice,
}

impl Worker {
    async fn step(&mut self) {
        let number = self.dice.below(KEYS);
        let key = ExternalKey::new(&format!("key {number}")).unwrap();
        let principal = Principal::new(&format!("principal {}", number % 7)).unwrap();
        let request = SessionRequest {
            budget: Budget { tokens_max: TOKENS, ..Budget::default() },
            ..SessionRequest::new(principal.clone())
        };
        let session = match self.manager.get_or_create(key, request).await {
            Ok(Keyed::Live { handle, .. }) => handle.id(),
            Ok(Keyed::Suspended(session)) => {
                if !self.resume(session).await {
                    return;
                }
                session
            }
            Err(
                OpenError::Capacity(_)
                | OpenError::Engine { .. }
                | OpenError::Ended { .. }
                | OpenError::NotReady { .. },
            ) => return,
            Err(error) => return self.notes.fault(error.to_string()),
        };
        match self.dice.below(100) {
            0..55 => self.turn(session).await,
            55..70 => match self.manager.touch(session).await {
                Ok(()) | Err(UseError::Unknown(_) | UseError::Suspended(_) | UseError::NotReady { .. }) => {}
                Err(error) => self.notes.fault(error.to_string()),
            },
            70..85 => self.ended(self.manager.suspend(session).await),
            85..97 => self.ended(self.manager.terminate(session, TerminationReason::Killed).await),
            97 => {
                let change = BudgetChange::Add(Usage { tokens: TOKENS, ..Usage::NONE });
                match self.manager.change_budget(session, change, principal).await {
                    Ok(()) | Err(ChangeError::Unknown(_)) => {}
                    Err(error) => self.notes.fault(error.to_string()),
                }
            }
            // Whoever asked goes away in the middle.
            _ => drop(tokio::time::timeout(Duration::from_micros(50), self.manager.suspend(session)).await),
        }
    }

    async fn resume(&self, session: SessionId) -> bool {
        match self.manager.begin_resume(session).await {
            Ok(mut resuming) => {
                resuming.restore(Restored::default()).await.is_ok() && resuming.complete().await.is_ok()
            }
            Err(ResumeError::AlreadyLive(_)) => true,
            Err(
                ResumeError::Unknown(_)
                | ResumeError::Capacity { .. }
                | ResumeError::Engine { .. }
                | ResumeError::Ended { .. }
                | ResumeError::NotReady { .. },
            ) => false,
            Err(error) => {
                self.notes.fault(error.to_string());
                false
            }
        }
    }

    async fn turn(&mut self, session: SessionId) {
        let in_flight = match self.manager.acquire(session).await {
            Ok(in_flight) => in_flight,
            Err(UseError::Unknown(_) | UseError::Suspended(_) | UseError::NotReady { .. }) => return,
            Err(error) => return self.notes.fault(error.to_string()),
        };
        in_flight.engine().in_turn.fetch_add(1, Ordering::SeqCst);
        self.spend(&in_flight).await;
        in_flight.engine().in_turn.fetch_sub(1, Ordering::SeqCst);
    }

    async fn spend(&mut self, in_flight: &InFlight<Probes>) {
        let worst = 1 + self.dice.below(100);
        let tokens = |tokens| Usage { tokens, ..Usage::NONE };
        match in_flight.reserve(tokens(worst), None).await {
            Ok(spending) => {
                tokio::task::yield_now().await;
                // One in ten is dropped: what was not measured is paid at its worst.
                if self.dice.below(10) > 0 {
                    let actual = tokens(self.dice.below(worst + 1));
                    let _account = spending.settle(actual).await;
                }
            }
            Err(SpendError::Exhausted(_) | SpendError::Ended(_)) => {}
            Err(error) => self.notes.fault(error.to_string()),
        }
    }

    fn ended(&self, ended: Result<(), StateError>) {
        match ended {
            Ok(())
            | Err(
                StateError::Unknown(_)
                | StateError::InUse(_)
                | StateError::Ended(_)
                | StateError::NotReady { .. }
                | StateError::Flush { .. },
            ) => {}
            Err(error) => self.notes.fault(error.to_string()),
        }
    }
}

/// What must hold at any moment.
fn check(manager: &SessionManager<Probes>, notes: &Notes) {
    let sessions = manager.list();
    let keys: HashSet<_> = sessions.iter().map(|view| (&view.principal, &view.key)).collect();
    if keys.len() != sessions.len() {
        notes.fault("a key leads to two sessions");
    }
    if manager.counts().active > PLACES {
        notes.fault("more sessions are active than may be");
    }
    for view in sessions {
        if view.usage.tokens > view.budget.tokens_max {
            notes.fault("a session used more than its budget");
        }
    }
}

#[test]
fn a_thousand_sessions_under_sixteen_tasks_for_half_a_minute() {
    let seconds = option_env!("STRESS_SECONDS").map_or(SECONDS, |seconds| seconds.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(stress(Duration::from_secs(seconds)));
}

async fn stress(length: Duration) {
    let (notes, env) = (Arc::new(Notes::default()), Env::system());
    let options = ManagerOptions {
        limits: Limits {
            active_max: PLACES,
            active_per_principal_max: None,
            suspended_per_principal_max: Some(100),
            idle_timeout: Some(SignedDuration::from_millis(15)),
            suspended_ttl: Some(SignedDuration::from_millis(150)),
            eviction: EvictionStrategy::SuspendOldestIdle,
        },
        tokens_per_hour: u64::MAX,
        ..ManagerOptions::default()
    };
    let factory = Probes { notes: Arc::clone(&notes), turn: AtomicU64::new(0) };
    let sink = Arc::new(Records(Arc::clone(&notes), env.clone()));
    let manager = SessionManager::new(env, options, factory, sink).unwrap();
    let stop = CancellationToken::new();
    let sweeper = tokio::spawn({
        let (manager, stop) = (manager.clone(), stop.clone());
        async move { manager.run_sweeper(stop).await }
    });
    let workers: Vec<_> = (0..TASKS)
        .map(|number| {
            let dice = Dice(0x9E37_79B9_7F4A_7C15 ^ (number + 1));
            let mut worker = Worker { manager: manager.clone(), notes: Arc::clone(&notes), dice };
            let stop = stop.clone();
            tokio::spawn(async move {
                let mut steps = 0_u64;
                while !stop.is_cancelled() {
                    worker.step().await;
                    steps += 1;
                }
                steps
            })
        })
        .collect();
    let until = tokio::time::Instant::now() + length;
    let mut look = tokio::time::interval(Duration::from_millis(20));
    while tokio::time::Instant::now() < until {
        look.tick().await;
        check(&manager, &notes);
    }
    stop.cancel();
    let mut steps = 0;
    for worker in workers {
        steps += worker.await.unwrap();
    }
    sweeper.await.unwrap();
    finish(&manager, &notes, steps).await;
}

/// What must hold once everything is over.
async fn finish(manager: &SessionManager<Probes>, notes: &Notes, steps: u64) {
    check(manager, notes);
    let report =
        manager.shutdown(Parting::Terminate(TerminationReason::Stopped), Duration::from_secs(30)).await;
    assert!(report.given_up.is_empty() && report.joined, "{report:?}");
    assert_eq!((manager.list().len(), manager.counts().active), (0, 0));
    let (made, released) = (notes.made.load(Ordering::SeqCst), notes.released.load(Ordering::SeqCst));
    assert_eq!(made, released, "each engine is let go of exactly once");
    assert!(notes.engines.lock().unwrap().values().all(|&here| here == 0));
    let records = notes.records.lock().unwrap();
    for (session, record) in records.iter() {
        assert!(record.state.is_terminated(), "{session} is {}", record.state);
        assert_eq!(record.reserved, 0, "{session} has something set aside");
    }
    let used: u64 = records.values().map(|record| record.used).sum();
    assert_eq!(*notes.faults.lock().unwrap(), HashSet::new());
    assert!(
        steps > 1_000 && made > 100 && used > 0,
        "{steps} steps, {made} engines, {used} tokens: too little happened"
    );
}
