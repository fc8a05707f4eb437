//! What is alive behind a session whose runs are commands: nothing between two runs, and during one its processes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use session_core::context::Restored;
use session_core::history::History;
use session_core::ports::{Engine, EngineError, Orchestrator, Release, SessionFactory};
use session_core::run::StopMode;
use session_core::{ManagedSession, SessionId, TerminationReason};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::executors::Order;

/// Makes rooms.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rooms;

#[async_trait]
impl SessionFactory for Rooms {
    type Engine = Room;

    async fn create(&self, session: &ManagedSession) -> Result<Room, EngineError> {
        Ok(Room { session: session.id, history: Mutex::default(), occupant: Mutex::default() })
    }
}

/// The engine of a session whose runs are commands.
#[derive(Debug)]
pub struct Room {
    session: SessionId,
    // Std mutexes: held for a look, never across an await.
    history: Mutex<Option<History>>,
    occupant: Mutex<Option<Occupant>>,
}

/// The execution that works in the room.
#[derive(Debug, Clone)]
struct Occupant {
    orders: mpsc::Sender<Order>,
    /// Cancelled when no process of it is left.
    gone: CancellationToken,
}

impl Room {
    /// An execution works in the room until the guard is dropped: when no process of it is left.
    pub(crate) fn occupy(&self, orders: mpsc::Sender<Order>) -> Occupied<'_> {
        let gone = CancellationToken::new();
        *lock(&self.occupant) = Some(Occupant { orders, gone: gone.clone() });
        Occupied { room: self, gone }
    }

    /// The conversation that the session was resumed with, until it was left for a program.
    pub(crate) fn history(&self) -> Option<History> {
        lock(&self.history).clone()
    }

    /// The conversation is where programs find it.
    pub(crate) fn history_left(&self) {
        *lock(&self.history) = None;
    }
}

/// An execution is in the room.
#[derive(Debug)]
pub(crate) struct Occupied<'r> {
    room: &'r Room,
    gone: CancellationToken,
}

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        self.gone.cancel();
        let mut occupant = lock(&self.room.occupant);
        // A successor may have moved in: then the room is its own.
        if occupant.as_ref().is_some_and(|occupant| occupant.gone.is_cancelled()) {
            *occupant = None;
        }
    }
}

#[async_trait]
impl Engine for Room {
    /// Everything is on disk already.
    async fn suspend(&self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn shutdown(&self, why: Release) {
        let occupant = lock(&self.occupant).clone();
        let Some(occupant) = occupant else { return };
        let order = match why {
            Release::Terminated(TerminationReason::Stopped) => Some(Order::Stop(StopMode::Graceful)),
            Release::Terminated(_) | Release::Suspended | Release::Abandoned => {
                Some(Order::Stop(StopMode::Kill))
            }
            // The runner tells its executions itself, and whether they go along.
            Release::HostLeaves => None,
        };
        if let Some(order) = order {
            // One that has no room for an order has enough of them, and one that is gone needs none.
            if let Err(error) = occupant.orders.try_send(order) {
                tracing::debug!(session = %self.session, %error, "an order was not needed any more");
            }
        }
        occupant.gone.cancelled().await;
    }
}

#[async_trait]
impl Orchestrator for Room {
    fn wants_history(&self) -> bool {
        true
    }

    /// Keeps the conversation for the next run, whose program finds it in a file.
    async fn restore_history(&self, restored: &Restored) -> Result<(), EngineError> {
        *lock(&self.history) = Some(restored.history.clone());
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one assignment: a panic cannot leave it half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use session_core::testing;

    use super::*;

    fn room() -> Room {
        let session = testing::env().0.session_id();
        Room { session, history: Mutex::default(), occupant: Mutex::default() }
    }

    #[tokio::test]
    async fn an_empty_room_is_let_go_of_at_once() {
        room().shutdown(Release::Terminated(TerminationReason::Killed)).await;
    }

    #[tokio::test]
    async fn whoever_leaves_late_does_not_empty_the_room() {
        let room = room();
        let (sender, mut orders) = mpsc::channel(1);
        let first = room.occupy(sender.clone());
        let second = room.occupy(sender);
        drop(first);
        let shutdown = room.shutdown(Release::Terminated(TerminationReason::Killed));
        tokio::pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => panic!("somebody is still in the room"),
            order = orders.recv() => assert_eq!(order, Some(Order::Stop(StopMode::Kill))),
        }
        drop(second);
        shutdown.await;
    }

    #[tokio::test]
    async fn whoever_is_in_the_room_is_told_and_waited_for() {
        let room = room();
        let (sender, mut orders) = mpsc::channel(1);
        let occupied = room.occupy(sender);
        let shutdown = room.shutdown(Release::Terminated(TerminationReason::Killed));
        tokio::pin!(shutdown);
        let first = tokio::select! {
            biased;
            () = &mut shutdown => None,
            order = orders.recv() => order,
        };
        assert_eq!(first, Some(Order::Stop(StopMode::Kill)));
        drop(occupied);
        shutdown.await;
        assert!(lock(&room.occupant).is_none());
    }
}
