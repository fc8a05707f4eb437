//! `/v1/runs`.

use axum::Json;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode};
use session_api::paths;
use session_api::runs::{CreateRun, RunCreated, RunPage, RunQuery, RunView, StopRequest};
use session_core::digest::Digest;
use session_core::names::IdempotencyKey;
use session_core::ports::{Idempotency, Page, SessionFilter};
use session_core::token::Verb;
use session_core::{Run, RunId, SessionId};

use super::{plan, seen, sessions};
use crate::auth::Caller;
use crate::extract::{JsonBody, OptionalBody, PathId, Query, field, limit, optional};
use crate::problem::{Refusal, internal};
use crate::state::State;

/// Enqueue a run, of a new session or of one that is there. Answers before anything executes.
#[utoipa::path(
    post, path = "/v1/runs", operation_id = "create_run", tag = "runs", request_body = CreateRun,
    params(("Idempotency-Key" = Option<String>, Header, description = "The caller's name for this call: the same call again makes nothing.")),
    responses((status = 201, description = "It is in the queue.", body = RunCreated)),
)]
pub(super) async fn create(
    Extract(state): Extract<State>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateRun>,
) -> Result<(StatusCode, Json<RunCreated>), Refusal> {
    let once = once(&caller, &headers, &request)?;
    // Before anything is looked at: what held for the first call need not hold any more.
    if let Some(runs) = recalled(&state, &caller, once.as_ref()).await? {
        return created(&runs);
    }
    let submission = plan::submission(&state, &caller, request).await?;
    let runs = state.coordinator().submit_once(submission, once).await?;
    state.metrics().run_is("pending");
    created(&runs)
}

fn created(runs: &[Run]) -> Result<(StatusCode, Json<RunCreated>), Refusal> {
    let run = runs.first().ok_or_else(|| internal(&std::io::Error::other("nothing was enqueued")))?;
    let created = RunCreated { run_id: run.id.to_string(), session_id: run.session.to_string() };
    Ok((StatusCode::CREATED, Json(created)))
}

/// What an earlier call under this key made, for a caller that may make such calls.
async fn recalled(
    state: &State,
    caller: &Caller,
    once: Option<&Idempotency>,
) -> Result<Option<Vec<Run>>, Refusal> {
    let Some(once) = once else { return Ok(None) };
    caller.parent(state, None).await?;
    Ok(state.coordinator().store().recall(once, state.coordinator().env().now()).await?)
}

/// By what this call is known if it is repeated.
fn once(caller: &Caller, headers: &HeaderMap, request: &CreateRun) -> Result<Option<Idempotency>, Refusal> {
    let Some(key) = call(headers)? else { return Ok(None) };
    let session = match caller {
        Caller::Principal(_) => None,
        Caller::Run(executing) => Some(executing.token.session),
    };
    once_under(caller, key, session, request).map(Some)
}

/// By what a call under this key is known. What acts in a session knows nothing of the calls in others.
pub(super) fn once_under(
    caller: &Caller,
    mut key: IdempotencyKey,
    session: Option<SessionId>,
    request: &CreateRun,
) -> Result<Idempotency, Refusal> {
    let mut canonical = serde_json::to_vec(request).map_err(|error| internal(&error))?;
    if let Some(session) = session {
        // Runs of one owner know nothing of each other, and may call their steps alike.
        canonical.extend_from_slice(session.to_string().as_bytes());
        key = of_session(session, &key)?;
    }
    Ok(Idempotency { principal: caller.principal().clone(), key, digest: Digest::of(canonical) })
}

/// The caller's name for this call.
pub(super) fn call(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Refusal> {
    let mut given = headers.get_all(paths::IDEMPOTENCY_KEY).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| given.next().is_none());
    let text = text.ok_or_else(|| Refusal::invalid("Idempotency-Key", "must be one text of ASCII"))?;
    field("Idempotency-Key", text).map(Some)
}

