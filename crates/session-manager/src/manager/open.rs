//! How sessions come in: made new, found by key, or taken in from a record.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use jiff::{SignedDuration, Timestamp};
use session_core::budget::{Budget, Usage};
use session_core::event::Payload;
use session_core::family::Parent;
use session_core::names::{AgentKey, ExternalKey, Label, Principal};
use session_core::ports::{LifecycleEvent, SessionFactory};
use session_core::session::{NewSession, WorkspaceSpec};
use session_core::state::TerminationReason;
use session_core::{ManagedSession, SandboxSpec, SessionId, SessionState, WorkspaceKind};
use tokio::time::timeout;

use super::engine::NoEngine;
use super::record::NotWritten;
use super::{HandleOf, SessionManager};
use crate::error::{OpenError, TrackError};
use crate::guards::{Place, Waiting};
use crate::handle::{Kept, SessionHandle};
use crate::recorded::{Arrival, Recorded};
use crate::registry::{Admission, Owner, RETRY_WHEN_ALL_ARE_BUSY, Refused, Tracked, Unusable};

/// What a new session is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRequest {
    /// Who owns it.
    pub principal: Principal,
    /// The owner's own name for it, which no other session of theirs bears.
    pub key: Option<ExternalKey>,
    /// Free text for people.
    pub label: Option<Label>,
    /// The agent that works in it.
    pub agent: Option<AgentKey>,
    /// The session that started it.
    pub parent: Option<SessionId>,
    /// The agent that started it.
    pub parent_agent: Option<AgentKey>,
    /// The kind of directory it works in.
    pub kind: WorkspaceKind,
    /// The project, for every kind but `scratch`.
    pub project: Option<Utf8PathBuf>,
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxSpec,
    /// Whatever its creator wants to remember, a JSON object.
    pub metadata: Payload,
    /// What it may use up.
    pub budget: Budget,
}

impl SessionRequest {
    /// A session of this principal in a fresh directory, with the default budget and nothing else said.
    #[must_use]
    pub fn new(principal: Principal) -> Self {
        Self {
            principal,
            key: None,
            label: None,
            agent: None,
            parent: None,
            parent_agent: None,
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox: SandboxSpec::default(),
            metadata: Payload::from_record("{}".into()),
            budget: Budget::default(),
        }
    }

    fn owner(&self) -> Owner {
        Owner { principal: self.principal.clone(), key: self.key.clone() }
    }

    fn into_new(self, id: SessionId) -> NewSession {
        NewSession {
            id,
            principal: self.principal,
            key: self.key,
            label: self.label,
            agent: self.agent,
            kind: self.kind,
            project: self.project,
            sandbox: self.sandbox,
            metadata: self.metadata,
            budget: self.budget,
            parent: self.parent.map(Parent::new),
        }
    }
}

/// What a get-or-create by key came to.
#[derive(Debug)]
pub enum Keyed<E> {
    /// The session is live.
    Live {
        /// It.
        handle: Arc<SessionHandle<E>>,
        /// It was made by this call.
        created: bool,
    },
    /// The session is suspended: resume it and go on.
    Suspended(SessionId),
}

/// What came of asking for a place.
enum Asked<F: SessionFactory> {
    Placed(Place<F>),
    Borne(SessionId),
}

impl<F: SessionFactory> SessionManager<F> {
    /// Makes a session. It is recorded before anything is alive behind it. At the limits somebody gives way, or is waited
    /// for, within the time for an answer; after that, and when nobody can, it is refused.
    ///
    /// When the future is dropped, no session is left behind.
    pub async fn create(&self, request: SessionRequest) -> Result<HandleOf<F>, OpenError> {
        match self.place(&request).await? {
            Asked::Placed(place) => self.open_new(place, request).await,
            Asked::Borne(session) => match request.key {
                Some(key) => Err(OpenError::KeyTaken { key, session }),
                // Only a key leads to a session that is there already.
                None => Err(OpenError::NotReady { session, within: Duration::ZERO }),
            },
        }
    }

