//! Parents and children: what parents are to hear, and children that nobody waits for any more.

use async_trait::async_trait;

use crate::error::StoreResult;
use crate::family::Callback;
use crate::ids::{RunId, SessionId};

/// Parents and children. The children themselves are listed by
/// [`SessionFilter::parent`](crate::ports::SessionFilter::parent).
///
/// A callback comes into being with the end of a child's run, in the same transaction. It is due until a run of the parent
/// that [`delivers`](crate::ports::NewRun::delivers) it is enqueued, once, or until the parent was told by its log alone;
/// the callbacks to a parent that is terminated are dropped.
///
/// What a child that is [`allotted`](crate::family::Parent::allotted) may use up is set aside in its parent's account in the
/// transaction that makes the child: `Exhausted` where the parent has too little left. When the child has no run that is not
/// over, and no allotment of a child of its own is open, that is settled in the transaction of the last of these ends,
/// however that came: the parent's account has what the child used, with a `usage` event that names the child and each
/// warning, and the rest is the parent's again. The tokens are counted by the minute once, where they were used. A run that
/// is enqueued for the child after that sets aside what is left of it, as far as its parent has it; the child's limits
/// become lower by the rest, with a `session.budget` event that names the parent. So do the parents above it first, where
/// theirs were settled.
///
/// Whoever tells parents, or ends what is left of families, listens to `Topic::Family` and looks here.
#[async_trait]
pub trait FamilyStore: Send + Sync {
    /// The sessions to which callbacks are due, which have no run that is not over and are not left in peace, at most
    /// `limit`, those first that wait for longest. Each callback that makes, and each end of a run that leaves, such a
    /// session wakes `Topic::Family`.
    async fn callbacks_due(&self, limit: u32) -> StoreResult<Vec<SessionId>>;

    /// The callbacks that are due to this session, oldest first, at most `limit`.
    async fn callbacks(&self, parent: SessionId, limit: u32) -> StoreResult<Vec<Callback>>;

    /// This session was told of these ends by its log alone, which has them as `child.ended` events: no run delivers them
    /// any more. One that is not due to it is passed over.
    async fn callbacks_heard(&self, parent: SessionId, ends: &[RunId]) -> StoreResult<()>;

    /// Leaves those of these sessions in peace that have children: what is due to them, now or later, waits until they are
    /// used again, that is until a run of theirs is enqueued that delivers nothing. Sessions that are not there are passed
    /// over.
    async fn hold_callbacks(&self, sessions: &[SessionId]) -> StoreResult<()>;

    /// The live sessions whose parent is terminated, at most `limit`: what is left to be ended after a crash. The end of any
    /// session wakes `Topic::Family`.
    async fn orphaned(&self, limit: u32) -> StoreResult<Vec<SessionId>>;
}
