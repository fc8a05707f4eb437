//! How reports get to the coordinator: at once where it answers, from the disk and in order where it did not.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use session_api::client::ClientError;
use session_api::paths;
use session_api::runners::{Report, Reported, RunnerReport};
use session_core::Fence;
use session_core::error::{StoreError, StoreResult};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Remote;
use super::answers::{About, over, store_error};
use super::spool::Spooled;

/// Between two tries to deliver: at first, and at the most.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// The reports of one claim, one after the other.
#[derive(Debug)]
pub(super) struct Line {
    /// A tokio mutex: held while a report is on its way, so that the next one goes behind it.
    waiting: tokio::sync::Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    spooled: Spooled,
    /// The claim counts no more.
    gone: bool,
}

impl Line {
    /// What an earlier process left.
    pub(super) fn left(spooled: Spooled) -> Self {
        Self { waiting: tokio::sync::Mutex::new(Waiting { spooled, gone: false }) }
    }
}

/// Whether a report may wait on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Whoever makes it needs the answer.
    Answer,
    /// It may.
    Spool,
}

/// What became of the reports that wait of one claim.
enum Flushed {
    /// All were delivered.
    All,
    /// The coordinator does not answer.
    NotNow(ClientError),
}

impl Remote {
    fn line(&self, fence: Fence) -> Arc<Line> {
        let mut state = self.state();
        let new = || Arc::new(Line::left(Spooled::new(&self.inner.spool, fence)));
        Arc::clone(state.lines.entry(fence).or_insert_with(new))
    }

    /// Makes a report. It is recorded, or on disk, when this returns.
    pub(super) async fn report(
        &self,
        fence: Fence,
        what: Report,
        patience: Patience,
    ) -> StoreResult<Reported> {
        let line = self.line(fence);
        let mut waiting = line.waiting.lock().await;
        if waiting.gone {
            return Err(over());
        }
        let report = RunnerReport { run_id: fence.run.to_string(), epoch: fence.epoch.0, what };
        if waiting.spooled.is_empty() || patience == Patience::Answer {
            let tried = match self.flush(fence, &mut waiting).await? {
                Flushed::All => self.send(&report).await,
                Flushed::NotNow(error) => Err(error),
            };
            let error = match tried {
                Ok(reported) => return Ok(reported),
                Err(error) => store_error(error, About::Run(fence.run)),
            };
            if is_gone(&error) {
                drop_all(fence, &mut waiting);
            }
            if patience == Patience::Answer || !error.may_pass() {
                return Err(error);
            }
            tracing::warn!(run = %fence.run, error = &error as &dyn std::error::Error,
                "the coordinator does not take a report; it waits on disk");
        }
        let is_end = matches!(report.what, Report::Ended(_) | Report::GivenBack);
        let spooled = std::mem::replace(&mut waiting.spooled, Spooled::new(&self.inner.spool, fence));
        let pushed = tokio::task::spawn_blocking(move || {
            let mut spooled = spooled;
            let done = spooled.push(&report, is_end);
            (spooled, done)
        });
        let (spooled, done) = pushed.await.map_err(|error| unwritten(io::Error::other(error)))?;
        waiting.spooled = spooled;
        done.map_err(unwritten)?;
        self.inner.waits.notify_one();
        Ok(Reported::default())
    }

    async fn send(&self, report: &RunnerReport) -> Result<Reported, ClientError> {
        self.inner.client.post(&self.path(paths::RUNNER_REPORTS), report, Duration::ZERO).await
    }

    /// Delivers what waits of one claim, in order. An error says that the claim counts no more.
    async fn flush(&self, fence: Fence, waiting: &mut Waiting) -> StoreResult<Flushed> {
        for (report, length) in waiting.spooled.waiting().map_err(unwritten)? {
            match self.send(&report).await {
                Ok(_) => {}
                Err(error) => {
                    let refused = store_error_ref(&error, fence);
                    match refused {
                        Refused::NotNow => return Ok(Flushed::NotNow(error)),
                        Refused::Gone => {
                            drop_all(fence, waiting);
                            return Err(over());
                        }
                        // The others are worth no less for it, the end of the run above all.
                        Refused::ThisOne => tracing::error!(run = %fence.run, %error, what = ?report.what,
                            "a report was refused and is dropped"),
                    }
                }
            }
            waiting.spooled.delivered(length).map_err(unwritten)?;
        }
        Ok(Flushed::All)
    }

