//! The runners that there are, and the runs that none of them takes.

use jiff::{SignedDuration, Timestamp};
use session_core::affinity::RunnerProfile;
use session_core::ids::{RunnerId, SessionId};
use session_core::names::ProgramVersion;
use session_core::ports::BOUND_MAX;
use session_core::run::{Epoch, Run, RunPhase};
use session_core::runner::{RunnerRecord, SEEN_EVERY, unmatched};
use session_core::session::ManagedSession;
use session_core::wake::Topic;
use session_core::{Conflict, StoreError, StoreResult};

use crate::conn::{Conn, Sql};
use crate::error::broken;
use crate::rows::{RunnerRow, TextRow, id_of};
use crate::runs;
use crate::tx::Tx;

macro_rules! runner {
    ($condition:literal) => {
        concat!("SELECT ", runner_columns!(""), " FROM runners WHERE ", $condition)
    };
}

const RUNNER: Sql = sql!(runner!("id = $1 AND forgotten = 0"));

/// They are few, and all of them are shown.
const RUNNERS: Sql = sql!(runner!("forgotten = 0 ORDER BY id"));

const REGISTER: Sql = sql!(concat!(
    "INSERT INTO runners (id, hostname, executors, project_dirs, version, instance, registered_at_ms, seen_at_ms) \
     VALUES ($1, $2, $3, $4, $5, 1, $6, $6) ON CONFLICT (id) DO UPDATE SET hostname = excluded.hostname, \
     executors = excluded.executors, project_dirs = excluded.project_dirs, version = excluded.version, \
     instance = runners.instance + 1, forgotten = 0, registered_at_ms = excluded.registered_at_ms, \
     seen_at_ms = excluded.seen_at_ms RETURNING ",
    runner_columns!("")
));

const SEEN: Sql =
    sql!("UPDATE runners SET seen_at_ms = $2 WHERE id = $1 AND instance = $3 AND forgotten = 0");

const DRAIN: Sql = sql!(concat!(
    "UPDATE runners SET draining = $2 WHERE id = $1 AND forgotten = 0 RETURNING ",
    runner_columns!("")
));

/// When it registers again it is not draining: nobody told that runner to.
const FORGET: Sql =
    sql!("UPDATE runners SET forgotten = 1, draining = 0 WHERE id = $1 AND forgotten = 0 RETURNING id");

pub(crate) const TAKES_NOTHING: Sql =
    sql!("SELECT id FROM runners WHERE id = $1 AND (draining = 1 OR forgotten = 1)");

pub(crate) const HOLDS: Sql = sql!("SELECT id FROM runs WHERE runner_id = $1 ORDER BY position LIMIT 1");

/// Those whose workspace lies there, in one state.
macro_rules! with_files {
    ($state:literal) => {
        concat!(
            " UNION SELECT id, created_at_ms FROM sessions WHERE workspace_runner = $1 AND state = '",
            $state,
            "' AND workspace_removed_at_ms IS NULL"
        )
    };
}

pub(crate) const BOUND: Sql = sql!(concat!(
    "SELECT id FROM (SELECT id, created_at_ms FROM sessions \
     WHERE binding_runner = $1 AND binding_runner IS NOT NULL AND state <> 'terminated'",
    with_files!("active"),
    with_files!("idle"),
    with_files!("suspended"),
    ") there ORDER BY created_at_ms DESC, id DESC LIMIT $2"
));

/// The last condition: a runner that registers again has its files again.
pub(crate) const FILES_OF: Sql = sql!(
    "SELECT workspace_runner FROM sessions WHERE id = $1 AND workspace_removed_at_ms IS NULL \
     AND EXISTS (SELECT 1 FROM runs r WHERE r.session_id = sessions.id AND r.started_at_ms IS NOT NULL) \
     AND NOT EXISTS (SELECT 1 FROM runners w WHERE w.id = sessions.workspace_runner AND w.forgotten = 1)"
);

/// Several coordinators at once share the work.
pub(crate) const UNCLAIMED: Sql = Sql::Each {
    sqlite: "SELECT id FROM runs WHERE phase = 'pending' AND waiting_for = 0 AND claim_by_ms IS NOT NULL \
             AND claim_by_ms < $1 ORDER BY claim_by_ms, position LIMIT $2",
    postgres: "SELECT r.id FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.phase = 'pending' \
               AND r.waiting_for = 0 AND r.claim_by_ms IS NOT NULL AND r.claim_by_ms < $1 \
               ORDER BY r.claim_by_ms, r.position LIMIT $2 FOR NO KEY UPDATE OF s, r SKIP LOCKED",
};

const WAIT_ON: Sql = sql!(
    "UPDATE runs SET claim_by_ms = $2 WHERE id = $1 AND phase = 'pending' AND waiting_for = 0 AND claim_by_ms < $3"
);

// Reading.

pub(crate) async fn runner(conn: &mut Conn<'_>, id: RunnerId) -> StoreResult<Option<RunnerRecord>> {
    conn.row::<RunnerRow>(&RUNNER, args![id]).await?.map(RunnerRow::value).transpose()
}

