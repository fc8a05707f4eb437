//! What repeated calls led to. The row of a key is the lock of the calls under it: the first one makes it, and the others
//! wait for what becomes of that.

use jiff::Timestamp;
use session_core::ports::{IDEMPOTENCY_KEPT, Idempotency, NewRun};
use session_core::run::Run;
use session_core::{Conflict, StoreResult};

use crate::conn::{Arg, Conn, Sql};
use crate::error::{DatabaseError, Failure, failed};
use crate::rows::RunRow;
use crate::tx::Tx;

row! {
    /// A call that was made under a key.
    CallRow { digest: String, runs: String, }
}

pub(crate) const CALL: Sql =
    sql!("SELECT digest, runs FROM idempotency WHERE principal = $1 AND key = $2 AND created_at_ms > $3");

/// The first call under a key, or the first after its time was over.
const FIRST: Sql = sql!(
    "INSERT INTO idempotency (principal, key, digest, runs, created_at_ms) VALUES ($1, $2, $3, $4, $5) \
     ON CONFLICT (principal, key) DO UPDATE SET digest = excluded.digest, runs = excluded.runs, \
     created_at_ms = excluded.created_at_ms WHERE idempotency.created_at_ms <= $6"
);

pub(crate) const RUNS: Sql =
    sql!(concat!("SELECT ", run_columns!(""), " FROM runs WHERE id"), [1], "ORDER BY position");

pub(crate) const FORGET: Sql = sql!(
    "DELETE FROM idempotency WHERE (principal, key) IN \
     (SELECT i.principal, i.key FROM idempotency i WHERE i.created_at_ms <= $1 ORDER BY i.created_at_ms LIMIT $2)"
);

/// The runs of the first call under this key; `None` if this is the first.
pub(crate) async fn recall(
    tx: &mut Tx<'_>,
    once: &Idempotency,
    batch: &[NewRun],
    now: Timestamp,
) -> StoreResult<Option<Vec<Run>>> {
    if let Some(runs) = look(&mut tx.conn, once, now).await? {
        return Ok(Some(runs));
    }
    let runs = Arg::list(batch.iter().map(|run| run.id));
    let digest = once.digest.to_string();
    let values = args![once.principal.as_str(), once.key.as_str(), digest].into_iter();
    let values = values.chain([runs]).chain(args![now, over(now)]).collect();
    if tx.write(&FIRST, values).await? > 0 {
        return Ok(None);
    }
    // Somebody else was the first meanwhile, and is done: that can be seen now.
    match look(&mut tx.conn, once, now).await? {
        Some(runs) => Ok(Some(runs)),
        None => Err(failed(DatabaseError::plain(Failure::Serialization, "another caller was faster"))),
    }
}

/// The runs of an earlier call under this key, if there was one.
pub(crate) async fn look(
    conn: &mut Conn<'_>,
    once: &Idempotency,
    now: Timestamp,
) -> StoreResult<Option<Vec<Run>>> {
    let values = args![once.principal.as_str(), once.key.as_str(), over(now)];
    let Some(call) = conn.row::<CallRow>(&CALL, values).await? else { return Ok(None) };
    if call.digest != once.digest.to_string() {
        return Err(Conflict::Reused(once.key.clone()).into());
    }
    let rows = conn.rows::<RunRow>(&RUNS, vec![Arg::from(call.runs)]).await?;
    rows.into_iter().map(RunRow::value).collect::<StoreResult<_>>().map(Some)
}

/// What was called until then is not remembered any more.
fn over(now: Timestamp) -> Timestamp {
    now.saturating_sub(IDEMPOTENCY_KEPT).unwrap_or(Timestamp::MIN)
}

pub(crate) async fn forget(tx: &mut Tx<'_>, now: Timestamp, limit: u32) -> StoreResult<u32> {
    let forgotten = tx.write(&FORGET, args![over(now), limit]).await?;
    Ok(u32::try_from(forgotten).unwrap_or(u32::MAX))
}
