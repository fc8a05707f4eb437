//! What was sent on the streams of one client session, for as long as it may be asked for again: each stream has a number
//! of its own for each of its events, and a client that lost its connection gets what came after the last it saw, of that
//! stream and of no other.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::router::Stream;

/// The id of an event: of which stream, and which one of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The stream.
    pub stream: Stream,
    /// Which: 1, 2, 3 … and 0 for what comes before the first.
    pub number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream {
            Stream::Request(request) => write!(f, "r{request}-{}", self.number),
            Stream::General => write!(f, "g-{}", self.number),
        }
    }
}

/// An id that none of our events has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no event of this server has such an id")]
pub struct BadEventId;

impl FromStr for EventId {
    type Err = BadEventId;

    fn from_str(text: &str) -> Result<Self, BadEventId> {
        let (stream, number) = text.split_once('-').ok_or(BadEventId)?;
        let stream = match stream.strip_prefix('r') {
            Some(request) => Stream::Request(canonical(request)?),
            None if stream == "g" => Stream::General,
            None => return Err(BadEventId),
        };
        Ok(Self { stream, number: canonical(number)? })
    }
}

/// A number as we write it.
fn canonical(text: &str) -> Result<u64, BadEventId> {
    let number: u64 = text.parse().map_err(|_| BadEventId)?;
    if number.to_string() == text { Ok(number) } else { Err(BadEventId) }
}

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of events, of all streams together.
    pub bytes: usize,
    /// Events, of all streams together.
    pub events: usize,
    /// Streams whose last event has come.
    pub ended: usize,
}

impl Default for Kept {
    /// 64 MiB, so that two of the longest messages do not drive each other out, in 65 536 events, and 64 streams.
    fn default() -> Self {
        Self { bytes: 64 * 1024 * 1024, events: 64 * 1024, ended: 64 }
    }
}

/// What comes after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    /// This event is next.
    Next {
        /// Its id.
        id: EventId,
        /// The message.
        line: Bytes,
        /// Nothing comes after it on this stream.
        last: bool,
    },
    /// Nothing yet.
    Nothing,
    /// Nothing, for good.
    Ended,
    /// What came after it is not kept any more, or the stream never was: the client has to begin anew.
    Lost,
}

/// One stream.
#[derive(Debug, Default)]
struct Track {
    events: VecDeque<Bytes>,
    /// How many were sent, and of those, how many are not kept.
    sent: u64,
    ended: bool,
    /// After which event somebody reads it, or will: nothing where nobody does.
    read: Option<u64>,
}

impl Track {
    fn first_kept(&self) -> u64 {
        self.sent - self.events.len() as u64 + 1
    }

    /// Its first event is one of those that may be let go.
    fn may_lose(&self, spare: Spare) -> bool {
        spare == Spare::Nothing || self.read.is_none_or(|after| self.first_kept() <= after)
    }
}

/// What stays while there is too much of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spare {
    /// What somebody reads, or will, and has not read yet.
    Unread,
    /// Nothing but the newest.
    Nothing,
}

/// The streams of one client session.
#[derive(Debug)]
pub struct Replay {
    kept: Kept,
    streams: BTreeMap<Stream, Track>,
    bytes: usize,
    /// Ended streams, those first that ended first.
    ended: VecDeque<Stream>,
    /// Every event of a request in the order of sending, so that the oldest go first.
    order: VecDeque<Stream>,
    /// On which stream the last event was sent.
    newest: Stream,
}

impl Replay {
    /// Nothing sent yet: the general stream is there.
    #[must_use]
    pub fn new(kept: Kept) -> Self {
        let streams = BTreeMap::from([(Stream::General, Track::default())]);
        Self {
            kept,
            streams,
            bytes: 0,
            ended: VecDeque::new(),
            order: VecDeque::new(),
            newest: Stream::General,
        }
    }

    /// A stream begins.
    pub fn open(&mut self, stream: Stream) {
        let read = Some(0);
        self.streams.entry(stream).or_insert_with(|| Track { read, ..Track::default() });
    }