pub(crate) async fn runners(conn: &mut Conn<'_>) -> StoreResult<Vec<RunnerRecord>> {
    conn.rows::<RunnerRow>(&RUNNERS, args![]).await?.into_iter().map(RunnerRow::value).collect()
}

/// The runner as it is, where a sign of life of this instance is nothing that has to be written.
pub(crate) async fn look(
    conn: &mut Conn<'_>,
    id: RunnerId,
    instance: Epoch,
    now: Timestamp,
) -> StoreResult<Option<RunnerRecord>> {
    let known = runner(conn, id).await?.ok_or(StoreError::UnknownRunner(id))?;
    if known.instance != instance {
        let (held, given) = (known.instance, instance);
        return Err(Conflict::Superseded { runner: id, held, given }.into());
    }
    Ok((now.duration_since(known.seen_at) < SEEN_EVERY).then_some(known))
}

/// Whether a runner gets no runs, whatever there is.
pub(crate) async fn takes_nothing(conn: &mut Conn<'_>, id: RunnerId) -> StoreResult<bool> {
    Ok(conn.row::<TextRow>(&TAKES_NOTHING, args![id]).await?.is_some())
}

/// The runner that has what earlier runs left in the session's workspace, if one has it.
pub(crate) async fn files_of(tx: &mut Tx<'_>, session: &ManagedSession) -> StoreResult<Option<RunnerId>> {
    let Some(runner) = session.workspace.runner else { return Ok(None) };
    let has = tx.conn.row::<TextRow>(&FILES_OF, args![session.id]).await?.is_some();
    Ok(Some(runner).filter(|_| has))
}

// Changes.

pub(crate) async fn register(
    tx: &mut Tx<'_>,
    profile: &RunnerProfile,
    version: &ProgramVersion,
    now: Timestamp,
) -> StoreResult<RunnerRecord> {
    let directories = profile.project_dirs.as_ref().map(serde_json::to_string).transpose();
    let values = args![
        profile.id,
        profile.hostname.as_str(),
        serde_json::to_string(&profile.executors).map_err(broken)?,
        directories.map_err(broken)?,
        version.as_str(),
        now,
    ];
    let registered = tx.write_rows::<RunnerRow>(&REGISTER, values).await?.into_iter().next();
    registered.ok_or_else(|| broken("a runner could not be registered"))?.value()
}

pub(crate) async fn seen(
    tx: &mut Tx<'_>,
    id: RunnerId,
    instance: Epoch,
    now: Timestamp,
) -> StoreResult<RunnerRecord> {
    tx.write(&SEEN, args![id, now, instance.0]).await?;
    let seen = look(&mut tx.conn, id, instance, now).await?;
    seen.ok_or_else(|| broken("a sign of life was not written down"))
}

pub(crate) async fn drain(tx: &mut Tx<'_>, id: RunnerId, draining: bool) -> StoreResult<RunnerRecord> {
    let rows = tx.write_rows::<RunnerRow>(&DRAIN, args![id, i64::from(draining)]).await?;
    let runner = rows.into_iter().next().ok_or(StoreError::UnknownRunner(id))?.value()?;
    tx.wake(Topic::Runner(id));
    if !draining {
        tx.wake(Topic::Queue);
    }
    Ok(runner)
}

pub(crate) async fn forget(tx: &mut Tx<'_>, id: RunnerId) -> StoreResult<Vec<SessionId>> {
    // First, so that it gets no more runs while it is looked for some.
    if tx.write_rows::<TextRow>(&FORGET, args![id]).await?.is_empty() {
        return Err(StoreError::UnknownRunner(id));
    }
    if let Some(row) = tx.conn.row::<TextRow>(&HOLDS, args![id]).await? {
        let run = id_of("runs", "id", &row.text)?;
        return Err(Conflict::RunnerBusy { runner: id, run }.into());
    }
    let bound = tx.conn.rows::<TextRow>(&BOUND, args![id, BOUND_MAX]).await?;
    bound.iter().map(|row| id_of("sessions", "id", &row.text)).collect()
}

pub(crate) async fn unclaimed(
    tx: &mut Tx<'_>,
    now: Timestamp,
    live: SignedDuration,
    limit: u32,
) -> StoreResult<Vec<Run>> {
    let due = tx.conn.rows::<TextRow>(&UNCLAIMED, args![now, limit]).await?;
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let there = runners(&mut tx.conn).await?;
    let mut failed = Vec::new();
    for row in due {
        let run = runs::locked(tx, id_of("runs", "id", &row.text)?).await?;
        // Under the lock it may turn out that it was taken or ended meanwhile, or was given more time.
        let late = run.waiting_for == 0 && run.claim_by.is_some_and(|by| by < now);
        if run.state.phase() != RunPhase::Pending || !late {
            continue;
        }
        if there.iter().any(|runner| runner.takes(&run.affinity, now, live)) {
            tx.write_one(&WAIT_ON, args![run.id, runs::until(live, now), now]).await?;
        } else {
            let ending = unmatched(&run.affinity, &there, now, live);
            failed.push(runs::end(tx, run, ending, None, now).await?);
        }
    }
    Ok(failed)
}
