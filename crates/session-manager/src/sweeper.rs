//! What time does to sessions, done: idle ones are recorded as such, those that stay idle are suspended, those that stay
//! suspended are over.

use std::time::Duration;

use jiff::Timestamp;
use session_core::SessionId;
use session_core::ports::{SessionFactory, SinkError};
use session_core::state::TerminationReason;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::StateError;
use crate::manager::SessionManager;
use crate::registry::Due;

/// How many sessions are acted upon at once, so that one slow engine delays nobody.
const AT_ONCE: usize = 16;

/// The longest sleep before the time is looked at again: a host that was suspended wakes up with all its timers late.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// What a sweep came to.
#[derive(Debug, Default)]
pub struct SweepReport {
    /// Sessions that are idle now, or were on their way to be suspended.
    pub idled: Vec<SessionId>,
    /// Sessions that are suspended now.
    pub suspended: Vec<SessionId>,
    /// Sessions that were suspended for as long as they may be, and are over.
    pub expired: Vec<SessionId>,
    /// Sessions that were used at the last moment, or that somebody waits to use, and that go on.
    pub used: Vec<SessionId>,
    /// Sessions with which something went wrong.
    pub faults: Vec<(SessionId, StateError)>,
}

/// What was done to a session.
enum Act {
    Idled(SessionId, Result<(), SinkError>),
    Suspended(SessionId, Result<(), StateError>),
    Expired(SessionId, Result<(), SinkError>),
}

impl SweepReport {
    fn add(&mut self, act: Act) {
        match act {
            Act::Suspended(session, Err(StateError::InUse(_)))
            | Act::Idled(session, Err(SinkError::Busy(_))) => self.used.push(session),
            Act::Idled(session, answer) => {
                self.idled.push(session);
                self.recorded(session, answer);
            }
            Act::Expired(session, answer) => {
                self.expired.push(session);
                self.recorded(session, answer);
            }
            Act::Suspended(session, Ok(())) => self.suspended.push(session),
            // Somebody else ended it and says how that went.
            Act::Suspended(_, Err(StateError::Ended(_))) => {}
            Act::Suspended(session, Err(error)) => self.faults.push((session, error)),
        }
    }

    fn recorded(&mut self, session: SessionId, answer: Result<(), SinkError>) {
        if let Err(source) = answer {
            self.faults.push((session, StateError::Record { session, source }));
        }
    }
}

fn log(act: Result<Act, JoinError>) {
    let mut report = SweepReport::default();
    if let Ok(act) = act {
        report.add(act);
    }
    for (session, error) in &report.faults {
        tracing::warn!(%session, %error, "a session that was left alone could not be dealt with");
    }
}

impl<F: SessionFactory> SessionManager<F> {
    /// One pass: does everything that is due now, several at once, and says what came of it. Nothing is done once the
    /// manager leaves.
    pub async fn sweep(&self) -> SweepReport {
        let manager = self.clone();
        self.carry_out(async move {
            let (mut acts, mut report) = (JoinSet::new(), SweepReport::default());
            // One pass: what becomes due meanwhile is the next one's.
            let now = manager.steady_now();
            loop {
                manager.begin_due(now, &mut acts);
                match acts.join_next().await {
                    Some(Ok(act)) => report.add(act),
                    // A task of ours that did not end by itself was taken down with the runtime.
                    Some(Err(_)) => {}
                    None => return report,
                }
            }
        })
        .await
    }

    /// Sweeps whenever something is due, until `stop` is cancelled, the manager leaves, or the future is dropped. What is
    /// being done then is finished before it returns.
    pub async fn run_sweeper(&self, stop: CancellationToken) {
        let stop = stop.child_token();
        let _stops_when_dropped = stop.clone().drop_guard();
        let manager = self.clone();
        self.carry_out(async move { manager.sweep_until(stop).await }).await;
    }

    async fn sweep_until(&self, stop: CancellationToken) {
        let mut acts = JoinSet::new();
        let mut changes = self.subscribe();
        loop {
            changes.mark_unchanged();
            let now = self.steady_now();
            self.begin_due(now, &mut acts);
            let full = acts.len() >= AT_ONCE;
            let pause = self.pause(now);
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.leaving().cancelled() => break,
                Some(act) = acts.join_next() => log(act),
                _ = changes.changed(), if !full => {}
                () = sleep(pause), if !full => {}
            }
        }
        while let Some(act) = acts.join_next().await {
            log(act);
        }
    }

    /// How long nothing is due.
    fn pause(&self, now: Timestamp) -> Duration {
        let next = self.lock().registry.next_deadline();
        let pause = next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        pause.map_or(LONGEST_SLEEP, |pause| pause.min(LONGEST_SLEEP))
    }

    /// Begins to do what is due, as far as there is room for it among what is being done.
    fn begin_due(&self, now: Timestamp, acts: &mut JoinSet<Act>) {
        let room = AT_ONCE.saturating_sub(acts.len());
        if room == 0 || self.leaving().is_cancelled() {
            return;
        }
        let due = self.lock().registry.due(now, room);
        for due in due {
            let manager = self.clone();
            acts.spawn(async move {
                match due {
                    Due::Idled(session) => {
                        let answer = match manager.get(session) {
                            Some(handle) => manager.report_use(&handle).await,
                            None => Ok(()),
                        };
                        Act::Idled(session, answer)
                    }
                    Due::Suspend(session, handle) => {
                        Act::Suspended(session, manager.flush(handle, true).await)
                    }
                    Due::Expired(session, kept) => {
                        let answer = manager.record_end(&kept, TerminationReason::TtlExpired).await;
                        Act::Expired(session, answer)
                    }
                }
            });
        }
    }
}