    /// Somebody reads a stream after this event, or nobody does.
    pub fn read(&mut self, stream: Stream, after: Option<u64>) {
        if let Some(sent) = self.streams.get_mut(&stream) {
            sent.read = after;
        }
    }

    /// An event is sent, on a stream that is open. Returns its id; `None` where there is no such stream.
    pub fn send(&mut self, stream: Stream, line: impl Into<Bytes>, last: bool) -> Option<EventId> {
        let sent = self.streams.get_mut(&stream).filter(|sent| !sent.ended)?;
        let line = line.into();
        self.bytes += line.len();
        sent.events.push_back(line);
        sent.sent += 1;
        sent.ended = last;
        let id = EventId { stream, number: sent.sent };
        self.newest = stream;
        if stream != Stream::General {
            self.order.push_back(stream);
        }
        if last {
            self.ended.push_back(stream);
        }
        self.forget();
        Some(id)
    }

    /// A stream ends after what was sent on it.
    pub fn finish(&mut self, stream: Stream) {
        if let Some(sent) = self.streams.get_mut(&stream).filter(|sent| !sent.ended) {
            sent.ended = true;
            self.ended.push_back(stream);
            self.forget();
        }
    }

    /// Events can be sent on this stream.
    #[must_use]
    pub fn is_open(&self, stream: Stream) -> bool {
        self.streams.get(&stream).is_some_and(|sent| !sent.ended)
    }

    /// The last event of a stream was never sent, if it comes after this one and is kept.
    pub fn take_back(&mut self, stream: Stream, after: u64) {
        let Some(sent) = self.streams.get_mut(&stream).filter(|sent| sent.sent > after && !sent.ended) else {
            return;
        };
        if let Some(line) = sent.events.pop_back() {
            sent.sent -= 1;
            self.bytes -= line.len();
            if let Some(index) = self.order.iter().rposition(|of| *of == stream) {
                self.order.remove(index);
            }
        }
    }

    /// What comes after this event.
    #[must_use]
    pub fn since(&self, after: EventId) -> Since {
        let Some(sent) = self.streams.get(&after.stream).filter(|sent| after.number <= sent.sent) else {
            return Since::Lost;
        };
        if after.number == sent.sent {
            return if sent.ended { Since::Ended } else { Since::Nothing };
        }
        let number = after.number + 1;
        let kept = number.checked_sub(sent.first_kept()).and_then(|index| usize::try_from(index).ok());
        match kept.and_then(|index| sent.events.get(index)) {
            Some(line) => Since::Next {
                id: EventId { stream: after.stream, number },
                line: line.clone(),
                last: sent.ended && number == sent.sent,
            },
            None => Since::Lost,
        }
    }

