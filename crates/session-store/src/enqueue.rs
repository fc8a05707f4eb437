//! Submission: runs, their new sessions and their crew come into the queue together.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use session_core::affinity::Affinity;
use session_core::ids::{CrewId, RunId, SessionId};
use session_core::ports::{Idempotency, NewCrew, NewRun, RunOf};
use session_core::run::{Epoch, Run, RunKind, RunPhase, RunState};
use session_core::session::{ManagedSession, NewSession};
use session_core::state::Trigger;
use session_core::wake::Topic;
use session_core::{Conflict, SessionState, StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Sql};
use crate::error::broken;
use crate::rows::{TextRow, place_key};
use crate::tx::Tx;
use crate::{allotments, families, idempotency, keys, runners, runs, sessions};

macro_rules! new_run {
    () => {
        "INSERT INTO runs (id, session_id, kind, argv, env, timeout_ms, priority, place_key, executor, project_dir, \
         crew_id, waiting_for, phase, created_at_ms, turn, claim_by_ms) "
    };
}

const INSERT: Sql = Sql::Each {
    sqlite: concat!(
        new_run!(),
        "SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, \
         value->>9, value->>10, value->>11, 'pending', value->>12, value->>13, value->>14 FROM json_each($1) WHERE true \
         ON CONFLICT (id) DO NOTHING RETURNING id"
    ),
    postgres: concat!(
        new_run!(),
        "SELECT v->>0, v->>1, v->>2, v->>3, v->>4, (v->>5)::bigint, (v->>6)::bigint, v->>7, v->>8, v->>9, v->>10, \
         (v->>11)::bigint, 'pending', (v->>12)::bigint, v->>13, (v->>14)::bigint FROM json_array_elements($1::json) AS v \
         ON CONFLICT (id) DO NOTHING RETURNING id"
    ),
};

const INSERT_CREW: Sql =
    sql!("INSERT INTO crews (id, at_once, created_at_ms) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING");

const INSERT_WAITS: Sql = Sql::Each {
    sqlite: "INSERT INTO run_waits (run_id, waits_for) SELECT value->>0, value->>1 FROM json_each($1)",
    postgres: "INSERT INTO run_waits (run_id, waits_for) \
               SELECT v->>0, v->>1 FROM json_array_elements($1::json) AS v",
};

/// Enqueues a batch, unless the same call did so before.
pub(crate) async fn enqueue_once(
    tx: &mut Tx<'_>,
    batch: &[NewRun],
    crew: Option<NewCrew>,
    once: Option<&Idempotency>,
    now: Timestamp,
) -> StoreResult<Vec<Run>> {
    if let Some(once) = once
        && let Some(runs) = idempotency::recall(tx, once, batch, now).await?
    {
        return Ok(runs);
    }
    enqueue(tx, batch, crew, now).await
}

/// Enqueues a batch. Whatever its size, it takes few statements.
async fn enqueue(
    tx: &mut Tx<'_>,
    batch: &[NewRun],
    crew: Option<NewCrew>,
    now: Timestamp,
) -> StoreResult<Vec<Run>> {
    let waits = dependencies(batch)?;
    if let Some(crew) = crew
        && tx.write(&INSERT_CREW, args![crew.id, crew.at_once, now]).await? == 0
    {
        return Err(Conflict::Exists(crew.id.to_string()).into());
    }
    // Keys are taken in the order of the batch, so that an earlier one is found by a later one.
    let together = !batch.iter().any(|run| matches!(run.of, RunOf::Keyed(..)));
    if together {
        let new: Vec<_> = batch.iter().filter_map(|run| made(&run.of)).collect();
        tx.insert_sessions(&new, None, SessionState::Active, now).await?;
    }
    let mut runs = Vec::with_capacity(batch.len());
    let mut used: HashMap<SessionId, RunId> = HashMap::new();
    for (new, after) in batch.iter().zip(&waits) {
        let place = placed(tx, new, &used, together, now).await?;
        used.insert(place.session, new.id);
        families::deliver(tx, place.session, new.id, &new.delivers).await?;
        tx.record(place.session, record::run_state(new.id, None, RunPhase::Pending, None), now);
        runs.push(pending(new, place, crew.map(|crew| crew.id), after.len(), now));
    }
    insert(tx, &runs).await?;
    let waits =
        runs.iter().zip(&waits).flat_map(|(run, after)| after.iter().map(|earlier| args![run.id, *earlier]));
    let waits: Vec<_> = waits.collect();
    if !waits.is_empty() {
        tx.write(&INSERT_WAITS, vec![Arg::table(waits)]).await?;
    }
    tx.wake(Topic::Queue);
    Ok(runs)
}

/// In which session a new run is, as its how-manieth, and what it demands.
struct Placed {
    session: SessionId,
    kind: RunKind,
    affinity: Affinity,
}

