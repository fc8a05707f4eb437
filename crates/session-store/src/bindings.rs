//! What ties a session to a framework's own conversation.

use jiff::Timestamp;
use session_core::ids::{RunId, SessionId};
use session_core::run::Fence;
use session_core::session::Binding;
use session_core::{Conflict, StoreError, StoreResult, record};

use crate::conn::Sql;
use crate::rows::{SessionRow, id_of};
use crate::runs;
use crate::tx::Tx;

const BOUND: Sql =
    sql!(concat!("SELECT binding_run, ", session_columns!(""), " FROM sessions WHERE id = $1"));

const BIND: Sql = sql!(
    "UPDATE sessions SET binding_runner = $2, binding_hostname = $3, binding_executor = $4, \
     binding_executor_session_id = $5, binding_project_dir = $6, binding_run = $7, binding_resumable_at_ms = $8 \
     WHERE id = $1"
);

const SET_RESUMABLE: Sql = sql!(
    "UPDATE sessions SET binding_resumable_at_ms = $2 \
     WHERE id = $1 AND binding_executor IS NOT NULL AND binding_resumable_at_ms IS NULL"
);

row! {
    /// Which run bound a session.
    BoundRow { binding_run: Option<String>, }
}

pub(crate) async fn bind(
    tx: &mut Tx<'_>,
    fence: Fence,
    binding: &Binding,
    now: Timestamp,
) -> StoreResult<()> {
    let (run, _) = runs::held(tx, fence, "bind").await?;
    let row = tx.conn.row::<(BoundRow, SessionRow)>(&BOUND, args![run.session]).await?;
    let (bound, session) = row.ok_or(StoreError::UnknownSession(run.session))?;
    let by = bound.binding_run.map(|run| id_of("sessions", "binding_run", &run)).transpose()?;
    let held = session.value()?.binding;
    let held = held.as_ref().map(|held| (held, by));
    let Some(binding) = binding.clone().bind(run.session, held, &run)? else { return Ok(()) };
    write(tx, run.session, &binding, Some(run.id), now).await?;
    tx.record(run.session, record::bound(run.id, &binding), now);
    Ok(())
}

/// Puts a binding that a run made, or an import, into a session's row.
pub(crate) async fn write(
    tx: &mut Tx<'_>,
    session: SessionId,
    binding: &Binding,
    by: Option<RunId>,
    now: Timestamp,
) -> StoreResult<()> {
    let values = args![
        session,
        binding.runner,
        binding.hostname.as_str(),
        binding.executor.as_str(),
        binding.executor_session_id.as_str(),
        binding.project_dir.as_str(),
        by,
        Some(now).filter(|_| binding.resumable),
    ];
    tx.write_one(&BIND, values).await
}

pub(crate) async fn resumable(tx: &mut Tx<'_>, fence: Fence, now: Timestamp) -> StoreResult<()> {
    let (run, _) = runs::held(tx, fence, "resumable").await?;
    let session = tx.session(run.session).await?.ok_or(StoreError::UnknownSession(run.session))?;
    let binding = session.binding.ok_or(Conflict::Unbound(run.session))?;
    if !binding.resumable {
        tx.write_one(&SET_RESUMABLE, args![run.session, now]).await?;
    }
    Ok(())
}
