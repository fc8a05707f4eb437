//! The live half of a session, as its users hold it, and what of a session outlives its engines.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::budget::{Account, Meter, Usage};
use session_core::context::SessionContext;
use session_core::history::History;
use session_core::names::AgentKey;
use session_core::ports::{Engine, EngineError, Release};
use session_core::{ManagedSession, SessionId};
use tokio_util::sync::CancellationToken;

use crate::recorded::Recorded;

/// A session with an engine. Shared by everybody who works in it; another engine of the same session has another handle.
pub struct SessionHandle<E> {
    session: ManagedSession,
    kept: Arc<Kept>,
    engine: Releasable<E>,
    ended: CancellationToken,
}

impl<E> SessionHandle<E> {
    pub(crate) fn new(session: ManagedSession, kept: Arc<Kept>, engine: E) -> Self {
        let engine =
            Releasable { engine, released: AtomicBool::new(false), writing: tokio::sync::Mutex::new(()) };
        Self { session, kept, engine, ended: CancellationToken::new() }
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// The session as it was when this engine was made. State and usage go on since; the [`meter`](Self::meter) knows the
    /// latter.
    #[must_use]
    pub fn session(&self) -> &ManagedSession {
        &self.session
    }

    /// What is alive behind the session. Its manager alone shuts it down.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.engine.engine
    }

    /// What the session may use up, and what it used up.
    #[must_use]
    pub fn meter(&self) -> &Arc<Meter> {
        &self.kept.meter
    }

    /// Reads or changes what belongs to this session alone: its conversation, approvals, grants, tools and correlation.
    /// Nobody else sees it meanwhile, so `act` is to be short, and must not come back here: it would wait for itself.
    pub fn with_context<T>(&self, act: impl FnOnce(&mut SessionContext) -> T) -> T {
        act(&mut self.kept.context())
    }

    /// This engine is not to be used any more: the session is being ended, or the engine was let go of.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.is_cancelled() || self.engine.released.load(Ordering::Acquire)
    }

    /// Returns when the session is being ended: whoever works in it stops soon.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

impl<E: Engine> SessionHandle<E> {
    /// Has the engine write out what is left, unless the session is ended before that or meanwhile.
    pub(crate) async fn write_out(&self) -> Result<(), EngineError> {
        self.engine.write_out(&self.ended).await
    }

    /// Lets go of the engine. The second caller, whoever that is, does nothing.
    pub(crate) async fn release(&self, why: Release) {
        self.engine.release(why).await;
    }
}

impl<E> fmt::Debug for SessionHandle<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle")
            .field("session", &self.session.id)
            .field("ended", &self.is_ended())
            .finish_non_exhaustive()
    }
}

/// An engine that can be let go of once.
struct Releasable<E> {
    engine: E,
    released: AtomicBool,
    /// A tokio mutex: held while the engine writes out what is left or shuts down, so that it is never asked for the one during
    /// or after the other.
    writing: tokio::sync::Mutex<()>,
}

impl<E: Engine> Releasable<E> {
    async fn write_out(&self, ended: &CancellationToken) -> Result<(), EngineError> {
        let _writing = self.writing.lock().await;
        let over = || Err(EngineError::Failed("its session was ended meanwhile".into()));
        if self.released.load(Ordering::Acquire) {
            return over();
        }
        tokio::select! {
            biased;
            () = ended.cancelled() => over(),
            answer = self.engine.suspend() => answer,
        }
    }

    async fn release(&self, why: Release) {
        // First: who waits here in vain has let go of nothing, and can be followed by another who does.
        let _over = self.writing.lock().await;
        if !self.released.swap(true, Ordering::AcqRel) {
            self.engine.shutdown(why).await;
        }
    }
}

