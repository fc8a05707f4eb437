//! Pieces of logs that the readers of one place share: a thousand readers of a session who wait at the same place cost one
//! look into the store for each event, and a few more that find nothing behind it, not a thousand of each.
//!
//! Events never change and their numbers have no gaps, so a piece that was right once is right for ever: it may be shorter
//! than what is there by now, and whoever took it asks for what stands behind it. That nothing is there is right only for
//! those who asked before the look began: the others look again, together.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use session_core::error::StoreResult;
use session_core::{Seq, SessionId, StoreError};
use tokio::sync::OnceCell;

/// So many pieces are kept for those that come late to them.
const KEPT_MAX: usize = 64;
/// A larger piece is kept by nobody but those that wait for it.
const KEPT_BYTES_MAX: usize = 128 * 1024;

/// Events behind one place of a log, as a stream sends them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: Bytes,
    /// The last event in it.
    pub(crate) last: Seq,
    pub(crate) count: u64,
}

/// A session, and the event behind which somebody reads.
type Place = (SessionId, Seq);
/// What a look found: a piece, nothing, or why that is not known.
pub(crate) type Found = Result<Option<Piece>, Arc<StoreError>>;
/// What was found, or is being looked for by one of those who want it.
type Shared = Arc<OnceCell<Found>>;

/// The pieces that are being read, and those that were read last.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    // A std mutex: held for a look into the map, never across an await.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    places: HashMap<Place, Wanted>,
    /// Those that are kept, the oldest first.
    kept: VecDeque<Place>,
}

/// A place that somebody asks for, or of which the piece is kept.
#[derive(Debug, Default)]
struct Wanted {
    shared: Shared,
    asking: usize,
    is_kept: bool,
}

/// Somebody who asks for a place, until this is dropped.
struct Asking<'p> {
    pages: &'p Pages,
    place: Place,
}

impl Pages {
    /// The piece behind this place, read by one of those who ask for it at the same time; `None` where nothing stands there. A
    /// look that fails fails for all of them.
    pub(crate) async fn behind<F>(&self, place: Place, mut read: impl FnMut() -> F) -> Found
    where
        F: Future<Output = StoreResult<Option<Piece>>>,
    {
        let asking = self.ask(place);
        let mut waited = false;
        loop {
            let (shared, mut own) = (asking.shared(), false);
            let first = || {
                own = true;
                let reading = read();
                async {
                    let found = reading.await.map_err(Arc::new);
                    // Before anybody hears of it: who looks again must not meet this look.
                    self.known().settle(place, &shared, found.as_ref().ok().and_then(Option::as_ref));
                    found
                }
            };
            let found = shared.get_or_init(first).await.clone();
            // Whoever read it may have begun before the event was there of which this one was told. What is looked for after
            // that was begun later.
            if own || waited || !matches!(found, Ok(None)) {
                return found;
            }
            waited = true;
        }
    }

    fn ask(&self, place: Place) -> Asking<'_> {
        self.known().places.entry(place).or_default().asking += 1;
        Asking { pages: self, place }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asking<'_> {
    /// The look that is the place's now.
    fn shared(&self) -> Shared {
        Arc::clone(&self.pages.known().places.entry(self.place).or_default().shared)
    }
}

