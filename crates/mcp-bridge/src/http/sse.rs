//! A stream of a session as server-sent events. Nothing is queued for a reader: it takes the next event when the one before
//! was taken. A large message is not copied for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use session_core::names::Principal;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Shell;
use super::reply::Failure;
use crate::board::{Board, From, Next, Seat};
use crate::revision::Revision;
use crate::shares::Share;

/// A sign of life that says nothing.
pub(super) const HEARTBEAT: &[u8] = b":\n\n";
/// What a reader is told when the bridge ends, or a stream begins: when to come back.
const RETRY: &str = "retry: 1000\n";
/// Messages that are not longer leave in one piece with what frames them.
const SMALL: usize = 16 * 1024;

/// Pieces of a stream.
pub(super) type Pieces = BoxStream<'static, Result<Bytes, Infallible>>;

/// What a stream of this board would be, from there on.
pub(super) fn follow(
    shell: &Shell,
    board: &Arc<Board>,
    from: From,
    revision: Revision,
    pass: Pass,
) -> Pieces {
    let mut beat = interval(shell.bridge.settings.times.heartbeat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.reset();
    // Before the first event is looked for: what is sent from here on rings.
    let bell = board.listen();
    let seat = board.sit(from);
    let mut pieces = VecDeque::new();
    if revision.primes_streams() {
        pieces.push_back(Bytes::from(format!("id: {}\n{RETRY}data:\n\n", board.event_id(seat.after()))));
    }
    let drain = shell.bridge.drain.clone();
    let reader = Reader { board: Arc::clone(board), seat, bell, beat, pieces, drain, over: false, pass };
    let pieces = stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok(piece), reader))
    });
    pieces.boxed()
}

/// The answer that is such a stream.
pub(super) fn response(pieces: Pieces) -> Response {
    let mut response = Response::new(Body::from_stream(pieces));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that gathers an answer before it passes it on would hold the events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One message that is no event of a stream: it cannot be asked for again.
pub(super) fn alone(line: &str) -> Bytes {
    Bytes::from(format!("data: {line}\n\n"))
}

/// What lets somebody read a stream: a share of the streams, and what was shown at the door, for as long as it counts.
pub(super) struct Pass {
    shell: Arc<Shell>,
    principal: Principal,
    shown: HeaderMap,
    _share: Share,
}

impl Pass {
    /// `None` where as many streams are read as may be.
    pub(super) fn new(
        shell: &Arc<Shell>,
        principal: &Principal,
        headers: &HeaderMap,
    ) -> Result<Self, Failure> {
        let share = shell.streams.take(principal, 1);
        let share = share.ok_or_else(|| Failure::busy("as many streams as there may be are open"))?;
        let mut shown = HeaderMap::new();
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            shown.insert(header::AUTHORIZATION, value.clone());
        }
        Ok(Self { shell: Arc::clone(shell), principal: principal.clone(), shown, _share: share })
    }

    /// Whether it still lets in. Where that cannot be found out just now, it does.
    pub(super) async fn counts(&self) -> bool {
        match self.shell.access.who(&self.shown).await {
            Ok(principal) => principal == self.principal,
            Err(failure) => failure.status() != StatusCode::UNAUTHORIZED,
        }
    }
}

struct Reader {
    board: Arc<Board>,
    seat: Seat,
    bell: watch::Receiver<()>,
    beat: Interval,
    /// What is still to leave of what was taken.
    pieces: VecDeque<Bytes>,
    drain: CancellationToken,
    over: bool,
    pass: Pass,
}

impl Reader {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(piece);
            }
            if self.over {
                return None;
            }
            match self.board.next(&mut self.seat) {
                Next::Event { id, line, last } => {
                    self.over = last;
                    self.frame(&self.board.event_id(id), line);
                }
                Next::Ended => self.over = true,
                Next::Nothing => self.wait().await,
            }
        }
    }

    async fn wait(&mut self) {
        if self.beat.tick().now_or_never().is_some() {
            return self.beat().await;
        }
        tokio::select! {
            // The board is held, so its bell is.
            _ = self.bell.changed() => {}
            () = self.drain.cancelled() => {
                self.over = true;
                self.pieces.push_back(Bytes::from(format!("{RETRY}\n")));
            }
            _ = self.beat.tick() => self.beat().await,
        }
    }

    async fn beat(&mut self) {
        self.over = !self.pass.counts().await;
        self.pieces.push_back(Bytes::from_static(HEARTBEAT));
    }

    fn frame(&mut self, id: &str, line: Bytes) {
        let mut head = Vec::with_capacity(id.len() + 16 + if line.len() <= SMALL { line.len() } else { 0 });
        head.extend_from_slice(b"id: ");
        head.extend_from_slice(id.as_bytes());
        head.extend_from_slice(b"\ndata: ");
        if line.len() <= SMALL {
            head.extend_from_slice(&line);
            head.extend_from_slice(b"\n\n");
            self.pieces.push_back(head.into());
        } else {
            self.pieces.extend([head.into(), line, Bytes::from_static(b"\n\n")]);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.board.rise(&self.seat);
    }
}
