//! The sessions of one process, live: asks the [registry](crate::registry) what is to be done, does it, and reports it.
//!
//! One lock guards all state, and nothing is awaited under it. Whatever changes a session runs in a task of the manager's:
//! dropping the future of a method stops the waiting, never the change half way. What is not ours (engines, their factory,
//! the sink) runs in a further task and within a bound, so it can neither hang nor panic here.

mod ending;
mod engine;
mod governance;
mod open;
mod queries;
mod record;
mod resume;
mod shutdown;
mod usage;

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use session_core::budget::HourlyWindow;
use session_core::ports::{EngineError, LifecycleSink, SessionFactory};
use session_core::{Env, SessionId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use ending::Terminated;
pub use open::{Keyed, SessionRequest};
pub use queries::{Counts, SessionView};
pub use shutdown::{Parting, ShutdownReport};

use crate::error::StartError;
use crate::handle::{Kept, SessionHandle};
use crate::options::ManagerOptions;
use crate::registry::Registry;
use crate::steady::Steady;

/// The live half of a session whose engine this factory makes.
pub type HandleOf<F> = Arc<SessionHandle<<F as SessionFactory>::Engine>>;

/// The sessions of one process. A clone is another handle on the same ones.
///
/// It is to be [shut down](Self::shutdown): engines of a manager that is merely dropped are dropped too.
pub struct SessionManager<F: SessionFactory> {
    inner: Arc<Inner<F>>,
}

impl<F: SessionFactory> Clone for SessionManager<F> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<F: SessionFactory> fmt::Debug for SessionManager<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionManager").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

struct Inner<F: SessionFactory> {
    env: Env,
    options: ManagerOptions,
    factory: Arc<F>,
    sink: Arc<dyn LifecycleSink>,
    steady: Steady,
    // A std mutex: held for a few look-ups, never across an await.
    state: Mutex<State<F>>,
    /// Bumped after every change that somebody may wait for.
    changes: watch::Sender<u64>,
    tasks: TaskTracker,
    runtime: Handle,
    /// Cancelled when the manager begins to leave.
    leaving: CancellationToken,
}

/// Everything that the lock guards.
pub(crate) struct State<F: SessionFactory> {
    pub(crate) registry: Registry<HandleOf<F>, Arc<Kept>>,
    /// The tokens that all sessions together used in the last hour.
    pub(crate) hourly: HourlyWindow,
    /// How the manager leaves, once it does.
    pub(crate) parting: Option<Parting>,
}

impl<F: SessionFactory> SessionManager<F> {
    /// A manager without sessions, whose tasks run on the runtime of the caller. `env` gives ids, the time that passes and
    /// wall times for records; `factory` makes the engines; `sink` keeps the records (`()` for none).
    pub fn new(
        env: Env,
        options: ManagerOptions,
        factory: F,
        sink: Arc<dyn LifecycleSink>,
    ) -> Result<Self, StartError> {
        let options = options.checked()?;
        let runtime = Handle::try_current().map_err(StartError::NoRuntime)?;
        let state = State {
            registry: Registry::new(options.limits),
            hourly: HourlyWindow::new(options.tokens_per_hour),
            parting: None,
        };
        let inner = Inner {
            steady: Steady::new(env.clone()),
            env,
            options,
            factory: Arc::new(factory),
            sink,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            runtime,
            leaving: CancellationToken::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &ManagerOptions {
        &self.inner.options
    }

    /// Becomes ready after each change that may have made room: a session that left, was suspended or ended, a run that
    /// ended, an opening that failed. Also after others, so whoever wakes up asks again (for [`vacancies`](Self::vacancies),
    /// say) before relying on anything. The number counts the changes and wraps around; it has no other meaning.
    ///
    /// What time alone brings about is no change: an engine that refused to be suspended may be asked to give way again after
    /// a minute, and nobody says so.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<F>> {
        // Every change is whole when a method of the registry returns, and those do not panic.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes state, and wakes whoever waits for that.
    pub(crate) fn change<T>(&self, act: impl FnOnce(&mut State<F>, Timestamp) -> T) -> T {
        let now = self.inner.steady.now();
        let answer = act(&mut self.lock(), now);
        self.inner.changes.send_modify(|count| *count = count.wrapping_add(1));
        answer
    }

    /// Now, on the manager's own timeline.
    pub(crate) fn steady_now(&self) -> Timestamp {
        self.inner.steady.now()
    }

    pub(crate) fn leaving(&self) -> &CancellationToken {
        &self.inner.leaving
    }

    /// Waits until `check` answers. It is asked at once, and again after each change.
    pub(crate) async fn until<T>(&self, mut check: impl FnMut(&mut State<F>) -> Option<T>) -> T {
        let mut changes = self.subscribe();
        loop {
            if let Some(answer) = check(&mut self.lock()) {
                return answer;
            }
            // The sender is ours: it cannot be gone.
            let _still_there = changes.changed().await;
        }
    }

    /// Whether a session is gone within this time.
    pub(crate) async fn gone(&self, session: SessionId, within: Duration) -> bool {
        let gone = self.until(|state| state.registry.get(session).is_none().then_some(()));
        timeout(within, gone).await.is_ok()
    }

    /// Runs something in a task of the manager's, whoever waits for it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.inner.tasks.spawn_on(work, &self.inner.runtime)
    }

    /// Runs something of the manager's own in a task, and waits for it. Dropping the future only stops the waiting.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.spawn(work).await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime is going down, and everything that waits on it with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Runs something that is not ours, for so long at most: it can neither hang nor panic here.
    pub(crate) async fn guarded<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let mut task = self.spawn(work);
        if let Ok(answer) = timeout(within, &mut task).await {
            return answer.map_err(broken);
        }
        task.abort();
        Err(EngineError::TimedOut(within))
    }
}

/// What became of a task that did not end by itself.
pub(crate) fn broken(error: JoinError) -> EngineError {
    let Ok(panic) = error.try_into_panic() else {
        return EngineError::Failed("it was cancelled, because the runtime is shutting down".into());
    };
    let said = match panic.downcast::<&str>() {
        Ok(said) => (*said).into(),
        Err(panic) => panic.downcast::<String>().map_or_else(|_| "it did not say why".into(), |said| *said),
    };
    EngineError::Panicked(said)
}
