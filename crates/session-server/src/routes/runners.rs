//! `/v1/runners`: who executes runs, and how one comes by its work.

use std::collections::HashMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use session_api::claims::ClaimView;
use session_api::runners::{
    ClaimFate, ClaimRequest, Claimed, Drain, Forgotten, HELD_MAX, Heartbeat, Heartbeaten, HeldRuns,
    OrderView, Orders, OrdersRequest, Register, Registered, RunnerList, RunnerView, TakeOver, WAIT_MAX,
};
use session_core::affinity::RunnerProfile;
use session_core::budget::{Budget, Usage};
use session_core::names::Label;
use session_core::ports::{ClaimedRun, Directive};
use session_core::run::{Epoch, StopMode};
use session_core::runner::RunnerRecord;
use session_core::token::{NewToken, Secret, Subject, Verb, Verbs};
use session_core::wake::Topic;
use session_core::{Fence, RunId, RunnerId, StoreError};
use session_manager::{Dispatcher as _, Holding};
use tokio::time::{Instant, sleep_until};

use crate::auth::{Caller, Person};
use crate::extract::{JsonBody, PathId, field};
use crate::problem::Refusal;
use crate::state::State;

/// The most executors and directories that a runner offers.
const OFFERS_MAX: usize = 1_000;

/// A runner has started: from now on its newest instance counts. One that shows no token of its own gets one.
#[utoipa::path(
    post, path = "/v1/runners", operation_id = "register_runner", tag = "runners", request_body = Register,
    responses((status = 201, description = "It is registered.", body = Registered)),
)]
pub(super) async fn register(
    Extract(state): Extract<State>,
    caller: Caller,
    JsonBody(request): JsonBody<Register>,
) -> Result<(StatusCode, Json<Registered>), Refusal> {
    let profile = profile(&request)?;
    let version = field("version", &request.version)?;
    let coordinator = state.coordinator();
    let known = coordinator.store().runner(profile.id).await?.is_some();
    let (person, is_itself) = caller.lets_in(profile.id, known)?;
    let secret = if is_itself { None } else { Some(issue(&state, person, &profile).await?.reveal()) };
    let record = coordinator.store().register(profile, version, coordinator.env().now()).await?;
    let lease_ms = u64::try_from(coordinator.lease().as_millis()).unwrap_or(u64::MAX);
    let registered = Registered { runner: view(&state, &record), lease_ms, secret };
    Ok((StatusCode::CREATED, Json(registered)))
}

fn profile(request: &Register) -> Result<RunnerProfile, Refusal> {
    let bounded = |name: &str, count: usize| {
        let refused =
            || Refusal::invalid(name, format!("there are {count}, at most {OFFERS_MAX} are allowed"));
        if count > OFFERS_MAX { Err(refused()) } else { Ok(()) }
    };
    bounded("executors", request.executors.len())?;
    bounded("project_dirs", request.project_dirs.as_ref().map_or(0, Vec::len))?;
    let directories = request.project_dirs.as_ref();
    if let Some(wrong) = directories.and_then(|dirs| dirs.iter().find(|dir| !is_directory(dir))) {
        return Err(Refusal::invalid("project_dirs", format!("{wrong:?} is no absolute path")));
    }
    let executors: Result<_, _> = request.executors.iter().map(|name| field("executors", name)).collect();
    Ok(RunnerProfile {
        id: field("id", &request.id)?,
        hostname: field("hostname", &request.hostname)?,
        executors: executors?,
        project_dirs: directories.map(|dirs| dirs.iter().map(Into::into).collect()),
    })
}

fn is_directory(text: &str) -> bool {
    text.starts_with('/') && text.len() < 4_096 && !text.contains('\0')
}

/// A token that speaks for this runner alone, and ends with the one that let it in.
async fn issue(state: &State, person: &Person, profile: &RunnerProfile) -> Result<Secret, Refusal> {
    let env = state.coordinator().env();
    let secret = Secret::new(env.secret());
    let new = NewToken {
        id: env.token_id(),
        digest: secret.digest(),
        name: Label::new("runner").map_err(|error| crate::problem::internal(&error))?,
        subject: Subject::Runner(profile.id),
        principal: person.principal.clone(),
        verbs: std::iter::once(Verb::Runner).collect::<Verbs>(),
        expires_at: None,
        parent: person.token.map(|(id, _)| id),
    };
    state.coordinator().store().issue(new, env.now()).await?;
    Ok(secret)
}

fn view(state: &State, record: &RunnerRecord) -> RunnerView {
    let coordinator = state.coordinator();
    RunnerView::new(record, record.is_live(coordinator.env().now(), coordinator.lease()))
}