/// What of a session outlives its engines: its record as it was when the manager last learnt of it, its meter, its context, and
/// how far its record keeps up with it.
#[derive(Debug)]
pub(crate) struct Kept {
    id: SessionId,
    // A std mutex: held to copy or replace it, never across an await.
    session: Mutex<ManagedSession>,
    pub(crate) meter: Arc<Meter>,
    // A std mutex: held for one short call, never across an await.
    context: Mutex<SessionContext>,
    /// What the record says. A tokio mutex: held while the record of this one session is written, so that whoever writes it
    /// next knows what it says, and two changes are recorded in the order in which they happened.
    pub(crate) recorded: tokio::sync::Mutex<Recorded>,
}

impl Kept {
    pub(crate) fn new(session: ManagedSession, parent_agent: Option<AgentKey>, recorded: Recorded) -> Self {
        Self {
            meter: Arc::new(Meter::new(session.budget, session.usage)),
            context: Mutex::new(SessionContext::new(&session, parent_agent)),
            recorded: tokio::sync::Mutex::new(recorded),
            id: session.id,
            session: Mutex::new(session),
        }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// The session as it is known: its record, and what it used up since.
    pub(crate) fn session(&self) -> ManagedSession {
        let mut session = self.told().clone();
        session.set_account(self.meter.account());
        session
    }

    /// What the manager was told of it; budget and usage are the meter's by now.
    pub(crate) fn told(&self) -> MutexGuard<'_, ManagedSession> {
        // Replaced as a whole.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a newer record over, and what it says of the budget. `false` when the record is just being written: then
    /// nothing is taken over. The context stays.
    pub(crate) fn renew(&self, session: ManagedSession, says: Recorded) -> bool {
        let Ok(mut recorded) = self.recorded.try_lock() else { return false };
        self.catch_up(session.account());
        *self.told() = session;
        *recorded = says;
        true
    }

    /// Takes over what the record says of the budget: its limits, what is set aside for children, and whatever was used
    /// elsewhere. What is set aside here stays so, and what was used here is not forgotten, though it may not be recorded yet.
    pub(crate) fn catch_up(&self, recorded: Account) {
        // One at a time: what is missing is added once.
        let _told = self.told();
        self.meter.set_budget(recorded.budget);
        self.meter.set_allotted(recorded.allotted);
        let missing = recorded.used.minus(self.meter.used());
        // Nothing that is asked for is never refused.
        if let Ok(nothing) = self.meter.reserve(Usage::NONE) {
            let _warned_of_elsewhere = nothing.settle(missing);
        }
    }

    pub(crate) fn context(&self) -> MutexGuard<'_, SessionContext> {
        // A panic of whoever had it leaves a context that is whole: each of its changes is one call.
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees the conversation: the log has it. Everything else stays for the resume.
    pub(crate) fn forget_history(&self) {
        self.context().history = History::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use async_trait::async_trait;
    use tokio::time::{Duration, timeout};

    use super::*;

    /// An engine that never finishes writing out.
    #[derive(Default)]
    struct Stuck {
        shut_down: AtomicU32,
    }

    #[async_trait]
    impl Engine for Stuck {
        async fn suspend(&self) -> Result<(), EngineError> {
            std::future::pending().await
        }

        async fn shutdown(&self, _why: Release) {
            self.shut_down.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_in_vain_to_let_go_of_an_engine_leaves_that_to_the_next() {
        let engine = Arc::new(Releasable {
            engine: Stuck::default(),
            released: AtomicBool::new(false),
            writing: tokio::sync::Mutex::new(()),
        });
        let writer = {
            let (engine, never) = (Arc::clone(&engine), CancellationToken::new());
            tokio::spawn(async move { engine.write_out(&never).await })
        };
        tokio::task::yield_now().await;
        let release = || timeout(Duration::from_secs(1), engine.release(Release::Suspended));
        release().await.unwrap_err();
        writer.abort();
        writer.await.unwrap_err();
        release().await.unwrap();
        release().await.unwrap();
        assert_eq!(engine.engine.shut_down.load(Ordering::SeqCst), 1);
    }
}