    /// How many events of this stream are kept no more; as events count from 1, the number of the last of them.
    #[must_use]
    pub fn not_kept(&self, stream: Stream) -> u64 {
        self.streams.get(&stream).map_or(0, |sent| sent.first_kept() - 1)
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets go of what is more than this, as far as that can be: the oldest of what belongs to no request, and then the oldest of
    /// all. The newest stays.
    pub fn shrink(&mut self, bytes: usize, spare: Spare) {
        let is_general = self.newest == Stream::General;
        if let Some(general) = self.streams.get_mut(&Stream::General) {
            while self.bytes > bytes
                && general.events.len() > usize::from(is_general)
                && general.may_lose(spare)
                && let Some(line) = general.events.pop_front()
            {
                self.bytes -= line.len();
            }
        }
        let Self { streams, order, bytes: kept, .. } = self;
        if !streams.values().any(|sent| !sent.events.is_empty() && sent.may_lose(spare)) {
            return;
        }
        let mut staying = Vec::new();
        while *kept > bytes
            && order.len() > usize::from(!is_general)
            && let Some(stream) = order.pop_front()
        {
            match streams.get_mut(&stream).filter(|sent| sent.may_lose(spare)) {
                Some(sent) => *kept -= sent.events.pop_front().map_or(0, |line| line.len()),
                None => staying.push(stream),
            }
        }
        for stream in staying.into_iter().rev() {
            order.push_front(stream);
        }
    }

    /// Lets go of the streams that have ended.
    pub fn forget_ended(&mut self) {
        while let Some(stream) = self.ended.pop_front() {
            self.drop_stream(stream);
        }
    }

    /// How many events are kept.
    fn events(&self) -> usize {
        self.order.len() + self.streams.get(&Stream::General).map_or(0, |general| general.events.len())
    }

    /// Lets go of what is too much: of streams that have ended, and then of events.
    fn forget(&mut self) {
        while self.ended.len() > self.kept.ended {
            if let Some(stream) = self.ended.pop_front() {
                self.drop_stream(stream);
            }
        }
        while (self.bytes > self.kept.bytes || self.events() > self.kept.events) && self.forget_one() {}
    }

    /// Lets go of one event: the oldest of what belongs to no request, and then the oldest of all. The newest stays, whatever its
    /// size: it was not read yet. False where nothing else is left.
    fn forget_one(&mut self) -> bool {
        let general = self.streams.get(&Stream::General).map_or(0, |general| general.events.len());
        let is_newest = |stream| usize::from(self.newest == stream);
        let stream = if general > is_newest(Stream::General) {
            Stream::General
        } else if self.order.len() > usize::from(self.newest != Stream::General) {
            self.order.pop_front().unwrap_or(Stream::General)
        } else {
            return false;
        };
        if let Some(line) = self.streams.get_mut(&stream).and_then(|sent| sent.events.pop_front()) {
            self.bytes -= line.len();
        }
        true
    }

    fn drop_stream(&mut self, stream: Stream) {
        if let Some(sent) = self.streams.remove(&stream) {
            self.bytes -= sent.events.iter().map(Bytes::len).sum::<usize>();
            self.order.retain(|of| *of != stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: Kept = Kept { bytes: 100, events: 1_000, ended: 2 };

    fn id(stream: Stream, number: u64) -> EventId {
        EventId { stream, number }
    }

    #[test]
    fn an_id_is_read_as_it_was_written_and_no_other_way() {
        for (text, event) in [
            ("r7-3", id(Stream::Request(7), 3)),
            ("g-0", id(Stream::General, 0)),
            ("r0-18446744073709551615", id(Stream::Request(0), u64::MAX)),
        ] {
            assert_eq!((event.to_string().as_str(), text.parse()), (text, Ok(event)));
        }
        for text in ["", "g", "g-", "g-01", "g-+1", "r-1", "r7", "x7-1", "r7-1-1", "g-1 ", "7-1", "gg-1"] {
            assert_eq!(text.parse::<EventId>(), Err(BadEventId), "{text:?}");
        }
    }

    #[test]
    fn a_stream_is_replayed_to_its_end_and_nothing_of_another() {
        let mut replay = Replay::new(Kept::default());
        let (one, two) = (Stream::Request(1), Stream::Request(2));
        replay.open(one);
        replay.open(two);
        assert_eq!(replay.since(id(one, 0)), Since::Nothing);
        assert_eq!(replay.send(one, "a", false), Some(id(one, 1)));
        assert_eq!(replay.send(two, "b", true), Some(id(two, 1)));
        assert_eq!(replay.send(one, "c", true), Some(id(one, 2)));
        assert_eq!(replay.send(one, "late", false), None);
        assert_eq!(replay.send(Stream::Request(3), "none", false), None);
        let next = |stream, number, line: &'static str, last| Since::Next {
            id: id(stream, number),
            line: line.into(),
            last,
        };
        assert_eq!(replay.since(id(one, 0)), next(one, 1, "a", false));
        assert_eq!(replay.since(id(one, 1)), next(one, 2, "c", true));
        assert_eq!(replay.since(id(one, 2)), Since::Ended);
        assert_eq!(replay.since(id(one, 3)), Since::Lost);
        assert_eq!(replay.since(id(Stream::Request(3), 0)), Since::Lost);
        assert_eq!(replay.since(id(Stream::General, 0)), Since::Nothing);
        let three = Stream::Request(3);
        replay.open(three);
        replay.finish(three);
        assert_eq!((replay.since(id(three, 0)), replay.is_open(three)), (Since::Ended, false));
        assert_eq!(replay.send(three, "late", true), None);
    }

    #[test]
    fn what_is_not_kept_is_said_to_be_lost() {
        let mut replay = Replay::new(SMALL);
        for _ in 0..3 {
            let _id = replay.send(Stream::General, "x".repeat(40), false);
        }
        assert_eq!((replay.bytes(), replay.since(id(Stream::General, 0))), (80, Since::Lost));
        assert!(matches!(replay.since(id(Stream::General, 1)), Since::Next { .. }));
        let _large = replay.send(Stream::General, "x".repeat(400), false);
        assert_eq!(replay.bytes(), 400);
        assert!(matches!(replay.since(id(Stream::General, 3)), Since::Next { .. }));
        for request in 0..4 {
            replay.open(Stream::Request(request));
            let _id = replay.send(Stream::Request(request), "x", true);
        }
        assert_eq!(replay.since(id(Stream::Request(1), 0)), Since::Lost);
        assert!(matches!(replay.since(id(Stream::Request(2), 0)), Since::Next { .. }));
    }

    #[test]
    fn what_belongs_to_no_request_goes_before_an_answer() {
        let mut replay = Replay::new(SMALL);
        let one = Stream::Request(1);
        replay.open(one);
        let _answer = replay.send(one, "x".repeat(60), true);
        for _ in 0..10 {
            let _noise = replay.send(Stream::General, "x".repeat(30), false);
        }
        assert!(matches!(replay.since(id(one, 0)), Since::Next { .. }), "nobody has read it yet");
        assert_eq!((replay.bytes(), replay.not_kept(Stream::General)), (90, 9));
        replay.shrink(0, Spare::Nothing);
        assert_eq!((replay.bytes(), replay.since(id(one, 0))), (30, Since::Lost), "the newest stays");
        let mut replay = Replay::new(Kept { events: 3, ..SMALL });
        for _ in 0..10 {
            let _noise = replay.send(Stream::General, "x", false);
        }
        assert_eq!(replay.bytes(), 3);
        replay.open(one);
        let _answer = replay.send(one, "x", true);
        replay.forget_ended();
        assert_eq!(replay.since(id(one, 0)), Since::Lost);
    }

    proptest! {
        #[test]
        fn a_reader_sees_each_event_once_in_order_or_hears_that_some_are_lost(
            steps in prop::collection::vec((0..4_u64, 0..60_usize, prop::bool::weighted(0.2)), 0..80),
            readers in prop::collection::vec((0..4_u64, 0..20_u64), 0..10),
        ) {
            let mut replay = Replay::new(SMALL);
            let mut model: BTreeMap<Stream, Vec<String>> = BTreeMap::new();
            for (index, (request, size, last)) in steps.into_iter().enumerate() {
                let stream = if request == 0 { Stream::General } else { Stream::Request(request) };
                let last = last && request != 0;
                if !model.contains_key(&stream) {
                    replay.open(stream);
                }
                let line = format!("{index}:{}", "x".repeat(size));
                if let Some(id) = replay.send(stream, line.clone(), last) {
                    let all = model.entry(stream).or_default();
                    all.push(line);
                    prop_assert_eq!(id.number, all.len() as u64);
                }
                let all: usize = replay.streams.values().flat_map(|sent| &sent.events).map(Bytes::len).sum();
                prop_assert_eq!(replay.bytes(), all);
                let events: usize = replay.streams.values().map(|sent| sent.events.len()).sum();
                prop_assert_eq!(replay.events(), events);
                prop_assert!(all <= SMALL.bytes || events == 1);
            }
            for (request, after) in readers {
                let stream = if request == 0 { Stream::General } else { Stream::Request(request) };
                let all = model.get(&stream).map(Vec::as_slice).unwrap_or_default();
                let mut at = id(stream, after);
                while let Since::Next { id, line, .. } = replay.since(at) {
                    prop_assert_eq!(id.number, at.number + 1);
                    prop_assert_eq!(&line, all[usize::try_from(at.number).unwrap()].as_bytes());
                    at = id;
                }
            }
        }
    }
}
