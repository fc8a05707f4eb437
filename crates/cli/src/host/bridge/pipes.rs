//! Where the runner's executions leave the pipes of server processes, and the bridge finds them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use session_core::run::Ending;
use session_core::{RunId, SessionId};
use session_runner::{Unwanted, Wire, Wires};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Those who wait for a process, or for its end.
#[derive(Debug, Default)]
pub struct Pipes {
    by_session: Mutex<HashMap<SessionId, Expectation>>,
}

/// Somebody waits for the process of a session, or for its end.
#[derive(Debug)]
struct Expectation {
    /// Which run it is, once that is known.
    run: watch::Sender<Option<RunId>>,
    wire: Option<oneshot::Sender<Wire>>,
    over: Option<oneshot::Sender<Option<Ending>>>,
    /// Of the process, once it is there.
    stop: Option<CancellationToken>,
}

/// What is waited for. Nobody waits any more once this is dropped.
#[derive(Debug)]
pub(super) struct Expected {
    /// The process.
    pub(super) wire: oneshot::Receiver<Wire>,
    /// That its run is over, and how.
    pub(super) over: oneshot::Receiver<Option<Ending>>,
}

impl Pipes {
    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Expectation>> {
        // Every change is one assignment: a panic cannot leave it half done.
        self.by_session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for the process of this session. `None` where one is there, or is waited for already.
    pub(super) fn expect(&self, session: SessionId) -> Option<Expected> {
        let mut all = self.all();
        if all.get(&session).is_some_and(|found| found.over.as_ref().is_some_and(|over| !over.is_closed())) {
            return None;
        }
        let ((wire_to, wire), (over_to, over)) = (oneshot::channel(), oneshot::channel());
        let (run, _) = watch::channel(None);
        let expectation = Expectation { run, wire: Some(wire_to), over: Some(over_to), stop: None };
        all.insert(session, expectation);
        Some(Expected { wire, over })
    }

    /// It is this run that brings it.
    pub(super) fn comes_with(&self, session: SessionId, run: RunId) {
        if let Some(expectation) = self.all().get(&session) {
            expectation.run.send_replace(Some(run));
        }
    }

    /// It is not waited for any more.
    pub(super) fn forget(&self, session: SessionId) {
        self.all().remove(&session);
    }

    /// Ends the process of this session, if there is one.
    pub(super) fn stop(&self, session: SessionId) {
        if let Some(stop) = self.all().get(&session).and_then(|expectation| expectation.stop.as_ref()) {
            stop.cancel();
        }
    }

    /// Whether it is this run that is waited for; waits until that can be said.
    async fn is_expected(&self, session: SessionId, run: RunId) -> bool {
        let Some(mut known) = self.all().get(&session).map(|found| found.run.subscribe()) else {
            return false;
        };
        known.wait_for(Option::is_some).await.is_ok_and(|known| *known == Some(run))
    }
}

#[async_trait]
impl Wires for Pipes {
    async fn take(&self, session: SessionId, run: RunId, wire: Wire) -> Result<(), Unwanted> {
        if !self.is_expected(session, run).await {
            return Err(Unwanted);
        }
        let stop = wire.stop.clone();
        let mut all = self.all();
        let expectation = all.get_mut(&session).ok_or(Unwanted)?;
        let waiting = expectation.wire.take().ok_or(Unwanted)?;
        expectation.stop = Some(stop);
        waiting.send(wire).map_err(|_| Unwanted)
    }

    async fn over(&self, session: SessionId, run: RunId, ending: Option<&Ending>) {
        if !self.is_expected(session, run).await {
            return;
        }
        let expectation = self.all().remove(&session);
        if let Some(over) = expectation.and_then(|expectation| expectation.over) {
            // Whoever does not wait any more does not want to know.
            drop(over.send(ending.cloned()));
        }
    }
}
