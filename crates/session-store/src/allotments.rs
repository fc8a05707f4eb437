//! What sessions have for their children: set aside with a child, settled when nobody works for it any more, and set aside
//! again when it is used again.
//!
//! The accounts of both are changed under the locks of both. Like the callbacks, and together with them, parents come last
//! and the deepest first; see [`families`](crate::families).

use jiff::Timestamp;
use session_core::budget::{Account, Allotment, Usage};
use session_core::ids::SessionId;
use session_core::{StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Sql};
use crate::rows::{AllotmentRow, TextRow};
use crate::tx::Tx;
use crate::{ledger, runs, sessions};

const MAKE: Sql = sql!(concat!(
    "INSERT INTO allotments (",
    allotment_columns!(""),
    ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
));

const SET: Sql = sql!(
    "UPDATE allotments SET tokens_given = $3, tool_calls_given = $4, turns_given = $5, cost_micros_given = $6, \
     tokens_booked = $7, tool_calls_booked = $8, turns_booked = $9, cost_micros_booked = $10, open = $11 \
     WHERE child = $1 AND parent = $2"
);

pub(crate) const OF_CHILD: Sql =
    sql!(concat!("SELECT ", allotment_columns!(""), " FROM allotments WHERE child = $1"));

pub(crate) const OPEN_BELOW: Sql =
    sql!("SELECT child FROM allotments WHERE parent = $1 AND open = 1 LIMIT 1");

pub(crate) const FORGET: Sql = sql!("DELETE FROM allotments WHERE child = $1");

/// What new children take of their parents' accounts.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The accounts of the parents as they are afterwards.
    pub(crate) accounts: Vec<(SessionId, Account)>,
    /// The child, the parent, and what the one has of the other's.
    pub(crate) allotments: Vec<(SessionId, SessionId, Allotment)>,
}

/// Writes down what children take that are in the registry by now; their parents are locked, or made here.
pub(crate) async fn take(tx: &mut Tx<'_>, taken: &Taken) -> StoreResult<()> {
    for (parent, account) in &taken.accounts {
        ledger::set_account(tx, *parent, account).await?;
    }
    for (child, parent, allotment) in &taken.allotments {
        tx.write_one(&MAKE, columns(*child, *parent, allotment)).await?;
    }
    Ok(())
}

/// The parent from whose budget this session spends, if that is settled with it now: nobody works in the session, which is
/// locked, nor below it.
pub(crate) async fn payer(tx: &mut Tx<'_>, child: SessionId) -> StoreResult<Option<SessionId>> {
    let Some((parent, allotment)) = of(tx, child).await? else { return Ok(None) };
    if !allotment.open {
        if known(tx, child).await?.state.is_terminated() {
            tx.write(&FORGET, args![child]).await?;
        }
        return Ok(None);
    }
    let at_work = runs::not_over(tx, child).await?.is_some()
        || tx.conn.row::<TextRow>(&OPEN_BELOW, args![child]).await?.is_some();
    Ok(Some(parent).filter(|_| !at_work))
}

/// Settles what a child used with its parent, which is locked.
pub(crate) async fn close(
    tx: &mut Tx<'_>,
    child: SessionId,
    parent: SessionId,
    at: Timestamp,
) -> StoreResult<()> {
    let Some((_, mut allotment)) = of(tx, child).await? else { return Ok(()) };
    let session = known(tx, child).await?;
    let mut account = known(tx, parent).await?.account();
    let Some((actual, settled)) = allotment.close(&session.account(), &mut account) else { return Ok(()) };
    ledger::set_account(tx, parent, &account).await?;
    for event in record::usage_of_child(child, actual, &account, &settled) {
        tx.record(parent, event, at);
    }
    if session.state.is_terminated() {
        tx.write_one(&FORGET, args![child]).await
    } else {
        tx.write_one(&SET, columns(child, parent, &allotment)).await
    }
}

/// A session, which is locked, is used again: it gets back what it had of its parent's, and that what it had of its own
/// parent's first. They are locked from below.
pub(crate) async fn reopen(tx: &mut Tx<'_>, child: SessionId, now: Timestamp) -> StoreResult<()> {
    let mut closed = Vec::new();
    let mut below = child;
    while let Some((parent, allotment)) = of(tx, below).await?.filter(|(_, allotment)| !allotment.open) {
        if tx.lock_session(parent).await?.state.is_terminated() {
            break;
        }
        closed.push((below, parent, allotment));
        below = parent;
    }
    for (child, parent, mut allotment) in closed.into_iter().rev() {
        let mut account = known(tx, child).await?.account();
        let mut above = known(tx, parent).await?.account();
        let from = account.budget;
        let first = allotment.at_first(sessions::made_with(tx, child).await?);
        allotment.reopen(first, &mut account, &mut above);
        ledger::set_account(tx, parent, &above).await?;
        if account.budget != from {
            ledger::set_account(tx, child, &account).await?;
            tx.record(child, record::session_budget_short(from, account.budget, parent), now);
        }
        tx.write_one(&SET, columns(child, parent, &allotment)).await?;
    }
    Ok(())
}

/// From which session's budget this one spends, and how much.
async fn of(tx: &mut Tx<'_>, child: SessionId) -> StoreResult<Option<(SessionId, Allotment)>> {
    tx.conn.row::<AllotmentRow>(&OF_CHILD, args![child]).await?.map(AllotmentRow::value).transpose()
}

/// A session that is locked, as this transaction has made it.
async fn known(tx: &mut Tx<'_>, id: SessionId) -> StoreResult<session_core::ManagedSession> {
    tx.session(id).await?.ok_or(StoreError::UnknownSession(id))
}

fn columns(child: SessionId, parent: SessionId, allotment: &Allotment) -> Args {
    let of = |usage: Usage| {
        [usage.tokens, usage.tool_calls, usage.turns, usage.cost_micros]
            .map(|part| Arg::from(part.cast_signed()))
    };
    let Allotment { given, booked, open } = *allotment;
    let ids = args![child, parent];
    ids.into_iter().chain(of(given)).chain(of(booked)).chain(args![i64::from(open)]).collect()
}
