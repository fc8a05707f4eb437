//! What one client is sent, between the one who writes it and those who read it: the streams with what is kept of them, who
//! reads each, and a bell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use session_core::names::Principal;
use tokio::sync::watch;

use crate::replay::{EventId, Kept, Replay, Since, Spare};
use crate::router::Stream;

#[path = "board/room.rs"]
mod room;

pub(crate) use self::room::Room;
use self::room::{Change, Member};

/// What comes next for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// This event.
    Event {
        id: EventId,
        line: Bytes,
        /// Nothing comes after it on this stream.
        last: bool,
    },
    /// Nothing yet: wait for the bell.
    Nothing,
    /// Nothing, ever: the stream has ended, or somebody else reads it, or some of it was lost.
    Ended,
}

/// From where a stream is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// After this event.
    After(EventId),
    /// After what was read by the one before.
    Unread(Stream),
}

/// Who reads a stream, of all that ever did. Whoever comes later takes it over, so that nothing is sent twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    stream: Stream,
    number: u64,
    after: EventId,
}

#[derive(Debug)]
struct Inner {
    replay: Replay,
    /// The last event of the general stream that a reader took.
    read: u64,
    readers: BTreeMap<Stream, u64>,
    /// Whoever reads is counted, so that a seat is never confused with an earlier one.
    seated: u64,
    /// How many read just now.
    reading: usize,
    /// The server is kept up for as long as somebody reads.
    holds: bool,
    /// Its client is there for one request: it never reads the general stream.
    visits: bool,
    closed: bool,
}

/// The streams of one client.
#[derive(Debug)]
pub(crate) struct Board {
    inner: Mutex<Inner>,
    bell: watch::Sender<()>,
    /// What all boards keep together, and this one's part of it, once it keeps something.
    room: Arc<Room>,
    member: OnceLock<Member>,
    principal: Principal,
    me: Weak<Self>,
    /// Which process of ours, and which time this session was brought back: ids of another are not confused with ours.
    tag: String,
}

impl Drop for Board {
    fn drop(&mut self) {
        if let Some(member) = self.member.get() {
            self.room.leave(member);
        }
    }
}

