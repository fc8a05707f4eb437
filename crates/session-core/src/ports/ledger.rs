//! The budgets of sessions, kept in the store.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::budget::{Account, BudgetChange, Usage};
use crate::error::StoreResult;
use crate::ids::{RunId, SessionId};
use crate::names::Principal;

/// The accounts of sessions: reserve the worst before, settle the truth after. [`Account`] decides; the store makes
/// sure that nobody decides on an account that another one is changing.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Sets `worst` aside for work that is about to begin. `Exhausted` when a resource has too little left,
    /// `Transition` if the session is terminated, `UnknownSession`.
    ///
    /// What is set aside is one sum a session: whose it is, nobody records. So a settlement that comes after a
    /// [`forfeit`](Self::forfeit) of its reservation books the same work a second time: `worst` counts as used since the
    /// forfeit, and `actual` is added to it. Its `worst` is then taken from what others have set aside since, as far as
    /// there is any: that much can be reserved once too often until nothing is set aside any more. Likewise a
    /// reservation that is asked for again, because the answer to the first was lost, is set aside twice until somebody
    /// forfeits.
    async fn reserve(&self, session: SessionId, worst: Usage, now: Timestamp) -> StoreResult<Account>;

    /// Gives `worst` back and books what was really used, also if it is more, and also on a terminated session: what
    /// was spent was spent. `UnknownSession`.
    ///
    /// The tokens count for the minute of `now`. Appends a `usage` event unless nothing was used, and a `warning`
    /// event for each resource that crossed [`WARN_AT_PERCENT`](crate::budget::WARN_AT_PERCENT); both of `run`, where
    /// one is given.
    async fn settle(
        &self,
        session: SessionId,
        worst: Usage,
        actual: Usage,
        run: Option<RunId>,
        now: Timestamp,
    ) -> StoreResult<Account>;

    /// Books all that work has set aside as used, with the same events and `unsettled` in the first: whoever set it aside
    /// is gone, and none of them may settle any more (see [`reserve`](Self::reserve)). What is set aside for children stays
    /// so. Nothing happens when nothing is set aside. `UnknownSession`.
    async fn forfeit(&self, session: SessionId, now: Timestamp) -> StoreResult<Account>;

    /// Changes the limits and appends a `session.budget` event, unless the limits are the same afterwards.
    /// `Transition` if the session is terminated, `UnknownSession`.
    async fn set_budget(
        &self,
        session: SessionId,
        change: BudgetChange,
        by: &Principal,
        now: Timestamp,
    ) -> StoreResult<Account>;

    /// The tokens of all sessions by the minute since the epoch, from the minute of `since` on, in order; a minute
    /// without any is left out, and one holds 2⁶³ − 1 at the most. Only the last two hours are kept: what is older
    /// goes with the next settlement.
    async fn tokens_by_minute(&self, since: Timestamp) -> StoreResult<Vec<(i64, u64)>>;
}

/// For how many minutes, counted back from a settlement, the tokens of each are kept.
pub const MINUTES_KEPT: i64 = 120;
