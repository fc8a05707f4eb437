//! `/v1/tools`.

use axum::Json;
use axum::extract::Path;
use axum::extract::State as Extract;
use session_api::tools::{ToolAnswer, ToolCall};

use crate::auth::Caller;
use crate::extract::JsonBody;
use crate::problem::Refusal;
use crate::state::State;

/// Have a tool of the scribe do something. What it refuses is its answer: the status is 200.
#[utoipa::path(
    post, path = "/v1/tools/{name}", operation_id = "call_tool", tag = "tools", request_body = ToolCall,
    params(("name" = String, Path, description = "`append_entry`, `read_recent`, `whoami`, …")),
    responses((status = 200, description = "What became of it.", body = ToolAnswer)),
)]
pub(super) async fn call(
    Extract(state): Extract<State>,
    caller: Caller,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<ToolCall>,
) -> Result<Json<ToolAnswer>, Refusal> {
    let bearer = caller.bearer()?;
    Ok(Json(state.host().tool(bearer, &name, request).await))
}
