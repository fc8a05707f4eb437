//! The next run for a runner.
//!
//! One probe a place that the runner may take runs from (its own, its machine's, any), each on the same index with
//! equality on all columns before the order, and the best of what they find. Never one condition with OR.

use std::cmp::Reverse;

use jiff::{SignedDuration, Timestamp};
use session_core::affinity::{Place, RunnerProfile};
use session_core::ids::ClaimId;
use session_core::ports::ClaimedRun;
use session_core::run::{Lease, Run, RunPhase};
use session_core::session::ManagedSession;
use session_core::{StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Conn, Sql};
use crate::error::{DatabaseError, Failure, broken, database_error, failed};
use crate::rows::{RunRow, SessionRow, TextRow, place_key};
use crate::runners;
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

/// What makes a run claimable, apart from its place and its crew. The project directory counts only where the runner
/// serves some.
macro_rules! ready {
    ($executor:literal, $served:literal) => {
        concat!(
            "r.phase = 'pending' AND r.waiting_for = 0 AND r.executor = ",
            $executor,
            " AND ($4 IS NULL OR r.project_dir IS NULL OR r.project_dir ",
            $served,
            ") "
        )
    };
}

/// What makes a run claimable, apart from its place: its crew, too, has room for it, which an index tells.
macro_rules! claimable {
    ($executor:literal, $served:literal) => {
        concat!(
            ready!($executor, $served),
            "AND (r.crew_id IS NULL OR NOT EXISTS (SELECT 1 FROM crews c WHERE c.id = r.crew_id AND c.at_once <= \
             (SELECT count(*) FROM runs x \
             WHERE x.crew_id = c.id AND x.phase IN ('claimed', 'starting', 'running')))) "
        )
    };
}

macro_rules! probe {
    ($place:literal, $name:literal, $condition:expr) => {
        concat!(
            "SELECT * FROM (SELECT r.id, r.session_id, r.crew_id, r.place_key, r.executor, r.priority, r.position \
             FROM runs r WHERE r.place_key = ",
            $place,
            " AND ",
            $condition,
            "ORDER BY r.priority DESC, r.position LIMIT 1) ",
            $name
        )
    };
}

macro_rules! probes {
    ($condition:expr) => {
        concat!(
            probe!("$1", "own", $condition),
            " UNION ALL ",
            probe!("$2", "here", $condition),
            " UNION ALL ",
            probe!("''", "anywhere", $condition),
            " ORDER BY 6 DESC, 7 LIMIT 1"
        )
    };
}

