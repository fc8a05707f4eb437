//! The runners that there are, in memory.

use std::cmp::Reverse;

use async_trait::async_trait;
use jiff::Timestamp;

use super::MemoryStore;
use super::draft::Draft;
use crate::affinity::RunnerProfile;
use crate::error::{Conflict, StoreError, StoreResult};
use crate::ids::{RunnerId, SessionId};
use crate::names::ProgramVersion;
use crate::ports::{BOUND_MAX, RunnerStore};
use crate::run::Epoch;
use crate::runner::{RunnerRecord, SEEN_EVERY};
use crate::session::ManagedSession;

/// A runner, and whether it was forgotten since it registered.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) runner: RunnerRecord,
    pub(super) forgotten: bool,
}

#[async_trait]
impl RunnerStore for MemoryStore {
    async fn register(
        &self,
        profile: RunnerProfile,
        version: ProgramVersion,
        now: Timestamp,
    ) -> StoreResult<RunnerRecord> {
        self.write(|draft| {
            let before = draft.data.runners.get(&profile.id);
            let runner = RunnerRecord {
                instance: Epoch(before.map_or(0, |known| known.runner.instance.0) + 1),
                draining: before.is_some_and(|known| known.runner.draining && !known.forgotten),
                profile,
                version,
                registered_at: now,
                seen_at: now,
            };
            let known = Known { runner: runner.clone(), forgotten: false };
            draft.data.runners.insert(runner.profile.id, known);
            Ok(runner)
        })
    }

    async fn seen(&self, id: RunnerId, instance: Epoch, now: Timestamp) -> StoreResult<RunnerRecord> {
        self.write(|draft| {
            let runner = draft.runner(id)?;
            if runner.instance != instance {
                let (held, given) = (runner.instance, instance);
                return Err(Conflict::Superseded { runner: id, held, given }.into());
            }
            if now.duration_since(runner.seen_at) >= SEEN_EVERY {
                runner.seen_at = now;
            }
            Ok(runner.clone())
        })
    }

    async fn drain(&self, id: RunnerId, draining: bool) -> StoreResult<RunnerRecord> {
        self.write(|draft| {
            let runner = draft.runner(id)?;
            runner.draining = draining;
            let runner = runner.clone();
            draft.wake_runner(id);
            if !draining {
                draft.wake_queue();
            }
            Ok(runner)
        })
    }

    async fn forget(&self, id: RunnerId) -> StoreResult<Vec<SessionId>> {
        self.write(|draft| {
            draft.runner(id)?;
            if let Some(run) = draft.data.held_by(id).next() {
                return Err(Conflict::RunnerBusy { runner: id, run: run.id }.into());
            }
            if let Some(known) = draft.data.runners.get_mut(&id) {
                known.forgotten = true;
            }
            let bound = |session: &&ManagedSession| {
                let workspace = &session.workspace;
                !session.state.is_terminated()
                    && (session.binding.as_ref().is_some_and(|binding| binding.runner == Some(id))
                        || workspace.runner == Some(id) && workspace.removed_at.is_none())
            };
            let mut bound: Vec<_> = draft.data.sessions.values().filter(bound).collect();
            bound.sort_by_key(|session| Reverse((session.created_at, session.id)));
            bound.truncate(usize::try_from(BOUND_MAX).unwrap_or(usize::MAX));
            Ok(bound.into_iter().map(|session| session.id).collect())
        })
    }

    async fn runner(&self, id: RunnerId) -> StoreResult<Option<RunnerRecord>> {
        let known = self.read(|data| data.runners.get(&id).cloned());
        Ok(known.filter(|known| !known.forgotten).map(|known| known.runner))
    }

    async fn runners(&self) -> StoreResult<Vec<RunnerRecord>> {
        let listed = |known: &&Known| !known.forgotten;
        Ok(self.read(|data| data.runners.values().filter(listed).map(|known| known.runner.clone()).collect()))
    }
}

impl Draft {
    fn runner(&mut self, id: RunnerId) -> StoreResult<&mut RunnerRecord> {
        let known = self.data.runners.get_mut(&id).filter(|known| !known.forgotten);
        known.map(|known| &mut known.runner).ok_or(StoreError::UnknownRunner(id))
    }
}
