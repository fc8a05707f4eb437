//! Submission: runs, their new sessions and their crew come into the queue together.

use std::collections::HashSet;

use jiff::Timestamp;
use session_core::ids::{CrewId, RunId, SessionId};
use session_core::ports::{NewCrew, NewRun, RunOf};
use session_core::run::{Epoch, Run, RunKind, RunPhase, RunState};
use session_core::state::Trigger;
use session_core::wake::Topic;
use session_core::{Conflict, SessionState, StoreError, StoreResult, record};

use crate::conn::{Arg, Sql};
use crate::error::broken;
use crate::rows::{TextRow, place_key};
use crate::runs;
use crate::tx::Tx;

const TAKEN: Sql = sql!("SELECT id FROM runs WHERE id", [1], "LIMIT 1");

const INSERT: Sql = sql!(
    "INSERT INTO runs (id, session_id, kind, argv, env, timeout_ms, priority, place_key, executor, project_dir, \
     crew_id, waiting_for, phase, created_at_ms) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'pending', $13)"
);

const INSERT_CREW: Sql =
    sql!("INSERT INTO crews (id, at_once, created_at_ms) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING");

const INSERT_WAIT: Sql = sql!("INSERT INTO run_waits (run_id, waits_for) VALUES ($1, $2)");

pub(crate) async fn enqueue(
    tx: &mut Tx<'_>,
    batch: &[NewRun],
    crew: Option<NewCrew>,
    now: Timestamp,
) -> StoreResult<Vec<Run>> {
    let waits = dependencies(batch)?;
    let mut ids = HashSet::new();
    if let Some(twice) = batch.iter().find(|new| !ids.insert(new.id)) {
        return Err(Conflict::Exists(twice.id.to_string()).into());
    }
    if let Some(taken) = tx.conn.row::<TextRow>(&TAKEN, vec![Arg::list(ids)]).await? {
        return Err(Conflict::Exists(taken.text).into());
    }
    if let Some(crew) = crew
        && tx.write(&INSERT_CREW, args![crew.id, crew.at_once, now]).await? == 0
    {
        return Err(Conflict::Exists(crew.id.to_string()).into());
    }
    let mut runs = Vec::with_capacity(batch.len());
    for (new, after) in batch.iter().zip(&waits) {
        runs.push(enqueue_one(tx, new, after, crew.map(|crew| crew.id), now).await?);
    }
    tx.wake(Topic::Queue);
    Ok(runs)
}

/// The runs that each run of a batch waits for, each once.
fn dependencies(batch: &[NewRun]) -> Result<Vec<Vec<RunId>>, Conflict> {
    let earlier_than = |place: usize, index: usize| {
        batch
            .get(..place)
            .and_then(|before| before.get(index))
            .map(|run| run.id)
            .ok_or(Conflict::Dependencies)
    };
    let of = |(place, new): (usize, &NewRun)| {
        let mut after = Vec::with_capacity(new.after.len());
        for index in &new.after {
            let earlier = earlier_than(place, *index)?;
            if !after.contains(&earlier) {
                after.push(earlier);
            }
        }
        Ok(after)
    };
    batch.iter().enumerate().map(of).collect()
}

async fn enqueue_one(
    tx: &mut Tx<'_>,
    new: &NewRun,
    after: &[RunId],
    crew: Option<CrewId>,
    now: Timestamp,
) -> StoreResult<Run> {
    let (session, kind) = match &new.of {
        RunOf::New(session) => (tx.create(session, None, now).await?.id, RunKind::Start),
        RunOf::Existing(id) => (*id, use_session(tx, *id, now).await?),
    };
    let run = Run {
        id: new.id,
        session,
        kind,
        spec: new.spec.clone(),
        priority: new.priority,
        affinity: new.affinity.clone(),
        crew,
        waiting_for: u32::try_from(after.len()).unwrap_or(u32::MAX),
        epoch: Epoch::default(),
        state: RunState::Pending,
        stop: None,
        created_at: now,
        started_at: None,
    };
    let json = |text: Result<String, serde_json::Error>| text.map_err(broken);
    let timeout = run.spec.timeout.map(|timeout| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
    let values = args![
        run.id,
        session,
        kind.code(),
        json(serde_json::to_string(&run.spec.argv))?,
        json(serde_json::to_string(&run.spec.env))?,
        timeout,
        run.priority,
        place_key(&run.affinity.place),
        run.affinity.executor.as_str(),
        run.affinity.project_dir.as_ref().map(|dir| dir.as_str()),
        crew,
        run.waiting_for,
        now,
    ];
    tx.write_one(&INSERT, values).await?;
    for earlier in after {
        tx.write_one(&INSERT_WAIT, args![run.id, *earlier]).await?;
    }
    tx.record(session, record::run_state(run.id, None, RunPhase::Pending, None), now);
    Ok(run)
}

/// A new run uses the session: it becomes active, if it has no other run to do.
async fn use_session(tx: &mut Tx<'_>, id: SessionId, now: Timestamp) -> StoreResult<RunKind> {
    let session = tx.lock_session(id).await?;
    // A run that is not over is always the last one.
    let last = runs::runs(&mut tx.conn, id, 1).await?.pop();
    if let Some(run) = &last
        && !run.state.phase().is_ended()
    {
        return Err(StoreError::Busy { session: id, run: run.id, phase: run.state.phase() });
    }
    let active = session.state == SessionState::Active;
    tx.transition(session, if active { Trigger::Activity } else { Trigger::Resume }, now).await?;
    Ok(if last.is_some() { RunKind::Resume } else { RunKind::Start })
}
