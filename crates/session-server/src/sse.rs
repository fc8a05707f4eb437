//! A session's log as a stream: what is there, page by page from the store, then what comes.
//!
//! Nothing is queued for a reader: its own task takes the next page when the one before was taken. A reader that stops
//! costs one page, however much is appended meanwhile. Readers of the same place share its page, and that there is none.

use std::convert::Infallible;
use std::pin::Pin;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::{FutureExt as _, stream};
use session_api::events::EventView;
use session_api::sse::{Frame, HEARTBEAT, RECONNECT};
use session_api::{Code, paths};
use session_core::error::StoreResult;
use session_core::wake::{Listener, Topic};
use session_core::{Event, Seq, SessionId};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::auth::Caller;
use crate::pages::{Found, Piece};
use crate::problem::Refusal;
use crate::readers::ReaderPlace;
use crate::state::State;

/// A page that has so many bytes gets no more events: one event more than that may be in it.
const PAGE_BYTES: usize = 1024 * 1024;
/// The most events of a page.
const PAGE_MAX: u64 = 256;
/// So many events are read at once: nobody knows how large they are.
const PART: u32 = 16;
/// When a reader is to come back after the server ended.
const RETRY_MS: u64 = 1_000;

/// Streams the log behind `after`.
pub(crate) fn follow(
    state: &State,
    caller: Caller,
    session: SessionId,
    after: Seq,
) -> Result<Response, Refusal> {
    let place = state.readers().enter(caller.principal());
    let place = place.map_err(|full| Refusal::new(Code::Overloaded, full.to_string()))?;
    let mut beat = interval(state.limits().heartbeat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.reset();
    let reader = Reader {
        // Before the first page is read: what is appended from here on wakes.
        listener: state.coordinator().listen(Topic::Session(session)),
        counted: Counted::new(state.clone()),
        caller,
        session,
        after,
        beat,
        look: Look::default(),
        over: false,
        _place: place,
    };
    let pieces = stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, Infallible>(piece), reader))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(paths::EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that gathers an answer before it passes it on would hold the events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct Reader {
    listener: Listener,
    counted: Counted,
    caller: Caller,
    session: SessionId,
    after: Seq,
    beat: Interval,
    /// The look for the next page.
    look: Look,
    over: bool,
    _place: ReaderPlace,
}

/// A look that is under way: it goes on where it was when whoever waited for it had something else to do meanwhile.
#[derive(Default)]
struct Look(Option<Pin<Box<dyn Future<Output = Found> + Send>>>);

impl Look {
    /// What is found; begun where nothing is under way. Cancel safe.
    async fn found(&mut self, begin: impl FnOnce() -> Pin<Box<dyn Future<Output = Found> + Send>>) -> Found {
        let found = self.0.get_or_insert_with(begin).as_mut().await;
        self.0 = None;
        found
    }
}

/// Looks for the page behind this event, with all who read at the same place.
async fn look(state: State, session: SessionId, after: Seq) -> Found {
    state.pages().behind((session, after), || page(&state, session, after)).await
}

impl Reader {
    /// The next piece of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        let state = self.counted.0.clone();
        while !self.over {
            if state.drain().is_cancelled() {
                self.over = true;
                return Some(come_back());
            }
            // Also where one page follows the other.
            let is_due = self.beat.tick().now_or_never().is_some();
            if is_due && !self.caller.still(&state).await {
                return None;
            }
            let (session, after) = (self.session, self.after);
            // A store that takes its time keeps no stream from its end, nor its reader without a sign of life; nor does that
            // keep the look from its end.
            let begin = || Box::pin(look(state.clone(), session, after)) as Pin<Box<_>>;
            let found = tokio::select! {
                found = self.look.found(begin) => found,
                () = state.drain().cancelled() => continue,
                _ = self.beat.tick() => return self.beat(&state).await,
            };
            match found {
                Ok(Some(piece)) => {
                    self.after = piece.last;
                    state.metrics().sent(piece.count);
                    return Some(piece.text);
                }
                Ok(None) if is_due => return Some(Bytes::from_static(HEARTBEAT.as_bytes())),
                Ok(None) => {}
                // The reader comes back, and reads on where it was.
                Err(error) => {
                    tracing::warn!(session = %self.session, %error, "a stream ended: its log could not be read");
                    return None;
                }
            }
            tokio::select! {
                () = self.listener.woken() => {}
                () = state.drain().cancelled() => {}
                _ = self.beat.tick() => return self.beat(&state).await,
            }
        }
        None
    }

    /// A sign of life, for as long as the caller may read; then the stream's end.
    async fn beat(&mut self, state: &State) -> Option<Bytes> {
        let heartbeat = Bytes::from_static(HEARTBEAT.as_bytes());
        self.caller.still(state).await.then_some(heartbeat)
    }
}

/// A page of the log behind this event.
async fn page(state: &State, session: SessionId, after: Seq) -> StoreResult<Option<Piece>> {
    // Never closed: there is always a permit sooner or later. It is held until what was read is cut to size.
    let _permit = state.reading().acquire().await;
    let (mut text, mut count, mut last) = (String::new(), 0, after);
    while text.len() < PAGE_BYTES && count < PAGE_MAX {
        let events = state.coordinator().store().read(session, last, PART).await?;
        let is_last = events.len() < PART as usize;
        for event in &events {
            if text.len() >= PAGE_BYTES {
                break;
            }
            text.push_str(&frame(event));
            last = event.seq;
            count += 1;
        }
        if is_last {
            break;
        }
    }
    Ok((count > 0).then(|| Piece { text: Bytes::from(text), last, count }))
}

fn frame(event: &Event) -> String {
    let data = serde_json::to_string(&EventView::from(event)).unwrap_or_default();
    // JSON that was kept as it came may have line breaks between its parts: each would begin another line of the frame,
    // which may get far larger than the event by that.
    let data = data.replace(['\r', '\n'], " ");
    Frame { id: Some(event.seq.to_string()), data, ..Frame::default() }.text()
}

fn come_back() -> Bytes {
    let frame = Frame {
        event: Some(RECONNECT.into()),
        data: "{}".into(),
        retry_ms: Some(RETRY_MS),
        ..Frame::default()
    };
    Bytes::from(frame.text())
}

/// One stream that is open, for as long as this lives.
struct Counted(State);

impl Counted {
    fn new(state: State) -> Self {
        state.metrics().readers(1);
        Self(state)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics().readers(-1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_look_that_takes_longer_than_a_beat_comes_to_its_end() {
        let (mut look, mut times) = (Look::default(), 0);
        let (sender, receiver) = oneshot::channel();
        let mut receiver = Some(receiver);
        for _ in 0..3 {
            let begin = || {
                times += 1;
                let receiver = receiver.take().unwrap();
                Box::pin(async move { receiver.await.unwrap() }) as Pin<Box<_>>
            };
            assert!(look.found(begin).now_or_never().is_none());
        }
        let piece = Piece { text: Bytes::from_static(b"x"), last: Seq(1), count: 1 };
        assert!(sender.send(Ok(Some(piece))).is_ok());
        let found = look.found(|| unreachable!("it is under way")).await.unwrap();
        assert_eq!((found.map(|piece| piece.last), times), (Some(Seq(1)), 1));
    }
}