    /// The session of the request's principal that bears this key, made if there is none. However many call this at once,
    /// it is made once.
    pub async fn get_or_create(
        &self,
        key: ExternalKey,
        request: SessionRequest,
    ) -> Result<Keyed<F::Engine>, OpenError> {
        let request = SessionRequest { key: Some(key), ..request };
        let within = self.inner.options.answer_within;
        let mut seen = None;
        let found = timeout(within, async {
            loop {
                match self.place(&request).await? {
                    Asked::Placed(place) => return Ok(Err(place)),
                    Asked::Borne(session) => {
                        seen = Some(session);
                        if let Some(keyed) = self.settled(session).await {
                            return Ok(Ok(keyed));
                        }
                    }
                }
            }
        });
        match (found.await, seen) {
            (Ok(Ok(Ok(keyed))), _) => Ok(keyed),
            (Ok(Ok(Err(place))), _) => {
                let handle = self.open_new(place, request).await?;
                Ok(Keyed::Live { handle, created: true })
            }
            (Ok(Err(error)), _) => Err(error),
            (Err(_), Some(session)) => Err(OpenError::NotReady { session, within }),
            (Err(_), None) => Err(self.no_room(&request.principal).into()),
        }
    }

    /// Waits until the session that bears a key is live or suspended; `None` when it is gone.
    async fn settled(&self, session: SessionId) -> Option<Keyed<F::Engine>> {
        let found = self.until(|state| match state.registry.touch(self.steady_now(), session) {
            Ok(_) => Some(state.registry.handle(session).map(Ok)),
            Err(Unusable::Suspended) => Some(Some(Err(session))),
            Err(Unusable::Unknown) => Some(None),
            Err(Unusable::Moving) => None,
        });
        match found.await? {
            Ok(handle) => match self.record_use(&handle).await {
                // It is let go of: whoever asks next finds it gone.
                Some(_) => None,
                None => Some(Keyed::Live { handle, created: false }),
            },
            Err(session) => Some(Keyed::Suspended(session)),
        }
    }

