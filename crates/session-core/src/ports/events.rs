//! The event log.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::error::{Conflict, StoreResult};
use crate::event::{Event, NewEvent, Seq};
use crate::ids::SessionId;
use crate::run::Fence;

/// The append-only log of each session.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Appends a batch, all of it or nothing, with the next numbers of the session's log. Acknowledged means
    /// durable.
    ///
    /// An event whose origin was appended before is not appended again: its first number is returned if kind, run
    /// and payload are the same, `Conflict::Origin` if they are not. The same holds within the batch. A batch of a
    /// run counts only while that claim holds the run (`UnknownRun`, `Fenced`, `Transition`), and its events are
    /// that run's; one of a [reserved kind](crate::event::EventKind::is_reserved) is refused with `Conflict::Reserved`.
    /// `UnknownSession`. Wakes `Topic::Session`.
    async fn append(&self, author: Author, batch: Vec<NewEvent>, now: Timestamp) -> StoreResult<Appended>;

    /// The events behind `after`, in order, at most `limit`. Empty for an unknown session.
    async fn read(&self, session: SessionId, after: Seq, limit: u32) -> StoreResult<Vec<Event>>;

    /// The last events, in order, at most `limit`.
    async fn tail(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Event>>;
}

/// On whose behalf events are appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// A claim on a run.
    Run(Fence),
    /// Somebody who may write into this session's log apart from any run.
    Session(SessionId),
}

impl Author {
    /// Whether these events may be this author's: those of a run tell nothing that only the program can know.
    pub fn may_append(self, batch: &[NewEvent]) -> Result<(), Conflict> {
        match (self, batch.iter().find(|event| event.kind.is_reserved())) {
            (Self::Run(_), Some(event)) => Err(Conflict::Reserved(event.kind.clone())),
            (Self::Run(_), None) | (Self::Session(_), _) => Ok(()),
        }
    }
}

/// What an append came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The session whose log it is.
    pub session: SessionId,
    /// The number of each event of the batch, in its order; for one that was there before, its first.
    pub seqs: Vec<Seq>,
}
