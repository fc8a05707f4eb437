//! The accounts of sessions: looked at and changed under the lock of their session.

use jiff::Timestamp;
use session_core::budget::{Account, BudgetChange, Settled, Usage, minute_of};
use session_core::ids::{RunId, SessionId};
use session_core::names::Principal;
use session_core::ports::MINUTES_KEPT;
use session_core::record::{self, Booking};
use session_core::{StoreError, StoreResult};

use crate::conn::{Arg, Args, Conn, Sql};
use crate::tx::Tx;

const SET_ACCOUNT: Sql = sql!(
    "UPDATE sessions SET tokens_max = $2, tool_calls_max = $3, turns_max = $4, cost_micros_max = $5, \
     tokens_used = $6, tool_calls_used = $7, turns_used = $8, cost_micros_used = $9, \
     tokens_reserved = $10, tool_calls_reserved = $11, turns_reserved = $12, cost_micros_reserved = $13, \
     tokens_allotted = $14, tool_calls_allotted = $15, turns_allotted = $16, cost_micros_allotted = $17 \
     WHERE id = $1"
);

/// The sum stays within what the databases can add.
const ADD_TOKENS: Sql = sql!(
    "INSERT INTO token_minutes (minute, tokens) VALUES ($1, $2) ON CONFLICT (minute) DO UPDATE SET tokens = \
     CASE WHEN token_minutes.tokens > 9223372036854775807 - excluded.tokens THEN 9223372036854775807 \
     ELSE token_minutes.tokens + excluded.tokens END"
);

pub(crate) const PRUNE_MINUTES: Sql = sql!("DELETE FROM token_minutes WHERE minute < $1");

pub(crate) const MINUTES: Sql =
    sql!("SELECT minute, tokens FROM token_minutes WHERE minute >= $1 ORDER BY minute");

row! {
    /// What was used in a minute.
    MinuteRow { minute: i64, tokens: i64, }
}

pub(crate) async fn reserve(tx: &mut Tx<'_>, id: SessionId, worst: Usage) -> StoreResult<Account> {
    let session = tx.lock_session(id).await?;
    session.must_live("reserve")?;
    let mut account = session.account();
    account.reserve(worst)?;
    if worst != Usage::NONE {
        set_account(tx, id, &account).await?;
    }
    Ok(account)
}

/// Puts an account in the place of that of a session, which is locked.
pub(crate) async fn set_account(tx: &mut Tx<'_>, id: SessionId, account: &Account) -> StoreResult<()> {
    tx.write_one(&SET_ACCOUNT, columns(id, account)).await
}

pub(crate) async fn settle(
    tx: &mut Tx<'_>,
    id: SessionId,
    worst: Usage,
    actual: Usage,
    run: Option<RunId>,
    now: Timestamp,
) -> StoreResult<Account> {
    let mut account = tx.lock_session(id).await?.account();
    let settled = account.settle(worst, actual);
    book(tx, id, account, &settled, &Booking { actual, run, unsettled: false }, now).await
}

pub(crate) async fn forfeit(tx: &mut Tx<'_>, id: SessionId, now: Timestamp) -> StoreResult<Account> {
    let mut account = tx.lock_session(id).await?.account();
    let actual = account.reserved;
    if actual == Usage::NONE {
        return Ok(account);
    }
    let settled = account.forfeit();
    book(tx, id, account, &settled, &Booking { actual, run: None, unsettled: true }, now).await
}

/// Writes down what a settlement led to. The row of the minute, which all sessions share, is locked last.
async fn book(
    tx: &mut Tx<'_>,
    id: SessionId,
    account: Account,
    settled: &Settled,
    booking: &Booking,
    now: Timestamp,
) -> StoreResult<Account> {
    set_account(tx, id, &account).await?;
    for event in record::usage(booking, &account, settled) {
        tx.record(id, event, now);
    }
    let minute = minute_of(now);
    if booking.actual.tokens > 0 {
        let tokens = i64::try_from(booking.actual.tokens).unwrap_or(i64::MAX);
        tx.write(&ADD_TOKENS, args![minute, tokens]).await?;
    }
    tx.write(&PRUNE_MINUTES, args![minute.saturating_sub(MINUTES_KEPT)]).await?;
    Ok(account)
}

pub(crate) async fn set_budget(
    tx: &mut Tx<'_>,
    id: SessionId,
    change: BudgetChange,
    by: &Principal,
    now: Timestamp,
) -> StoreResult<Account> {
    let session = tx.lock_session(id).await?;
    session.must_live("change the budget")?;
    let mut account = session.account();
    account.change(change);
    if account.budget != session.budget {
        set_account(tx, id, &account).await?;
        tx.record(id, record::session_budget(session.budget, account.budget, by), now);
    }
    Ok(account)
}

pub(crate) async fn tokens_by_minute(conn: &mut Conn<'_>, since: Timestamp) -> StoreResult<Vec<(i64, u64)>> {
    let rows = conn.rows::<MinuteRow>(&MINUTES, args![minute_of(since)]).await?;
    let value = |row: MinuteRow| {
        let tokens = u64::try_from(row.tokens).map_err(|source| StoreError::Corrupt {
            table: "token_minutes",
            column: "tokens",
            row: row.minute.to_string(),
            source: source.into(),
        });
        Ok((row.minute, tokens?))
    };
    rows.into_iter().map(value).collect()
}

/// The session and the values of its account's columns.
fn columns(id: SessionId, account: &Account) -> Args {
    let Account { budget, used, reserved, allotted } = account;
    let of = |usage: &Usage| {
        [usage.tokens, usage.tool_calls, usage.turns, usage.cost_micros]
            .map(|part| Arg::from(part.cast_signed()))
    };
    let limits = args![
        id,
        budget.tokens_max.cast_signed(),
        budget.tool_calls_max.cast_signed(),
        budget.turns_max.map(u64::cast_signed),
        budget.cost_micros_max.map(u64::cast_signed),
    ];
    limits.into_iter().chain(of(used)).chain(of(reserved)).chain(of(allotted)).collect()
}
