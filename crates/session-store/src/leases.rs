//! Claims that hold on: renewed by who has them, and taken over by a runner's new host.

use jiff::{SignedDuration, Timestamp};
use session_core::budget::Usage;
use session_core::ids::{RunId, RunnerId};
use session_core::ports::Directive;
use session_core::run::{Epoch, Fence, Lease, Run, RunState};
use session_core::{StoreError, StoreResult};

use crate::conn::Sql;
use crate::ledger;
use crate::plan::no_step;
use crate::runs::{held, locked, until};
use crate::tx::Tx;

/// Under another epoch whoever claimed it before does not get it again.
const SET_LEASE: Sql = sql!(
    "UPDATE runs SET lease_until_ms = $2, epoch = $3, claim_id = CASE WHEN epoch = $3 THEN claim_id END \
     WHERE id = $1 AND epoch = $4 AND runner_id = $5"
);

pub(crate) async fn renew(
    tx: &mut Tx<'_>,
    fence: Fence,
    spending: Usage,
    lease: SignedDuration,
    now: Timestamp,
) -> StoreResult<Directive> {
    let (run, held) = held(tx, fence, "renew").await?;
    let epoch = run.epoch.0;
    tx.write_one(&SET_LEASE, args![run.id, until(lease, now), epoch, epoch, held.runner]).await?;
    let session = tx.session(run.session).await?.ok_or(StoreError::UnknownSession(run.session))?;
    let mut account = session.account();
    account.need(spending);
    if account.reserved != session.reserved {
        ledger::set_account(tx, session.id, &account).await?;
    }
    match run.stop {
        Some(order) => Ok(Directive::Stop(order.mode)),
        None => Ok(Directive::Continue { left: Some(account.in_hand()) }),
    }
}

pub(crate) async fn take_over(
    tx: &mut Tx<'_>,
    id: RunId,
    runner: RunnerId,
    lease: SignedDuration,
    now: Timestamp,
) -> StoreResult<Run> {
    let mut run = locked(tx, id).await?;
    if run.state.lease().is_none_or(|held| held.runner != runner) {
        return Err(no_step(run.state.phase(), "take over"));
    }
    let lease = Lease { runner, until: until(lease, now) };
    let before = run.epoch.0;
    run.epoch = Epoch(before.saturating_add(1));
    tx.write_one(&SET_LEASE, args![id, lease.until, run.epoch.0, before, runner]).await?;
    run.state = match run.state {
        RunState::Claimed(_) => RunState::Claimed(lease),
        RunState::Starting(_) => RunState::Starting(lease),
        RunState::Running(_) => RunState::Running(lease),
        other @ (RunState::Pending | RunState::Ended { .. }) => other,
    };
    Ok(run)
}