impl Known {
    /// Keeps what was read for those that come late to it, if it is small; whoever comes next reads anew if it is not, and if
    /// there was nothing.
    fn settle(&mut self, place: Place, shared: &Shared, piece: Option<&Piece>) {
        let Some(wanted) = self.places.get_mut(&place) else { return };
        if wanted.is_kept || !Arc::ptr_eq(&wanted.shared, shared) {
            return;
        }
        if piece.is_none_or(|piece| piece.text.len() > KEPT_BYTES_MAX) {
            wanted.shared = Shared::default();
            return;
        }
        wanted.is_kept = true;
        self.kept.push_back(place);
        if self.kept.len() > KEPT_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            if let Some(wanted) = self.places.get_mut(&oldest) {
                wanted.is_kept = false;
            }
            self.forget(oldest);
        }
    }

    /// Forgets a place for which nobody asks and of which nothing is kept.
    fn forget(&mut self, place: Place) {
        if self.places.get(&place).is_some_and(|wanted| wanted.asking == 0 && !wanted.is_kept) {
            self.places.remove(&place);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut known = self.pages.known();
        if let Some(wanted) = known.places.get_mut(&self.place) {
            wanted.asking -= 1;
        }
        known.forget(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use session_core::Env;
    use tokio::sync::{Notify, watch};

    use super::*;

    fn piece(last: u64, bytes: usize) -> Piece {
        Piece { text: Bytes::from(vec![b'x'; bytes]), last: Seq(last), count: 1 }
    }

    fn place(after: u64) -> Place {
        (Env::system().session_id(), Seq(after))
    }

    #[tokio::test]
    async fn many_readers_look_once() {
        let (pages, place, looks, go) = (Pages::default(), place(0), AtomicUsize::new(0), Notify::new());
        let read = || async {
            looks.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            Ok(Some(piece(1, 10)))
        };
        let readers = join_all((0..100).map(|_| pages.behind(place, read)));
        let waking = async { go.notify_one() };
        let (found, ()) = tokio::join!(readers, waking);
        assert!(found.into_iter().all(|found| found.unwrap() == Some(piece(1, 10))));
        assert_eq!(pages.behind(place, read).now_or_never().unwrap().unwrap(), Some(piece(1, 10)));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn who_waited_for_nothing_looks_again() {
        let (pages, place, go) = (Pages::default(), place(0), Notify::new());
        let early = pages.behind(place, || async {
            go.notified().await;
            Ok(None)
        });
        let late = pages.behind(place, || async { Ok(Some(piece(1, 10))) });
        let (early, late, ()) = tokio::join!(early, late, async { go.notify_one() });
        assert_eq!((early.unwrap(), late.unwrap()), (None, Some(piece(1, 10))));
        // What was nothing is not kept.
        let pages = Pages::default();
        for found in [None, Some(piece(1, 3))] {
            assert_eq!(pages.behind(place, || async { Ok(found.clone()) }).await.unwrap(), found);
        }
    }

    #[tokio::test]
    async fn a_thousand_readers_look_a_few_times_an_event() {
        const READERS: u64 = 1_000;
        const EVENTS: u64 = 20;
        let (pages, session) = (Pages::default(), Env::system().session_id());
        let (last, looks, waiting) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (appended, _) = watch::channel(());
        let look = async |after: Seq| {
            looks.fetch_add(1, Ordering::Relaxed);
            let found = last.load(Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok((found > after.0).then(|| piece(found, 10)))
        };
        let follow = async || {
            let (mut woken, mut after) = (appended.subscribe(), Seq::START);
            while after.0 < EVENTS {
                if let Some(piece) = pages.behind((session, after), || look(after)).await.unwrap() {
                    after = piece.last;
                    continue;
                }
                waiting.fetch_add(1, Ordering::Relaxed);
                woken.changed().await.unwrap();
            }
        };
        let append = async {
            for event in 1..=EVENTS {
                while waiting.load(Ordering::Relaxed) < event * READERS {
                    tokio::task::yield_now().await;
                }
                last.store(event, Ordering::Relaxed);
                appended.send_replace(());
            }
        };
        tokio::join!(join_all((0..READERS).map(|_| follow())), append);
        let looks = looks.load(Ordering::Relaxed);
        // One that finds it, and of those that find nothing as many as there are bursts in which the readers come back.
        assert!(looks <= 10 * EVENTS, "{looks} looks");
    }

    #[tokio::test]
    async fn a_failure_is_everybodys_and_a_large_piece_is_not_kept() {
        let (pages, place, looks, go) = (Pages::default(), place(0), AtomicUsize::new(0), Notify::new());
        let read = || async {
            looks.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            Err(StoreError::Unavailable("away".into()))
        };
        let readers = join_all((0..100).map(|_| pages.behind(place, read)));
        let (failed, ()) = tokio::join!(readers, async { go.notify_one() });
        assert!(failed.iter().all(Result::is_err));
        assert_eq!(looks.load(Ordering::Relaxed), 1, "nobody waits for one failure after the other");
        let large = piece(1, KEPT_BYTES_MAX + 1);
        assert_eq!(pages.behind(place, || async { Ok(Some(large.clone())) }).await.unwrap(), Some(large));
        let known = pages.known();
        assert!(known.places.is_empty() && known.kept.is_empty());
    }

    #[tokio::test]
    async fn no_more_are_kept_than_a_few() {
        let (pages, session) = (Pages::default(), Env::system().session_id());
        for after in 0..1_000 {
            let found = pages.behind((session, Seq(after)), || async { Ok(Some(piece(after + 1, 1))) }).await;
            assert_eq!(found.unwrap().unwrap().last, Seq(after + 1));
        }
        let known = pages.known();
        assert_eq!((known.places.len(), known.kept.len()), (KEPT_MAX, KEPT_MAX));
    }

    #[tokio::test]
    async fn who_gives_up_leaves_it_to_the_next() {
        let (pages, place) = (Pages::default(), place(0));
        {
            let given_up = pages.behind(place, std::future::pending);
            assert!(given_up.now_or_never().is_none());
        }
        assert!(pages.known().places.is_empty());
        assert_eq!(pages.behind(place, || async { Ok(Some(piece(1, 1))) }).await.unwrap(), Some(piece(1, 1)));
        assert_eq!(pages.known().places.len(), 1);
    }
}
