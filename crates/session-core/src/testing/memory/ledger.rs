//! The accounts of sessions in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::MemoryStore;
use super::draft::Draft;
use crate::budget::{Account, BudgetChange, Settled, Usage, minute_of};
use crate::error::StoreResult;
use crate::ids::{RunId, SessionId};
use crate::names::Principal;
use crate::ports::{Ledger, MINUTES_KEPT};
use crate::record::{self, Booking};

#[async_trait]
impl Ledger for MemoryStore {
    async fn reserve(&self, session: SessionId, worst: Usage, _: Timestamp) -> StoreResult<Account> {
        self.write(|draft| {
            let session = draft.session(session)?;
            session.must_live("reserve")?;
            let mut account = session.account();
            account.reserve(worst)?;
            session.set_account(account);
            Ok(account)
        })
    }

    async fn settle(
        &self,
        session: SessionId,
        worst: Usage,
        actual: Usage,
        run: Option<RunId>,
        now: Timestamp,
    ) -> StoreResult<Account> {
        self.write(|draft| draft.settle(session, worst, actual, run, now))
    }

    async fn forfeit(&self, session: SessionId, now: Timestamp) -> StoreResult<Account> {
        self.write(|draft| {
            let mut account = draft.session(session)?.account();
            let actual = account.reserved;
            if actual == Usage::NONE {
                return Ok(account);
            }
            let settled = account.forfeit();
            draft.book(session, account, &settled, &Booking { actual, run: None, unsettled: true }, now)
        })
    }

    async fn set_budget(
        &self,
        session: SessionId,
        change: BudgetChange,
        by: &Principal,
        now: Timestamp,
    ) -> StoreResult<Account> {
        self.write(|draft| {
            let held = draft.session(session)?;
            held.must_live("change the budget")?;
            let from = held.budget;
            let mut account = held.account();
            account.change(change);
            held.set_account(account);
            if account.budget != from {
                draft.record(session, record::session_budget(from, account.budget, by), now);
            }
            Ok(account)
        })
    }

    async fn tokens_by_minute(&self, since: Timestamp) -> StoreResult<Vec<(i64, u64)>> {
        let since = minute_of(since);
        Ok(self.read(|data| data.minutes.range(since..).map(|(minute, tokens)| (*minute, *tokens)).collect()))
    }
}

impl Draft {
    pub(super) fn settle(
        &mut self,
        id: SessionId,
        worst: Usage,
        actual: Usage,
        run: Option<RunId>,
        now: Timestamp,
    ) -> StoreResult<Account> {
        let mut account = self.session(id)?.account();
        let settled = account.settle(worst, actual);
        self.book(id, account, &settled, &Booking { actual, run, unsettled: false }, now)
    }

    /// Writes down what a settlement led to.
    fn book(
        &mut self,
        id: SessionId,
        account: Account,
        settled: &Settled,
        booking: &Booking,
        now: Timestamp,
    ) -> StoreResult<Account> {
        self.session(id)?.set_account(account);
        for event in record::usage(booking, &account, settled) {
            self.record(id, event, now);
        }
        let minute = minute_of(now);
        if booking.actual.tokens > 0 {
            let tokens = self.data.minutes.entry(minute).or_default();
            *tokens = tokens.saturating_add(booking.actual.tokens).min(i64::MAX.cast_unsigned());
        }
        self.data.minutes.retain(|at, _| *at >= minute - MINUTES_KEPT);
        Ok(account)
    }
}