/// Every runner, also those that were not seen lately.
#[utoipa::path(
    get, path = "/v1/runners", operation_id = "list_runners", tag = "runners",
    responses((status = 200, description = "All runners.", body = RunnerList)),
)]
pub(super) async fn list(
    Extract(state): Extract<State>,
    caller: Caller,
) -> Result<Json<RunnerList>, Refusal> {
    caller.person(Verb::Read)?;
    let found = state.coordinator().store().runners().await?;
    Ok(Json(RunnerList { items: found.iter().map(|record| view(&state, record)).collect() }))
}

/// One runner.
#[utoipa::path(
    get, path = "/v1/runners/{id}", operation_id = "get_runner", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")),
    responses((status = 200, description = "The runner.", body = RunnerView)),
)]
pub(super) async fn get(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
) -> Result<Json<RunnerView>, Refusal> {
    caller.person(Verb::Read)?;
    let found = state.coordinator().store().runner(id).await?;
    let record = found.ok_or_else(|| Refusal::unknown("runner", id))?;
    Ok(Json(view(&state, &record)))
}

/// Forget a runner: it is listed no more and gets no runs until it registers again. Refused while it holds a run.
#[utoipa::path(
    delete, path = "/v1/runners/{id}", operation_id = "forget_runner", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")),
    responses((status = 200, description = "It is forgotten.", body = Forgotten)),
)]
pub(super) async fn forget(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
) -> Result<Json<Forgotten>, Refusal> {
    caller.person(Verb::Admin)?;
    let bound = state.coordinator().store().forget(id).await?;
    Ok(Json(Forgotten { bound: bound.iter().map(ToString::to_string).collect() }))
}

/// Tell a runner to take no more runs, or to take some again. What it has it brings to its end.
#[utoipa::path(
    post, path = "/v1/runners/{id}/drain", operation_id = "drain_runner", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = Drain,
    responses((status = 200, description = "The runner.", body = RunnerView)),
)]
pub(super) async fn drain(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<Drain>,
) -> Result<Json<RunnerView>, Refusal> {
    if caller.runner(id).is_err() {
        caller.person(Verb::Admin)?;
    }
    let record = state.coordinator().store().drain(id, request.draining).await?;
    Ok(Json(view(&state, &record)))
}

/// The runner, which has just been seen. One whose instance counts no more is told so.
async fn seen(state: &State, caller: &Caller, id: RunnerId, instance: u32) -> Result<RunnerRecord, Refusal> {
    caller.runner(id)?;
    let now = state.coordinator().env().now();
    Ok(state.coordinator().store().seen(id, Epoch(instance), now).await?)
}

/// Until when a request waits: no longer than the server lets one take.
pub(super) fn until(state: &State, wait_ms: u64) -> Instant {
    let longest = state.limits().request_time / 3 * 2;
    Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MAX)).min(longest)
}

/// Wait for the next run that this runner may execute. The same `claim_id` again gets the same run, as long as it has not
/// begun.
#[utoipa::path(
    post, path = "/v1/runners/{id}/claim", operation_id = "claim_run", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = ClaimRequest,
    responses((status = 200, description = "The run, or that there was none.", body = Claimed)),
)]
pub(super) async fn claim(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<ClaimRequest>,
) -> Result<Json<Claimed>, Refusal> {
    let record = seen(&state, &caller, id, request.instance).await?;
    let claim_id = field("claim_id", &request.claim_id)?;
    let until = until(&state, request.wait_ms);
    let mut queue = state.coordinator().listen(Topic::Queue);
    loop {
        if let Some(claimed) = state.coordinator().claim_once(&record.profile, claim_id).await? {
            state.metrics().run_is(claimed.run.state.phase().code());
            return Ok(Json(Claimed { claim: Some(with_token(&state, &claimed).await?) }));
        }
        tokio::select! {
            () = queue.woken() => {}
            () = state.drain().cancelled() => return Ok(Json(Claimed { claim: None })),
            () = sleep_until(until) => return Ok(Json(Claimed { claim: None })),
        }
    }
}

/// A claim, with the token that the run's own processes show.
async fn with_token(state: &State, claimed: &ClaimedRun) -> Result<ClaimView, Refusal> {
    let token = state.coordinator().run_token(&claimed.session, &claimed.run).await?;
    Ok(ClaimView { token: Some(token), ..ClaimView::from(claimed) })
}

