//! The registry of sessions in memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::draft::Draft;
use super::{Data, Log, MemoryStore, Registration};
use crate::error::{StoreError, StoreResult};
use crate::event::{Event, EventKind, NewEvent, Payload, Seq};
use crate::identity::IdentityKey;
use crate::ids::{Id as _, SessionId, SessionRef};
use crate::names::Label;
use crate::ports::{Cursor, Listing, Page, STAMP_EVERY, SessionFilter, SessionStore, Sweep, Swept};
use crate::record;
use crate::session::{
    Generation, Keyed, ManagedSession, NewSession, OpenSession, Opened, SessionSummary, Validity,
};
use crate::state::{SessionState, TerminationReason, Trigger};

#[async_trait]
impl SessionStore for MemoryStore {
    async fn open(&self, request: OpenSession, now: Timestamp) -> StoreResult<Opened> {
        self.write(|draft| draft.open(request, now))
    }

    async fn opened(
        &self,
        key: IdentityKey,
        used: Option<Validity>,
        now: Timestamp,
    ) -> StoreResult<Option<Opened>> {
        self.write(|draft| Ok(draft.opened(key, used, now)))
    }

    async fn open_key(&self, new: NewSession, now: Timestamp) -> StoreResult<Keyed> {
        self.write(|draft| draft.open_key(new, now))
    }

    async fn create(&self, new: NewSession, now: Timestamp) -> StoreResult<ManagedSession> {
        self.write(|draft| draft.create(new, None, now))
    }

    async fn import(
        &self,
        new: NewSession,
        events: Vec<Event>,
        imported: Payload,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        self.write(|draft| {
            let session = draft.insert_session(new, None, SessionState::Idle { since: now }, now)?;
            let mut log = Log::default();
            for event in events {
                if event.seq != log.last().next() {
                    return Err(StoreError::Backend("the events are not numbered 1, 2, 3 …".into()));
                }
                log.push(Event { session: session.id, ..event });
            }
            draft.data.logs.insert(session.id, Arc::new(log));
            let kind =
                "session.imported".parse::<EventKind>().map_err(|error| StoreError::Backend(error.into()))?;
            draft.record(session.id, NewEvent { run: None, kind, payload: imported, origin: None }, now);
            Ok(session)
        })
    }

    async fn fork(
        &self,
        source: SessionId,
        upto: Option<Seq>,
        new: NewSession,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        self.write(|draft| draft.fork(source, upto, new, now))
    }

    async fn session(&self, id: SessionId) -> StoreResult<Option<ManagedSession>> {
        Ok(self.read(|data| data.sessions.get(&id).cloned()))
    }

    async fn find(&self, name: &SessionRef, limit: u32) -> StoreResult<Vec<SessionId>> {
        Ok(self.read(|data| {
            let mut found = match name {
                SessionRef::Id(id) => data.find(|session| session.id == *id),
                SessionRef::Prefix { digits, .. } => {
                    data.find(|session| session.id.uuid().simple().to_string().starts_with(digits))
                }
                SessionRef::Label(_) => Vec::new(),
            };
            if let (true, SessionRef::Prefix { label: Some(label), .. } | SessionRef::Label(label)) =
                (found.is_empty(), name)
                && let Ok(label) = Label::new(label)
            {
                found = data.find(|session| session.label.as_ref() == Some(&label));
            }
            found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            found
        }))
    }

    async fn list(&self, filter: &SessionFilter, page: &Page) -> StoreResult<Listing> {
        Ok(self.read(|data| {
            let limit = usize::try_from(page.limit.clamp(1, Page::MAX)).unwrap_or(usize::MAX);
            let behind =
                |session: &&ManagedSession| page.after.is_none_or(|after| place(session) > place_of(after));
            let mut sessions: Vec<_> =
                data.sessions.values().filter(|session| data.shows(filter, session)).filter(behind).collect();
            sessions.sort_by_key(|session| place(session));
            let more = sessions.len() > limit;
            sessions.truncate(limit);
            let last = sessions.last().filter(|_| more);
            let next = last.map(|session| Cursor { created_at: session.created_at, id: session.id });
            let items = sessions.into_iter().map(|session| data.summary(session)).collect();
            Listing { items, next }
        }))
    }

    async fn transition(
        &self,
        id: SessionId,
        trigger: Trigger,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        self.write(|draft| draft.transition(id, trigger, now))
    }

    async fn sweep(&self, sweep: &Sweep, now: Timestamp) -> StoreResult<Vec<Swept>> {
        self.write(|draft| draft.sweep(sweep, now))
    }

    async fn relabel(&self, id: SessionId, label: Option<Label>, now: Timestamp) -> StoreResult<()> {
        self.write(|draft| {
            draft.session(id)?.label.clone_from(&label);
            draft.record(id, record::session_label(label.as_ref()), now);
            Ok(())
        })
    }