/// Makes a new run's session, or uses the one that is there. `together` says that those that are made in any case were
/// made before.
async fn placed(
    tx: &mut Tx<'_>,
    new: &NewRun,
    used: &HashMap<SessionId, RunId>,
    together: bool,
    now: Timestamp,
) -> StoreResult<Placed> {
    let first = |session| Placed { session, kind: RunKind::Start, affinity: new.affinity.clone() };
    match &new.of {
        RunOf::New(session) => {
            if !together {
                tx.insert_session(session, None, SessionState::Active, now).await?;
            }
            tx.record(session.id, record::session_created(session, None), now);
            Ok(first(session.id))
        }
        RunOf::Existing(id) => {
            refuse_twice(used, *id)?;
            let session = tx.lock_session(*id).await?;
            use_session(tx, session, new, now).await
        }
        RunOf::Keyed(session, asked) => match keys::get_or_create(tx, session, now).await? {
            (session, true) => Ok(first(session.id)),
            (session, false) => {
                refuse_twice(used, session.id)?;
                let made = sessions::made_with(tx, session.id).await?;
                let differs = asked.differs(&session, made);
                if !differs.is_empty() {
                    return Err(Conflict::Otherwise { session: session.id, what: differs.join(", ") }.into());
                }
                use_session(tx, session, new, now).await
            }
        },
    }
}

/// The session that is made for a run, whatever there is already.
fn made(of: &RunOf) -> Option<&NewSession> {
    match of {
        RunOf::New(session) => Some(session),
        RunOf::Existing(_) | RunOf::Keyed(..) => None,
    }
}

/// A session does one run at a time, also within a batch.
fn refuse_twice(used: &HashMap<SessionId, RunId>, session: SessionId) -> StoreResult<()> {
    match used.get(&session) {
        Some(run) => Err(StoreError::Busy { session, run: *run, phase: RunPhase::Pending }),
        None => Ok(()),
    }
}

async fn insert(tx: &mut Tx<'_>, runs: &[Run]) -> StoreResult<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let rows = runs.iter().map(columns).collect::<StoreResult<Vec<_>>>()?;
    let inserted = tx.write_rows::<TextRow>(&INSERT, vec![Arg::table(rows)]).await?;
    let mut inserted: HashSet<_> = inserted.into_iter().map(|row| row.text).collect();
    match runs.iter().map(|run| run.id.to_string()).find(|id| !inserted.remove(id)) {
        Some(taken) => Err(Conflict::Exists(taken).into()),
        None => Ok(()),
    }
}

/// The values of a new run's row.
fn columns(run: &Run) -> StoreResult<Args> {
    let timeout = run.spec.timeout.map(|timeout| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
    Ok(args![
        run.id,
        run.session,
        run.kind.code(),
        serde_json::to_string(&run.spec.argv).map_err(broken)?,
        serde_json::to_string(&run.spec.env).map_err(broken)?,
        timeout,
        run.priority,
        place_key(&run.affinity.place),
        run.affinity.executor.as_str(),
        run.affinity.project_dir.as_ref().map(|dir| dir.as_str()),
        run.crew,
        run.waiting_for,
        run.created_at,
        run.spec.turn.as_ref().map(serde_json::to_string).transpose().map_err(broken)?,
        run.claim_by,
    ])
}

fn pending(new: &NewRun, place: Placed, crew: Option<CrewId>, waiting_for: usize, now: Timestamp) -> Run {
    let Placed { session, kind, affinity } = place;
    Run {
        id: new.id,
        session,
        kind,
        spec: new.spec.clone(),
        priority: new.priority,
        affinity,
        crew,
        waiting_for: u32::try_from(waiting_for).unwrap_or(u32::MAX),
        epoch: Epoch::default(),
        state: RunState::Pending,
        stop: None,
        created_at: now,
        claim_by: new.claim_by,
        started_at: None,
        sandbox: None,
    }
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

/// A new run uses the session, which is locked, if it has no other run to do: it becomes active, unless it is suspended.
async fn use_session(
    tx: &mut Tx<'_>,
    mut session: ManagedSession,
    new: &NewRun,
    now: Timestamp,
) -> StoreResult<Placed> {
    let (id, is_child) = (session.id, session.parent.is_some());
    // A run that is not over is always the last one.
    let last = runs::runs(&mut tx.conn, id, 1).await?.pop();
    if let Some(run) = &last
        && !run.state.phase().is_ended()
    {
        return Err(StoreError::Busy { session: id, run: run.id, phase: run.state.phase() });
    }
    let files = runners::files_of(tx, &session).await?;
    let affinity = Affinity::of(&session, files, &new.affinity, &new.spec);
    if matches!(session.state, SessionState::Suspended { .. }) {
        tx.touch(&mut session, now).await?;
    } else {
        tx.transition(session, Trigger::Activity, now).await?;
    }
    if new.delivers.is_empty() {
        families::release(tx, id).await?;
    }
    if is_child {
        allotments::reopen(tx, id, now).await?;
    }
    let kind = if last.is_some() { RunKind::Resume } else { RunKind::Start };
    // A session that is over is the better reason.
    Ok(Placed { session: id, kind, affinity: affinity? })
}
