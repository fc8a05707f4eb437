//! Moving on the sessions that rested for long enough: a probe for each live state and place on an index of its own, so
//! that the cost follows what is due and not what there is.

use jiff::Timestamp;
use session_core::ids::SessionId;
use session_core::ports::{Sweep, Swept};
use session_core::session::ManagedSession;
use session_core::{StoreError, StoreResult};

use crate::conn::{Arg, Args, Sql};
use crate::rows::{TextRow, id_of};
use crate::tx::Tx;
use crate::{families, identity, runs};

/// What is due in one state at one place, for longest first: how long it takes until then is below zero.
macro_rules! probe {
    ($state:literal, $column:literal, $place:literal, $cutoff:literal, $among:expr, $name:literal) => {
        concat!(
            "SELECT * FROM (SELECT s.id AS id, s.",
            $column,
            " - ",
            $cutoff,
            " AS due FROM sessions s WHERE s.state = '",
            $state,
            "' AND s.workspace_runner ",
            $place,
            " AND s.",
            $column,
            " <= ",
            $cutoff,
            " AND s.id ",
            $among,
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.id \
             AND r.phase IN ('pending', 'claimed', 'starting', 'running')) ORDER BY s.",
            $column,
            " LIMIT $6) ",
            $name
        )
    };
}

macro_rules! probes {
    ($among:expr) => {
        concat!(
            "SELECT id FROM (",
            probe!("active", "active_at_ms", "= $1", "$2", $among, "active_here"),
            " UNION ALL ",
            probe!("active", "active_at_ms", "IS NULL", "$2", $among, "active_nowhere"),
            " UNION ALL ",
            probe!("idle", "state_at_ms", "= $1", "$3", $among, "idle_here"),
            " UNION ALL ",
            probe!("idle", "state_at_ms", "IS NULL", "$3", $among, "idle_nowhere"),
            " UNION ALL ",
            probe!("suspended", "state_until_ms", "= $1", "$4", $among, "suspended_here"),
            " UNION ALL ",
            probe!("suspended", "state_until_ms", "IS NULL", "$4", $among, "suspended_nowhere"),
            ") due ORDER BY due, id LIMIT $6"
        )
    };
}

/// `$1` is the runner, `$2` to `$4` are the times before which an active, an idle and a suspended session is due, NULL
/// for never; `$5` are the sessions to leave out.
pub(crate) const DUE: Sql = Sql::Each {
    sqlite: probes!("NOT IN (SELECT value FROM json_each($5))"),
    postgres: probes!("<> ALL (ARRAY(SELECT json_array_elements_text($5::json)))"),
};

const SET_UNTIL: Sql = sql!("UPDATE sessions SET state_until_ms = $2 WHERE id = $1 AND state = 'suspended'");

pub(crate) async fn sweep(tx: &mut Tx<'_>, sweep: &Sweep, now: Timestamp) -> StoreResult<Vec<Swept>> {
    let mut swept = Vec::new();
    let mut looked_at = sweep.except.clone();
    loop {
        let wanted = u64::from(sweep.limit).saturating_sub(swept.len() as u64);
        if wanted == 0 {
            return Ok(swept);
        }
        let due = tx.conn.rows::<TextRow>(&DUE, values(sweep, &looked_at, wanted, now)).await?;
        if due.is_empty() {
            return Ok(swept);
        }
        for row in due {
            let id: SessionId = id_of("sessions", "id", &row.text)?;
            swept.extend(move_on(tx, sweep, id, now).await?);
            // What another one was faster with is not looked at again, and something else takes its place.
            looked_at.push(id);
        }
    }
}

fn values(sweep: &Sweep, except: &[SessionId], limit: u64, now: Timestamp) -> Args {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let except = Arg::list(except);
    let mut values = args![sweep.runner, sweep.active_cutoff(now), sweep.idle_cutoff(now), now];
    values.extend([except, limit.into()]);
    values
}

/// Takes a session through every step whose time has come. `None` when, under its lock, none has.
async fn move_on(
    tx: &mut Tx<'_>,
    sweep: &Sweep,
    id: SessionId,
    now: Timestamp,
) -> StoreResult<Option<Swept>> {
    let mut session = match tx.lock_session(id).await {
        Err(StoreError::UnknownSession(_)) => return Ok(None),
        locked => locked?,
    };
    let elsewhere = session.workspace.runner.is_some_and(|runner| runner != sweep.runner);
    if elsewhere || next(sweep, &session, now).is_none() || runs::is_busy(tx, id).await? {
        return Ok(None);
    }
    let from = session.state;
    while let Some(to) = next(sweep, &session, now) {
        if to.is_terminated() && prolonged(tx, &session, now).await? {
            break;
        }
        if to.is_terminated() && families::at_work_below(tx, id).await?.is_some() {
            break;
        }
        session = tx.move_to(session, to, now).await?;
    }
    Ok((session.state != from).then_some(Swept { session: id, state: session.state }))
}

/// Whether a live identity leads to the session, which is suspended: then it stays so until that expires, and is not due again
/// before.
async fn prolonged(tx: &mut Tx<'_>, session: &ManagedSession, now: Timestamp) -> StoreResult<bool> {
    let Some(generation) = session.generation else { return Ok(false) };
    let Some(until) = identity::valid_until(tx, generation.key, session.id, now).await? else {
        return Ok(false);
    };
    tx.write_one(&SET_UNTIL, args![session.id, until]).await?;
    Ok(true)
}

fn next(sweep: &Sweep, session: &ManagedSession, now: Timestamp) -> Option<session_core::SessionState> {
    sweep.next(session.state, session.active_at, now)
}
