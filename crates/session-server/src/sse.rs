//! A session's log as a stream: what is there, page by page from the store, then what comes.
//!
//! Nothing is queued for a reader: its own task reads the next page when the one before was taken. A reader that stops
//! costs one page, however much is appended meanwhile.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use session_api::events::EventView;
use session_api::sse::{Frame, HEARTBEAT, RECONNECT};
use session_api::{Code, paths};
use session_core::error::StoreResult;
use session_core::wake::{Listener, Topic};
use session_core::{Event, Seq, SessionId};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::auth::Caller;
use crate::problem::Refusal;
use crate::state::State;

/// As many bytes as a page has at the most, the last event of it aside.
const PAGE_BYTES: usize = 1024 * 1024;
/// The first page, of which nobody knows how large its events are.
const FIRST_PAGE: u32 = 16;
/// The most events that are read for a page.
const PAGE_MAX: u32 = 64;
/// When a reader is to come back after the server ended.
const RETRY_MS: u64 = 1_000;

/// Streams the log behind `after`.
pub(crate) fn follow(
    state: &State,
    caller: Caller,
    session: SessionId,
    after: Seq,
) -> Result<Response, Refusal> {
    let permit = std::sync::Arc::clone(state.readers()).try_acquire_owned();
    let permit =
        permit.map_err(|_| Refusal::new(Code::Overloaded, "as many streams as there may be are open"))?;
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
        page: FIRST_PAGE,
        beat,
        over: false,
        _permit: permit,
    };
    let pieces = stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, Infallible>(piece), reader))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(paths::EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

struct Reader {
    listener: Listener,
    counted: Counted,
    caller: Caller,
    session: SessionId,
    after: Seq,
    page: u32,
    beat: Interval,
    over: bool,
    _permit: OwnedSemaphorePermit,
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
            match self.page(&state).await {
                Ok(Some(page)) => return Some(page),
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
                _ = self.beat.tick() => {
                    if !self.caller.still(&state).await {
                        return None;
                    }
                    return Some(Bytes::from_static(HEARTBEAT.as_bytes()));
                }
            }
        }
        None
    }

    /// What is behind the last page, as much of it as one may have; `None` where there is nothing yet.
    async fn page(&mut self, state: &State) -> StoreResult<Option<Bytes>> {
        // Never closed: there is always a permit sooner or later. It is held until what was read is cut to size.
        let _permit = state.pages().acquire().await;
        let events = state.coordinator().store().read(self.session, self.after, self.page).await?;
        Ok(if events.is_empty() { None } else { Some(self.taken(state, &events)) })
    }

    fn taken(&mut self, state: &State, events: &[Event]) -> Bytes {
        let (mut text, mut count) = (String::new(), 0);
        for event in events {
            // The rest is read again when this was taken.
            if text.len() >= PAGE_BYTES {
                break;
            }
            count += 1;
            let data = serde_json::to_string(&EventView::from(event)).unwrap_or_default();
            // JSON that was kept as it came may have line breaks between its parts.
            let data = data.replace('\r', " ");
            let frame = Frame { id: Some(event.seq.to_string()), data, ..Frame::default() };
            text.push_str(&frame.text());
            self.after = event.seq;
        }
        self.page = next_page(text.len(), count);
        state.metrics().sent(count as u64);
        Bytes::from(text)
    }
}

/// How many events the next page has, by what those of the last one took.
fn next_page(bytes: usize, events: usize) -> u32 {
    let each = (bytes / events.max(1)).max(1);
    u32::try_from(PAGE_BYTES.div_ceil(each)).unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX)
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
    use super::*;

    #[test]
    fn a_page_is_as_large_as_its_events_let_it_be() {
        assert_eq!(next_page(16 * 200, 16), PAGE_MAX);
        assert_eq!(next_page(16 * 64 * 1024, 16), 16);
        assert_eq!(next_page(4 * 1024 * 1024, 4), 1);
        assert_eq!(next_page(64 * 1024 * 1024, 1), 1);
        assert_eq!(next_page(0, 0), PAGE_MAX);
    }
}
