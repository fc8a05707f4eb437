//! A whole program around the session manager, with an engine, a clock and a log of its own: no store, no command.
//!
//! `cargo run -p session-manager --example embed`

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it shows what it does")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::json;
use session_core::approvals::{Grant, Verdict};
use session_core::budget::{Budget, BudgetChange, Usage};
use session_core::context::Restored;
use session_core::env::RandomIds;
use session_core::names::{ExternalKey, Principal, ToolName};
use session_core::ports::{
    Engine, EngineError, LifecycleEvent, LifecycleSink, Orchestrator, Release, SessionFactory, SinkError,
};
use session_core::{
    Clock, Env, Event, EventKind, ManagedSession, NewEvent, Seq, SessionId, TerminationReason,
};
use session_manager::{
    InFlight, Keyed, ManagerOptions, Parting, SessionManager, SessionRequest, SpendError, UseError,
};

type Manager = SessionManager<Parrots>;
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A clock that is set by hand, so that three quarters of an hour pass while you watch. A program that lives in real time
/// takes `Env::system()`.
#[derive(Debug, Default)]
struct HandClock {
    minutes: AtomicU64,
}

impl HandClock {
    fn pass(&self, minutes: u64) {
        println!("· {minutes} minutes pass");
        self.minutes.fetch_add(minutes, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        let since = jiff::SignedDuration::try_from(self.elapsed()).unwrap_or_default();
        Timestamp::UNIX_EPOCH.saturating_add(since).unwrap_or(Timestamp::MAX)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.minutes.load(Ordering::SeqCst) * 60)
    }
}

/// The log: what was said and granted, by session. It is the sink too, and says what it hears.
#[derive(Debug, Default)]
struct Log {
    events: Mutex<BTreeMap<SessionId, Vec<Event>>>,
}

impl Log {
    fn append(&self, session: SessionId, body: NewEvent) {
        let mut events = locked(&self.events);
        let log = events.entry(session).or_default();
        let seq = log.last().map_or(Seq::START, |last| last.seq).next();
        log.push(Event { session, seq, at: Timestamp::UNIX_EPOCH, body });
    }

    fn message(&self, session: SessionId, role: &str, text: &str) {
        let payload = json!({ "role": role, "text": text });
        self.append(session, NewEvent::internal(EventKind::Message, None, &payload));
    }

    fn read(&self, session: SessionId) -> Vec<Event> {
        locked(&self.events).get(&session).cloned().unwrap_or_default()
    }
}

#[async_trait]
impl LifecycleSink for Log {
    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError> {
        let what = match event {
            LifecycleEvent::Created(_) => "created".into(),
            LifecycleEvent::Moved { trigger, .. } => trigger.name().to_owned(),
            LifecycleEvent::Resuming { step, .. } => format!("resume: {step}"),
            LifecycleEvent::Reserved { worst, .. } => format!("{} tokens set aside", worst.tokens),
            LifecycleEvent::Settled { actual, .. } => format!("{} tokens used", actual.tokens),
            LifecycleEvent::BudgetChanged { by, .. } => format!("budget changed by {by}"),
            LifecycleEvent::Granted { session, grant } => {
                self.append(*session, grant.event());
                "granted".into()
            }
        };
        println!("    record {:.8}…: {what}", event.session().to_string());
        Ok(())
    }
}

/// The engine: repeats what it is told, and remembers how often.
#[derive(Debug)]
struct Parrot {
    heard: AtomicU64,
}

impl Parrot {
    fn answer(&self, text: &str) -> String {
        let heard = self.heard.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{text}! ({heard})")
    }
}

#[async_trait]
impl Engine for Parrot {
    async fn suspend(&self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn shutdown(&self, why: Release) {
        println!("    the engine goes: {why:?}");
    }
}

#[async_trait]
impl Orchestrator for Parrot {
    fn wants_history(&self) -> bool {
        true
    }

    async fn restore_history(&self, restored: &Restored) -> Result<(), EngineError> {
        let of_the_user =
            |message: &&session_core::history::Message| message.role == session_core::history::Role::User;
        let heard = restored.history.messages.iter().filter(of_the_user).count();
        self.heard.store(u64::try_from(heard).unwrap_or(u64::MAX), Ordering::SeqCst);
        Ok(())
    }
}

/// Makes the engines. Two never share anything that can change.
#[derive(Debug)]
struct Parrots;

#[async_trait]
impl SessionFactory for Parrots {
    type Engine = Parrot;

