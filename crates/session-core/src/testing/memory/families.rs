//! Parents and children in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::draft::Draft;
use super::{Data, MemoryStore};
use crate::error::{Conflict, StoreResult};
use crate::event::{EventKind, NewEvent, Payload};
use crate::family::{Callback, admit};
use crate::ids::{RunId, SessionId};
use crate::ports::FamilyStore;
use crate::run::Run;
use crate::session::{ManagedSession, NewSession};

/// A callback, as long as it is due.
#[derive(Debug, Clone)]
pub(super) struct Owed(Callback);

#[async_trait]
impl FamilyStore for MemoryStore {
    async fn callbacks_due(&self, limit: u32) -> StoreResult<Vec<SessionId>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.read(|data| {
            let mut due: Vec<SessionId> = Vec::new();
            for Owed(callback) in &data.callbacks {
                let in_peace = data.held.contains(&callback.parent);
                if !in_peace
                    && !due.contains(&callback.parent)
                    && data.run_not_over(callback.parent).is_none()
                {
                    due.push(callback.parent);
                }
            }
            due.truncate(limit);
            due
        }))
    }

    async fn callbacks(&self, parent: SessionId, limit: u32) -> StoreResult<Vec<Callback>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.read(|data| {
            let due = data.callbacks.iter().map(|Owed(callback)| callback);
            due.filter(|callback| callback.parent == parent).take(limit).cloned().collect()
        }))
    }

    async fn callbacks_heard(&self, parent: SessionId, ends: &[RunId]) -> StoreResult<()> {
        self.write(|draft| {
            let heard = |callback: &Callback| callback.parent == parent && ends.contains(&callback.run);
            draft.data.callbacks.retain(|Owed(callback)| !heard(callback));
            Ok(())
        })
    }

    async fn hold_callbacks(&self, sessions: &[SessionId]) -> StoreResult<()> {
        self.write(|draft| {
            let is_parent = |id: &&SessionId| draft.data.sessions.values().any(|it| it.parent == Some(**id));
            let held: Vec<_> = sessions.iter().filter(is_parent).copied().collect();
            draft.data.held.extend(held);
            Ok(())
        })
    }

    async fn orphaned(&self, limit: u32) -> StoreResult<Vec<SessionId>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.read(|data| {
            let left = |parent| data.sessions.get(&parent).is_some_and(|parent| parent.state.is_terminated());
            let live = data.sessions.values().filter(|session| !session.state.is_terminated());
            live.filter(|session| session.parent.is_some_and(left))
                .map(|session| session.id)
                .take(limit)
                .collect()
        }))
    }
}

impl Draft {
    /// The depth of a new session.
    pub(super) fn depth(&mut self, new: &NewSession) -> StoreResult<u32> {
        let Some(wish) = new.parent else { return Ok(0) };
        let live = self.data.live_children(wish.session);
        admit(self.session(wish.session)?, live, new, &wish)
    }

    /// Tells the parent of a run's session that it ended, where that wants to hear of it.
    pub(super) fn call_back(
        &mut self,
        id: RunId,
        result: Option<&Payload>,
        now: Timestamp,
    ) -> StoreResult<()> {
        let run = self.run(id)?.clone();
        let session = self.session(run.session)?;
        let Some(parent) = session.parent.filter(|_| session.callback) else { return Ok(()) };
        let Some(callback) = Callback::of(&run, parent, result) else { return Ok(()) };
        let payload = callback.payload.clone();
        self.record(parent, NewEvent { run: None, kind: EventKind::ChildEnded, payload, origin: None }, now);
        if !self.session(parent)?.state.is_terminated() {
            self.data.callbacks.push(Owed(callback));
        }
        Ok(())
    }

    /// A run of this session tells it of these ends; one that tells it of none is use of it.
    pub(super) fn deliver(&mut self, parent: SessionId, ends: &[RunId]) -> StoreResult<()> {
        if ends.is_empty() {
            self.data.held.remove(&parent);
        }
        for run in ends {
            let due = |Owed(callback): &Owed| callback.run == *run && callback.parent == parent;
            let place = self.data.callbacks.iter().position(due).ok_or(Conflict::NotDue(*run))?;
            self.data.callbacks.remove(place);
        }
        Ok(())
    }

    /// Nobody is there any more to be told.
    pub(super) fn drop_callbacks(&mut self, parent: SessionId) {
        self.data.callbacks.retain(|Owed(callback)| callback.parent != parent);
    }
}

impl Data {
    /// A run that is not over of a live session below this one.
    pub(super) fn at_work_below(&self, session: SessionId) -> Option<&Run> {
        let live = |it: &&ManagedSession| it.parent == Some(session) && !it.state.is_terminated();
        let mut children = self.sessions.values().filter(live);
        children.find_map(|child| self.run_not_over(child.id).or_else(|| self.at_work_below(child.id)))
    }

    fn live_children(&self, parent: SessionId) -> u32 {
        let children = self.sessions.values().filter(|session| session.parent == Some(parent));
        let live = children.filter(|session| !session.state.is_terminated()).count();
        u32::try_from(live).unwrap_or(u32::MAX)
    }
}
