//! `/v1/sessions`.

use axum::Json;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::value::RawValue;
use session_api::runs::{RunView, StopRequest, Stopping};
use session_api::sessions::{
    AffinityView, PageQuery, ResultView, SessionPage, SessionQuery, SessionView, StatusView,
};
use session_core::event::Payload;
use session_core::ports::{Cursor, Listing, Page, SessionFilter};
use session_core::session::SessionSummary;
use session_core::token::Verb;
use session_core::{EventKind, ManagedSession, Run, Seq, SessionId};

use super::seen;
use crate::auth::Caller;
use crate::extract::{OptionalBody, PathId, Query, limit, optional};
use crate::problem::Refusal;
use crate::state::State;

/// Sessions, newest first.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions", params(SessionQuery),
    responses((status = 200, description = "One page.", body = SessionPage)),
)]
pub(super) async fn list(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<SessionQuery>,
) -> Result<Json<SessionPage>, Refusal> {
    let person = caller.person(Verb::Read)?;
    let wanted = optional("principal", query.principal.as_deref())?;
    if let Some(wanted) = wanted.as_ref().filter(|wanted| !person.owns(wanted)) {
        // As for one who has none.
        tracing::debug!(%wanted, "somebody asked for another principal's sessions");
        return Ok(Json(SessionPage { items: Vec::new(), next: None }));
    }
    let filter = SessionFilter {
        key: None,
        principal: person.listed(wanted),
        label: optional("label", query.label.as_deref())?,
        parent: optional("parent", query.parent.as_deref())?,
        busy: query.busy.unwrap_or_default(),
        with_workspace: false,
        live: query.live.unwrap_or_default(),
    };
    let page = page(Page::first(limit(query.limit, 50)?), query.cursor.as_deref())?;
    listed(&state, &filter, page).await
}

/// The sessions that this one started.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/children", operation_id = "list_children", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`"), PageQuery),
    responses((status = 200, description = "One page.", body = SessionPage)),
)]
pub(super) async fn children(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
    Query(query): Query<PageQuery>,
) -> Result<Json<SessionPage>, Refusal> {
    let session = seen(&state, &caller, id).await?;
    // A child of somebody else's making is not this one's to see.
    let principal = Some(session.principal);
    let filter = SessionFilter { principal, parent: Some(id), ..SessionFilter::default() };
    let page = page(Page::first(limit(query.limit, 50)?), query.cursor.as_deref())?;
    listed(&state, &filter, page).await
}

/// A page, as many sessions of it as are not too large together.
pub(super) async fn listing(state: &State, filter: &SessionFilter, page: Page) -> Result<Listing, Refusal> {
    /// So many sessions are read at once.
    const PART: u32 = 16;
    /// A page of which so many bytes are texts of its callers gets no more sessions.
    const BYTES: usize = 4 * 1024 * 1024;
    let (mut all, mut bytes, mut left) = (Listing { items: Vec::new(), next: page.after }, 0, page.limit);
    while left > 0 && bytes < BYTES {
        let part = Page { after: all.next, limit: left.min(PART) };
        let Listing { items, next } = state.coordinator().store().list(filter, &part).await?;
        bytes += items.iter().map(weight).sum::<usize>();
        all.items.extend(items);
        all.next = next;
        left -= part.limit;
        if all.next.is_none() {
            break;
        }
    }
    Ok(all)
}

/// How many bytes of a session its callers wrote.
fn weight(summary: &SessionSummary) -> usize {
    let of_run = summary.last_run.as_ref().map_or(0, |run| {
        let prompt = run.spec.turn.as_ref().map_or(0, |turn| turn.prompt.len());
        prompt + run.spec.argv.iter().map(String::len).sum::<usize>()
    });
    summary.session.metadata.as_str().len() + of_run
}

async fn listed(state: &State, filter: &SessionFilter, page: Page) -> Result<Json<SessionPage>, Refusal> {
    let listing = listing(state, filter, page).await?;
    let items = listing.items.iter().map(SessionView::from).collect();
    Ok(Json(SessionPage { items, next: listing.next.map(cursor) }))
}

