//! The rows of the event log.

use std::str::FromStr;

use session_core::StoreResult;
use session_core::event::{Event, EventKind, NewEvent, Origin, Payload, Seq};
use session_core::ids::{RunId, SessionId};
use session_core::names::Producer;

use super::{Cause, RowReader};

row! {
    /// An event.
    EventRow, event_columns {
        session_id: String,
        seq: i64,
        at_ms: i64,
        run_id: Option<String>,
        kind: String,
        payload: String,
        producer: Option<String>,
        producer_seq: Option<i64>,
    }
}

impl EventRow {
    pub(crate) fn value(self, last: &mut LastNames) -> StoreResult<Event> {
        let event = EventText {
            session_id: &self.session_id,
            seq: self.seq,
            at_ms: self.at_ms,
            run_id: self.run_id.as_deref(),
            kind: &self.kind,
            payload: self.payload,
            producer: self.producer.as_deref(),
            producer_seq: self.producer_seq,
        };
        event.value(last)
    }
}

/// The columns of an event, wherever they stand.
pub(crate) struct EventText<'a> {
    pub(crate) session_id: &'a str,
    pub(crate) seq: i64,
    pub(crate) at_ms: i64,
    pub(crate) run_id: Option<&'a str>,
    pub(crate) kind: &'a str,
    pub(crate) payload: String,
    pub(crate) producer: Option<&'a str>,
    pub(crate) producer_seq: Option<i64>,
}

/// The names of the event that was read last: neighbours in a log seldom differ.
#[derive(Default)]
pub(crate) struct LastNames {
    session: Last<SessionId>,
    run: Last<RunId>,
    kind: Last<EventKind>,
    producer: Last<Producer>,
}

/// A text and what it was read as.
struct Last<T>(Option<(String, T)>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: FromStr<Err: Into<Cause>> + Clone> Last<T> {
    fn read(&mut self, row: &RowReader<'_>, column: &'static str, text: &str) -> StoreResult<T> {
        if let Some((last, value)) = &self.0
            && last == text
        {
            return Ok(value.clone());
        }
        let value: T = row.parse(column, text)?;
        self.0 = Some((text.into(), value.clone()));
        Ok(value)
    }
}

impl EventText<'_> {
    pub(crate) fn value(self, last: &mut LastNames) -> StoreResult<Event> {
        let row = RowReader { table: "events", row: self.session_id, seq: Some(self.seq) };
        let origin = match (self.producer, self.producer_seq) {
            (Some(producer), Some(seq)) => {
                let producer = last.producer.read(&row, "producer", producer)?;
                Some(Origin { producer, seq: seq.cast_unsigned() })
            }
            (Some(_), None) => return Err(row.wrong("producer_seq", "it is missing")),
            (None, _) => None,
        };
        let body = NewEvent {
            run: self.run_id.map(|run| last.run.read(&row, "run_id", run)).transpose()?,
            kind: last.kind.read(&row, "kind", self.kind)?,
            payload: Payload::from_record(self.payload),
            origin,
        };
        Ok(Event {
            session: last.session.read(&row, "session_id", self.session_id)?,
            seq: Seq(row.number("seq", self.seq)?),
            at: row.time("at_ms", self.at_ms)?,
            body,
        })
    }
}
