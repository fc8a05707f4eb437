//! What the boards of all clients keep together. Who keeps most lets go first, and what somebody is about to read goes last: one
//! who has much kept takes nothing from another.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use session_core::names::Principal;

use super::Board;
use crate::replay::Spare;

/// How much all boards may keep, and what they do.
#[derive(Debug)]
pub(crate) struct Room {
    max: usize,
    /// One principal's.
    each: usize,
    used: AtomicUsize,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    purses: HashMap<Principal, Weak<Purse>>,
    next: u64,
    boards: HashMap<u64, Weak<Board>>,
}

/// What the boards of one principal keep together.
#[derive(Debug, Default)]
struct Purse(AtomicUsize);

/// A board that keeps something.
#[derive(Debug)]
pub(super) struct Member {
    number: u64,
    purse: Arc<Purse>,
    kept: AtomicUsize,
}

/// So much was kept, and so much is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) before: usize,
    pub(super) after: usize,
}

impl Change {
    /// Returns what there is by now.
    fn book(self, used: &AtomicUsize) -> usize {
        // Wrapping: what was added before is taken away again.
        let more = self.after.wrapping_sub(self.before);
        used.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }
}

impl Room {
    /// Of so many bytes; half of them for one principal.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, each: max.div_ceil(2), used: AtomicUsize::new(0), members: Mutex::default() })
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // Nothing in here is ever half done.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A board that begins to keep something.
    pub(super) fn join(&self, principal: &Principal, board: &Weak<Board>) -> Member {
        let mut members = self.members();
        let purse = members.purses.get(principal).and_then(Weak::upgrade).unwrap_or_default();
        members.purses.retain(|_, purse| purse.strong_count() > 0);
        members.purses.insert(principal.clone(), Arc::downgrade(&purse));
        members.next += 1;
        let number = members.next;
        members.boards.insert(number, Weak::clone(board));
        Member { number, purse, kept: AtomicUsize::new(0) }
    }

    /// A board that is gone.
    pub(super) fn leave(&self, member: &Member) {
        self.book(member, Change { before: member.kept.load(Ordering::Relaxed), after: 0 });
        self.members().boards.remove(&member.number);
    }

    /// What a board keeps has changed. Returns what its principal keeps, and what all do.
    pub(super) fn book(&self, member: &Member, change: Change) -> (usize, usize) {
        change.book(&member.kept);
        (change.book(&member.purse.0), change.book(&self.used))
    }

    /// The same, and what is too much is let go.
    pub(super) fn change(&self, member: &Member, change: Change) {
        let (own, all) = self.book(member, change);
        if change.after <= change.before || (own <= self.each && all <= self.max) {
            return;
        }
        let boards: Vec<_> = self.members().boards.values().filter_map(Weak::upgrade).collect();
        let mut boards: Vec<_> =
            boards.iter().filter_map(|board| Some((board.as_ref(), board.member.get()?))).collect();
        boards.sort_by_cached_key(|(_, of)| {
            Reverse((of.purse.0.load(Ordering::Relaxed), of.kept.load(Ordering::Relaxed)))
        });
        if own > self.each {
            let own = boards.iter().filter(|(_, of)| Arc::ptr_eq(&of.purse, &member.purse));
            let own: Vec<_> = own.map(|(board, _)| *board).collect();
            let_go(&own, &member.purse.0, self.each);
        }
        let all: Vec<_> = boards.iter().map(|(board, _)| *board).collect();
        let_go(&all, &self.used, self.max);
    }
}

/// Has these let go of what is too much, in their order, and of some more than that, so that not each event has it done again.
/// Of what somebody is about to read only if it must be, and then of as much.
fn let_go(boards: &[&Board], used: &AtomicUsize, max: usize) {
    if used.load(Ordering::Relaxed) <= max {
        return;
    }
    for spare in [Spare::Unread, Spare::Nothing] {
        if spare == Spare::Nothing && used.load(Ordering::Relaxed) <= max {
            return;
        }
        for board in boards {
            match used.load(Ordering::Relaxed).saturating_sub(max - max / 8) {
                0 => return,
                excess => board.let_go(excess, spare),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{From, Next};
    use crate::replay::Kept;
    use crate::router::Stream;

    const KEPT: Kept = Kept { bytes: 1_000, events: 100, ended: 64 };

    fn board(room: &Arc<Room>, whose: &str) -> Arc<Board> {
        Board::new(KEPT, Arc::clone(room), whose.parse().unwrap(), "t.".into())
    }

    fn used(room: &Room) -> usize {
        room.used.load(Ordering::Relaxed)
    }

    /// An answer that its client has read.
    fn answer(board: &Board, request: u64) {
        let stream = Stream::Request(request);
        board.open(stream);
        let mut seat = board.sit(From::Unread(stream));
        board.send(stream, "0123456789", true);
        assert!(matches!(board.next(&mut seat), Next::Event { .. }));
        board.rise(&seat);
    }

    #[test]
    fn who_keeps_much_takes_nothing_from_another() {
        let room = Room::new(200);
        let hers = [(); 3].map(|()| board(&room, "ada"));
        for request in 0..30 {
            answer(&hers[request % 3], request as u64);
        }
        assert!(used(&room) <= 100, "{} of what one may keep", used(&room));
        let (cyds, his) = (board(&room, "cyd"), board(&room, "bob"));
        for request in 0..8 {
            answer(&cyds, request);
        }
        let stream = Stream::Request(7);
        his.open(stream);
        for number in 0..6 {
            his.send(stream, format!("progress {number}"), number == 5);
        }
        assert!(used(&room) <= 200);
        let mut seat = his.sit(From::Unread(stream));
        for number in 0..6 {
            let Next::Event { line, .. } = his.next(&mut seat) else { panic!("{number} is lost") };
            assert_eq!(line, format!("progress {number}"));
        }
        drop((hers, cyds));
        assert_eq!(used(&room), 60);
    }

    #[test]
    fn what_is_read_goes_before_what_is_not_and_all_of_it_is_bounded() {
        let room = Room::new(200);
        let (slow, other) = (board(&room, "ada"), board(&room, "ada"));
        for request in 0..5 {
            answer(&other, request);
        }
        let stream = Stream::Request(9);
        slow.open(stream);
        let mut seat = slow.sit(From::Unread(stream));
        for _ in 0..6 {
            slow.send(stream, "0123456789", false);
        }
        assert!(matches!(slow.next(&mut seat), Next::Event { .. }), "nothing of it is lost");
        for _ in 0..20 {
            slow.send(stream, "0123456789", false);
        }
        assert_eq!(slow.next(&mut seat), Next::Ended, "it did not read for too long");
        assert!(used(&room) <= 100 && other.kept() == 10, "the newest of each stays");
        drop((slow, other));
        assert_eq!(used(&room), 0);
    }

    #[test]
    fn what_is_not_read_is_let_go_for_more_than_the_next_event() {
        let room = Room::new(1_600);
        let (slow, stream) = (board(&room, "ada"), Stream::Request(9));
        slow.open(stream);
        for _ in 0..80 {
            slow.send(stream, "0123456789", false);
        }
        assert_eq!(used(&room), 800, "all of what one may keep");
        slow.send(stream, "0123456789", false);
        assert_eq!(used(&room), 700);
        for _ in 0..10 {
            slow.send(stream, "0123456789", false);
        }
        assert_eq!(used(&room), 800, "nothing more went");
    }
}
