//! The routes: each reads its request, asks the coordinator or the store, and answers with a type of the wire.

mod acting;
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
mod tools;

use std::convert::Infallible;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use session_api::Code;
use session_core::{ManagedSession, SessionId};
use tower::Service;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::acting::Acting;
use crate::auth::Caller;
use crate::guard;
use crate::problem::Refusal;
use crate::state::State;

/// The whole API.
pub fn router(state: State) -> Router {
    around(Router::new(), state)
}

/// The same with a service for agents at [`paths::SCRIBE`](session_api::paths::SCRIBE): each of its requests was let in as one
/// of the API, and has the [`Bearer`](session_core::token::Bearer) whose it is among the extensions of its head.
pub fn router_with<S>(state: State, scribe: S) -> Router
where
    S: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    let beside = Router::new()
        .route_service(session_api::paths::SCRIBE, scribe)
        .route_layer(middleware::from_fn_with_state(state.clone(), known));
    around(beside, state)
}

/// Lets a request for a service beside the routes in, as somebody.
async fn known(
    Extract(_): Extract<State>,
    caller: Caller,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    request.extensions_mut().insert(caller.bearer()?);
    Ok(next.run(request).await)
}

fn around(beside: Router<State>, state: State) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .merge(beside)
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
        .routes(routes!(tools::call))
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
