//! `/v1/tokens`.

use axum::Json;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode};
use session_api::Code;
use session_api::sessions::PageQuery;
use session_api::tokens::{CreateToken, TokenCreated, TokenPage, TokenView};
use session_core::ids::TokenId;
use session_core::names::IdempotencyKey;
use session_core::token::{NewToken, Secret, SigningKey, Subject, TokenRecord, Verb, Verbs, weaken};
use session_core::{Conflict, StoreError};

use super::runs::call;
use crate::auth::{Caller, Person, forbidden};
use crate::extract::{JsonBody, PathId, Query, field, limit, optional};
use crate::problem::Refusal;
use crate::state::State;

/// Issue a token, never a stronger one than that with which it is asked for. Its secret is shown this once.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens", request_body = CreateToken,
    params(("Idempotency-Key" = Option<String>, Header, description = "The caller's name for this call: the same call again makes nothing, and shows the same secret.")),
    responses((status = 201, description = "The token.", body = TokenCreated)),
)]
pub(super) async fn create(
    Extract(state): Extract<State>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateToken>,
) -> Result<(StatusCode, Json<TokenCreated>), Refusal> {
    let person = person(&caller)?;
    let verbs: Result<Vec<Verb>, _> = request.verbs.iter().map(|verb| field("verbs", verb)).collect();
    let verbs: Verbs = verbs?.into_iter().collect();
    if verbs == Verbs::NONE {
        return Err(Refusal::invalid("verbs", "names none: a token that is for nothing lets nobody in"));
    }
    let runner = optional("runner_id", request.runner_id.as_deref())?;
    let principal = optional("principal", request.principal.as_deref())?;
    let env = state.coordinator().env();
    if request.expires_at.is_some_and(|end| end <= env.now()) {
        return Err(Refusal::invalid("expires_at", "is over: such a token would never count"));
    }
    let (shown, call) = (person.token.map(|(id, _)| id), call(&headers)?);
    let secret = match &call {
        None => Secret::new(env.secret()),
        Some(call) => {
            let key = state.coordinator().store().signing_key(SigningKey::new(env.secret())).await?;
            Secret::of_call(&key, &person.principal, shown, call)
        }
    };
    let new = NewToken {
        id: env.token_id(),
        digest: secret.digest(),
        name: field("name", &request.name)?,
        subject: runner.map_or(Subject::Principal, Subject::Runner),
        principal: principal.unwrap_or_else(|| person.principal.clone()),
        verbs,
        expires_at: request.expires_at.map(session_core::env::whole_milliseconds),
        parent: shown,
    };
    let token = match (state.coordinator().store().issue(new.clone(), env.now()).await, call) {
        (Err(StoreError::Conflict(Conflict::Exists(_))), Some(call)) => {
            made_before(&state, person, new, call).await?
        }
        (issued, _) => issued?,
    };
    let created = TokenCreated { secret: secret.reveal(), token: TokenView::from(&token) };
    Ok((StatusCode::CREATED, Json(created)))
}

/// The token that the same call made before, as long as it is good for something.
async fn made_before(
    state: &State,
    person: &Person,
    new: NewToken,
    call: IdempotencyKey,
) -> Result<TokenRecord, Refusal> {
    let store = state.coordinator().store();
    let shown = match person.token {
        Some((_, digest)) => store.token(digest).await?,
        None => None,
    };
    // As it was issued: it ends with that with which it is asked for, if that is earlier.
    let new = shown.and_then(|shown| weaken(&shown, new.clone()).ok()).unwrap_or(new);
    let is_it = |made: &TokenRecord| {
        (&made.name, made.subject, &made.principal, made.verbs, made.expires_at)
            == (&new.name, new.subject, &new.principal, new.verbs, new.expires_at)
    };
    let found = store.token(new.digest).await?.filter(is_it);
    let found = found.ok_or_else(|| StoreError::from(Conflict::Reused(call)))?;
    if found.is_valid(state.coordinator().env().now()) {
        return Ok(found);
    }
    let detail = format!(
        "the token {} that this call made was revoked, or its time is over: ask for another one under another Idempotency-Key",
        found.id
    );
    Err(Refusal::new(Code::WrongState, detail))
}

/// Tokens of the caller, or with the verb `admin` of everybody, newest first.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens", params(PageQuery),
    responses((status = 200, description = "One page.", body = TokenPage)),
)]
pub(super) async fn list(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Result<Json<TokenPage>, Refusal> {
    let person = person(&caller)?;
    let limit = limit(query.limit, 50)?;
    let after = optional("cursor", query.cursor.as_deref())?;
    let of = person.listed(None);
    let found = state.coordinator().store().tokens(of.as_ref(), after, limit).await?;
    let full = found.len() == limit as usize;
    let next = found.last().filter(|_| full).map(|last| last.id.to_string());
    Ok(Json(TokenPage { items: found.iter().map(TokenView::from).collect(), next }))
}

/// Revoke a token, and all that were issued with it: none that is for more than the one with which it is asked for. Again is
/// a no-op.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", operation_id = "revoke_token", tag = "tokens",
    params(("id" = String, Path, description = "`tok_…`")),
    responses((status = 200, description = "The token, revoked.", body = TokenView)),
)]
pub(super) async fn revoke(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<TokenId>,
) -> Result<Json<TokenView>, Refusal> {
    let person = person(&caller)?;
    let found = found(&state, person, id).await?;
    if !person.covers(&found) {
        return Err(forbidden(&format!("the token {id} is for more than the one that is shown")));
    }
    let now = state.coordinator().env().now();
    let revoked = state.coordinator().store().revoke(found.id, now).await?;
    Ok(Json(TokenView::from(&revoked)))
}

/// Whoever has a token of its own may issue weaker ones.
fn person(caller: &Caller) -> Result<&Person, Refusal> {
    match caller {
        Caller::Principal(person) => Ok(person),
        Caller::Run(_) => caller.person(Verb::Admin),
    }
}

/// The token, if there is one that is this caller's. Its place in the list is its id.
async fn found(state: &State, person: &Person, id: TokenId) -> Result<TokenRecord, Refusal> {
    let of = person.listed(None);
    let mut after = None;
    loop {
        let page = state.coordinator().store().tokens(of.as_ref(), after, 1_000).await?;
        let Some(last) = page.last().map(|last| last.id) else { return Err(Refusal::unknown("token", id)) };
        if let Some(token) = page.into_iter().find(|token| token.id == id) {
            return Ok(token);
        }
        after = Some(last);
    }
}
