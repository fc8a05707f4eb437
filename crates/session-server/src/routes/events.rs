//! `/v1/sessions/{id}/events`.

use axum::Json;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use session_api::events::{APPEND_MAX, AppendEvents, Appended, EventPage, EventQuery, EventView};
use session_api::{Code, Problem, paths};
use session_core::event::{Origin, Payload};
use session_core::ports::Author;
use session_core::token::Verb;
use session_core::{Event, NewEvent, RunId, Seq, SessionId};

use super::bind::of_claim;
use super::seen;
use crate::auth::Caller;
use crate::extract::{JsonBody, PathId, Query, field, limit, optional};
use crate::problem::Refusal;
use crate::sse;
use crate::state::State;

/// Append to the log, all of it or nothing. An event with `producer` and `producer_seq` that was appended before is not
/// appended again.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/events", operation_id = "append_events", tag = "events",
    params(("id" = String, Path, description = "`ses_…`")), request_body = AppendEvents,
    responses((status = 201, description = "They are in the log, durably.", body = Appended)),
)]
pub(super) async fn append(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
    JsonBody(request): JsonBody<AppendEvents>,
) -> Result<(StatusCode, Json<Appended>), Refusal> {
    let run = optional("run_id", request.run_id.as_deref())?;
    let (author, run) = author(&state, &caller, id, run, request.epoch).await?;
    let batch = batch(run, &request)?;
    let now = state.coordinator().env().now();
    let appended = state.coordinator().store().append(author, batch, now).await?;
    Ok((StatusCode::CREATED, Json(Appended { seqs: appended.seqs.iter().map(|seq| seq.0).collect() })))
}

/// On whose behalf is appended: a claim's, or apart from any run the owner's.
async fn author(
    state: &State,
    caller: &Caller,
    id: SessionId,
    named: Option<RunId>,
    epoch: Option<u32>,
) -> Result<(Author, Option<RunId>), Refusal> {
    if let (Caller::Principal(_), None) = (caller, named) {
        let person = caller.person(Verb::Control)?;
        if epoch.is_some() {
            return Err(Refusal::invalid("epoch", "goes with `run_id`"));
        }
        let owner = state.remembered().owner(id, state.coordinator().store().session(id)).await?;
        if !owner.is_some_and(|owner| person.owns(&owner)) {
            return Err(Refusal::unknown("session", id));
        }
        return Ok((Author::Session(id), None));
    }
    let run = of_claim(caller, id, named)?;
    let (fence, run) = caller.claim(state, run, epoch).await?;
    if run.session != id {
        return Err(Refusal::unknown("session", id));
    }
    Ok((Author::Run(fence), Some(run.id)))
}

fn batch(run: Option<RunId>, request: &AppendEvents) -> Result<Vec<NewEvent>, Refusal> {
    let count = request.events.len();
    if count == 0 || count > APPEND_MAX {
        return Err(Refusal::invalid("events", format!("there are {count}, 1 to {APPEND_MAX} are allowed")));
    }
    let mut batch = Vec::with_capacity(count);
    for (index, event) in request.events.iter().enumerate() {
        let at = |part: &str| format!("events[{index}].{part}");
        let kind: session_core::EventKind = field(&at("kind"), &event.kind)?;
        // What the program did only the program says, also to an owner.
        if kind.is_reserved() {
            let detail = format!("an event of the kind {kind} is written by the program alone");
            return Err(Refusal(Problem::new(Code::ReservedKind, detail).at(at("kind"))));
        }
        let payload = Payload::parse(event.payload.get())
            .map_err(|error| Refusal::invalid(at("payload"), error.to_string()))?;
        let origin = match (event.producer.as_deref(), event.producer_seq) {
            (Some(producer), Some(seq)) => Some(Origin { producer: field(&at("producer"), producer)?, seq }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(Refusal::invalid(at("producer"), "and `producer_seq` go together"));
            }
        };
        // Numbers are kept as 64 bits with a sign.
        if origin.as_ref().is_some_and(|origin| i64::try_from(origin.seq).is_err()) {
            return Err(Refusal::invalid(at("producer_seq"), "is larger than 9223372036854775807"));
        }
        batch.push(NewEvent { run, kind, payload, origin });
    }
    Ok(batch)
}

/// Read the log, or follow it: with `Accept: text/event-stream` what is there and then what comes, each event once and in
/// order.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/events", operation_id = "read_events", tag = "events",
    params(
        ("id" = String, Path, description = "`ses_…`"),
        EventQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Of a stream: the last event that the reader has; before `after`."),
    ),
    responses((status = 200, description = "One page, or a stream whose `data` are events.", content(
        (EventPage = "application/json"), (EventView = "text/event-stream"),
    ))),
)]
pub(super) async fn read(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
    Query(query): Query<EventQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let session = seen(&state, &caller, id).await?;
    let limit = limit(query.limit, 100)?;
    let after = number("after", query.after.unwrap_or_default())?;
    if !wants_stream(&headers) {
        return Ok(Json(page(&state, session.id, after, limit).await?).into_response());
    }
    let after = match headers.get(paths::LAST_EVENT_ID) {
        None => after,
        Some(value) => {
            let seq = value.to_str().ok().and_then(|text| text.parse().ok());
            let seq = seq.ok_or_else(|| Refusal::invalid("Last-Event-ID", "is no number of an event"))?;
            number("Last-Event-ID", seq)?
        }
    };
    sse::follow(&state, caller, session.id, after)
}

fn number(field: &str, seq: u64) -> Result<Seq, Refusal> {
    if i64::try_from(seq).is_err() {
        return Err(Refusal::invalid(field, "is no number of an event"));
    }
    Ok(Seq(seq))
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(paths::EVENT_STREAM)))
}

/// A page, as many events of it as are not too large together.
pub(super) async fn page(
    state: &State,
    session: SessionId,
    after: Seq,
    limit: u32,
) -> Result<EventPage, Refusal> {
    /// So many events are read at once.
    const PART: u32 = 16;
    /// A page that has as many bytes of payloads gets no more events.
    const BYTES: usize = 4 * 1024 * 1024;
    let store = state.coordinator().store();
    let (mut items, mut last, mut bytes, mut more) = (Vec::new(), after, 0, true);
    let mut left = limit;
    while left > 0 && bytes < BYTES && more {
        let part = left.min(PART);
        let _permit = state.reading().acquire().await;
        let events: Vec<Event> = store.read(session, last, part).await?;
        more = events.len() == part as usize;
        for event in &events {
            bytes += event.body.payload.as_str().len();
            last = event.seq;
            items.push(EventView::from(event));
        }
        left -= part;
    }
    Ok(EventPage { items, after: last.0, more })
}
