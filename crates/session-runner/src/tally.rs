//! What a run uses while it goes on, for the sign of life that keeps its claim: as much is set aside with its session, so
//! that nobody else is given it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::budget::{Resource, Usage, share_of};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What one step of an agent is taken to use at the most, of what there is a limit of. It is set aside ahead of it, unless that
/// is more than a quarter of what is left: children are to have something too.
const STEP: Usage = Usage { tokens: 20_000, tool_calls: 4, turns: 0, cost_micros: 100_000 };

/// What one run has used. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // A std mutex: held for a few additions, never across an await.
    sums: Mutex<Sums>,
    /// Taken while it is told, and for good before the run settles: what is told then would stay set aside.
    telling: Arc<Semaphore>,
    /// Fires when more was used than is set aside.
    due: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Sums {
    /// What is set aside, as far as this process asked for it.
    aside: Usage,
    /// What is to be.
    needed: Usage,
}

impl Tally {
    /// Nothing yet. `due` fires when it is to be told before its time.
    pub(crate) fn new(due: Arc<Notify>) -> Self {
        let telling = Arc::new(Semaphore::new(1));
        Self { inner: Arc::new(Inner { sums: Mutex::default(), telling, due }) }
    }

    /// So much was set aside before the run began.
    pub(crate) fn begin(&self, worst: Usage) {
        *self.sums() = Sums { aside: worst, needed: worst };
    }

    /// The run has used so much by now, of all that it may use.
    pub(crate) fn used(&self, used: Usage, left: Usage) {
        let short = {
            let mut sums = self.sums();
            sums.needed = sums.needed.at_least(with_step(used, left));
            sums.aside.at_least(used) != sums.aside
        };
        if short {
            self.inner.due.notify_one();
        }
    }

    /// What is to be set aside by now, with what keeps the run from settling until that was told; `None` where it settles.
    pub(crate) fn tell(&self) -> Option<(Usage, OwnedSemaphorePermit)> {
        let telling = Arc::clone(&self.inner.telling).try_acquire_owned().ok()?;
        let mut sums = self.sums();
        sums.aside = sums.aside.at_least(sums.needed);
        Some((sums.aside, telling))
    }

    /// The run settles: nothing more is told. The most that was set aside for it comes back.
    pub(crate) async fn close(&self) -> Usage {
        if let Ok(telling) = self.inner.telling.acquire().await {
            telling.forget();
        }
        self.sums().aside
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        // Each change is whole.
        self.inner.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was used, and the next step, of all that may be used.
pub(crate) fn with_step(used: Usage, left: Usage) -> Usage {
    Usage::each(|resource: Resource| match (used.of(resource), left.of(resource)) {
        (used, u64::MAX) => used,
        (used, left) => used.saturating_add(STEP.of(resource).min(share_of(left.saturating_sub(used)))),
    })
}

/// What a turn is taken to use before anything is known of it, of what it may use. A turn uses tokens in any case: where none
/// are left it is refused.
pub(crate) fn of_a_turn(left: Usage) -> Usage {
    let step = with_step(Usage::NONE, left);
    Usage { turns: 1, tokens: left.tokens.clamp(1, STEP.tokens), ..step }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const LEFT: Usage = Usage { tokens: 100_000, tool_calls: 10, turns: 5, cost_micros: u64::MAX };

    fn tokens(tokens: u64) -> Usage {
        Usage { tokens, ..Usage::NONE }
    }

    /// What a future comes to without waiting.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_step_is_set_aside_ahead_as_far_as_there_is_one() {
        assert_eq!(of_a_turn(LEFT), Usage { tokens: 20_000, tool_calls: 3, turns: 1, cost_micros: 0 });
        assert_eq!(of_a_turn(Usage::NONE), Usage { turns: 1, ..tokens(1) }, "which is refused");
        assert_eq!(of_a_turn(Usage::each(|_| u64::MAX)), Usage { turns: 1, ..tokens(20_000) });
        let used = Usage { tokens: 90_000, tool_calls: 1, turns: 1, cost_micros: 7 };
        let needed = Usage { tokens: 92_500, tool_calls: 4, turns: 1, cost_micros: 7 };
        assert_eq!(with_step(used, LEFT), needed);
        assert_eq!(with_step(tokens(130_000), LEFT).tokens, 130_000, "what was used was used");
    }

    #[tokio::test]
    async fn what_is_used_beyond_what_is_set_aside_is_told_at_once() {
        let due = Arc::new(Notify::new());
        let tally = Tally::new(Arc::clone(&due));
        let is_due = || now(due.notified()).is_some();
        let told = || tally.tell().unwrap().0.tokens;
        tally.begin(tokens(20_000));
        assert_eq!(told(), 20_000);
        tally.used(tokens(20_000), LEFT);
        assert!(!is_due(), "it is covered");
        assert_eq!(told(), 40_000);
        tally.used(tokens(40_001), LEFT);
        assert!(is_due());
        tally.used(tokens(39_000), LEFT);
        assert_eq!(told(), 55_001, "it never becomes less");
        assert!(!is_due());
    }

    #[tokio::test]
    async fn nothing_is_told_of_a_run_that_settles() {
        let tally = Tally::new(Arc::default());
        tally.begin(tokens(20_000));
        tally.used(tokens(70_000), LEFT);
        let (told, telling) = tally.tell().unwrap();
        assert!(tally.tell().is_none(), "once at a time");
        let mut closing = Box::pin(tally.close());
        assert!(now(&mut closing).is_none(), "it is on its way");
        drop(telling);
        assert_eq!((told.tokens, closing.await.tokens), (77_500, 77_500));
        assert!(tally.tell().is_none());
        tally.used(tokens(95_000), LEFT);
        assert_eq!(tally.inner.sums.lock().unwrap().aside.tokens, 77_500, "that was told to nobody");
    }
}
