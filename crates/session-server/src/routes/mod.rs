//! The routes: each reads its request, asks the coordinator or the store, and answers with a type of the wire.

mod approvals;
mod bind;
mod events;
mod health;
mod plan;
mod reports;
mod runner_reports;
mod runners;
mod runs;
mod sessions;
mod tokens;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware;
use session_api::Code;
use session_core::{ManagedSession, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::guard;
use crate::problem::Refusal;
use crate::state::State;

/// The whole API.
pub fn router(state: State) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .route(session_api::paths::HEALTHZ, axum::routing::get(health::healthz))
        .route(session_api::paths::READYZ, axum::routing::get(health::readyz))
        .route(session_api::paths::METRICS, axum::routing::get(health::metrics))
        .route(session_api::paths::OPENAPI, axum::routing::get(health::openapi))
        .fallback(no_such_path)
        .method_not_allowed_fallback(|| async { StatusCode::METHOD_NOT_ALLOWED })
        // Bodies are bounded where they are read, by the state's limits.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(state.clone(), guard::watch))
        .with_state(state)
}

/// The routes with their description.
pub(crate) fn described() -> OpenApiRouter<State> {
    OpenApiRouter::default()
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::stop))
        .routes(routes!(reports::starting))
        .routes(routes!(reports::started))
        .routes(routes!(reports::renew))
        .routes(routes!(reports::completed))
        .routes(routes!(reports::failed))
        .routes(routes!(reports::stopped))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::get, sessions::delete))
        .routes(routes!(sessions::status))
        .routes(routes!(sessions::result))
        .routes(routes!(sessions::stop))
        .routes(routes!(sessions::affinity))
        .routes(routes!(sessions::children))
        .routes(routes!(bind::bind))
        .routes(routes!(events::append, events::read))
        .routes(routes!(approvals::of_session))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get, approvals::answer))
        .routes(routes!(approvals::ask))
        .routes(routes!(approvals::withdraw))
        .routes(routes!(runners::register, runners::list))
        .routes(routes!(runners::get, runners::forget))
        .routes(routes!(runners::drain))
        .routes(routes!(runners::claim))
        .routes(routes!(runners::heartbeat))
        .routes(routes!(runners::orders))
        .routes(routes!(runners::held))
        .routes(routes!(runners::take_over))
        .routes(routes!(runner_reports::report))
        .routes(routes!(runner_reports::session_report))
        .routes(routes!(runner_reports::answer))
        .routes(routes!(runner_reports::session))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
}

async fn no_such_path(request: Request) -> Refusal {
    Refusal::new(Code::NoSuchPath, format!("the API has no path {}", request.uri().path()))
}

/// The session, if there is one that this caller may see.
async fn seen(state: &State, caller: &Caller, id: SessionId) -> Result<ManagedSession, Refusal> {
    caller.reads(state).await?;
    let found = state.coordinator().store().session(id).await?;
    found.filter(|session| caller.sees(session)).ok_or_else(|| Refusal::unknown("session", id))
}
