//! Reading a log: from PostgreSQL an event a row, from SQLite many events a row.
//!
//! A row costs the driver of SQLite several times what it costs SQLite itself. So SQLite folds a block of events
//! into three texts: their numbers, their names one behind the other, and their payloads one behind the other. The
//! lengths among the numbers tell where each text ends; nothing in a text is a separator, and nothing is parsed.

use std::str::FromStr;

use jiff::Timestamp;
use session_core::event::{Event, Note, Payload, Seq};
use session_core::ids::SessionId;
use session_core::ports::NotePart;
use session_core::{StoreError, StoreResult};

use crate::conn::{Conn, Sql};
use crate::error::broken;
use crate::rows::{EventRow, EventText, LastNames, RowReader};

/// How many events a row of SQLite stands for at the most.
const BLOCK: u32 = 256;

/// The longest text that SQLite makes.
const TEXT_MAX_BYTES: usize = 1_000_000_000;

// However large the payloads are, a block of them is one text.
const _: () = assert!(BLOCK as usize * Payload::ENTRY_MAX < TEXT_MAX_BYTES, "a block must fit into one text");

const READ: Sql = sql!(concat!(
    "SELECT ",
    event_columns!(""),
    " FROM events WHERE session_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
));

const TAIL: Sql = sql!(concat!(
    "SELECT ",
    event_columns!(""),
    " FROM events WHERE session_id = $1 ORDER BY seq DESC LIMIT $2"
));

/// Notes of one kind, which is part of the text: so the index of that kind is found.
macro_rules! notes {
    ($kind:literal, $by:literal) => {
        concat!(
            "SELECT ",
            event_columns!(""),
            " FROM events",
            $by,
            " WHERE session_id = $1 AND kind = '",
            $kind,
            "' AND seq < $2 AND at_ms >= $3 ORDER BY seq DESC LIMIT $4"
        )
    };
}

// SQLite would take the index of all events, and walk over those between two notes.
pub(crate) const ENTRIES: Sql =
    Sql::Each { sqlite: notes!("entry", " INDEXED BY events_entries"), postgres: notes!("entry", "") };

pub(crate) const PROJECTS: Sql =
    Sql::Each { sqlite: notes!("project", " INDEXED BY events_projects"), postgres: notes!("project", "") };

/// Events of a session, folded. The order in which they come is not relied on.
macro_rules! folded {
    ($which:literal) => {
        concat!(
            "SELECT group_concat(seq || ' ' || at_ms || ' ' || octet_length(payload) || ' ' || octet_length(kind) \
             || ' ' || coalesce(octet_length(run_id), '-') \
             || coalesce(' ' || octet_length(producer) || ' ' || coalesce(producer_seq, '-'), ''), ';'), \
             group_concat(kind || coalesce(run_id, '') || coalesce(producer, ''), ''), group_concat(payload, '') \
             FROM (SELECT seq, at_ms, run_id, kind, payload, producer, producer_seq FROM events \
             WHERE session_id = $1 AND ",
            $which,
            " LIMIT $3) block"
        )
    };
}

pub(crate) const READ_BLOCK: Sql = sql!(folded!("seq > $2 ORDER BY seq"));

pub(crate) const TAIL_BLOCK: Sql = sql!(folded!("seq < $2 ORDER BY seq DESC"));

row! {
    /// A block of events, or nothing.
    BlockRow { numbers: Option<String>, names: Option<Vec<u8>>, payloads: Option<Vec<u8>>, }
}

/// Up to so many events behind a number.
pub(crate) async fn read(
    conn: &mut Conn<'_>,
    session: SessionId,
    after: Seq,
    limit: u32,
) -> StoreResult<Vec<Event>> {
    if conn.is_postgres() {
        let rows = conn.rows::<EventRow>(&READ, args![session, after, limit]).await?;
        let mut last = LastNames::default();
        return rows.into_iter().map(|row| row.value(&mut last)).collect();
    }
    let mut unfolding = Unfolding::of(session);
    let (mut events, mut after, mut room) = (Vec::new(), after, limit);
    while room > 0 {
        // What is appended between two blocks only comes behind them.
        let asked = room.min(BLOCK);
        let block = unfolding.events(conn.row(&READ_BLOCK, args![session, after, asked]).await?)?;
        let ended = block.len() < index(asked);
        after = block.last().map_or(after, |event| event.seq);
        events.extend(block);
        room = if ended { 0 } else { room - asked };
    }
    Ok(events)
}

/// The last so many events, in their order.
pub(crate) async fn tail(conn: &mut Conn<'_>, session: SessionId, limit: u32) -> StoreResult<Vec<Event>> {
    if conn.is_postgres() {
        let rows = conn.rows::<EventRow>(&TAIL, args![session, limit]).await?;
        let mut last = LastNames::default();
        return rows.into_iter().rev().map(|row| row.value(&mut last)).collect();
    }
    let mut unfolding = Unfolding::of(session);
    let (mut blocks, mut before, mut room) = (Vec::new(), Seq(u64::MAX), limit);
    while room > 0 {
        let asked = room.min(BLOCK);
        let block = unfolding.events(conn.row(&TAIL_BLOCK, args![session, before, asked]).await?)?;
        let ended = block.len() < index(asked);
        before = block.first().map_or(before, |event| event.seq);
        blocks.push(block);
        room = if ended { 0 } else { room - asked };
    }
    Ok(blocks.into_iter().rev().flatten().collect())
}

