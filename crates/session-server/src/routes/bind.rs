//! `/v1/sessions/{id}/bind`.

use axum::Json;
use axum::extract::State as Extract;
use session_api::sessions::{AffinityView, BindRequest};
use session_api::{Code, Problem};
use session_core::session::Binding;
use session_core::{RunId, SessionId};

use crate::auth::Caller;
use crate::extract::{JsonBody, PathId, field, optional};
use crate::problem::Refusal;
use crate::state::State;

/// Tie the session to a framework's own conversation, once, on behalf of a run that is in flight. The same again is a no-op.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/bind", operation_id = "bind_session", tag = "sessions",
    params(("id" = String, Path, description = "`ses_…`")), request_body = BindRequest,
    responses((status = 200, description = "It is bound.", body = AffinityView)),
)]
pub(super) async fn bind(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<SessionId>,
    JsonBody(request): JsonBody<BindRequest>,
) -> Result<Json<AffinityView>, Refusal> {
    let run = of_claim(&caller, id, optional("run_id", request.run_id.as_deref())?)?;
    let (fence, run) = caller.claim(&state, run, request.epoch).await?;
    if run.session != id {
        return Err(Refusal::unknown("session", id));
    }
    // Without a lease nobody holds the run: the store says what is in the way.
    let runner =
        run.state.lease().map_or_else(|| state.coordinator().env().runner_id(), |lease| lease.runner);
    let binding = Binding {
        runner: Some(runner),
        hostname: field("hostname", &request.hostname)?,
        executor: field("executor_type", &request.executor_type)?,
        executor_session_id: field("executor_session_id", &request.executor_session_id)?,
        project_dir: directory("project_dir", &request.project_dir)?,
        resumable: false,
    };
    state.coordinator().bind(fence, binding).await?;
    let session = state.coordinator().store().session(id).await?;
    let session = session.ok_or_else(|| Refusal::unknown("session", id))?;
    Ok(Json(AffinityView::from(&session)))
}

/// The run for which a caller speaks in this session: that of its token, or the one that it names.
pub(super) fn of_claim(caller: &Caller, session: SessionId, named: Option<RunId>) -> Result<RunId, Refusal> {
    match caller {
        Caller::Run(executing) => {
            let token = &executing.token;
            if token.session != session {
                return Err(Refusal::unknown("session", session));
            }
            match named {
                Some(named) if named != token.run => {
                    let detail = format!("the token speaks for {}", token.run);
                    Err(Refusal(Problem::new(Code::Mismatch, detail).at("run_id")))
                }
                Some(_) | None => Ok(token.run),
            }
        }
        Caller::Principal(_) => {
            named.ok_or_else(|| Refusal::invalid("run_id", "is missing: say on behalf of which run"))
        }
    }
}

/// An absolute path, as the field of this name gives it.
pub(super) fn directory(name: &str, text: &str) -> Result<camino::Utf8PathBuf, Refusal> {
    /// The longest path that Linux takes.
    const PATH_MAX: usize = 4_096;
    let path = camino::Utf8PathBuf::from(text);
    if path.is_absolute() && text.len() < PATH_MAX && !text.contains('\0') {
        return Ok(path);
    }
    Err(Refusal::invalid(name, format!("must be an absolute path of less than {PATH_MAX} bytes")))
}
