//! `/v1/approvals`: the questions of agents.

use axum::Json;
use axum::extract::State as Extract;
use session_api::approvals::{AnswerRequest, ApprovalPage, ApprovalQuery, ApprovalView};
use session_core::approval::{Approval, Reply};
use session_core::ports::ApprovalFilter;
use session_core::token::Verb;
use session_core::{ApprovalId, SessionId};

use super::seen;
use crate::auth::Caller;
use crate::extract::{JsonBody, PathId, Query, limit, optional};
use crate::problem::Refusal;
use crate::state::State;

/// What was asked in one session.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/approvals", operation_id = "list_session_approvals", tag = "approvals",
    params(("id" = String, Path, description = "`ses_…`"), ApprovalQuery),
    responses((status = 200, description = "One page.", body = ApprovalPage)),
)]
pub(super) async fn of_session(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
    Query(query): Query<ApprovalQuery>,
) -> Result<Json<ApprovalPage>, Refusal> {
    let session = Some(seen(&state, &caller, id).await?.id);
    listed(&state, ApprovalFilter { session, principal: None, open: false }, &query).await
}

/// What was asked in all sessions of the caller.
#[utoipa::path(
    get, path = "/v1/approvals", operation_id = "list_approvals", tag = "approvals", params(ApprovalQuery),
    responses((status = 200, description = "One page.", body = ApprovalPage)),
)]
pub(super) async fn list(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<ApprovalQuery>,
) -> Result<Json<ApprovalPage>, Refusal> {
    let principal = caller.person(Verb::Read)?.listed(None);
    listed(&state, ApprovalFilter { session: None, principal, open: false }, &query).await
}

async fn listed(
    state: &State,
    filter: ApprovalFilter,
    query: &ApprovalQuery,
) -> Result<Json<ApprovalPage>, Refusal> {
    let filter = ApprovalFilter { open: query.open.unwrap_or_default(), ..filter };
    let limit = limit(query.limit, 50)?;
    let after = optional("cursor", query.cursor.as_deref())?;
    let found = state.coordinator().store().approvals(&filter, after, limit).await?;
    let full = found.len() == limit as usize;
    let next = found.last().filter(|_| full).map(|last| last.id.to_string());
    Ok(Json(ApprovalPage { items: found.iter().map(ApprovalView::from).collect(), next }))
}

/// One question.
#[utoipa::path(
    get, path = "/v1/approvals/{id}", operation_id = "get_approval", tag = "approvals",
    params(("id" = String, Path, description = "`apr_…`")),
    responses((status = 200, description = "The question.", body = ApprovalView)),
)]
pub(super) async fn get(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<ApprovalId>,
) -> Result<Json<ApprovalView>, Refusal> {
    Ok(Json(ApprovalView::from(&asked(&state, &caller, Verb::Read, id).await?)))
}

/// Answer a question. The same answer again is a no-op; another one is refused.
#[utoipa::path(
    post, path = "/v1/approvals/{id}", operation_id = "answer_approval", tag = "approvals",
    params(("id" = String, Path, description = "`apr_…`")), request_body = AnswerRequest,
    responses((status = 200, description = "The question, answered.", body = ApprovalView)),
)]
pub(super) async fn answer(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<ApprovalId>,
    JsonBody(request): JsonBody<AnswerRequest>,
) -> Result<Json<ApprovalView>, Refusal> {
    let approval = asked(&state, &caller, Verb::Approve, id).await?;
    let AnswerRequest { verdict, lasting, message } = request;
    let reply = Reply { verdict: verdict.into(), lasting, by: caller.principal().clone(), message };
    let answered = state.coordinator().answer(approval.id, reply).await?;
    Ok(Json(ApprovalView::from(&answered)))
}

/// The question, if there is one in a session of this caller's.
async fn asked(state: &State, caller: &Caller, verb: Verb, id: ApprovalId) -> Result<Approval, Refusal> {
    let person = caller.person(verb)?;
    let found = state.coordinator().store().approval(id).await?;
    found.filter(|approval| person.owns(&approval.principal)).ok_or_else(|| Refusal::unknown("approval", id))
}