impl Board {
    pub(crate) fn new(kept: Kept, room: Arc<Room>, principal: Principal, tag: String) -> Arc<Self> {
        let inner = Inner {
            replay: Replay::new(kept),
            read: 0,
            readers: BTreeMap::new(),
            seated: 0,
            reading: 0,
            holds: false,
            visits: false,
            closed: false,
        };
        Arc::new_cyclic(|me| Self {
            inner: Mutex::new(inner),
            bell: watch::Sender::new(()),
            room,
            member: OnceLock::new(),
            principal,
            me: Weak::clone(me),
            tag,
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here is ever half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream begins.
    pub(crate) fn open(&self, stream: Stream) {
        self.inner().replay.open(stream);
    }

    /// An event is sent. False where there is no such stream, or it has ended.
    pub(crate) fn send(&self, stream: Stream, line: impl Into<Bytes>, last: bool) -> bool {
        let is_sent = self.change(|inner| inner.replay.send(stream, line, last).is_some());
        self.bell.send_replace(());
        is_sent
    }

    /// Nobody is expected to come back for what has ended.
    pub(crate) fn forget_ended(&self) {
        self.change(|inner| inner.replay.forget_ended());
    }

    /// Changes what is kept.
    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner();
        let before = inner.replay.bytes();
        let done = change(&mut inner);
        let after = inner.replay.bytes();
        // Others may have to let go of something because of this: each is locked alone.
        drop(inner);
        if before != after {
            let member = self.member.get_or_init(|| self.room.join(&self.principal, &self.me));
            self.room.change(member, Change { before, after });
        }
        done
    }

    /// Lets go of so much, as far as it can be.
    fn let_go(&self, bytes: usize, spare: Spare) {
        let mut inner = self.inner();
        let before = inner.replay.bytes();
        inner.replay.shrink(before.saturating_sub(bytes), spare);
        let after = inner.replay.bytes();
        drop(inner);
        if let Some(member) = self.member.get() {
            let _used = self.room.book(member, Change { before, after });
        }
    }

    /// How many bytes are kept.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.inner().replay.bytes()
    }

    /// Nothing more is sent on this stream.
    pub(crate) fn finish(&self, stream: Stream) {
        self.change(|inner| inner.replay.finish(stream));
        self.bell.send_replace(());
    }

    /// Something can be sent on this stream.
    pub(crate) fn is_open(&self, stream: Stream) -> bool {
        self.inner().replay.is_open(stream)
    }

    /// Somebody reads this stream just now.
    pub(crate) fn is_read(&self, stream: Stream) -> bool {
        self.inner().readers.contains_key(&stream)
    }

    /// The last event of the general stream was never sent, if nobody has read it.
    pub(crate) fn take_back(&self) {
        self.change(|inner| inner.replay.take_back(Stream::General, inner.read));
    }

    /// For as long as somebody reads, the server is kept up.
    pub(crate) fn hold(&self) {
        self.inner().holds = true;
    }

    /// Its client is there for one request alone.
    pub(crate) fn visit(&self) {
        self.inner().visits = true;
    }

    /// What belongs to no request reaches its client, sooner or later.
    pub(crate) fn has_general(&self) -> bool {
        !self.inner().visits
    }

    /// Somebody reads, and wants the server to be there.
    pub(crate) fn is_held(&self) -> bool {
        let inner = self.inner();
        inner.holds && inner.reading > 0
    }

    /// The client is gone, or its session is over: everybody stops reading after what is there.
    pub(crate) fn close(&self) {
        self.inner().closed = true;
        self.bell.send_replace(());
    }

    /// Rings when there may be something.
    pub(crate) fn listen(&self) -> watch::Receiver<()> {
        self.bell.subscribe()
    }

    /// How many streams are read.
    pub(crate) fn reading(&self) -> usize {
        self.inner().reading
    }

    /// The id of an event, as a client sees it.
    pub(crate) fn event_id(&self, id: EventId) -> String {
        format!("{}{id}", self.tag)
    }

    /// From where a client reads on that has seen this event last; `None` where it is none of ours, or what came after it is
    /// not kept. Only the general stream goes on then, with what was not read.
    pub(crate) fn after(&self, last_event_id: &str) -> Option<From> {
        let id = last_event_id.strip_prefix(&self.tag).and_then(|id| id.parse::<EventId>().ok());
        if let Some(id) = id.filter(|id| self.inner().replay.since(*id) != Since::Lost) {
            return Some(From::After(id));
        }
        let is_general = last_event_id
            .get(self.tag.len()..)
            .and_then(|id| id.parse::<EventId>().ok())
            .is_some_and(|id| id.stream == Stream::General);
        is_general.then_some(From::Unread(Stream::General))
    }

    /// Begins to read. Whoever read this stream until now ends.
    pub(crate) fn sit(&self, from: From) -> Seat {
        let mut inner = self.inner();
        let after = match from {
            From::After(id) => id,
            From::Unread(Stream::General) => EventId { stream: Stream::General, number: inner.unread() },
            From::Unread(stream @ Stream::Request(_)) => EventId { stream, number: 0 },
        };
        inner.seated += 1;
        inner.reading += 1;
        let seat = Seat { stream: after.stream, number: inner.seated, after };
        inner.readers.insert(after.stream, seat.number);
        inner.replay.read(after.stream, Some(after.number));
        self.bell.send_replace(());
        seat
    }

    /// What comes next. What is taken by this counts as read.
    pub(crate) fn next(&self, seat: &mut Seat) -> Next {
        let mut inner = self.inner();
        if inner.readers.get(&seat.stream) != Some(&seat.number) {
            return Next::Ended;
        }
        match inner.replay.since(seat.after) {
            Since::Next { id, line, last } => {
                seat.after = id;
                inner.replay.read(id.stream, Some(id.number));
                if id.stream == Stream::General {
                    inner.read = inner.read.max(id.number);
                }
                Next::Event { id, line, last }
            }
            Since::Nothing if !inner.closed => Next::Nothing,
            Since::Nothing | Since::Ended | Since::Lost => Next::Ended,
        }
    }

    /// Reads no more.
    pub(crate) fn rise(&self, seat: &Seat) {
        let mut inner = self.inner();
        inner.reading = inner.reading.saturating_sub(1);
        if inner.readers.get(&seat.stream) == Some(&seat.number) {
            inner.readers.remove(&seat.stream);
            inner.replay.read(seat.stream, None);
        }
    }
}

impl Seat {
    /// The event after which it reads on.
    pub(crate) fn after(&self) -> EventId {
        self.after
    }
}

impl Inner {
    /// The event after which nobody has read what is kept.
    fn unread(&self) -> u64 {
        self.read.max(self.replay.not_kept(Stream::General))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Arc<Board> {
        Board::new(KEPT, Room::new(1_000), "ada".parse().unwrap(), "t.".into())
    }

    const KEPT: Kept = Kept { bytes: 20, events: 100, ended: 2 };

    fn texts(board: &Board, seat: &mut Seat) -> Vec<String> {
        let mut all = Vec::new();
        while let Next::Event { line, .. } = board.next(seat) {
            all.push(String::from_utf8(line.to_vec()).unwrap());
        }
        all
    }

    #[test]
    fn what_nobody_read_is_read_by_the_next_and_nothing_twice() {
        let board = board();
        board.send(Stream::General, "a", false);
        let mut first = board.sit(From::Unread(Stream::General));
        assert_eq!(texts(&board, &mut first), ["a"]);
        assert_eq!(board.next(&mut first), Next::Nothing);
        let mut second = board.sit(From::Unread(Stream::General));
        board.send(Stream::General, "b", false);
        assert_eq!(board.next(&mut first), Next::Ended, "the later reader has taken it over");
        board.rise(&first);
        assert_eq!(texts(&board, &mut second), ["b"]);
        assert_eq!(board.reading(), 1);
        board.rise(&second);
        // Its connection was lost, and it never saw the second.
        let seen = board.event_id(EventId { stream: Stream::General, number: 1 });
        let mut third = board.sit(board.after(&seen).unwrap());
        assert_eq!(texts(&board, &mut third), ["b"]);
        board.close();
        assert_eq!(board.next(&mut third), Next::Ended);
    }

    #[test]
    fn what_nobody_has_read_can_be_taken_back() {
        let board = board();
        board.send(Stream::General, "a", false);
        let mut seat = board.sit(From::Unread(Stream::General));
        assert!(board.is_read(Stream::General) && !board.is_held());
        assert_eq!(texts(&board, &mut seat), ["a"]);
        board.rise(&seat);
        board.take_back();
        board.send(Stream::General, "b", false);
        board.take_back();
        board.send(Stream::General, "c", false);
        let mut seat = board.sit(From::Unread(Stream::General));
        board.hold();
        assert!(board.is_held());
        assert_eq!(texts(&board, &mut seat), ["c"]);
        assert!(!board.is_open(Stream::Request(1)) && !board.send(Stream::Request(1), "x", false));
    }

    #[test]
    fn an_event_of_another_time_or_of_a_stream_that_is_gone_is_told_apart() {
        let board = board();
        board.open(Stream::Request(1));
        board.send(Stream::Request(1), "x", true);
        let after = |id: &str| board.after(id);
        let id = EventId { stream: Stream::Request(1), number: 0 };
        assert_eq!(after("t.r1-0"), Some(From::After(id)));
        for unknown in ["t.r2-0", "u.r1-0", "", "x", "t.", "t.r1-2"] {
            assert_eq!(after(unknown), None, "{unknown}");
        }
        for general in ["u.g-7", "t.g-7"] {
            assert_eq!(after(general), Some(From::Unread(Stream::General)), "{general}");
        }
    }

    #[test]
    fn who_comes_too_late_reads_what_is_left() {
        let board = board();
        for index in 0..5 {
            board.send(Stream::General, format!("{index}-------"), false);
        }
        let mut seat = board.sit(From::Unread(Stream::General));
        assert_eq!(texts(&board, &mut seat), ["3-------", "4-------"]);
    }
}