    /// Delivers what waits on disk, now and whenever there is something, until `stop`.
    pub async fn deliver(self, stop: CancellationToken) {
        let mut wait = RETRY_FIRST;
        while !stop.is_cancelled() {
            let next = if self.deliver_all().await {
                wait = RETRY_FIRST;
                // A wake-up between the round and this wait is kept.
                RETRY_LAST
            } else {
                let this = wait;
                wait = (wait * 2).min(RETRY_LAST);
                sleep_unless(this, &stop).await;
                continue;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = timeout(next, self.inner.waits.notified()) => {}
            }
        }
    }

    /// One try for each claim of which something waits. Whether nothing waits any more.
    pub async fn deliver_all(&self) -> bool {
        let lines: Vec<_> =
            self.state().lines.iter().map(|(fence, line)| (*fence, Arc::clone(line))).collect();
        let mut all = true;
        for (fence, line) in lines {
            let mut waiting = line.waiting.lock().await;
            match self.flush(fence, &mut waiting).await {
                Ok(Flushed::All) => {}
                Ok(Flushed::NotNow(error)) => {
                    tracing::debug!(run = %fence.run, %error, "reports wait");
                    all = false;
                    // The others would find nobody either.
                    break;
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    all = false;
                    tracing::warn!(run = %fence.run, error = &error as &dyn std::error::Error,
                        "what waits on disk could not be delivered");
                }
            }
            drop(waiting);
            self.forget_if_over(fence, &line);
        }
        all
    }

    /// A claim that is over here, and of which nothing waits, is forgotten.
    fn forget_if_over(&self, fence: Fence, line: &Line) {
        let Ok(waiting) = line.waiting.try_lock() else { return };
        let mut state = self.state();
        let held = state.runs.get(&fence.run).is_some_and(|run| run.epoch == fence.epoch);
        if waiting.spooled.is_empty() && !held {
            state.lines.remove(&fence);
        }
    }

    /// The claims of which something waits on disk.
    pub(super) fn undelivered(&self) -> Vec<Fence> {
        let waits = |line: &Line| line.waiting.try_lock().map_or(true, |waiting| !waiting.spooled.is_empty());
        self.state().lines.iter().filter(|(_, line)| waits(line)).map(|(fence, _)| *fence).collect()
    }

    /// A claim counts no more: what waits of it goes, and nothing more is taken.
    pub(super) async fn disown(&self, fence: Fence) {
        let line = {
            let mut state = self.state();
            state.settlements.remove(&fence.run);
            state.tokens.remove(&fence);
            if state.runs.get(&fence.run).is_some_and(|run| run.epoch == fence.epoch) {
                state.runs.remove(&fence.run);
            }
            state.lines.get(&fence).map(Arc::clone)
        };
        if let Some(line) = line {
            drop_all(fence, &mut *line.waiting.lock().await);
        }
    }
}

enum Refused {
    NotNow,
    Gone,
    ThisOne,
}

fn store_error_ref(error: &ClientError, fence: Fence) -> Refused {
    let ClientError::Refused(problem) = error else { return Refused::NotNow };
    let error = store_error(ClientError::Refused(problem.clone()), About::Run(fence.run));
    match (is_gone(&error), error.may_pass()) {
        (true, _) => Refused::Gone,
        (false, true) => Refused::NotNow,
        (false, false) => Refused::ThisOne,
    }
}

fn is_gone(error: &StoreError) -> bool {
    matches!(error, StoreError::Transition(_) | StoreError::Fenced { .. } | StoreError::UnknownRun(_))
}

fn drop_all(fence: Fence, waiting: &mut Waiting) {
    if !waiting.spooled.is_empty() {
        tracing::warn!(run = %fence.run, epoch = %fence.epoch,
            "the claim counts no more: what waited to be reported of it is dropped");
    }
    waiting.gone = true;
    if let Err(error) = waiting.spooled.clear() {
        tracing::warn!(run = %fence.run, %error, "reports that count no more could not be removed");
    }
}

fn unwritten(error: io::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

async fn sleep_unless(wait: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = sleep(wait) => {}
        () = stop.cancelled() => {}
    }
}