/// A place in a list as text.
pub(super) fn cursor(cursor: Cursor) -> String {
    format!("{}-{}", cursor.created_at.as_millisecond(), cursor.id)
}

/// This page, from the place that a text names.
pub(super) fn page(page: Page, cursor: Option<&str>) -> Result<Page, Refusal> {
    let Some(text) = cursor else { return Ok(page) };
    let place = text.split_once('-').and_then(|(at, id)| {
        let created_at = Timestamp::from_millisecond(at.parse().ok()?).ok()?;
        Some(Cursor { created_at, id: id.parse().ok()? })
    });
    let place =
        place.ok_or_else(|| Refusal::invalid("cursor", "is none of this list: take `next` of a page"))?;
    Ok(page.after(place))
}

/// One session.
#[utoipa::path(
    get, path = "/v1/sessions/{id}", operation_id = "get_session", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")),
    responses((status = 200, description = "The session.", body = SessionView)),
)]
pub(super) async fn get(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(SessionView::from(&summary(&state, seen(&state, &caller, id).await?).await?)))
}

/// Where it stands, in few words.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/status", operation_id = "get_session_status", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")),
    responses((status = 200, description = "Where it stands.", body = StatusView)),
)]
pub(super) async fn status(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
) -> Result<Json<StatusView>, Refusal> {
    Ok(Json(StatusView::from(&summary(&state, seen(&state, &caller, id).await?).await?)))
}

async fn summary(state: &State, session: ManagedSession) -> Result<SessionSummary, Refusal> {
    let last_run = state.coordinator().store().runs(session.id, 1).await?.pop();
    Ok(SessionSummary { session, last_run })
}

/// What the last run of a session came to.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/result", operation_id = "get_session_result", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")),
    responses((status = 200, description = "The run, and its result where it is over.", body = ResultView)),
)]
pub(super) async fn result(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
) -> Result<Json<ResultView>, Refusal> {
    let session = seen(&state, &caller, id).await?;
    let found = result_of(&state, session.id).await?;
    found.map(Json).ok_or_else(|| Refusal::unknown("run in session", id))
}

/// What the last run of a session came to; `None` where it never ran.
pub(super) async fn result_of(state: &State, id: SessionId) -> Result<Option<ResultView>, Refusal> {
    let Some(run) = state.coordinator().store().runs(id, 1).await?.pop() else { return Ok(None) };
    let over = run.state.phase().is_ended();
    let Found { result, last } = if over { outcome(state, &run).await? } else { Found::default() };
    let text_cut = last.is_cut();
    Ok(Some(ResultView {
        session_id: id.to_string(),
        over,
        run: RunView::from(&run),
        result: result.and_then(|result| RawValue::from_string(result.as_str().into()).ok()),
        text: last.text(),
        text_cut,
    }))
}

/// What the log has of the end of a run.
#[derive(Default)]
struct Found {
    /// What it reported.
    result: Option<Payload>,
    /// The last thing that its agent said.
    last: Last,
}

/// What a run that is over reported, and the last thing that its agent said: looked for in the log from its end on.
async fn outcome(state: &State, run: &Run) -> Result<Found, Refusal> {
    /// So many events are read at once.
    const PART: u32 = 16;
    /// Among so many events before a run's end, beside the pieces of what its agent said last, both are looked for.
    const BEFORE: u32 = 64;
    let store = state.coordinator().store();
    let (mut found, mut before) = (Found::default(), None);
    let mut events = store.tail(run.session, PART).await?;
    while let Some(first) = events.first().map(|event| event.seq.0) {
        for event in events.iter().rev() {
            let (kind, payload) = (&event.body.kind, &event.body.payload);
            let of_run = event.body.run == Some(run.id);
            let is_piece = of_run && *kind == EventKind::Message && found.last.precede(payload);
            let counts = u32::from(!is_piece);
            let is_end = of_run && *kind == EventKind::RunState;
            before = before.map(|count| count + counts).or(is_end.then_some(0));
            if of_run && found.result.is_none() && *kind == EventKind::Result {
                found.result = Some(payload.clone());
            }
        }
        let is_found = found.result.is_some() && found.last.is_whole || found.last.is_enough();
        if is_found || first <= 1 || before.is_some_and(|count| count >= BEFORE) {
            break;
        }
        let after = (first - 1).saturating_sub(PART.into());
        let count = u32::try_from(first - 1 - after).unwrap_or(PART);
        events = store.read(run.session, Seq(after), count).await?;
    }
    Ok(found)
}

