//! Sessions by their owners' names for them, and sessions that begin as copies, in memory.

use std::sync::Arc;

use jiff::Timestamp;

use super::draft::Draft;
use super::{Data, Log};
use crate::error::{Conflict, StoreError, StoreResult};
use crate::event::{Event, Seq};
use crate::ids::SessionId;
use crate::names::{ExternalKey, Principal};
use crate::ports::STAMP_EVERY;
use crate::record;
use crate::session::{ForkPoint, Keyed, ManagedSession, NewSession};
use crate::state::{SessionState, Trigger};

impl Draft {
    pub(super) fn open_key(&mut self, new: NewSession, now: Timestamp) -> StoreResult<Keyed> {
        let Some(id) = self.find_key(&new)? else {
            return Ok(Keyed { session: self.create(new, None, now)?, created: true });
        };
        let session = self.session(id)?;
        if matches!(session.state, SessionState::Idle { .. }) {
            self.transition(id, Trigger::Activity, now)?;
        } else if now.duration_since(session.active_at) > STAMP_EVERY {
            session.active_at = now;
        }
        Ok(Keyed { session: self.session(id)?.clone(), created: false })
    }

    /// The live session with the key of this one, which must have one.
    pub(super) fn find_key(&self, new: &NewSession) -> StoreResult<Option<SessionId>> {
        let key = new.key.as_ref().ok_or_else(|| StoreError::Backend("there is no key to open".into()))?;
        Ok(self.data.by_key(&new.principal, key))
    }

    pub(super) fn fork(
        &mut self,
        source: SessionId,
        upto: Option<Seq>,
        new: NewSession,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        self.session(source)?;
        let log = self.data.logs.get(&source).cloned().unwrap_or_default();
        let upto = upto.unwrap_or(log.last());
        if upto == Seq::START || upto > log.last() {
            return Err(Conflict::NoEvent { session: source, seq: upto, last: log.last() }.into());
        }
        let id = self.insert_session(new, None, SessionState::Active, now)?.id;
        let mut copy = Log::default();
        for event in log.events.iter().filter(|event| event.seq <= upto) {
            copy.push(Event { session: id, ..event.clone() });
        }
        self.data.logs.insert(id, Arc::new(copy));
        let point = ForkPoint { source, upto };
        self.session(id)?.forked_from = Some(point);
        self.record(id, record::session_forked(point), now);
        Ok(self.session(id)?.clone())
    }
}

impl Data {
    /// The live session of this owner with this key.
    pub(super) fn by_key(&self, principal: &Principal, key: &ExternalKey) -> Option<SessionId> {
        let has_it = |session: &&ManagedSession| {
            session.principal == *principal
                && session.key.as_ref() == Some(key)
                && !session.state.is_terminated()
        };
        self.sessions.values().find(has_it).map(|session| session.id)
    }
}
