//! The queue of runs: every change of a run's state, each within a transaction that holds its session.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use session_core::event::{EventKind, NewEvent, Payload};
use session_core::ids::{RunId, RunnerId, SessionId};
use session_core::ports::{RunProgress, Spent};
use session_core::run::{
    EndKind, Ending, Exit, Fence, Lease, ReasonCode, Run, RunPhase, RunState, RunStep, StopMode, StopOrder,
};
use session_core::wake::Topic;
use session_core::{StoreError, StoreResult, record};

use crate::conn::{Conn, Sql};
use crate::error::broken;
use crate::plan::{Claim, no_step};
use crate::rows::{RunRow, TextRow, id_of, place_key};
use crate::tx::Tx;
use crate::{approvals, families, ledger};

const RUN: Sql = sql!(concat!("SELECT ", run_columns!(""), " FROM runs WHERE id = $1"));

const LOCK_SESSION_OF: Sql =
    sql!("SELECT id FROM sessions WHERE id = (SELECT session_id FROM runs WHERE id = $1) FOR NO KEY UPDATE");

pub(crate) const LAST_OF: Sql = sql!(concat!(
    "SELECT ",
    run_columns!(""),
    " FROM runs WHERE session_id = $1 ORDER BY position DESC LIMIT $2"
));

pub(crate) const BEFORE: Sql = sql!(concat!(
    "SELECT ",
    run_columns!(""),
    " FROM runs WHERE session_id = $1 AND position < (SELECT position FROM runs WHERE id = $2 AND session_id = $1) \
     ORDER BY position DESC LIMIT $3"
));

pub(crate) const NOT_OVER: Sql = sql!(concat!(
    "SELECT ",
    run_columns!(""),
    " FROM runs WHERE session_id = $1 AND phase IN ('pending', 'claimed', 'starting', 'running')"
));

pub(crate) const HELD_BY: Sql =
    sql!(concat!("SELECT ", run_columns!(""), " FROM runs WHERE runner_id = $1 ORDER BY position"));

pub(crate) const HAS_WORK: Sql = sql!(
    "SELECT id FROM runs WHERE runner_id = $1 UNION ALL \
     SELECT id FROM runs WHERE phase = 'pending' AND place_key <> '' AND place_key = $2 LIMIT 1"
);

/// The last condition is for leases that ran out: whoever renewed one in between has won.
const STEP: Sql = sql!(
    "UPDATE runs SET phase = $2, epoch = $3, runner_id = $4, lease_until_ms = $5, started_at_ms = $6 \
     WHERE id = $1 AND phase = $7 AND epoch = $8 AND ($9 IS NULL OR lease_until_ms < $9)"
);

const END: Sql = sql!(
    "UPDATE runs SET phase = $2, runner_id = NULL, lease_until_ms = NULL, stop_mode = NULL, stop_at_ms = NULL, \
     ended_at_ms = $3, reason = $4, exit_code = $5, exit_signal = $6, message = $7 \
     WHERE id = $1 AND phase = $8 AND epoch = $9 AND ($10 IS NULL OR lease_until_ms < $10) \
     RETURNING (SELECT count(*) FROM run_waits w WHERE w.waits_for = runs.id), \
     (SELECT count(*) FROM approvals a WHERE a.session_id = runs.session_id AND a.run_id = runs.id \
     AND a.state = 'open'), \
     (SELECT s.parent FROM sessions s WHERE s.id = runs.session_id AND s.callback = 1), \
     (SELECT c.parent FROM callbacks c WHERE c.parent = runs.session_id AND c.state = 'due' LIMIT 1), \
     (SELECT a.parent FROM allotments a WHERE a.child = runs.session_id AND a.open = 1)"
);

const SET_STOP: Sql = sql!("UPDATE runs SET stop_mode = $2, stop_at_ms = $3 WHERE id = $1 AND epoch = $4");

pub(crate) const ONE_LESS: Sql = sql!(
    "UPDATE runs SET waiting_for = waiting_for - 1 WHERE phase = 'pending' AND waiting_for > 0 \
     AND id IN (SELECT run_id FROM run_waits WHERE waits_for = $1)"
);