/// The last notes of a kind, in their order.
pub(crate) async fn notes(
    conn: &mut Conn<'_>,
    session: SessionId,
    note: Note,
    part: NotePart,
) -> StoreResult<Vec<Event>> {
    let sql = match note {
        Note::Entry => ENTRIES,
        Note::Project => PROJECTS,
    };
    let before = part.before.unwrap_or(Seq(u64::MAX));
    let since = part.since.unwrap_or(Timestamp::MIN);
    let values = args![session, before, since, part.limit.min(NotePart::MAX)];
    let rows = conn.rows::<EventRow>(&sql, values).await?;
    let mut last = LastNames::default();
    rows.into_iter().rev().map(|row| row.value(&mut last)).collect()
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Makes events of blocks.
struct Unfolding {
    session: String,
    last: LastNames,
}

impl Unfolding {
    fn of(session: SessionId) -> Self {
        Self { session: session.to_string(), last: LastNames::default() }
    }

    /// The events of a block, in the order of their numbers.
    fn events(&mut self, block: Option<BlockRow>) -> StoreResult<Vec<Event>> {
        let Some(BlockRow { numbers: Some(numbers), names, payloads }) = block else {
            return Ok(Vec::new());
        };
        let (names, payloads) = (names.unwrap_or_default(), payloads.unwrap_or_default());
        let (mut names, mut payloads) = (names.as_slice(), payloads.as_slice());
        let mut events = Vec::with_capacity(index(BLOCK));
        for numbers in numbers.split(';') {
            let numbers = Numbers::read(numbers).ok_or_else(unlike)?;
            events.push(self.event(&numbers, &mut names, &mut payloads)?);
        }
        if !events.is_sorted_by_key(|event| event.seq) {
            events.sort_unstable_by_key(|event| event.seq);
        }
        Ok(events)
    }

    /// The next event of a block, whose texts are taken from the front of what is left of them.
    fn event(&mut self, numbers: &Numbers, names: &mut &[u8], payloads: &mut &[u8]) -> StoreResult<Event> {
        let row = RowReader { table: "events", row: &self.session, seq: Some(numbers.seq) };
        let payload = row.text("payload", taken(payloads, numbers.payload)?)?.into();
        let kind = row.text("kind", taken(names, numbers.kind)?)?;
        let mut name = |column, length: Option<usize>| match length {
            Some(length) => row.text(column, taken(names, length)?).map(Some),
            None => Ok(None),
        };
        let event = EventText {
            session_id: &self.session,
            seq: numbers.seq,
            at_ms: numbers.at_ms,
            run_id: name("run_id", numbers.run_id)?,
            kind,
            payload,
            producer: name("producer", numbers.producer)?,
            producer_seq: numbers.producer_seq,
        };
        event.value(&mut self.last)
    }
}

/// The numbers of one event of a block, and the lengths in bytes of its texts.
#[derive(Debug, PartialEq)]
struct Numbers {
    seq: i64,
    at_ms: i64,
    payload: usize,
    kind: usize,
    run_id: Option<usize>,
    producer: Option<usize>,
    producer_seq: Option<i64>,
}

impl Numbers {
    /// Reads `seq at_ms payload kind run_id`, behind which `producer producer_seq` may stand; `-` is NULL.
    fn read(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let seq = fields.next()?.parse().ok()?;
        let at_ms = fields.next()?.parse().ok()?;
        let payload = fields.next()?.parse().ok()?;
        let kind = fields.next()?.parse().ok()?;
        let run_id = maybe(fields.next()?).ok()?;
        let (producer, producer_seq) = match fields.next() {
            Some(producer) => (Some(producer.parse().ok()?), maybe(fields.next()?).ok()?),
            None => (None, None),
        };
        Some(Self { seq, at_ms, payload, kind, run_id, producer, producer_seq })
    }
}

/// A number that may be missing, which `-` says.
fn maybe<T: FromStr>(text: &str) -> Result<Option<T>, T::Err> {
    if text == "-" { Ok(None) } else { text.parse().map(Some) }
}

/// Takes so many bytes from the front.
fn taken<'a>(texts: &mut &'a [u8], length: usize) -> StoreResult<&'a [u8]> {
    let (text, rest) = texts.split_at_checked(length).ok_or_else(unlike)?;
    *texts = rest;
    Ok(text)
}

/// Numbers and texts do not belong together. The statement above does not make such a block.
fn unlike() -> StoreError {
    broken("a block of events is unlike its own numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_or_refused() {
        let plain = Numbers {
            seq: 7,
            at_ms: -3,
            payload: 12,
            kind: 4,
            run_id: None,
            producer: None,
            producer_seq: None,
        };
        assert_eq!(Numbers::read("7 -3 12 4 -"), Some(plain));
        let full = Numbers::read("7 0 12 4 36 5 -1").unwrap();
        assert_eq!((full.run_id, full.producer, full.producer_seq), (Some(36), Some(5), Some(-1)));
        assert_eq!(Numbers::read("7 0 12 4 - 5 -").unwrap().producer_seq, None);
        for bad in ["", "7", "7 0 12 4", "7 0 - 4 -", "7 0 -1 4 -", "7 0 12 4 - 5", "x 0 12 4 -"] {
            assert_eq!(Numbers::read(bad), None, "{bad:?}");
        }
    }
}
