//! Whether the server lives and can work, its figures, and its description.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::http::header;
use axum::response::IntoResponse;
use session_api::Code;
use session_core::ports::{Page, SessionFilter};

use crate::auth::Caller;
use crate::metrics;
use crate::openapi;
use crate::problem::{Refusal, internal};
use crate::state::State;

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// The store answers, and the server is not ending.
pub(super) async fn readyz(Extract(state): Extract<State>) -> Result<&'static str, Refusal> {
    if state.drain().is_cancelled() {
        return Err(Refusal::new(Code::Draining, "this server is ending"));
    }
    state.coordinator().store().list(&SessionFilter::default(), &Page::first(1)).await?;
    Ok("ready\n")
}

/// For whoever is known here: figures are of all principals together.
pub(super) async fn metrics(
    Extract(state): Extract<State>,
    caller: Caller,
) -> Result<impl IntoResponse, Refusal> {
    let Caller::Principal(_) = caller else {
        return Err(Refusal::new(Code::Forbidden, "a run's token is for its own run alone"));
    };
    let text = state.metrics().text().map_err(|error| internal(&error))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

pub(super) async fn openapi() -> impl IntoResponse {
    /// Written once: it is the same for everybody, and who asks for it need not be known.
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&openapi::document()).unwrap_or_default().into());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.clone())
}
