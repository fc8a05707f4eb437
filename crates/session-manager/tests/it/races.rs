//! Everything at once, in orders drawn from seeds: the record takes every change, no session has two engines, and each
//! engine is let go of once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use session_core::ports::{
    Engine, EngineError, LifecycleEvent, LifecycleSink, Release, SessionFactory, SinkError,
};
use session_core::state::Trigger;
use session_core::{ManagedSession, SessionId, SessionState, TerminationReason, testing};
use session_manager::options::{EvictionStrategy, Limits};
use session_manager::{ManagerOptions, Parting, SessionManager};

use crate::world::{key, request};

/// Numbers from a seed: the same every time.
struct Dice(AtomicU64);

impl Dice {
    fn below(&self, end: u64) -> u64 {
        let step = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
        let mixed = (step ^ (step >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Lets others go first, a few times.
    async fn dawdle(&self) {
        for _ in 0..self.below(6) {
            tokio::task::yield_now().await;
        }
    }
}

/// The records, which take what the state machine takes, and the engines that are alive.
struct Books {
    dice: Dice,
    records: Mutex<HashMap<SessionId, SessionState>>,
    engines: Mutex<HashMap<SessionId, u32>>,
    /// Runs in flight, as those who began them know.
    runs: Mutex<HashMap<SessionId, u32>>,
    faults: Mutex<Vec<String>>,
}

impl Books {
    fn fault(&self, what: String) {
        self.faults.lock().unwrap().push(what);
    }

    fn run(&self, session: SessionId, change: impl FnOnce(u32) -> u32) {
        let mut runs = self.runs.lock().unwrap();
        let count = runs.entry(session).or_default();
        *count = change(*count);
    }

    fn moved(&self, session: SessionId, trigger: Trigger) -> Result<(), SinkError> {
        let in_flight = self.runs.lock().unwrap().get(&session).is_some_and(|runs| *runs > 0);
        if in_flight && trigger == Trigger::Terminate(TerminationReason::Evicted) {
            self.fault(format!("{session}: gives way with a run in flight"));
        }
        let mut records = self.records.lock().unwrap();
        let Some(state) = records.get_mut(&session) else {
            return Err(SinkError::Superseded("it was never made".into()));
        };
        match state.on(trigger, Timestamp::UNIX_EPOCH) {
            Ok(next) => *state = next,
            Err(error) => {
                self.fault(format!("{session}: {error}"));
                return Err(SinkError::Superseded(error.to_string()));
            }
        }
        Ok(())
    }
}

struct Hasty {
    session: SessionId,
    books: Arc<Books>,
}

#[async_trait]
impl Engine for Hasty {
    async fn suspend(&self) -> Result<(), EngineError> {
        self.books.dice.dawdle().await;
        if self.books.dice.below(8) == 0 { Err(EngineError::Failed("not now".into())) } else { Ok(()) }
    }

    async fn shutdown(&self, _why: Release) {
        self.books.dice.dawdle().await;
        let mut engines = self.books.engines.lock().unwrap();
        let alive = engines.entry(self.session).or_default();
        if *alive != 1 {
            self.books.fault(format!("{}: shut down with {alive} engines", self.session));
        }
        *alive = alive.saturating_sub(1);
    }
}

struct Maker(Arc<Books>);

#[async_trait]
impl SessionFactory for Maker {
    type Engine = Hasty;

    async fn create(&self, session: &ManagedSession) -> Result<Hasty, EngineError> {
        self.0.dice.dawdle().await;
        if self.0.dice.below(8) == 0 {
            return Err(EngineError::Failed("not today".into()));
        }
        let mut engines = self.0.engines.lock().unwrap();
        let alive = engines.entry(session.id).or_default();
        *alive += 1;
        if *alive > 1 {
            self.0.fault(format!("{}: {alive} engines", session.id));
        }
        Ok(Hasty { session: session.id, books: Arc::clone(&self.0) })
    }
}

struct Clerk(Arc<Books>);

#[async_trait]
impl LifecycleSink for Clerk {
    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError> {
        self.0.dice.dawdle().await;
        if self.0.dice.below(12) == 0 {
            return Err(SinkError::Unavailable("not now".into()));
        }
        match event {
            LifecycleEvent::Created(new) => {
                self.0.records.lock().unwrap().insert(new.id, SessionState::Active);
            }
            LifecycleEvent::Moved { session, trigger } => self.0.moved(*session, *trigger)?,
            LifecycleEvent::Resuming { .. }
            | LifecycleEvent::Reserved { .. }
            | LifecycleEvent::Settled { .. }
            | LifecycleEvent::BudgetChanged { .. }
            | LifecycleEvent::Granted { .. } => {}
        }
        Ok(())
    }
}

/// One thing that somebody does, to a session that is drawn.
async fn act(manager: SessionManager<Maker>, books: Arc<Books>) {
    let views = manager.list();
    let dice = &books.dice;
    let any = usize::try_from(dice.below(1_000)).unwrap();
    let session = views.get(any % views.len().max(1)).map(|view| view.session);
    match (dice.below(12), session) {
        (0, _) => drop(manager.create(request("me")).await),
        (1 | 2, _) | (_, None) => {
            let name = format!("k{}", dice.below(4));
            drop(manager.get_or_create(key(&name), request("me")).await);
        }
        (3, Some(session)) => drop(manager.suspend(session).await),
        (4, Some(session)) if dice.below(3) == 0 => {
            drop(manager.terminate(session, TerminationReason::Stopped).await);
        }
        (5, _) => drop(manager.sweep().await),
        (6 | 7, Some(session)) => {
            if let Ok(resuming) = manager.begin_resume(session).await {
                dice.dawdle().await;
                if dice.below(3) > 0 {
                    drop(resuming.complete().await);
                }
            }
        }
        (8, Some(session)) => drop(manager.touch(session).await),
        (_, Some(session)) => {
            if let Ok(run) = manager.acquire(session).await {
                books.run(session, |runs| runs + 1);
                let _ends = Ends(session, Arc::clone(&books));
                dice.dawdle().await;
                if manager.view(session).is_some_and(|view| view.state.name() == "suspended") {
                    books.fault(format!("{session}: suspended with a run in flight"));
                }
                drop(run);
            }
        }
    }
}

/// Notes that a run ends, also when whoever began it leaves.
struct Ends(SessionId, Arc<Books>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.1.run(self.0, |runs| runs - 1);
    }
}

async fn one_seed(seed: u64) {
    let (env, clock) = testing::env();
    let books = Arc::new(Books {
        dice: Dice(AtomicU64::new(seed.wrapping_mul(0xD134_2543_DE82_EF95))),
        records: Mutex::default(),
        engines: Mutex::default(),
        runs: Mutex::default(),
        faults: Mutex::default(),
    });
    let eviction = EvictionStrategy::ALL[usize::try_from(books.dice.below(3)).unwrap()];
    let limits = Limits { active_max: 3, active_per_principal_max: None, eviction, ..Limits::default() };
    let options = ManagerOptions { limits, ..ManagerOptions::default() };
    let sink = Arc::new(Clerk(Arc::clone(&books)));
    let manager = SessionManager::new(env, options, Maker(Arc::clone(&books)), sink).unwrap();
    let mut actors = Vec::new();
    for _ in 0..120 {
        let actor = tokio::spawn(act(manager.clone(), Arc::clone(&books)));
        // Some leave half way.
        if books.dice.below(6) == 0 {
            books.dice.dawdle().await;
            actor.abort();
        } else {
            actors.push(actor);
        }
        if books.dice.below(3) == 0 {
            clock.advance(SignedDuration::from_mins(i64::try_from(books.dice.below(25)).unwrap()));
        }
        books.dice.dawdle().await;
        assert!(manager.counts().active <= 3, "seed {seed}");
    }
    for actor in actors {
        actor.await.unwrap();
    }
    let parting = Parting::Terminate(TerminationReason::Stopped);
    let report = manager.shutdown(parting, Duration::from_mins(10)).await;
    assert!(report.joined && report.given_up.is_empty(), "seed {seed}: {report:?}");
    let faults = books.faults.lock().unwrap();
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    let engines = books.engines.lock().unwrap();
    assert!(engines.values().all(|alive| *alive == 0), "seed {seed}: {engines:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_the_order_nothing_is_lost_doubled_or_left() {
    for seed in 0..100 {
        one_seed(seed).await;
    }
}