/// A key that only the runs of this session use.
fn of_session(session: SessionId, key: &IdempotencyKey) -> Result<IdempotencyKey, Refusal> {
    let text = format!("{session} {key}");
    let fits = text.len() <= IdempotencyKey::MAX;
    let text = if fits { text } else { format!("{session} {}", Digest::of(key.as_str())) };
    field("Idempotency-Key", &text)
}

/// The runs of one session, or the last run of each.
#[utoipa::path(
    get, path = "/v1/runs", operation_id = "list_runs", tag = "runs", params(RunQuery),
    responses((status = 200, description = "One page.", body = RunPage)),
)]
pub(super) async fn list(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<RunQuery>,
) -> Result<Json<RunPage>, Refusal> {
    let limit = limit(query.limit, 50)?;
    let store = state.coordinator().store();
    if let Some(session) = optional::<SessionId>("session_id", query.session_id.as_deref())? {
        let before = optional::<RunId>("cursor", query.cursor.as_deref())?;
        let session = seen(&state, &caller, session).await?;
        // One more than is shown: then it is known whether that was all.
        let mut runs = match before {
            None => store.runs(session.id, limit + 1).await?,
            Some(before) => store.runs_before(session.id, before, limit + 1).await?,
        };
        if let Some(before) = before.filter(|_| runs.is_empty()) {
            // The end of the list, or no place in it: whose run it is otherwise is nobody's business here.
            let last = store.run(before).await?.filter(|run| run.session == session.id);
            last.ok_or_else(|| Refusal::invalid("cursor", "is none of this list: take `next` of a page"))?;
        }
        let more = runs.len() > limit as usize;
        runs.truncate(limit as usize);
        let next = runs.last().filter(|_| more).map(|run| run.id.to_string());
        return Ok(Json(RunPage { items: runs.iter().map(RunView::from).collect(), next }));
    }
    let person = caller.person(Verb::Read)?;
    let filter = SessionFilter { principal: person.listed(None), ..SessionFilter::default() };
    let page = sessions::page(Page::first(limit), query.cursor.as_deref())?;
    let listing = sessions::listing(&state, &filter, page).await?;
    let items = listing.items.iter().filter_map(|item| item.last_run.as_ref()).map(RunView::from);
    Ok(Json(RunPage { items: items.collect(), next: listing.next.map(sessions::cursor) }))
}

/// One run.
#[utoipa::path(
    get, path = "/v1/runs/{id}", operation_id = "get_run", tag = "runs",
    params(("id" = String, Path, description = "`run_…`")),
    responses((status = 200, description = "The run.", body = RunView)),
)]
pub(super) async fn get(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
) -> Result<Json<RunView>, Refusal> {
    Ok(Json(RunView::from(&run(&state, &caller, id).await?)))
}

/// Ask for a run's end. One that is over stays as it is.
#[utoipa::path(
    post, path = "/v1/runs/{id}/stop", operation_id = "stop_run", tag = "runs",
    params(("id" = String, Path, description = "`run_…`")), request_body = Option<StopRequest>,
    responses((status = 200, description = "The run as it is now.", body = RunView)),
)]
pub(super) async fn stop(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    OptionalBody(request): OptionalBody<StopRequest>,
) -> Result<Json<RunView>, Refusal> {
    caller.person(Verb::Control)?;
    let found = owned(&state, &caller, id).await?;
    let now = state.coordinator().env().now();
    let run = state.coordinator().store().request_stop(found.id, request.mode.into(), now).await?;
    Ok(Json(RunView::from(&run)))
}

/// The run, if there is one that this caller may see.
async fn run(state: &State, caller: &Caller, id: RunId) -> Result<Run, Refusal> {
    caller.reads(state).await?;
    owned(state, caller, id).await
}

/// The run, if there is one in a session that is this caller's.
async fn owned(state: &State, caller: &Caller, id: RunId) -> Result<Run, Refusal> {
    let store = state.coordinator().store();
    let unknown = || Refusal::unknown("run", id);
    let run = store.run(id).await?.ok_or_else(unknown)?;
    let session = store.session(run.session).await?.ok_or_else(unknown)?;
    if caller.sees(&session) { Ok(run) } else { Err(unknown()) }
}