pub(crate) const WAITING: Sql = sql!(
    "SELECT r.id FROM run_waits w JOIN runs r ON r.id = w.run_id \
     WHERE w.waits_for = $1 AND r.phase = 'pending' ORDER BY r.position"
);

/// Several reapers at once share the work.
pub(crate) const EXPIRED: Sql = Sql::Each {
    sqlite: "SELECT id FROM runs WHERE lease_until_ms IS NOT NULL AND lease_until_ms < $1 \
             ORDER BY lease_until_ms, position LIMIT $2",
    postgres: "SELECT r.id FROM runs r JOIN sessions s ON s.id = r.session_id \
               WHERE r.lease_until_ms IS NOT NULL AND r.lease_until_ms < $1 \
               ORDER BY r.lease_until_ms, r.position LIMIT $2 FOR NO KEY UPDATE OF s, r SKIP LOCKED",
};

const SET_SANDBOX: Sql = sql!("UPDATE runs SET sandbox = $2 WHERE id = $1");

/// As long as no run of it ever ran, nothing of it lies anywhere else.
const TRIED_BY: Sql = sql!(
    "UPDATE sessions SET workspace_runner = $2 WHERE id = $1 AND (workspace_runner IS NULL OR workspace_runner <> $2) \
     AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = sessions.id AND r.started_at_ms IS NOT NULL)"
);

const ON_RUNNER: Sql = sql!(
    "UPDATE sessions SET workspace_runner = $2, workspace_removed_at_ms = NULL \
     WHERE id = $1 AND (workspace_runner IS NULL OR workspace_runner <> $2 OR workspace_removed_at_ms IS NOT NULL)"
);

/// The end of a run is use of its session.
const USED: Sql = sql!("UPDATE sessions SET active_at_ms = $2 WHERE id = $1 AND state <> 'terminated'");

row! {
    /// How many runs wait for one, how many of its questions for an answer, and which session for its end; whether its
    /// session is to be told something, and who pays for it.
    WaitingRow { runs: i64, questions: i64, parent: Option<String>, is_told: Option<String>, payer: Option<String>, }
}

// Reading.

pub(crate) async fn run(conn: &mut Conn<'_>, id: RunId) -> StoreResult<Option<Run>> {
    conn.row::<RunRow>(&RUN, args![id]).await?.map(RunRow::value).transpose()
}

pub(crate) async fn runs(conn: &mut Conn<'_>, session: SessionId, limit: u32) -> StoreResult<Vec<Run>> {
    values(conn.rows(&LAST_OF, args![session, limit]).await?)
}

pub(crate) async fn runs_before(
    conn: &mut Conn<'_>,
    session: SessionId,
    before: RunId,
    limit: u32,
) -> StoreResult<Vec<Run>> {
    values(conn.rows(&BEFORE, args![session, before, limit]).await?)
}

pub(crate) async fn in_flight(conn: &mut Conn<'_>, runner: RunnerId) -> StoreResult<Vec<Run>> {
    values(conn.rows(&HELD_BY, args![runner]).await?)
}

pub(crate) async fn has_work(conn: &mut Conn<'_>, runner: RunnerId) -> StoreResult<bool> {
    let key = place_key(&session_core::affinity::Place::Runner(runner));
    Ok(conn.row::<TextRow>(&HAS_WORK, args![runner, key]).await?.is_some())
}

fn values(rows: Vec<RunRow>) -> StoreResult<Vec<Run>> {
    rows.into_iter().map(RunRow::value).collect()
}

// Steps that the changes below are made of.

/// Locks a run, with its session.
pub(crate) async fn locked(tx: &mut Tx<'_>, id: RunId) -> StoreResult<Run> {
    if tx.conn.is_postgres() {
        tx.conn.rows::<TextRow>(&LOCK_SESSION_OF, args![id]).await?;
    }
    run(&mut tx.conn, id).await?.ok_or(StoreError::UnknownRun(id))
}