    async fn workspace_removed(&self, id: SessionId, now: Timestamp) -> StoreResult<()> {
        self.write(|draft| {
            draft.session(id)?.workspace.removed_at.get_or_insert(now);
            Ok(())
        })
    }

    async fn expire_identities(&self, now: Timestamp, limit: u32) -> StoreResult<Vec<SessionId>> {
        self.write(|draft| {
            let mut expired: Vec<(IdentityKey, Registration)> =
                draft.data.registrations.clone().into_iter().collect();
            expired.retain(|(_, registration)| registration.expires_at <= now);
            expired.sort_by_key(|(_, registration)| registration.expires_at);
            expired.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            for (key, registration) in &expired {
                draft.data.registrations.remove(key);
                if draft.data.run_not_over(registration.session).is_none() {
                    draft.terminate(registration.session, TerminationReason::IdentityExpired, now)?;
                }
            }
            Ok(expired.into_iter().map(|(_, registration)| registration.session).collect())
        })
    }
}

impl Draft {
    fn opened(&mut self, key: IdentityKey, used: Option<Validity>, now: Timestamp) -> Option<Opened> {
        let known = self.data.registrations.get_mut(&key).filter(|known| known.expires_at > now)?;
        let session = self.data.sessions.get(&known.session)?;
        if session.state.is_terminated() {
            return None;
        }
        let stale = now.duration_since(known.stamped_at) > STAMP_EVERY;
        let used = used.filter(|_| stale);
        if let Some(validity) = used {
            known.expires_at = validity.until(session.created_at, now);
            known.stamped_at = now;
        }
        Some(opened(*known, session.generation, false, used.is_some()))
    }

    fn open(&mut self, request: OpenSession, now: Timestamp) -> StoreResult<Opened> {
        let key = request.identity.key();
        let validity = request.validity();
        if let Some(opened) = self.opened(key, Some(validity), now) {
            return Ok(opened);
        }
        // The numbering goes on from the sessions: it outlives the registration.
        let line = self.data.sessions.values().filter_map(|session| Some((session.generation?, session.id)));
        let last = line
            .filter(|(generation, _)| generation.key == key)
            .max_by_key(|(generation, _)| generation.number);
        let generation = Generation {
            key,
            number: last.map_or(0, |(generation, _)| generation.number) + 1,
            previous: last.map(|(_, session)| session),
        };
        if let Some(previous) = generation.previous {
            self.terminate(previous, TerminationReason::IdentityExpired, now)?;
        }
        let session = self.create(request.new, Some(generation), now)?;
        let expires_at = validity.until(now, now);
        let registration = Registration { session: session.id, expires_at, stamped_at: now };
        self.data.registrations.insert(key, registration);
        Ok(opened(registration, session.generation, true, true))
    }
}

fn opened(
    registration: Registration,
    generation: Option<Generation>,
    created: bool,
    stamped: bool,
) -> Opened {
    Opened {
        session: registration.session,
        generation: generation.map_or(0, |generation| generation.number),
        previous: generation.and_then(|generation| generation.previous),
        created,
        stamped,
        expires_at: registration.expires_at,
    }
}

impl Data {
    /// The sessions that answer to `what`, newest first.
    fn find(&self, what: impl Fn(&ManagedSession) -> bool) -> Vec<SessionId> {
        let found: BTreeMap<_, _> = self
            .sessions
            .values()
            .filter(|session| what(session))
            .map(|session| (place(session), session.id))
            .collect();
        found.into_values().collect()
    }

    fn shows(&self, filter: &SessionFilter, session: &ManagedSession) -> bool {
        let SessionFilter { principal, key, label, parent, busy, with_workspace, live } = filter;
        principal.as_ref().is_none_or(|principal| session.principal == *principal)
            && key.as_ref().is_none_or(|key| session.key.as_ref() == Some(key))
            && label.as_ref().is_none_or(|label| session.label.as_ref() == Some(label))
            && parent.is_none_or(|parent| session.parent == Some(parent))
            && (!busy || self.run_not_over(session.id).is_some())
            && (!with_workspace || session.workspace.removed_at.is_none())
            && (!(*live || key.is_some()) || !session.state.is_terminated())
    }

    fn summary(&self, session: &ManagedSession) -> SessionSummary {
        let last_run = self.runs().rev().find(|run| run.session == session.id).cloned();
        SessionSummary { session: session.clone(), last_run }
    }
}

/// A session's place in lists, which show the newest first.
fn place(session: &ManagedSession) -> Reverse<(Timestamp, SessionId)> {
    Reverse((session.created_at, session.id))
}

fn place_of(cursor: Cursor) -> Reverse<(Timestamp, SessionId)> {
    Reverse((cursor.created_at, cursor.id))
}
