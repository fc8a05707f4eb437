//! The next run for a runner.
//!
//! One probe a place that the runner may take runs from (its own, its machine's, any), each on the same index with
//! equality on all columns before the order, and the best of what they find. Never one condition with OR.

use std::cmp::Reverse;

use jiff::{SignedDuration, Timestamp};
use session_core::affinity::{Place, RunnerProfile};
use session_core::ports::ClaimedRun;
use session_core::run::{Lease, Run, RunPhase};
use session_core::session::ManagedSession;
use session_core::{StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Sql};
use crate::error::{DatabaseError, Failure, broken, failed};
use crate::rows::{RunRow, SessionRow, TextRow, place_key};
use crate::runs::until;
use crate::tx::Tx;

row! {
    /// A run that could be claimed.
    CandidateRow {
        id: String,
        crew_id: Option<String>,
        place_key: String,
        executor: String,
        priority: i64,
        position: i64,
    }
}

/// A run that could be claimed, with its session.
type Candidate = (CandidateRow, ManagedSession);

/// What makes a run claimable, apart from its place: the order of a crew is checked by index, the project directory
/// only where the runner serves some.
macro_rules! claimable {
    ($served:literal) => {
        concat!(
            "r.phase = 'pending' AND r.waiting_for = 0 AND r.executor = $3 \
             AND ($4 IS NULL OR r.project_dir IS NULL OR r.project_dir ",
            $served,
            ") AND (r.crew_id IS NULL OR NOT EXISTS (SELECT 1 FROM crews c WHERE c.id = r.crew_id AND c.at_once <= \
             (SELECT count(*) FROM runs x \
             WHERE x.crew_id = c.id AND x.phase IN ('claimed', 'starting', 'running')))) "
        )
    };
}

macro_rules! probe {
    ($place:literal, $name:literal, $served:literal) => {
        concat!(
            "SELECT * FROM (SELECT r.id, r.session_id, r.crew_id, r.place_key, r.executor, r.priority, r.position \
             FROM runs r WHERE r.place_key = ",
            $place,
            " AND ",
            claimable!($served),
            "ORDER BY r.priority DESC, r.position LIMIT 1) ",
            $name
        )
    };
}

macro_rules! probes {
    ($served:literal) => {
        concat!(
            probe!("$1", "own", $served),
            " UNION ALL ",
            probe!("$2", "here", $served),
            " UNION ALL ",
            probe!("''", "anywhere", $served),
            " ORDER BY 6 DESC, 7 LIMIT 1"
        )
    };
}

macro_rules! with_session {
    ($probes:expr) => {
        concat!(
            "SELECT c.id, c.crew_id, c.place_key, c.executor, c.priority, c.position, ",
            session_columns!("s."),
            " FROM (",
            $probes,
            ") c CROSS JOIN sessions s WHERE s.id = c.session_id"
        )
    };
}

pub(crate) const PROBE: Sql = Sql::Each {
    sqlite: with_session!(probes!("IN (SELECT value FROM json_each($4))")),
    postgres: with_session!(probes!("= ANY (ARRAY(SELECT json_array_elements_text($4::json)))")),
};

/// The first at one place that nobody else is about to take. The session's row is its run's lock; the run's row is
/// locked too, so that one that was claimed a moment ago is seen to be.
const FREE: Sql = Sql::Both(concat!(
    "SELECT r.id, r.crew_id, r.place_key, r.executor, r.priority, r.position, ",
    session_columns!("s."),
    " FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.place_key = $1 AND $2 IS NOT NULL AND ",
    claimable!("= ANY (ARRAY(SELECT json_array_elements_text($4::json)))"),
    "ORDER BY r.priority DESC, r.position LIMIT 1 FOR NO KEY UPDATE OF s, r SKIP LOCKED"
));

const LOCK_CREW: Sql = sql!("SELECT id FROM crews WHERE id = $1 FOR UPDATE");