/// Locks the run that this fence speaks for, if its claim still holds it.
pub(crate) async fn held(tx: &mut Tx<'_>, fence: Fence, step: &'static str) -> StoreResult<(Run, Lease)> {
    let run = locked(tx, fence.run).await?;
    let claim = Claim { session: run.session, epoch: run.epoch, phase: run.state.phase() };
    claim.admits(fence, step)?;
    match run.state.lease() {
        Some(lease) => Ok((run, lease)),
        None => Err(no_step(run.state.phase(), step)),
    }
}

/// Moves a run to another state that is not an end, and records it.
async fn step(
    tx: &mut Tx<'_>,
    mut run: Run,
    step: RunStep,
    lease: Option<Lease>,
    expired: Option<Timestamp>,
    now: Timestamp,
) -> StoreResult<Run> {
    let from = run.state.phase();
    let to = from.on(step)?;
    run.state = match (to, lease) {
        (RunPhase::Pending, _) => RunState::Pending,
        (RunPhase::Starting, Some(lease)) => RunState::Starting(lease),
        (RunPhase::Running, Some(lease)) => RunState::Running(lease),
        (
            RunPhase::Claimed
            | RunPhase::Starting
            | RunPhase::Running
            | RunPhase::Completed
            | RunPhase::Failed
            | RunPhase::Stopped
            | RunPhase::Lost,
            _,
        ) => return Err(no_step(from, step.name())),
    };
    if to == RunPhase::Running {
        run.started_at = Some(now);
    }
    let lease = run.state.lease();
    let values = args![
        run.id,
        to.code(),
        run.epoch.0,
        lease.map(|lease| lease.runner),
        lease.map(|lease| lease.until),
        run.started_at,
        from.code(),
        run.epoch.0,
        expired,
    ];
    tx.write_one(&STEP, values).await?;
    if to == RunPhase::Pending {
        approvals::close_those_of(tx, &run, now).await?;
    }
    tx.record(run.session, record::run_state(run.id, Some(from), to, None), now);
    Ok(run)
}

/// Ends a run, which is locked, and deals with those that wait for it.
pub(crate) async fn end(
    tx: &mut Tx<'_>,
    run: Run,
    ending: Ending,
    expired: Option<Timestamp>,
    now: Timestamp,
) -> StoreResult<Run> {
    end_with(tx, run, ending, None, expired, now).await
}

/// [`end`], with what the run came to.
async fn end_with(
    tx: &mut Tx<'_>,
    run: Run,
    ending: Ending,
    result: Option<&Payload>,
    expired: Option<Timestamp>,
    now: Timestamp,
) -> StoreResult<Run> {
    // A place in its crew may have become free, or a run that waited for it.
    tx.wake(Topic::Queue);
    let (ended, is_waited_for) = end_one(tx, run, ending, result, expired, now).await?;
    if !is_waited_for {
        return Ok(ended);
    }
    let mut failed = VecDeque::new();
    let phase = ended.state.phase();
    if phase == RunPhase::Completed {
        tx.write(&ONE_LESS, args![ended.id]).await?;
    } else {
        failed.push_back((ended.id, phase));
    }
    while let Some((id, phase)) = failed.pop_front() {
        for row in tx.conn.rows::<TextRow>(&WAITING, args![id]).await? {
            let next = locked(tx, id_of("runs", "id", &row.text)?).await?;
            // Another of those that it waited for may have failed it already.
            if next.state.phase() == RunPhase::Pending {
                let message =
                    format!("{id}, for which it waited, is {phase}; enqueue it again when that is mended");
                let ending = Ending::because(EndKind::Failed, ReasonCode::DependencyFailed, None, message);
                let (next, is_waited_for) = end_one(tx, next, ending, None, None, now).await?;
                if is_waited_for {
                    failed.push_back((next.id, next.state.phase()));
                }
            }
        }
    }
    Ok(ended)
}