/// The last thing that an agent said, read from its end on.
#[derive(Default)]
struct Last {
    /// Its pieces, the last one first.
    pieces: Vec<String>,
    /// So many pieces and bytes were read, those that do not count included.
    read: usize,
    bytes: usize,
    is_whole: bool,
    /// What is read belongs to something that was broken off and said anew.
    given_up: bool,
}

impl Last {
    /// So many pieces are read at the most; an hour of speech has fewer.
    const PIECES_MAX: usize = 4_096;
    /// With so many bytes no more are read.
    const BYTES_MAX: usize = 1024 * 1024;

    /// A message before what is known. Whether it is a piece of what the agent said, beginning and end included.
    fn precede(&mut self, payload: &Payload) -> bool {
        let value = payload.value().unwrap_or_default();
        let Some(text) = value["text"].as_str().filter(|_| value["role"] == "assistant" && !self.is_whole)
        else {
            return false;
        };
        let continues = value["continues"] == true;
        self.read += 1;
        self.bytes += text.len();
        if self.given_up || value["abandoned"] == true {
            self.given_up = continues;
        } else {
            self.pieces.push(text.to_owned());
            self.is_whole = !continues;
        }
        true
    }

    /// Whether no more of it is looked for.
    fn is_enough(&self) -> bool {
        !self.is_whole && (self.read >= Self::PIECES_MAX || self.bytes >= Self::BYTES_MAX)
    }

    /// Whether the beginning of it is missing.
    fn is_cut(&self) -> bool {
        !self.is_whole && !self.pieces.is_empty()
    }

    fn text(self) -> Option<String> {
        let said = !self.pieces.is_empty();
        said.then(|| self.pieces.into_iter().rev().collect())
    }
}

/// Where it can be resumed.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/affinity", operation_id = "get_session_affinity", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")),
    responses((status = 200, description = "What a runner must be.", body = AffinityView)),
)]
pub(super) async fn affinity(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
) -> Result<Json<AffinityView>, Refusal> {
    Ok(Json(AffinityView::from(&seen(&state, &caller, id).await?)))
}

/// Ask for the end of what runs in it. The session stays.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/stop", operation_id = "stop_session", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")), request_body = Option<StopRequest>,
    responses((status = 200, description = "The runs whose end was asked for.", body = Stopping)),
)]
pub(super) async fn stop(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
    OptionalBody(request): OptionalBody<StopRequest>,
) -> Result<Json<Stopping>, Refusal> {
    let session = controlled(&state, &caller, id).await?;
    let runs = state.coordinator().stop(&[session.id], request.mode.into()).await?;
    Ok(Json(Stopping { runs: runs.iter().map(|run| run.id.to_string()).collect() }))
}

/// End it for good, and whatever runs in it at once. Its record and log stay.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", operation_id = "delete_session", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")),
    responses((status = 204, description = "It is over.")),
)]
pub(super) async fn delete(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
) -> Result<StatusCode, Refusal> {
    let session = controlled(&state, &caller, id).await?;
    state.host().terminate(session.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The session, if it is this caller's to change.
async fn controlled(state: &State, caller: &Caller, id: SessionId) -> Result<ManagedSession, Refusal> {
    let person = caller.person(Verb::Control)?;
    let found = state.coordinator().store().session(id).await?;
    found.filter(|session| person.owns(&session.principal)).ok_or_else(|| Refusal::unknown("session", id))
}