/// What the event of a claim says, as `record::run_state` says it.
macro_rules! claimed_payload {
    () => {
        r#"{"from":"pending","to":"claimed"}"#
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
    sqlite: with_session!(probes!(claimable!("$3", "IN (SELECT value FROM json_each($4))"))),
    postgres: with_session!(probes!(claimable!(
        "$3",
        "= ANY (ARRAY(SELECT json_array_elements_text($4::json)))"
    ))),
};

/// The first at one place that nobody else is about to take. The session's row is its run's lock; the run's row is
/// locked too, so that one that was claimed a moment ago is seen to be.
const FREE: Sql = Sql::Both(concat!(
    "SELECT r.id, r.crew_id, r.place_key, r.executor, r.priority, r.position, ",
    session_columns!("s."),
    " FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.place_key = $1 AND $2 IS NOT NULL AND ",
    claimable!("$3", "= ANY (ARRAY(SELECT json_array_elements_text($4::json)))"),
    "ORDER BY r.priority DESC, r.position LIMIT 1 FOR NO KEY UPDATE OF s, r SKIP LOCKED"
));

/// PostgreSQL: the whole claim in one statement that is its own transaction: the best of the places, the first there
/// that nobody else is about to take, its claim, its event, and the word to other processes. Crews are left out: they
/// are counted under their lock, and the plan would be twice as large. The number of the event may be taken, because
/// the statement does not see what was committed since it began: then the index refuses it, and nothing has happened.
const AT_ONCE: Sql = sql!(concat!(
    "WITH best AS MATERIALIZED (SELECT p.place_key, p.executor \
     FROM json_array_elements_text($3::json) AS x(executor) CROSS JOIN LATERAL (",
    probes!(ready!("x.executor", "= ANY (ARRAY(SELECT json_array_elements_text($4::json)))")),
    ") p WHERE NOT EXISTS (SELECT 1 FROM runners n WHERE n.id = $5 AND (n.draining = 1 OR n.forgotten = 1)) \
     ORDER BY p.priority DESC, p.position LIMIT 1), \
     free AS MATERIALIZED (SELECT r.id AS run, r.crew_id AS crew, ",
    session_columns!("s."),
    " FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.place_key = (SELECT b.place_key FROM best b) AND ",
    ready!("(SELECT b.executor FROM best b)", "= ANY (ARRAY(SELECT json_array_elements_text($4::json)))"),
    "ORDER BY r.priority DESC, r.position LIMIT 1 FOR NO KEY UPDATE OF s, r SKIP LOCKED), \
     claimed AS (UPDATE runs r SET phase = 'claimed', epoch = r.epoch + 1, runner_id = $5, lease_until_ms = $6, \
     claim_id = $8 FROM free f WHERE r.id = f.run AND f.crew IS NULL AND r.phase = 'pending' RETURNING ",
    run_columns!("r."),
    "), logged AS (INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload) \
     SELECT c.session_id, (SELECT coalesce(max(e.seq), 0) + 1 FROM events e WHERE e.session_id = c.session_id), \
     $7, c.id, 'run.state', '",
    claimed_payload!(),
    "' FROM claimed c) SELECT ",
    run_columns!("c."),
    ", ",
    session_columns!("f."),
    ", pg_notify('roomette', c.session_id) FROM claimed c CROSS JOIN free f"
));

const LOCK_CREW: Sql = sql!("SELECT id FROM crews WHERE id = $1 FOR UPDATE");

const CREW_IS_FULL: Sql = sql!(
    "SELECT c.id FROM crews c WHERE c.id = $1 AND c.at_once <= (SELECT count(*) FROM runs x \
     WHERE x.crew_id = c.id AND x.phase IN ('claimed', 'starting', 'running'))"
);

const CLAIM: Sql = sql!(concat!(
    "UPDATE runs SET phase = 'claimed', epoch = epoch + 1, runner_id = $2, lease_until_ms = $3, claim_id = $4 \
     WHERE id = $1 AND phase = 'pending' AND waiting_for = 0 RETURNING ",
    run_columns!("")
));

/// What a claim got that is repeated, for as long as it is no more than claimed.
pub(crate) const REPEATED: Sql = sql!(concat!(
    "SELECT ",
    run_columns!("r."),
    ", ",
    session_columns!("s."),
    " FROM runs r CROSS JOIN sessions s WHERE r.runner_id = $1 AND r.claim_id = $2 AND r.claim_id IS NOT NULL \
     AND r.phase = 'claimed' AND s.id = r.session_id"
));

async fn repeated(
    conn: &mut Conn<'_>,
    runner: &RunnerProfile,
    claim: Option<ClaimId>,
) -> StoreResult<Option<ClaimedRun>> {
    let Some(claim) = claim else { return Ok(None) };
    let row = conn.row::<(RunRow, SessionRow)>(&REPEATED, args![runner.id, claim]).await?;
    row.map(|(run, session)| Ok(ClaimedRun { session: session.value()?, run: run.value()? })).transpose()
}

pub(crate) async fn claim(
    tx: &mut Tx<'_>,
    runner: &RunnerProfile,
    claim: Option<ClaimId>,
    lease: SignedDuration,
    now: Timestamp,
) -> StoreResult<Option<ClaimedRun>> {
    if let Some(known) = repeated(&mut tx.conn, runner, claim).await? {
        return Ok(Some(known));
    }
    let Some(best) = best(&mut tx.conn, runner).await? else { return Ok(None) };
    let (chosen, session) = if tx.conn.is_postgres() { secured(tx, runner, best).await? } else { best };
    let lease = Lease { runner: runner.id, until: until(lease, now) };
    let values = args![chosen.id, lease.runner, lease.until, claim];
    let claimed = match tx.write_rows::<RunRow>(&CLAIM, values).await {
        // The same claim got another run meanwhile: that is its answer.
        Err(error) if database_error(&error).is_some_and(|error| error.kind == Failure::Unique) => {
            return Err(again());
        }
        claimed => claimed?,
    };
    let run: Run = match claimed.into_iter().next() {
        Some(row) => row.value()?,
        None if tx.conn.is_postgres() => return Err(again()),
        None => return Err(broken("a pending run could not be claimed")),
    };
    let event = record::run_state(run.id, Some(RunPhase::Pending), RunPhase::Claimed, None);
    tx.record(session.id, event, now);
    Ok(Some(ClaimedRun { session, run }))
}

/// What one statement made of a claim on PostgreSQL.
pub(crate) enum AtOnce {
    Claimed(Box<ClaimedRun>),
    /// The same claim got this before.
    Repeated(Box<ClaimedRun>),
    /// There is nothing for this runner.
    Nothing,
    /// It takes a transaction: the first run is of a crew, or others hold all that is there, or came in between.
    Undecided,
}

/// PostgreSQL: claims in one statement, outside a transaction. Whoever calls this wakes those who listen here.
pub(crate) async fn at_once(
    conn: &mut Conn<'_>,
    runner: &RunnerProfile,
    claim: Option<ClaimId>,
    lease: SignedDuration,
    now: Timestamp,
) -> StoreResult<AtOnce> {
    if let Some(known) = repeated(conn, runner, claim).await? {
        return Ok(AtOnce::Repeated(Box::new(known)));
    }
    let [own, here] = places(runner);
    let executors = Arg::list(&runner.executors);
    let values = [own.into(), here.into(), executors, served(runner)];
    let values = values.into_iter().chain(args![runner.id, until(lease, now), now, claim]).collect();
    match conn.try_rows::<(RunRow, SessionRow)>(&AT_ONCE, values).await {
        Ok(rows) => match rows.into_iter().next() {
            Some((run, session)) => {
                let (run, session) = (run.value()?, session.value()?);
                Ok(AtOnce::Claimed(Box::new(ClaimedRun { session, run })))
            }
            None if best(conn, runner).await?.is_none() => Ok(AtOnce::Nothing),
            None => Ok(AtOnce::Undecided),
        },
        Err(error) if error.is_retriable() || error.kind == Failure::Unique => Ok(AtOnce::Undecided),
        Err(error) => Err(failed(error)),
    }
}

/// The best run of all that this runner may take, as things stand.
async fn best(conn: &mut Conn<'_>, runner: &RunnerProfile) -> StoreResult<Option<Candidate>> {
    if runners::takes_nothing(conn, runner.id).await? {
        return Ok(None);
    }
    let mut best: Option<(CandidateRow, SessionRow)> = None;
    for executor in &runner.executors {
        let found = conn.row(&PROBE, probe_args(runner, executor.as_str())).await?;
        best =
            [best, found].into_iter().flatten().min_by_key(|(run, _)| (Reverse(run.priority), run.position));
    }
    best.map(|(run, session)| Ok((run, session.value()?))).transpose()
}

/// The parameters of [`PROBE`].
pub(crate) fn probe_args(runner: &RunnerProfile, executor: &str) -> Args {
    let [own, here] = places(runner);
    args![own, here, executor].into_iter().chain([served(runner)]).collect()
}

/// The places that only some runners take from: its own and its machine's.
fn places(runner: &RunnerProfile) -> [String; 2] {
    [Place::Runner(runner.id), Place::Hostname(runner.hostname.clone())].map(|place| place_key(&place))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statement_records_what_the_program_would() {
        let (env, _) = session_core::testing::env();
        let event = record::run_state(env.run_id(), Some(RunPhase::Pending), RunPhase::Claimed, None);
        assert_eq!((event.kind.as_str(), event.payload.as_str()), ("run.state", claimed_payload!()));
    }
}