/// Ends one run; says also whether others wait for it.
async fn end_one(
    tx: &mut Tx<'_>,
    mut run: Run,
    ending: Ending,
    result: Option<&Payload>,
    expired: Option<Timestamp>,
    now: Timestamp,
) -> StoreResult<(Run, bool)> {
    let from = run.state.phase();
    let to = from.on(RunStep::End(ending.kind))?;
    let (code, signal) = match ending.exit {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let values = args![
        run.id,
        to.code(),
        now,
        ending.reason.map(ReasonCode::code),
        code,
        signal,
        ending.message.as_str(),
        from.code(),
        run.epoch.0,
        expired,
    ];
    let ended = tx.write_rows::<WaitingRow>(&END, values).await?;
    let [WaitingRow { runs, questions, parent, is_told, payer }] = &ended[..] else {
        return Err(broken("a run that was to end changed meanwhile"));
    };
    if *questions > 0 {
        approvals::close_those_of(tx, &run, now).await?;
    }
    tx.write(&USED, args![run.session, now]).await?;
    tx.record(run.session, record::run_state(run.id, Some(from), to, Some(&ending)), now);
    run.stop = None;
    run.state = RunState::Ended { at: now, ending };
    if is_told.is_some() {
        tx.wake(Topic::Family);
    }
    if let Some(parent) = parent {
        families::owe(tx, &run, id_of("sessions", "parent", parent)?, result);
    }
    if payer.is_some() {
        tx.rested.push((run.session, now));
    }
    Ok((run, *runs > 0))
}

/// Records that the end of a run in flight is asked for. An order never becomes softer.
async fn order_stop(tx: &mut Tx<'_>, mut run: Run, mode: StopMode, now: Timestamp) -> StoreResult<Run> {
    if let Some(lease) = run.state.lease()
        && run.stop.is_none_or(|order| order.mode < mode)
    {
        tx.write_one(&SET_STOP, args![run.id, mode.code(), now, run.epoch.0]).await?;
        run.stop = Some(StopOrder { mode, at: now });
        tx.wake(Topic::Runner(lease.runner));
    }
    Ok(run)
}

/// Ends a run, which is locked, as somebody asked for.
async fn end_as_ordered(
    tx: &mut Tx<'_>,
    run: Run,
    message: &str,
    expired: Option<Timestamp>,
    now: Timestamp,
) -> StoreResult<Run> {
    let session = tx.session(run.session).await?;
    let over = session.is_some_and(|session| session.state.is_terminated());
    let reason = if over { ReasonCode::SessionTerminated } else { ReasonCode::StoppedByUser };
    end(tx, run, Ending::because(EndKind::Stopped, reason, None, message), expired, now).await
}

/// What the termination of a session, which is locked, means for its runs.
pub(crate) async fn end_those_of(tx: &mut Tx<'_>, session: SessionId, now: Timestamp) -> StoreResult<()> {
    let Some(run) = not_over(tx, session).await? else { return Ok(()) };
    if run.state.phase() == RunPhase::Pending {
        let message = "the session was terminated before the run began; start it in another session";
        let ending = Ending::because(EndKind::Stopped, ReasonCode::SessionTerminated, None, message);
        end(tx, run, ending, None, now).await?;
    } else {
        order_stop(tx, run, StopMode::Kill, now).await?;
    }
    Ok(())
}

/// Whether a session, which is locked, has a run that is not over.
pub(crate) async fn is_busy(tx: &mut Tx<'_>, session: SessionId) -> StoreResult<bool> {
    Ok(not_over(tx, session).await?.is_some())
}

/// The run of a session, which is locked, that is not over.
pub(crate) async fn not_over(tx: &mut Tx<'_>, session: SessionId) -> StoreResult<Option<Run>> {
    tx.conn.row::<RunRow>(&NOT_OVER, args![session]).await?.map(RunRow::value).transpose()
}

// Changes.

pub(crate) async fn advance(
    tx: &mut Tx<'_>,
    fence: Fence,
    to: &RunProgress,
    now: Timestamp,
) -> StoreResult<Run> {
    let progress = to.step();
    let (mut run, lease) = held(tx, fence, progress.name()).await?;
    if let RunProgress::Running { sandbox: Some(report) } = to {
        run.state.phase().on(progress)?;
        tx.write(&SET_SANDBOX, args![run.id, report.as_str()]).await?;
        tx.record(run.session, record::run_sandbox(run.id, report.clone()), now);
        run.sandbox = Some(report.clone());
    }
    let run = step(tx, run, progress, Some(lease), None, now).await?;
    let lies = if progress == RunStep::Ready { &ON_RUNNER } else { &TRIED_BY };
    tx.write(lies, args![run.session, lease.runner]).await?;
    Ok(run)
}

pub(crate) async fn finish(
    tx: &mut Tx<'_>,
    fence: Fence,
    ending: &Ending,
    result: Option<&Payload>,
    spent: Option<Spent>,
    now: Timestamp,
) -> StoreResult<Run> {
    let (run, _) = held(tx, fence, RunStep::End(ending.kind).name()).await?;
    if let Some(Spent { worst, actual }) = spent {
        ledger::settle(tx, run.session, worst, actual, Some(run.id), now).await?;
    }
    if let Some(payload) = result {
        let kind = EventKind::Result;
        let result = NewEvent { run: Some(run.id), kind, payload: payload.clone(), origin: None };
        tx.record(run.session, result, now);
    }
    end_with(tx, run, ending.clone(), result, None, now).await
}

pub(crate) async fn request_stop(
    tx: &mut Tx<'_>,
    id: RunId,
    mode: StopMode,
    now: Timestamp,
) -> StoreResult<Run> {
    let run = locked(tx, id).await?;
    if run.state.phase() == RunPhase::Pending {
        let message = "it was stopped before a runner took it";
        let ending = Ending::because(EndKind::Stopped, ReasonCode::StoppedByUser, None, message);
        return end(tx, run, ending, None, now).await;
    }
    order_stop(tx, run, mode, now).await
}

pub(crate) async fn requeue(tx: &mut Tx<'_>, fence: Fence, now: Timestamp) -> StoreResult<Run> {
    let (run, _) = held(tx, fence, RunStep::Requeue.name()).await?;
    if run.state.phase() == RunPhase::Running {
        return Err(no_step(RunPhase::Running, RunStep::Requeue.name()));
    }
    if run.stop.is_some() {
        return end_as_ordered(tx, run, "its end was asked for before it began", None, now).await;
    }
    tx.wake(Topic::Queue);
    step(tx, run, RunStep::Requeue, None, None, now).await
}

pub(crate) async fn reap(tx: &mut Tx<'_>, now: Timestamp, limit: u32) -> StoreResult<Vec<Run>> {
    let mut reaped = Vec::new();
    for row in tx.conn.rows::<TextRow>(&EXPIRED, args![now, limit]).await? {
        let run = locked(tx, id_of("runs", "id", &row.text)?).await?;
        // Under the lock it may turn out that it was renewed or ended meanwhile.
        if run.state.lease().is_some_and(|lease| lease.until < now) {
            reaped.push(reap_one(tx, run, now).await?);
        }
    }
    Ok(reaped)
}

async fn reap_one(tx: &mut Tx<'_>, run: Run, now: Timestamp) -> StoreResult<Run> {
    if run.stop.is_some() {
        let message = "its end was asked for, and its runner went silent";
        return end_as_ordered(tx, run, message, Some(now), now).await;
    }
    if run.state.phase() == RunPhase::Claimed {
        tx.wake(Topic::Queue);
        return step(tx, run, RunStep::Requeue, None, Some(now), now).await;
    }
    let message = "its runner went silent; resume the session to go on";
    let ending = Ending::because(EndKind::Lost, ReasonCode::LeaseExpired, None, message);
    end(tx, run, ending, Some(now), now).await
}

/// When a lease that begins now ends.
pub(crate) fn until(lease: SignedDuration, now: Timestamp) -> Timestamp {
    now.saturating_add(lease).unwrap_or(Timestamp::MAX)
}