    async fn create(&self, session: &ManagedSession) -> Result<Parrot, EngineError> {
        println!("    an engine comes for a session that is {}", session.state);
        Ok(Parrot { heard: AtomicU64::new(0) })
    }
}

/// Says something to a session, resuming it first if it sleeps: what every front end does.
async fn say(manager: &Manager, log: &Log, session: SessionId, text: &str) -> Outcome {
    let run = match manager.acquire(session).await {
        Err(UseError::Suspended(_)) => {
            resume(manager, log, session).await?;
            manager.acquire(session).await?
        }
        run => run?,
    };
    let worst = Usage { tokens: 40, turns: 1, ..Usage::NONE };
    let spending = match run.reserve(worst, None).await {
        Ok(spending) => spending,
        Err(SpendError::Exhausted(error)) => {
            println!("  → {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    log.message(session, "user", text);
    let answer = turn(&run, text);
    log.message(session, "assistant", &answer);
    println!("  {text} → {answer}");
    let settled = spending.settle(Usage { tokens: 30, turns: 1, ..Usage::NONE }).await;
    if !settled.warn.is_empty() {
        println!("  the budget is nearly spent: {} tokens used", settled.used.tokens);
    }
    Ok(())
}

/// One turn. A tool asks for leave unless a person gave it for the whole session.
fn turn(run: &InFlight<Parrots>, text: &str) -> String {
    let tool = ToolName::new("shout").ok();
    let verdict =
        tool.and_then(|tool| run.handle().with_context(|context| context.approvals.verdict(&tool, None)));
    let answer = run.engine().answer(text);
    if verdict == Some(Verdict::Allow) { answer.to_uppercase() } else { answer }
}

/// The three steps of a resume. Dropped between any two, the session is suspended as before.
async fn resume(manager: &Manager, log: &Log, session: SessionId) -> Outcome {
    let mut resuming = manager.begin_resume(session).await?;
    let restored = Restored::from_log(&log.read(session));
    resuming.engine().restore_history(&restored).await?;
    resuming.restore(restored).await?;
    resuming.complete().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let (clock, log) = (Arc::new(HandClock::default()), Arc::new(Log::default()));
    let env = Env { clock: Arc::clone(&clock) as _, ids: Arc::new(RandomIds) };
    let manager = Manager::new(env, ManagerOptions::default(), Parrots, Arc::clone(&log) as _)?;

    println!("A session, found by its key:");
    let budget = Budget { tokens_max: 100, ..Budget::default() };
    let request = SessionRequest { budget, ..SessionRequest::new(Principal::new("polly")?) };
    let Keyed::Live { handle, .. } = manager.get_or_create(ExternalKey::new("chat:42")?, request).await?
    else {
        return Err("it was just made".into());
    };
    let session = handle.id();
    drop(handle);
    say(&manager, &log, session, "hello").await?;

    println!("A tool is allowed for the rest of this session, and of no other:");
    let grant = Grant::Tool { name: ToolName::new("shout")?, verdict: Verdict::Allow };
    manager.grant(session, grant).await?;
    say(&manager, &log, session, "louder").await?;

    println!("Nobody comes for a while:");
    clock.pass(15);
    manager.sweep().await;
    clock.pass(30);
    manager.sweep().await;
    println!("  {:?}", manager.counts());

    println!("A message wakes it up again, under the same id, with its history, its grants and its budget:");
    say(&manager, &log, session, "again").await?;

    println!("The budget is spent, and topped up:");
    say(&manager, &log, session, "more").await?;
    let more = BudgetChange::Add(Usage { tokens: 100, ..Usage::NONE });
    manager.change_budget(session, more, Principal::new("keeper")?).await?;
    say(&manager, &log, session, "more").await?;

    println!("The kill switch:");
    let killed = manager.terminate_all(None, TerminationReason::Killed).await;
    println!("  {} ended", killed.sessions.len());

    println!("And out:");
    let report = manager.shutdown(Parting::Leave, Duration::from_secs(10)).await;
    println!("  everything ended in time: {}", report.joined);
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
