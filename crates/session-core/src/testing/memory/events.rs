//! The event log in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::MemoryStore;
use super::draft::Draft;
use crate::error::{Conflict, StoreResult};
use crate::event::{Event, NewEvent, Note, Seq};
use crate::ids::SessionId;
use crate::ports::{Appended, Author, EventStore, NotePart};

#[async_trait]
impl EventStore for MemoryStore {
    async fn append(&self, author: Author, batch: Vec<NewEvent>, now: Timestamp) -> StoreResult<Appended> {
        self.write(|draft| {
            let (session, run) = match author {
                Author::Run(fence) => (draft.held(fence, "append")?.session, Some(fence.run)),
                Author::Session(id) => (draft.session(id)?.id, None),
                Author::Live(id) => {
                    draft.session(id)?.must_live("append")?;
                    (id, None)
                }
            };
            author.may_append(&batch)?;
            let bodies = batch.into_iter().map(|body| NewEvent { run: run.or(body.run), ..body });
            let seqs =
                bodies.map(|body| draft.append_once(session, body, now)).collect::<StoreResult<_>>()?;
            Ok(Appended { session, seqs })
        })
    }

    async fn read(&self, session: SessionId, after: Seq, limit: u32) -> StoreResult<Vec<Event>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(MemoryStore::read(self, |data| {
            let events = data.logs.get(&session).map(|log| log.events.iter()).unwrap_or_default();
            events.filter(|event| event.seq > after).take(limit).cloned().collect()
        }))
    }

    async fn tail(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Event>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(MemoryStore::read(self, |data| {
            let events = data.logs.get(&session).map(|log| log.events.as_slice()).unwrap_or_default();
            events[events.len().saturating_sub(limit)..].to_vec()
        }))
    }

    async fn notes(&self, session: SessionId, note: Note, part: NotePart) -> StoreResult<Vec<Event>> {
        let (kind, limit) = (note.kind(), part.limit.min(NotePart::MAX));
        Ok(MemoryStore::read(self, |data| {
            let events = data.logs.get(&session).map(|log| log.events.iter()).unwrap_or_default();
            let meant = |event: &&Event| {
                event.body.kind == kind
                    && part.before.is_none_or(|before| event.seq < before)
                    && part.since.is_none_or(|since| event.at >= since)
            };
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let mut found: Vec<_> = events.rev().filter(meant).take(limit).cloned().collect();
            found.reverse();
            found
        }))
    }
}

impl Draft {
    /// Appends an event unless its origin was appended before with the same content.
    fn append_once(&mut self, session: SessionId, body: NewEvent, now: Timestamp) -> StoreResult<Seq> {
        let first = body.origin.as_ref().and_then(|origin| self.data.logs.get(&session)?.by_origin(origin));
        match (first, &body.origin) {
            (Some(first), _) if first.body == body => Ok(first.seq),
            (Some(_), Some(origin)) => {
                Err(Conflict::Origin { session, producer: origin.producer.as_str().into(), seq: origin.seq }
                    .into())
            }
            (Some(_) | None, _) => Ok(self.record(session, body, now)),
        }
    }
}
