//! `/v1/runners/{id}/…`: what a runner reports of its runs and sessions, and what it asks about them.
//!
//! Every report can come twice, because an answer was lost: what was recorded under the same claim before is answered as if
//! it were new.

use axum::Json;
use axum::extract::State as Extract;
use session_api::Code;
use session_api::approvals::ApprovalView;
use session_api::claims::{ClaimedSession, Unreadable};
use session_api::events::APPEND_MAX;
use session_api::runners::{
    AnswerWait, Answered, Asked, Ended, Move, Report, Reported, ReportedEvent, RunnerReport, SessionChange,
    SessionRead, SessionReport, SessionRequest,
};
use session_core::approval::{NewApproval, Question};
use session_core::approvals::CommandSignature;
use session_core::error::StoreResult;
use session_core::event::Payload;
use session_core::ports::{Author, ResumeStep, RunProgress, Spent};
use session_core::run::{Ending, Epoch, RunPhase};
use session_core::session::Binding;
use session_core::state::Trigger;
use session_core::{
    Fence, ManagedSession, Run, RunId, RunnerId, Seq, SessionId, SessionState, StoreError, record,
};
use session_manager::Dispatcher as _;
use tokio::time::Instant;

use super::runners::until;
use crate::auth::Caller;
use crate::extract::{JsonBody, PathId, field};
use crate::problem::Refusal;
use crate::state::State;

/// The most events of one page of a log.
const PAGE: u32 = 1_000;

fn unreadable(error: Unreadable) -> Refusal {
    Refusal::invalid(error.field, error.reason)
}

/// The run, if this runner holds it, or held it last under this claim.
async fn of_claim(state: &State, runner: RunnerId, fence: Fence) -> Result<Run, Refusal> {
    let found = state.coordinator().store().run(fence.run).await?;
    let run = found.ok_or_else(|| Refusal::unknown("run", fence.run))?;
    match run.state.lease() {
        Some(lease) if lease.runner == runner => Ok(run),
        None if run.epoch == fence.epoch => Ok(run),
        Some(_) | None => {
            Err(Refusal::new(Code::StaleEpoch, format!("{} belongs to another claim", fence.run)))
        }
    }
}

/// What happened in a run.
#[utoipa::path(
    post, path = "/v1/runners/{id}/reports", operation_id = "report_run", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = RunnerReport,
    responses((status = 200, description = "It is recorded.", body = Reported)),
)]
pub(super) async fn report(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(report): JsonBody<RunnerReport>,
) -> Result<Json<Reported>, Refusal> {
    caller.runner(id)?;
    let fence = Fence { run: field("run_id", &report.run_id)?, epoch: Epoch(report.epoch) };
    let run = of_claim(&state, id, fence).await?;
    let coordinator = state.coordinator();
    let mut reported = Reported::default();
    match report.what {
        Report::Starting => advance(&state, fence, RunProgress::Starting).await?,
        Report::Running { sandbox } => {
            let sandbox = sandbox.map(|raw| object("what.running.sandbox", raw.get())).transpose()?;
            advance(&state, fence, RunProgress::Running { sandbox }).await?;
        }
        Report::Bound(binding) => {
            let binding = Binding::try_from(&binding).map_err(unreadable)?;
            if binding.runner != Some(id) {
                return Err(Refusal::new(Code::Mismatch, "a runner binds to itself alone"));
            }
            coordinator.bind(fence, binding).await?;
        }
        Report::Resumable => coordinator.resumable(fence).await?,
        Report::Appended(events) => append(&state, fence, &events).await?,
        Report::Ended(ended) => end(&state, fence, &ended).await?,
        Report::GivenBack => match coordinator.give_back(fence).await {
            Ok(run) => state.metrics().run_is(run.state.phase().code()),
            Err(StoreError::Transition(_)) if !run.state.phase().is_in_flight() => {}
            Err(error) => return Err(error.into()),
        },
        Report::Asked(asked) => {
            let approval = coordinator.ask(fence, question(&asked)?).await?;
            reported.approval = Some(ApprovalView::from(&approval));
        }
        Report::Withdrawn(approval, why) => {
            let (approval, why) = (field("what.withdrawn", &approval)?, field("what.withdrawn", &why)?);
            let approval = coordinator.withdraw(fence, approval, why).await?;
            reported.approval = Some(ApprovalView::from(&approval));
        }
    }
    Ok(Json(reported))
}

async fn now_is(state: &State, fence: Fence) -> StoreResult<Option<Run>> {
    let found = state.coordinator().store().run(fence.run).await?;
    Ok(found.filter(|run| run.epoch == fence.epoch))
}

