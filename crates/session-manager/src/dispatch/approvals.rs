//! The questions of agents: asked on behalf of a claim, and answered by a person.

use session_core::approval::{Approval, NewApproval, Reply, TooLong, Withdrawal};
use session_core::error::StoreResult;
use session_core::ids::ApprovalId;
use session_core::run::Fence;

use super::{Coordinator, DispatchError};

impl Coordinator {
    /// Asks on behalf of a claim.
    pub async fn ask(&self, fence: Fence, new: NewApproval) -> Result<Approval, DispatchError> {
        new.question.check().map_err(invalid)?;
        Ok(self.store.ask(fence, new, self.env.now()).await?)
    }

    /// Answers for a person. Whether that one may is decided before.
    pub async fn answer(&self, id: ApprovalId, reply: Reply) -> Result<Approval, DispatchError> {
        reply.check().map_err(invalid)?;
        Ok(self.store.answer(id, reply, self.env.now()).await?)
    }

    /// Takes a question of a claim back. Returns it as it is now: an answer that came first counts.
    pub async fn withdraw(&self, fence: Fence, id: ApprovalId, why: Withdrawal) -> StoreResult<Approval> {
        self.store.withdraw(fence, id, why, self.env.now()).await
    }
}

fn invalid(error: TooLong) -> DispatchError {
    DispatchError::Invalid { field: error.part.into(), reason: error.to_string() }
}