const CREW_IS_FULL: Sql = sql!(
    "SELECT c.id FROM crews c WHERE c.id = $1 AND c.at_once <= (SELECT count(*) FROM runs x \
     WHERE x.crew_id = c.id AND x.phase IN ('claimed', 'starting', 'running'))"
);

const CLAIM: Sql = sql!(concat!(
    "UPDATE runs SET phase = 'claimed', epoch = epoch + 1, runner_id = $2, lease_until_ms = $3 \
     WHERE id = $1 AND phase = 'pending' AND waiting_for = 0 RETURNING ",
    run_columns!("")
));

pub(crate) async fn claim(
    tx: &mut Tx<'_>,
    runner: &RunnerProfile,
    lease: SignedDuration,
    now: Timestamp,
) -> StoreResult<Option<ClaimedRun>> {
    let Some(best) = best(tx, runner).await? else { return Ok(None) };
    let (chosen, session) = if tx.conn.is_postgres() { secured(tx, runner, best).await? } else { best };
    let lease = Lease { runner: runner.id, until: until(lease, now) };
    let claimed = tx.write_rows::<RunRow>(&CLAIM, args![chosen.id, lease.runner, lease.until]).await?;
    let run: Run = match claimed.into_iter().next() {
        Some(row) => row.value()?,
        None if tx.conn.is_postgres() => return Err(again()),
        None => return Err(broken("a pending run could not be claimed")),
    };
    let event = record::run_state(run.id, Some(RunPhase::Pending), RunPhase::Claimed, None);
    tx.record(session.id, event, now);
    Ok(Some(ClaimedRun { session, run }))
}

/// The best run of all that this runner may take, as things stand.
async fn best(tx: &mut Tx<'_>, runner: &RunnerProfile) -> StoreResult<Option<Candidate>> {
    let mut best: Option<(CandidateRow, SessionRow)> = None;
    for executor in &runner.executors {
        let found = tx.conn.row(&PROBE, probe_args(runner, executor.as_str())).await?;
        best =
            [best, found].into_iter().flatten().min_by_key(|(run, _)| (Reverse(run.priority), run.position));
    }
    best.map(|(run, session)| Ok((run, session.value()?))).transpose()
}

/// The parameters of [`PROBE`].
pub(crate) fn probe_args(runner: &RunnerProfile, executor: &str) -> Args {
    let own = place_key(&Place::Runner(runner.id));
    let here = place_key(&Place::Hostname(runner.hostname.clone()));
    args![own, here, executor].into_iter().chain([served(runner)]).collect()
}

fn served(runner: &RunnerProfile) -> Arg {
    runner.project_dirs.as_ref().map_or(Arg::Text(None), Arg::list)
}

/// PostgreSQL: a run from the same place as the best one, locked, its crew not full.
async fn secured(tx: &mut Tx<'_>, runner: &RunnerProfile, best: Candidate) -> StoreResult<Candidate> {
    let (run, session) = best;
    let values = args![run.place_key.as_str(), "", run.executor.as_str()];
    let values = values.into_iter().chain([served(runner)]).collect();
    let chosen = match tx.conn.row::<(CandidateRow, SessionRow)>(&FREE, values).await? {
        Some((free, session)) => (free, session.value()?),
        // Somebody holds every one of them. Whether there is work must not depend on that: wait for the best.
        None => (run, tx.lock_session(session.id).await?),
    };
    if let Some(crew) = &chosen.0.crew_id {
        tx.conn.rows::<TextRow>(&LOCK_CREW, args![crew.as_str()]).await?;
        if tx.conn.row::<TextRow>(&CREW_IS_FULL, args![crew.as_str()]).await?.is_some() {
            return Err(again());
        }
    }
    Ok(chosen)
}

/// Somebody was faster: the whole claim is tried again.
fn again() -> StoreError {
    failed(DatabaseError::plain(Failure::Serialization, "another claim was faster"))
}
