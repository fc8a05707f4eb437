//! How many runs execute at once. A run that waits for room in its session's manager gives its slot to others meanwhile.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How many runs may wait for room beside those that execute. Beyond that the queue is left alone until one of them got some.
const WAITING_MAX: usize = 64;

/// The slots of one runner. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    executing: Arc<Semaphore>,
    waiting: Arc<watch::Sender<usize>>,
}

impl Slots {
    /// Slots for so many runs at once.
    pub(crate) fn new(runs_at_once: usize) -> Self {
        let executing = Semaphore::new(runs_at_once.min(Semaphore::MAX_PERMITS));
        Self { executing: Arc::new(executing), waiting: Arc::new(watch::Sender::new(0)) }
    }

    /// A slot to execute in, as soon as one is free.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed: there is always an answer.
        Arc::clone(&self.executing).acquire_owned().await.ok()
    }

    /// Says that a run waits for room, until the guard is dropped.
    pub(crate) fn wait(&self) -> Waiting {
        self.waiting.send_modify(|waiting| *waiting += 1);
        Waiting { waiting: Arc::clone(&self.waiting) }
    }

    /// How many runs wait for room and take nobody's place, as far as that goes.
    pub(crate) fn given_up(&self) -> usize {
        (*self.waiting.borrow()).min(WAITING_MAX)
    }

    /// Becomes ready when a run begins or ends to wait.
    pub(crate) fn changes(&self) -> watch::Receiver<usize> {
        self.waiting.subscribe()
    }
}

/// A run waits for room.
#[derive(Debug)]
pub(crate) struct Waiting {
    waiting: Arc<watch::Sender<usize>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiting.send_modify(|waiting| *waiting = waiting.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_takes_nobodys_place() {
        let slots = Slots::new(1);
        let mut changes = slots.changes();
        let slot = slots.take().await;
        assert_eq!((slots.executing.available_permits(), slots.given_up()), (0, 0));
        drop(slot);
        let waiting: Vec<_> = (0..WAITING_MAX + 3).map(|_| slots.wait()).collect();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!((slots.executing.available_permits(), slots.given_up()), (1, WAITING_MAX), "bounded");
        drop(waiting);
        assert_eq!(slots.given_up(), 0);
        assert!(changes.has_changed().unwrap());
    }
}
