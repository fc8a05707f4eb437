//! The event log.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::error::{Conflict, StoreResult};
use crate::event::{Event, NewEvent, Note, Seq};
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
    /// `UnknownSession`, and for [`Author::Live`] `Transition` if it is terminated. Wakes `Topic::Session`.
    async fn append(&self, author: Author, batch: Vec<NewEvent>, now: Timestamp) -> StoreResult<Appended>;

    /// The events behind `after`, in order, at most `limit`. Empty for an unknown session.
    async fn read(&self, session: SessionId, after: Seq, limit: u32) -> StoreResult<Vec<Event>>;

    /// The last events, in order, at most `limit`.
    async fn tail(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Event>>;

    /// The last notes of this kind that `part` takes, in order: a few rows from an index of their own, however long the log
    /// is. Empty for an unknown session.
    async fn notes(&self, session: SessionId, note: Note, part: NotePart) -> StoreResult<Vec<Event>>;
}

/// Which notes of a session are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotePart {
    /// Only those before this place; `None` for all.
    pub before: Option<Seq>,
    /// Only those that were appended at this time or later; `None` for all.
    pub since: Option<Timestamp>,
    /// At most so many, and never more than [`NotePart::MAX`].
    pub limit: u32,
}

impl NotePart {
    /// The most that are read at once.
    pub const MAX: u32 = 1_000;

    /// The last so many.
    #[must_use]
    pub fn last(limit: u32) -> Self {
        Self { before: None, since: None, limit }
    }
}

/// On whose behalf events are appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// A claim on a run.
    Run(Fence),
    /// Somebody who may write into this session's log apart from any run.
    Session(SessionId),
    /// The same, but only as long as the session is not terminated (`Transition`): who was led to it a moment ago.
    Live(SessionId),
}

impl Author {
    /// Whether these events may be this author's: those of a run tell nothing that only the program can know.
    pub fn may_append(self, batch: &[NewEvent]) -> Result<(), Conflict> {
        match (self, batch.iter().find(|event| event.kind.is_reserved())) {
            (Self::Run(_), Some(event)) => Err(Conflict::Reserved(event.kind.clone())),
            (Self::Run(_), None) | (Self::Session(_) | Self::Live(_), _) => Ok(()),
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
