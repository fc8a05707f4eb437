//! `/v1/runs/{id}/…`: what whoever executes a run reports of it.

use axum::Json;
use axum::extract::State as Extract;
use serde_json::value::RawValue;
use session_api::reports::{ClaimRef, Completed, Ended, MESSAGE_MAX, Renewed, Started};
use session_api::runs::RunView;
use session_core::RunId;
use session_core::event::Payload;
use session_core::ports::RunProgress;
use session_core::run::{EndKind, Ending, Exit, ReasonCode};

use crate::auth::Caller;
use crate::extract::{JsonBody, PathId, field};
use crate::problem::Refusal;
use crate::state::State;

/// Workspace and executor are being made.
#[utoipa::path(
    post, path = "/v1/runs/{id}/starting", operation_id = "report_starting", tag = "reports",
    params(("id" = String, Path, description = "`run_…`")), request_body = ClaimRef,
    responses((status = 200, description = "The run.", body = RunView)),
)]
pub(super) async fn starting(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    JsonBody(report): JsonBody<ClaimRef>,
) -> Result<Json<RunView>, Refusal> {
    let (fence, _) = caller.claim(&state, id, Some(report.epoch)).await?;
    let run = state.coordinator().advance(fence, RunProgress::Starting).await?;
    Ok(told(&state, &run))
}

/// The executor is up.
#[utoipa::path(
    post, path = "/v1/runs/{id}/started", operation_id = "report_started", tag = "reports",
    params(("id" = String, Path, description = "`run_…`")), request_body = Started,
    responses((status = 200, description = "The run.", body = RunView)),
)]
pub(super) async fn started(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    JsonBody(report): JsonBody<Started>,
) -> Result<Json<RunView>, Refusal> {
    let sandbox = object("sandbox", report.sandbox.as_deref())?;
    let (fence, _) = caller.claim(&state, id, Some(report.epoch)).await?;
    let run = state.coordinator().advance(fence, RunProgress::Running { sandbox }).await?;
    Ok(told(&state, &run))
}

/// Prolong the claim, and learn whether somebody asked for the run's end.
#[utoipa::path(
    post, path = "/v1/runs/{id}/renew", operation_id = "renew_claim", tag = "reports",
    params(("id" = String, Path, description = "`run_…`")), request_body = ClaimRef,
    responses((status = 200, description = "The claim holds on.", body = Renewed)),
)]
pub(super) async fn renew(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    JsonBody(report): JsonBody<ClaimRef>,
) -> Result<Json<Renewed>, Refusal> {
    let (fence, _) = caller.claim(&state, id, Some(report.epoch)).await?;
    let directive = state.coordinator().renew(fence).await?;
    Ok(Json(directive.into()))
}

/// The run did what it was asked to.
#[utoipa::path(
    post, path = "/v1/runs/{id}/completed", operation_id = "report_completed", tag = "reports",
    params(("id" = String, Path, description = "`run_…`")), request_body = Completed,
    responses((status = 200, description = "The run.", body = RunView)),
)]
pub(super) async fn completed(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    JsonBody(report): JsonBody<Completed>,
) -> Result<Json<RunView>, Refusal> {
    let ending = Ending::completed(report.exit_code.map(|code| Exit::Code(code.into())));
    ended(&state, &caller, id, report.epoch, ending, report.result.as_deref()).await
}

/// The run failed.
#[utoipa::path(
    post, path = "/v1/runs/{id}/failed", operation_id = "report_failed", tag = "reports",
    params(("id" = String, Path, description = "`run_…`")), request_body = Ended,
    responses((status = 200, description = "The run.", body = RunView)),
)]
pub(super) async fn failed(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    JsonBody(report): JsonBody<Ended>,
) -> Result<Json<RunView>, Refusal> {
    let ending = ending(EndKind::Failed, &report)?;
    ended(&state, &caller, id, report.epoch, ending, report.result.as_deref()).await
}

/// The run was ended, because somebody or a limit asked for it.
#[utoipa::path(
    post, path = "/v1/runs/{id}/stopped", operation_id = "report_stopped", tag = "reports",
    params(("id" = String, Path, description = "`run_…`")), request_body = Ended,
    responses((status = 200, description = "The run.", body = RunView)),
)]
pub(super) async fn stopped(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunId>,
    JsonBody(report): JsonBody<Ended>,
) -> Result<Json<RunView>, Refusal> {
    let ending = ending(EndKind::Stopped, &report)?;
    ended(&state, &caller, id, report.epoch, ending, report.result.as_deref()).await
}

fn ending(kind: EndKind, report: &Ended) -> Result<Ending, Refusal> {
    let reason: ReasonCode = field("reason", &report.reason)?;
    let exit = match (report.exit_code, report.signal) {
        (Some(_), Some(_)) => return Err(Refusal::invalid("signal", "and `exit_code` exclude each other")),
        (Some(code), None) => Some(Exit::Code(code.into())),
        (None, Some(signal @ 1..=64)) => Some(Exit::Signal(signal.into())),
        (None, Some(signal)) => return Err(Refusal::invalid("signal", format!("{signal} is none"))),
        (None, None) => None,
    };
    let bytes = report.message.len();
    if bytes > MESSAGE_MAX || report.message.contains('\0') {
        let reason = format!("has {bytes} bytes; {MESSAGE_MAX} are allowed, and no NUL among them");
        return Err(Refusal::invalid("message", reason));
    }
    Ok(Ending::because(kind, reason, exit, report.message.clone()))
}

async fn ended(
    state: &State,
    caller: &Caller,
    id: RunId,
    epoch: u32,
    ending: Ending,
    result: Option<&RawValue>,
) -> Result<Json<RunView>, Refusal> {
    let result = object("result", result)?;
    let (fence, _) = caller.claim(state, id, Some(epoch)).await?;
    let run = state.coordinator().finish(fence, ending, result).await?;
    Ok(told(state, &run))
}

fn told(state: &State, run: &session_core::Run) -> Json<RunView> {
    state.metrics().run_is(run.state.phase().code());
    Json(RunView::from(run))
}

fn object(name: &str, raw: Option<&RawValue>) -> Result<Option<Payload>, Refusal> {
    let Some(raw) = raw else { return Ok(None) };
    let payload = Payload::parse(raw.get()).map_err(|error| Refusal::invalid(name, error.to_string()))?;
    if !raw.get().trim_start().starts_with('{') {
        return Err(Refusal::invalid(name, "is not a JSON object"));
    }
    Ok(Some(payload))
}
