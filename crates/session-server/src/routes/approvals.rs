//! `/v1/approvals`: the questions of agents.

use axum::Json;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode};
use session_api::approvals::{
    AnswerRequest, ApprovalPage, ApprovalQuery, ApprovalView, AskRequest, WithdrawRequest,
};
use session_core::approval::{Approval, NewApproval, Question, Reply};
use session_core::approvals::CommandSignature;
use session_core::env::whole_milliseconds;
use session_core::event::Payload;
use session_core::ports::ApprovalFilter;
use session_core::token::{SigningKey, Verb};
use session_core::{ApprovalId, Conflict, RunId, SessionId, StoreError};
use session_manager::DispatchError;

use super::bind::directory;
use super::runs::call;
use super::seen;
use crate::auth::Caller;
use crate::extract::{JsonBody, PathId, PathIds, Query, field, limit, optional};
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
    // Also the run that asked: it looks for the answer.
    caller.reads(&state).await?;
    let unknown = || Refusal::unknown("approval", id);
    let store = state.coordinator().store();
    let approval = store.approval(id).await?.ok_or_else(unknown)?;
    let session = store.session(approval.session).await?.filter(|session| caller.sees(session));
    session.ok_or_else(unknown).map(|_| Json(ApprovalView::from(&approval)))
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
    let approval = asked(&state, &caller, id).await?;
    let AnswerRequest { verdict, lasting, message } = request;
    if message.as_ref().is_some_and(|message| message.contains('\0')) {
        return Err(Refusal::invalid("message", "may have no NUL in it"));
    }
    let reply = Reply { verdict: verdict.into(), lasting, by: caller.principal().clone(), message };
    let answered = state.coordinator().answer(approval.id, reply).await?;
    Ok(Json(ApprovalView::from(&answered)))
}

/// The question, if there is one in a session of this caller's.
async fn asked(state: &State, caller: &Caller, id: ApprovalId) -> Result<Approval, Refusal> {
    let person = caller.person(Verb::Approve)?;
    let found = state.coordinator().store().approval(id).await?;
    found.filter(|approval| person.owns(&approval.principal)).ok_or_else(|| Refusal::unknown("approval", id))
}

/// Ask on behalf of a claim, and be told the question's id. The answer is looked for there, or comes into the session's log.
/// One that holds for the rest of the session is for whoever asks to remember.
#[utoipa::path(
    post, path = "/v1/runs/{id}/approvals", operation_id = "ask_approval", tag = "approvals",
    params(
        ("id" = String, Path, description = "`run_…`"),
        ("Idempotency-Key" = Option<String>, Header, description = "The caller's name for this call: the same call again makes nothing."),
    ),
    request_body = AskRequest,
    responses((status = 201, description = "The question.", body = ApprovalView)),
)]
pub(super) async fn ask(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<AskRequest>,
) -> Result<(StatusCode, Json<ApprovalView>), Refusal> {
    let question = question(&request)?;
    let named = optional("approval_id", request.approval_id.as_deref())?;
    if let (Caller::Run(_), Some(_)) = (&caller, named) {
        return Err(Refusal::invalid("approval_id", "is given by the service"));
    }
    let call = call(&headers)?;
    let (fence, run) = caller.claim(&state, id, request.epoch).await?;
    let env = state.coordinator().env();
    let id = match (named, &call) {
        (Some(named), _) => Some(named),
        (None, None) => None,
        (None, Some(call)) => {
            let key = state.coordinator().store().signing_key(SigningKey::new(env.secret())).await?;
            NewApproval::id_of_call(&key, &run, call)
        }
    };
    let new = NewApproval { id: id.unwrap_or_else(|| env.approval_id()), question };
    match (state.coordinator().ask(fence, new).await, call) {
        (Err(DispatchError::Store(StoreError::Conflict(Conflict::Exists(_)))), Some(call))
            if named.is_none() =>
        {
            Err(StoreError::from(Conflict::Reused(call)).into())
        }
        (asked, _) => Ok((StatusCode::CREATED, Json(ApprovalView::from(&asked?)))),
    }
}

fn question(request: &AskRequest) -> Result<Question, Refusal> {
    let command = match (&request.command, request.cwd.as_deref()) {
        (Some(argv), Some(cwd)) => Some(CommandSignature::new(argv.clone(), &directory("cwd", cwd)?)),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(Refusal::invalid("cwd", "and `command` go together"));
        }
    };
    let input = match &request.input {
        Some(raw) if !raw.get().trim_start().starts_with('{') => {
            return Err(Refusal::invalid("input", "is not a JSON object"));
        }
        Some(raw) => {
            Payload::parse(raw.get()).map_err(|error| Refusal::invalid("input", error.to_string()))?
        }
        None => Payload::from_value(&serde_json::json!({})),
    };
    let texts = command.iter().flat_map(CommandSignature::argv).chain([&request.title]);
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(Refusal::invalid("title", "and `command` may have no NUL in them"));
    }
    Ok(Question {
        tool: field("tool", &request.tool)?,
        title: request.title.clone(),
        command,
        input,
        deadline: request.deadline.map(whole_milliseconds),
    })
}

/// Take a question of a claim back. An answer that came first counts: the question is returned as it is now.
#[utoipa::path(
    post, path = "/v1/runs/{id}/approvals/{approval_id}/withdraw", operation_id = "withdraw_approval", tag = "approvals",
    params(
        ("id" = String, Path, description = "`run_…`"),
        ("approval_id" = String, Path, description = "`apr_…`"),
    ),
    request_body = WithdrawRequest,
    responses((status = 200, description = "The question as it is now.", body = ApprovalView)),
)]
pub(super) async fn withdraw(
    Extract(state): Extract<State>,
    caller: Caller,
    PathIds(id, approval): PathIds<RunId, ApprovalId>,
    JsonBody(request): JsonBody<WithdrawRequest>,
) -> Result<Json<ApprovalView>, Refusal> {
    let (fence, run) = caller.claim(&state, id, request.epoch).await?;
    let found = state.coordinator().store().approval(approval).await?;
    if found.is_none_or(|found| found.run != run.id) {
        return Err(Refusal::unknown("approval", approval));
    }
    let withdrawn = state.coordinator().withdraw(fence, approval, request.why.into()).await?;
    Ok(Json(ApprovalView::from(&withdrawn)))
}
