//! What repeated calls led to, in memory.

use jiff::Timestamp;

use super::Data;
use super::draft::Draft;
use crate::digest::Digest;
use crate::error::{Conflict, StoreError, StoreResult};
use crate::ids::RunId;
use crate::names::{IdempotencyKey, Principal};
use crate::ports::{Idempotency, NewRun};
use crate::run::Run;

/// A call that was made under a key.
#[derive(Debug, Clone)]
pub(super) struct Remembered {
    principal: Principal,
    key: IdempotencyKey,
    digest: Digest,
    runs: Vec<RunId>,
    at: Timestamp,
}

impl Data {
    /// The runs of the first call under this key, if there was one.
    pub(super) fn recalled(&self, once: &Idempotency, now: Timestamp) -> StoreResult<Option<Vec<Run>>> {
        let same = |call: &&Remembered| {
            (&call.principal, &call.key) == (&once.principal, &once.key) && Idempotency::is_kept(call.at, now)
        };
        let Some(call) = self.calls.iter().find(same) else { return Ok(None) };
        if call.digest != once.digest {
            return Err(Conflict::Reused(once.key.clone()).into());
        }
        let run =
            |id: &RunId| self.runs().find(|run| run.id == *id).cloned().ok_or(StoreError::UnknownRun(*id));
        call.runs.iter().map(run).collect::<StoreResult<_>>().map(Some)
    }
}

impl Draft {
    /// The runs of the first call under this key; `None` if this is the first.
    pub(super) fn recall(
        &mut self,
        once: &Idempotency,
        batch: &[NewRun],
        now: Timestamp,
    ) -> StoreResult<Option<Vec<Run>>> {
        let calls = &mut self.data.calls;
        calls.retain(|call| {
            (&call.principal, &call.key) != (&once.principal, &once.key) || Idempotency::is_kept(call.at, now)
        });
        if let Some(runs) = self.data.recalled(once, now)? {
            return Ok(Some(runs));
        }
        let Idempotency { principal, key, digest } = once.clone();
        self.data.calls.push(Remembered {
            principal,
            key,
            digest,
            runs: batch.iter().map(|run| run.id).collect(),
            at: now,
        });
        Ok(None)
    }

    /// Forgets calls of a day ago, the oldest first.
    pub(super) fn forget_calls(&mut self, now: Timestamp, limit: usize) -> usize {
        let calls = &mut self.data.calls;
        let before = calls.len();
        // In the order of their times: the clock may have been stepped between them.
        calls.sort_by_key(|call| call.at);
        let due = calls.iter().take_while(|call| !Idempotency::is_kept(call.at, now)).count();
        calls.drain(..due.min(limit));
        before - calls.len()
    }
}
