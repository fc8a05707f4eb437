//! Parents and children: what parents are to hear, and children that nobody waits for any more.

use async_trait::async_trait;

use crate::error::StoreResult;
use crate::family::Callback;
use crate::ids::SessionId;

/// Parents and children. The children themselves are listed by
/// [`SessionFilter::parent`](crate::ports::SessionFilter::parent).
///
/// A callback comes into being with the end of a child's run, in the same transaction. It is due until a run of the parent
/// that [`delivers`](crate::ports::NewRun::delivers) it is enqueued, once; the callbacks to a parent that is terminated are
/// dropped.
#[async_trait]
pub trait FamilyStore: Send + Sync {
    /// The sessions to which callbacks are due and which have no run that is not over, at most `limit`, those first that
    /// wait for longest.
    async fn callbacks_due(&self, limit: u32) -> StoreResult<Vec<SessionId>>;

    /// The callbacks that are due to this session, oldest first, at most `limit`.
    async fn callbacks(&self, parent: SessionId, limit: u32) -> StoreResult<Vec<Callback>>;

    /// The live sessions whose parent is terminated, at most `limit`: what is left to be ended after a crash.
    async fn orphaned(&self, limit: u32) -> StoreResult<Vec<SessionId>>;
}
