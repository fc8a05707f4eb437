//! The questions of agents, and the answers of people.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::approval::{Approval, NewApproval, Reply, Withdrawal};
use crate::error::StoreResult;
use crate::ids::{ApprovalId, SessionId};
use crate::names::Principal;
use crate::run::Fence;

/// The questions of agents. Each is open until one answer or one withdrawal closes it: a compare-and-set, in one
/// transaction with the event that records it.
///
/// When a run ends, by whichever method, or goes back to the queue, its open questions are withdrawn in the same
/// transaction: nobody waits for an answer any more. Whoever waits for an answer listens to `Topic::Session` and looks
/// again.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Asks on behalf of a run, which must be in flight, and appends a `permission` event. The same question asked again
    /// by the same run is a no-op that returns it as it is now, with its first deadline.
    ///
    /// `UnknownRun`, `Fenced`, `Transition`; `Conflict::Exists` if the id is taken, `Conflict::ApprovalsFull` if the session
    /// has [`OPEN_MAX`](crate::approval::OPEN_MAX) that are open.
    async fn ask(&self, fence: Fence, new: NewApproval, now: Timestamp) -> StoreResult<Approval>;

    /// Answers, and appends a `permission.answered` event; behind it the `grant` event of a lasting answer, which is of no
    /// run. The same answer again, whoever gives it, is a no-op that returns the first; another one, or one to a question
    /// that was withdrawn, is `Conflict::Answered`. `UnknownApproval`.
    async fn answer(&self, id: ApprovalId, reply: Reply, now: Timestamp) -> StoreResult<Approval>;

    /// Closes a question of this run, which must be in flight, without an answer, and appends a `permission.withdrawn`
    /// event. One that is closed stays as it is and is returned: an answer that came first counts.
    ///
    /// `UnknownRun`, `Fenced`, `Transition`; `UnknownApproval` also if it is another run's.
    async fn withdraw(
        &self,
        fence: Fence,
        id: ApprovalId,
        why: Withdrawal,
        now: Timestamp,
    ) -> StoreResult<Approval>;

    /// One approval.
    async fn approval(&self, id: ApprovalId) -> StoreResult<Option<Approval>>;

    /// The newest ones by their ids, which sort by their time, newest first: those behind `after`, at most `limit` and
    /// never more than [`APPROVALS_PAGE_MAX`].
    async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<ApprovalId>,
        limit: u32,
    ) -> StoreResult<Vec<Approval>>;
}

/// The most approvals that one call returns.
pub const APPROVALS_PAGE_MAX: u32 = 1_000;

/// Which approvals a list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalFilter {
    /// Only this session's.
    pub session: Option<SessionId>,
    /// Only those of this owner's sessions.
    pub principal: Option<Principal>,
    /// Only those that wait for an answer.
    pub open: bool,
}