/// A sign of life: every claim that the runner holds is prolonged, and what becomes of each comes back.
#[utoipa::path(
    post, path = "/v1/runners/{id}/heartbeat", operation_id = "runner_heartbeat", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = Heartbeat,
    responses((status = 200, description = "What becomes of its claims.", body = Heartbeaten)),
)]
pub(super) async fn heartbeat(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<Heartbeat>,
) -> Result<Json<Heartbeaten>, Refusal> {
    bounded("claims", request.claims.len())?;
    let mut claims = Vec::with_capacity(request.claims.len());
    for claim in &request.claims {
        let fence = Fence { run: field("claims.run_id", &claim.run_id)?, epoch: Epoch(claim.epoch) };
        claims.push(Holding { fence, spending: claim.spending.unwrap_or_default().into() });
    }
    let record = seen(&state, &caller, id, request.instance).await?;
    let coordinator = state.coordinator();
    let held: HashMap<RunId, Epoch> =
        coordinator.store().in_flight(id).await?.iter().map(|run| (run.id, run.epoch)).collect();
    let (draining, asks_spending) = (record.draining, true);
    let mut beaten = Heartbeaten { draining, claims: Vec::new(), left: Vec::new(), asks_spending };
    for claim in claims {
        let ours = held.get(&claim.fence.run) == Some(&claim.fence.epoch);
        let (fate, left) = if ours { fate(coordinator.renew(claim).await) } else { (ClaimFate::Gone, None) };
        beaten.claims.push(fate);
        beaten.left.push(left.map(|left| Budget::of(left).into()));
    }
    Ok(Json(beaten))
}

fn bounded(name: &str, count: usize) -> Result<(), Refusal> {
    if count > HELD_MAX {
        return Err(Refusal::invalid(name, format!("there are {count}, at most {HELD_MAX} are allowed")));
    }
    Ok(())
}

/// What becomes of a claim, and what its run may use if that goes on.
fn fate(renewed: Result<Directive, StoreError>) -> (ClaimFate, Option<Usage>) {
    let fate = match renewed {
        Ok(Directive::Continue { left }) => return (ClaimFate::Continue, left),
        Ok(Directive::Stop(StopMode::Graceful)) => ClaimFate::Stop,
        Ok(Directive::Stop(StopMode::Kill)) => ClaimFate::Kill,
        Err(StoreError::Fenced { .. } | StoreError::Transition(_) | StoreError::UnknownRun(_)) => {
            ClaimFate::Gone
        }
        Err(error) => {
            tracing::warn!(%error, "a claim could not be prolonged");
            ClaimFate::Unknown
        }
    };
    (fate, None)
}

/// Wait for orders that the runner does not know.
#[utoipa::path(
    post, path = "/v1/runners/{id}/orders", operation_id = "runner_orders", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = OrdersRequest,
    responses((status = 200, description = "The orders that it did not know.", body = Orders)),
)]
pub(super) async fn orders(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<OrdersRequest>,
) -> Result<Json<Orders>, Refusal> {
    bounded("known", request.known.len())?;
    let mut known = Vec::with_capacity(request.known.len());
    for order in &request.known {
        known.push((field("known.run_id", &order.run_id)?, field("known.mode", &order.mode)?));
    }
    seen(&state, &caller, id, request.instance).await?;
    let wait = until(&state, request.wait_ms).saturating_duration_since(Instant::now());
    let ordered = tokio::select! {
        ordered = state.coordinator().orders(id, known, wait) => ordered?,
        () = state.drain().cancelled() => Vec::new(),
    };
    let items =
        ordered.iter().map(|(run, mode)| OrderView { run_id: run.to_string(), mode: mode.code().into() });
    Ok(Json(Orders { items: items.collect() }))
}

/// The runs that the runner holds, oldest first.
#[utoipa::path(
    get, path = "/v1/runners/{id}/runs", operation_id = "runner_runs", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")),
    responses((status = 200, description = "Its runs.", body = HeldRuns)),
)]
pub(super) async fn held(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
) -> Result<Json<HeldRuns>, Refusal> {
    caller.runner(id)?;
    let held = state.coordinator().held(id).await?;
    Ok(Json(HeldRuns { items: held.iter().map(ClaimView::from).collect() }))
}

/// Hold a run on behalf of the runner's new process, under another epoch: nothing that the old one still sends counts.
#[utoipa::path(
    post, path = "/v1/runners/{id}/take-over", operation_id = "take_over_run", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = TakeOver,
    responses((status = 200, description = "The run.", body = Claimed)),
)]
pub(super) async fn take_over(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<TakeOver>,
) -> Result<Json<Claimed>, Refusal> {
    let run = field("run_id", &request.run_id)?;
    seen(&state, &caller, id, request.instance).await?;
    let run = state.coordinator().take_over(run, id).await?;
    let session = state.coordinator().store().session(run.session).await?;
    let session = session.ok_or_else(|| Refusal::unknown("session", run.session))?;
    let claimed = ClaimedRun { session, run };
    Ok(Json(Claimed { claim: Some(with_token(&state, &claimed).await?) }))
}