    /// Takes in a session that is recorded elsewhere: from now on it is known as suspended, and can be resumed or found by
    /// its key. What it may use and has used comes from the record. One whose record says that it is live (its process is
    /// gone) may stay suspended for as long as one that is suspended now; none is over before the idle timeout has passed
    /// from now (a minute, if there is none), whatever its record says, so that there is time to resume it.
    ///
    /// Of a session that is known here as suspended already the record is replaced by this one, with what it may use and has
    /// used; its context stays. So the next engine is made from what the record says now. One that is live or on its way
    /// somewhere stays as it is, which is an error.
    pub fn track(&self, session: ManagedSession) -> Result<(), TrackError> {
        let id = session.id;
        let ttl = self.inner.options.limits.suspended_ttl;
        let (recorded, expires_at) = match session.state {
            SessionState::Terminated { .. } => return Err(TrackError::Over(id)),
            SessionState::Suspended { expires_at, .. } => (Recorded::Suspended, Some(expires_at)),
            SessionState::Active => (Recorded::Active, None),
            SessionState::Idle { .. } => (Recorded::Idle, None),
        };
        let owner = Owner { principal: session.principal.clone(), key: session.key.clone() };
        let kept = Arc::new(Kept::new(session.clone(), None, recorded));
        let expires_at = expires_at.map(|at| self.inner.steady.of_wall(at));
        let tracked = {
            let now = self.steady_now();
            let mut state = self.lock();
            if state.parting.is_some() {
                return Err(TrackError::Leaving(id));
            }
            let expires_at = expires_at.unwrap_or_else(|| {
                now.saturating_add(ttl.unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
            });
            state.registry.track(now, id, owner, kept, expires_at)
        };
        match tracked {
            Tracked::New { evicted } => {
                // There is a deadline more. What is only renewed wakes nobody: whoever waits for room renews it each time.
                self.change(|_, _| ());
                self.record_evicted(evicted);
                Ok(())
            }
            Tracked::Again(kept) if kept.renew(session, recorded) => Ok(()),
            Tracked::Again(_) | Tracked::Known => Err(TrackError::Known(id)),
        }
    }

    /// Asks for a place until there is one, or it is certain that there will be none.
    async fn place(&self, request: &SessionRequest) -> Result<Asked<F>, OpenError> {
        let session = self.inner.env.session_id();
        let mut changes = self.subscribe();
        let asked = timeout(self.inner.options.answer_within, async {
            loop {
                let answer = {
                    let now = self.steady_now();
                    let mut state = self.lock();
                    if state.parting.is_some() {
                        return Err(OpenError::Leaving);
                    }
                    state.registry.admit(now, session, request.owner())
                };
                match answer? {
                    Admission::Reserved => return Ok(Asked::Placed(Place::new(self.clone(), session))),
                    Admission::Existing(session) => return Ok(Asked::Borne(session)),
                    Admission::After(victim) => self.give_way(victim).await,
                    Admission::Wait => {
                        // The sender is ours: it cannot be gone.
                        let _still_there = changes.changed().await;
                    }
                }
            }
        });
        asked.await.unwrap_or_else(|_| Err(self.no_room(&request.principal).into()))
    }

    /// What is said to whoever waited for room in vain.
    pub(super) fn no_room(&self, principal: &Principal) -> Refused {
        let limits = &self.inner.options.limits;
        let active = self.lock().registry.count(principal).active;
        let own = limits.active_per_principal_max.filter(|&max| active >= max);
        let limit = own.unwrap_or(limits.active_max);
        Refused { limit, own: own.is_some(), retry_after: Some(RETRY_WHEN_ALL_ARE_BUSY) }
    }

    /// Opens a session that has its place. When whoever asked for it leaves meanwhile, it is ended, unless it has a key by
    /// which it can be found.
    async fn open_new(&self, place: Place<F>, request: SessionRequest) -> Result<HandleOf<F>, OpenError> {
        let waiting = request.key.is_none().then(|| Waiting::new(self.clone(), place.session()));
        let manager = self.clone();
        let opened = self.carry_out(async move { manager.make_session(place, request).await }).await;
        if let Some(waiting) = waiting {
            waiting.over();
        }
        opened
    }

    async fn make_session(&self, place: Place<F>, request: SessionRequest) -> Result<HandleOf<F>, OpenError> {
        let (session, parent_agent) = (place.session(), request.parent_agent.clone());
        let new = request.into_new(session);
        let record = fresh(&new, self.inner.env.now());
        let kept = Arc::new(Kept::new(record.clone(), parent_agent, Recorded::Active));
        if let Err(error) = self.try_write(LifecycleEvent::Created(Box::new(new))).await {
            if let NotWritten::Lost(_) = error {
                // It may be recorded all the same: then nothing is alive behind it.
                self.record_failure(&kept, TerminationReason::EngineFailed).await;
            }
            return Err(OpenError::Record { session, source: error.into_error() });
        }
        let engine = match self.make_engine(record.clone()).await {
            Ok(engine) => engine,
            Err(NoEngine::Failed(source)) => {
                self.record_failure(&kept, TerminationReason::EngineFailed).await;
                return Err(OpenError::Engine { session, source });
            }
            Err(NoEngine::Ended(reason)) => {
                self.record_failure(&kept, reason).await;
                return Err(OpenError::Ended { session, reason });
            }
        };
        let handle = Arc::new(SessionHandle::new(record, kept, engine));
        match place.open(Arc::clone(&handle)) {
            Ok(()) => Ok(handle),
            Err(reason) => {
                self.abandon(handle, reason, true).await;
                Err(OpenError::Ended { session, reason })
            }
        }
    }

    /// The place of a new session is given back after this: until then its key is taken, as its record says.
    async fn record_failure(&self, kept: &Kept, reason: TerminationReason) {
        if let Err(error) = self.record(kept, Arrival::Over(reason)).await {
            tracing::warn!(session = %kept.id(), %error, "a session that did not open could not be recorded as over");
        }
    }
}

/// The record of a new session, as whoever keeps the records has it too.
fn fresh(new: &NewSession, now: Timestamp) -> ManagedSession {
    ManagedSession {
        id: new.id,
        principal: new.principal.clone(),
        state: SessionState::Active,
        key: new.key.clone(),
        label: new.label.clone(),
        agent: new.agent.clone(),
        workspace: WorkspaceSpec {
            kind: new.kind,
            project: new.project.clone(),
            runner: None,
            removed_at: None,
        },
        sandbox: new.sandbox.clone(),
        metadata: new.metadata.clone(),
        budget: new.budget,
        usage: Usage::NONE,
        reserved: Usage::NONE,
        allotted: Usage::NONE,
        parent: new.parent.map(|parent| parent.session),
        // Whoever stores it counts; here nobody asks.
        depth: 0,
        callback: new.parent.is_some_and(|parent| parent.callback),
        forked_from: None,
        generation: None,
        binding: None,
        created_at: now,
        active_at: now,
    }
}