async fn advance(state: &State, fence: Fence, to: RunProgress) -> Result<(), Refusal> {
    let wanted = match &to {
        RunProgress::Starting => RunPhase::Starting,
        RunProgress::Running { .. } => RunPhase::Running,
    };
    match state.coordinator().advance(fence, to).await {
        Ok(run) => state.metrics().run_is(run.state.phase().code()),
        Err(error @ StoreError::Transition(_)) => {
            let phase = now_is(state, fence).await?.map(|run| run.state.phase());
            if phase != Some(wanted) && phase != Some(RunPhase::Running) {
                return Err(error.into());
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn append(state: &State, fence: Fence, events: &[ReportedEvent]) -> Result<(), Refusal> {
    let count = events.len();
    if count == 0 || count > APPEND_MAX {
        let reason = format!("there are {count}, 1 to {APPEND_MAX} are allowed");
        return Err(Refusal::invalid("what.appended", reason));
    }
    let batch: Result<Vec<_>, _> = events.iter().map(|event| event.read(fence.run)).collect();
    let batch = batch.map_err(unreadable)?;
    if batch.iter().filter_map(|event| event.origin.as_ref()).any(|origin| i64::try_from(origin.seq).is_err())
    {
        return Err(Refusal::invalid("what.appended.producer_seq", "is larger than 9223372036854775807"));
    }
    Ok(state.coordinator().append(fence, batch).await?)
}

/// The end of a run with what it used: the end comes once, so what was used is booked once.
async fn end(state: &State, fence: Fence, ended: &Ended) -> Result<(), Refusal> {
    let ending = Ending::try_from(&ended.ending).map_err(unreadable)?;
    let result = ended.result.as_ref().map(|raw| object("what.ended.result", raw.get())).transpose()?;
    let kind = ending.kind;
    let spent = ended.settled.map(|spent| Spent { worst: spent.worst.into(), actual: spent.actual.into() });
    let coordinator = state.coordinator();
    // Past the coordinator, to which the same end is as good again: what was used is booked with the first one alone.
    let now = coordinator.env().now();
    match coordinator.store().finish_and_settle(fence, ending, result, spent, now).await {
        Ok(run) => {
            state.metrics().run_is(run.state.phase().code());
            Ok(())
        }
        Err(error @ StoreError::Transition(_)) => {
            let run = now_is(state, fence).await?;
            let same = run.is_some_and(|run| run.ended().is_some_and(|(_, ending)| ending.kind == kind));
            if same { Ok(()) } else { Err(error.into()) }
        }
        Err(error) => Err(error.into()),
    }
}

fn object(name: &str, text: &str) -> Result<Payload, Refusal> {
    let payload = Payload::parse(text).map_err(|error| Refusal::invalid(name, error.to_string()))?;
    if !text.trim_start().starts_with('{') {
        return Err(Refusal::invalid(name, "is not a JSON object"));
    }
    Ok(payload)
}

fn question(asked: &Asked) -> Result<NewApproval, Refusal> {
    let command = asked.command.as_ref();
    Ok(NewApproval {
        id: field("what.asked.id", &asked.id)?,
        question: Question {
            tool: field("what.asked.tool", &asked.tool)?,
            title: asked.title.clone(),
            command: command.map(|(argv, cwd)| CommandSignature::new(argv.clone(), cwd.as_str().into())),
            input: Payload::parse(asked.input.get())
                .map_err(|error| Refusal::invalid("what.asked.input", error.to_string()))?,
            deadline: asked.deadline,
        },
    })
}

/// The session, if it is this runner's to speak of: it holds a run of it, or the session's directory lies there.
async fn of_runner(state: &State, runner: RunnerId, id: SessionId) -> Result<ManagedSession, Refusal> {
    let store = state.coordinator().store();
    let session = store.session(id).await?.ok_or_else(|| Refusal::unknown("session", id))?;
    if session.workspace.runner == Some(runner) {
        return Ok(session);
    }
    let holds = |run: &Run| run.state.lease().is_some_and(|lease| lease.runner == runner);
    if store.runs(id, 16).await?.iter().any(holds) {
        return Ok(session);
    }
    Err(Refusal::unknown("session", id))
}

/// What happened to a session that lives on the runner.
#[utoipa::path(
    post, path = "/v1/runners/{id}/session-reports", operation_id = "report_session", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = SessionReport,
    responses((status = 200, description = "What came of it.", body = Reported)),
)]
pub(super) async fn session_report(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(report): JsonBody<SessionReport>,
) -> Result<Json<Reported>, Refusal> {
    caller.runner(id)?;
    let session = of_runner(&state, id, field("session_id", &report.session_id)?).await?.id;
    let store = state.coordinator().store();
    let now = state.coordinator().env().now();
    let done = match report.what {
        SessionChange::Moved(to) => moved(store.transition(session, trigger(to), now).await, to),
        SessionChange::Resuming(step) => {
            let step: ResumeStep = field("what.resuming", &step)?;
            store.append(Author::Session(session), vec![record::session_resume(step)], now).await.map(drop)
        }
        SessionChange::Reserve(worst) => store.reserve(session, worst.into(), now).await.map(drop),
        SessionChange::Forfeit => store.forfeit(session, now).await.map(drop),
    };
    let mut reported = Reported::default();
    match done {
        Ok(()) => {}
        Err(StoreError::Exhausted(exhausted)) => reported.exhausted = Some((&exhausted).into()),
        Err(error @ StoreError::Busy { .. }) => reported.busy = Some(error.to_string()),
        Err(error @ (StoreError::Transition(_) | StoreError::Conflict(_))) => {
            reported.superseded = Some(error.to_string());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(Json(reported))
}

fn trigger(to: Move) -> Trigger {
    let ttl = jiff::SignedDuration::from_millis;
    match to {
        Move::Activity => Trigger::Activity,
        Move::IdleTimeout => Trigger::IdleTimeout,
        Move::Suspended(ttl_ms) => Trigger::Suspend { ttl: ttl(ttl_ms) },
        Move::GraceElapsed(ttl_ms) => Trigger::GraceElapsed { ttl: ttl(ttl_ms) },
        Move::Resume => Trigger::Resume,
    }
}

/// A move to where the session is already was reported before.
fn moved(answer: StoreResult<ManagedSession>, to: Move) -> StoreResult<()> {
    let there = match to {
        Move::Activity | Move::Resume => SessionState::Active.name(),
        Move::IdleTimeout => "idle",
        Move::Suspended(_) | Move::GraceElapsed(_) => "suspended",
    };
    match answer {
        Ok(_) => Ok(()),
        Err(StoreError::Transition(error)) if error.from == there => Ok(()),
        Err(error) => Err(error),
    }
}

/// Wait for the answer to a question that a run of this runner asked.
#[utoipa::path(
    post, path = "/v1/runners/{id}/answer", operation_id = "await_answer", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = AnswerWait,
    responses((status = 200, description = "The question as it is now.", body = Answered)),
)]
pub(super) async fn answer(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<AnswerWait>,
) -> Result<Json<Answered>, Refusal> {
    caller.runner(id)?;
    let (run, approval): (RunId, _) =
        (field("run_id", &request.run_id)?, field("approval_id", &request.approval_id)?);
    let found = state.coordinator().store().run(run).await?;
    let run = found.ok_or_else(|| Refusal::unknown("run", run))?;
    if run.state.lease().is_some_and(|lease| lease.runner != id) {
        return Err(Refusal::unknown("run", run.id));
    }
    let wait = until(&state, request.wait_ms).saturating_duration_since(Instant::now());
    let coordinator = state.coordinator();
    let found = tokio::select! {
        found = coordinator.answered(run.fence(), run.session, approval, wait) => found?,
        () = state.drain().cancelled() => coordinator.store().approval(approval).await?,
    };
    let found = found.filter(|approval| approval.run == run.id);
    Ok(Json(Answered { approval: found.as_ref().map(ApprovalView::from) }))
}

/// Read a session that lives on the runner, and a page of its log where that is asked for.
#[utoipa::path(
    post, path = "/v1/runners/{id}/session", operation_id = "runner_session", tag = "runners",
    params(("id" = String, Path, description = "`rnr_…`")), request_body = SessionRequest,
    responses((status = 200, description = "The session.", body = SessionRead)),
)]
pub(super) async fn session(
    Extract(state): Extract<State>,
    caller: Caller,
    PathId(id): PathId<RunnerId>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<Json<SessionRead>, Refusal> {
    caller.runner(id)?;
    let session = of_runner(&state, id, field("session_id", &request.session_id)?).await?;
    let mut events = Vec::new();
    if let Some(after) = request.after {
        let after =
            i64::try_from(after).map_err(|_| Refusal::invalid("after", "is no number of an event"))?;
        events = super::events::page(&state, session.id, Seq(after.unsigned_abs()), PAGE).await?.items;
    }
    Ok(Json(SessionRead { session: ClaimedSession::from(&session), events }))
}
