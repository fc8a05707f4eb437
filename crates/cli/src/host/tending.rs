//! What a host that stays sees to between commands and runs: parents are told of their children, families end together, and
//! no run waits for ever for a runner that does not come.

use std::sync::Arc;
use std::time::Duration;

use session_core::ports::{FamilyStore as _, RunnerStore as _};
use session_core::run::Epoch;
use session_core::wake::Topic;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::operations::Operations;
use crate::failpoint;
use crate::failure::Outcome;
use crate::waiting::until;

/// How often runs are looked for that nobody took in time: by so much they may fail later.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// After the records were out of reach, the next try comes after this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Sees to families with each change of one, and to the queue now and then, until `stop`. What is left then the next host
/// sees to.
pub(super) async fn tend(operations: Arc<Operations>, instance: Epoch, stop: CancellationToken) {
    // Listened to before the first look: what happens from here on wakes.
    let mut changes = operations.coordinator().listen(Topic::Family);
    let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut retry_at = None;
    // What fails is said once, not at each try.
    let (mut families_fail, mut queue_fails) = (false, false);
    let mut is_due = true;
    loop {
        if std::mem::take(&mut is_due) {
            let seen_to = tokio::select! {
                seen_to = operations.see_to_families() => seen_to,
                () = stop.cancelled() => return,
            };
            let failure = seen_to.err();
            if let Some(failure) = failure.as_ref().filter(|_| !families_fail) {
                let failure = failure.in_one_line();
                tracing::warn!(failure, "families could not be seen to; it is tried again");
            }
            families_fail = failure.is_some();
            retry_at = families_fail.then(|| Instant::now() + RETRY_AFTER);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = changes.woken() => is_due = true,
            () = until(retry_at), if retry_at.is_some() => (retry_at, is_due) = (None, true),
            _ = look.tick() => {
                let failure = operations.see_to_queue(instance).await.err();
                if let Some(failure) = failure.as_ref().filter(|_| !queue_fails) {
                    let failure = failure.in_one_line();
                    tracing::warn!(failure, "the queue could not be looked through; it is tried again");
                }
                queue_fails = failure.is_some();
            }
        }
    }
}

impl Operations {
    /// Tells parents what is due to them, and ends what has no parent any more.
    async fn see_to_families(&self) -> Outcome<()> {
        if !self.store().callbacks_due(1).await?.is_empty() {
            failpoint::reach("tell");
        }
        for run in self.coordinator().tell_parents().await? {
            tracing::info!(run = %run.id, session = %run.session, "a parent is told of its children");
        }
        self.end_orphans().await
    }

    /// Lets the runner of this host be known to live, and ends the runs that no runner took in time.
    async fn see_to_queue(&self, instance: Epoch) -> Outcome<()> {
        self.store().seen(self.profile().id, instance, self.now()).await?;
        for run in self.coordinator().unclaimed().await? {
            tracing::info!(run = %run.id, session = %run.session, "no runner took a run in time");
        }
        Ok(())
    }
}
