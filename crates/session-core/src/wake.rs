//! Wake-ups: who waits for a change is told of it, and nobody asks again and again.
//!
//! A wake-up carries nothing: who is woken looks at the store. Several changes may make one wake-up, and none is
//! lost between two waits. The hub is plain data behind a mutex, of no runtime.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::ids::{RunnerId, SessionId};

/// What one can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A run can be claimed, or has become claimable.
    Queue,
    /// Somebody asked for the end of a run that this runner holds.
    Runner(RunnerId),
    /// Something was appended to this session's log.
    Session(SessionId),
    /// A parent can be told of the end of a child's run, or a session is over that may have left children.
    Family,
    /// A token was revoked: what anybody remembers of tokens may be wrong.
    Tokens,
}

/// Passes wake-ups on within one process.
#[derive(Debug, Clone, Default)]
pub struct WakeHub {
    topics: Arc<Mutex<HashMap<Topic, Channel>>>,
}

#[derive(Debug, Default)]
struct Channel {
    changes: u64,
    listeners: usize,
    /// How many listeners there were: the next one's number.
    numbers: u64,
    /// Who waits, by the number of the listener.
    waiting: BTreeMap<u64, Waker>,
}

impl WakeHub {
    /// Listens to a topic from now on.
    #[must_use]
    pub fn listen(&self, topic: Topic) -> Listener {
        let mut topics = self.lock();
        let channel = topics.entry(topic).or_default();
        channel.listeners += 1;
        channel.numbers += 1;
        let (number, seen) = (channel.numbers, channel.changes);
        drop(topics);
        Listener { hub: self.clone(), topic, number, seen }
    }

    /// Wakes everybody who listens to the topic.
    pub fn wake(&self, topic: Topic) {
        let waiting = self.lock().get_mut(&topic).map(Channel::change);
        waiting.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }

    /// Wakes everybody: changes may have been missed, for example while a connection was down.
    pub fn wake_all(&self) {
        let waiting: Vec<_> = self.lock().values_mut().map(Channel::change).collect();
        waiting.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, Channel>> {
        // No change to the map can be left half done by a panic.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn change(&mut self) -> BTreeMap<u64, Waker> {
        self.changes += 1;
        std::mem::take(&mut self.waiting)
    }
}

/// One who waits for changes of a topic.
#[derive(Debug)]
pub struct Listener {
    hub: WakeHub,
    topic: Topic,
    number: u64,
    seen: u64,
}

impl Listener {
    /// Waits until something changed since the last wait, or since the listener was made. Cancel safe.
    pub async fn woken(&mut self) {
        poll_fn(|context| self.poll_woken(context)).await;
    }

    /// Whether something changed since the last look or wait, or since the listener was made.
    pub fn changed(&mut self) -> bool {
        let changes = self.hub.lock().get(&self.topic).map(|channel| channel.changes);
        changes.is_some_and(|changes| std::mem::replace(&mut self.seen, changes) != changes)
    }

    fn poll_woken(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut topics = self.hub.lock();
        let Some(channel) = topics.get_mut(&self.topic) else { return Poll::Pending };
        if channel.changes != self.seen {
            self.seen = channel.changes;
            return Poll::Ready(());
        }
        let waker = channel.waiting.entry(self.number).or_insert_with(|| context.waker().clone());
        waker.clone_from(context.waker());
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.hub.lock();
        if let Some(channel) = topics.get_mut(&self.topic) {
            channel.listeners -= 1;
            // What it woke is kept for nobody: on a quiet topic it would stay as long as the others listen.
            channel.waiting.remove(&self.number);
            if channel.listeners == 0 {
                topics.remove(&self.topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    fn poll(listener: &mut Listener) -> Poll<()> {
        listener.poll_woken(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn changes_between_waits_are_not_lost_and_count_once() {
        let hub = WakeHub::default();
        let mut listener = hub.listen(Topic::Queue);
        assert!(poll(&mut listener).is_pending());
        hub.wake(Topic::Queue);
        hub.wake(Topic::Queue);
        assert!(poll(&mut listener).is_ready());
        assert!(poll(&mut listener).is_pending());
        hub.wake_all();
        assert!(poll(&mut listener).is_ready());
        hub.wake(Topic::Queue);
        assert!(listener.changed());
        assert!(!listener.changed());
        assert!(poll(&mut listener).is_pending());
    }

    #[test]
    fn who_waits_no_more_leaves_nothing_behind() {
        struct Woken;
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {}
        }
        let hub = WakeHub::default();
        let _stays = hub.listen(Topic::Queue);
        let task = Arc::new(Woken);
        for _ in 0..3 {
            let mut leaves = hub.listen(Topic::Queue);
            for _ in 0..2 {
                // Of each poll another one, as if the future had gone from task to task.
                let waker = Waker::from(Arc::new(Woken));
                assert!(leaves.poll_woken(&mut Context::from_waker(&waker)).is_pending());
            }
            let waker = Waker::from(Arc::clone(&task));
            assert!(leaves.poll_woken(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(hub.lock()[&Topic::Queue].waiting.len(), 1);
        }
        assert_eq!(Arc::strong_count(&task), 1);
    }

    #[test]
    fn nothing_is_kept_for_topics_without_listeners() {
        let hub = WakeHub::default();
        hub.wake(Topic::Queue);
        assert!(hub.lock().is_empty());
        let first = hub.listen(Topic::Queue);
        let second = hub.listen(Topic::Queue);
        drop(first);
        assert_eq!(hub.lock().len(), 1);
        drop(second);
        assert!(hub.lock().is_empty());
    }
}
