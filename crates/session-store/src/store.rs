//! The store: opening, closing, and the ports.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use session_core::affinity::RunnerProfile;
use session_core::event::{Event, NewEvent, Payload, Seq};
use session_core::ids::{RunId, RunnerId, SessionId, SessionRef};
use session_core::names::Label;
use session_core::ports::*;
use session_core::run::*;
use session_core::session::*;
use session_core::state::Trigger;
use session_core::wake::{Listener, Topic, WakeHub};
use session_core::{StoreError, StoreResult};

use crate::{OpenError, OpenOptions, StoreUrl};

/// A store on SQLite or PostgreSQL. Clones share everything.
#[derive(Debug, Clone)]
pub struct SqlStore {
    hub: WakeHub,
}

fn soon<T>() -> StoreResult<T> {
    Err(StoreError::Unavailable("not there".into()))
}

impl SqlStore {
    /// Opens a store to write: migrates it and starts its writer.
    pub async fn open(url: &StoreUrl, _options: OpenOptions) -> Result<Self, OpenError> {
        Err(OpenError::NoSchema(url.to_string()))
    }
    /// Opens a store only to read, beside whoever writes it. Never writes or migrates.
    pub async fn open_reader(url: &StoreUrl) -> Result<Self, OpenError> {
        Err(OpenError::NoSchema(url.to_string()))
    }
    /// Finishes what was begun and closes.
    pub async fn close(self) {}
    /// The hub that passes this store's wake-ups on.
    #[must_use]
    pub fn wake_hub(&self) -> &WakeHub {
        &self.hub
    }
}
#[async_trait]
impl SessionStore for SqlStore {
    async fn open(&self, _: OpenSession, _: Timestamp) -> StoreResult<Opened> {
        soon()
    }
    async fn create(&self, _: NewSession, _: Timestamp) -> StoreResult<ManagedSession> {
        soon()
    }
    async fn import(
        &self,
        _: NewSession,
        _: Vec<Event>,
        _: Payload,
        _: Timestamp,
    ) -> StoreResult<ManagedSession> {
        soon()
    }
    async fn session(&self, _: SessionId) -> StoreResult<Option<ManagedSession>> {
        soon()
    }
    async fn find(&self, _: &SessionRef, _: u32) -> StoreResult<Vec<SessionId>> {
        soon()
    }
    async fn list(&self, _: &SessionFilter, _: &Page) -> StoreResult<Listing> {
        soon()
    }
    async fn transition(&self, _: SessionId, _: Trigger, _: Timestamp) -> StoreResult<ManagedSession> {
        soon()
    }
    async fn relabel(&self, _: SessionId, _: Option<Label>, _: Timestamp) -> StoreResult<()> {
        soon()
    }
    async fn workspace_removed(&self, _: SessionId, _: Timestamp) -> StoreResult<()> {
        soon()
    }
    async fn expire_identities(&self, _: Timestamp, _: u32) -> StoreResult<Vec<SessionId>> {
        soon()
    }
}
#[async_trait]
impl RunStore for SqlStore {
    async fn enqueue(&self, _: Vec<NewRun>, _: Option<NewCrew>, _: Timestamp) -> StoreResult<Vec<Run>> {
        soon()
    }
    async fn claim(
        &self,
        _: &RunnerProfile,
        _: SignedDuration,
        _: Timestamp,
    ) -> StoreResult<Option<ClaimedRun>> {
        soon()
    }
    async fn advance(&self, _: Fence, _: RunProgress, _: Timestamp) -> StoreResult<Run> {
        soon()
    }
    async fn bind(&self, _: Fence, _: Binding, _: Timestamp) -> StoreResult<()> {
        soon()
    }
    async fn renew(&self, _: Fence, _: SignedDuration, _: Timestamp) -> StoreResult<Directive> {
        soon()
    }
    async fn finish(&self, _: Fence, _: Ending, _: Option<Payload>, _: Timestamp) -> StoreResult<Run> {
        soon()
    }
    async fn request_stop(&self, _: RunId, _: StopMode, _: Timestamp) -> StoreResult<Run> {
        soon()
    }
    async fn in_flight(&self, _: RunnerId) -> StoreResult<Vec<Run>> {
        soon()
    }
    async fn take_over(&self, _: RunId, _: RunnerId, _: SignedDuration, _: Timestamp) -> StoreResult<Run> {
        soon()
    }
    async fn reap(&self, _: Timestamp, _: u32) -> StoreResult<Vec<Run>> {
        soon()
    }
    async fn run(&self, _: RunId) -> StoreResult<Option<Run>> {
        soon()
    }
    async fn runs(&self, _: SessionId, _: u32) -> StoreResult<Vec<Run>> {
        soon()
    }
    async fn has_work(&self, _: RunnerId) -> StoreResult<bool> {
        soon()
    }
}
#[async_trait]
impl EventStore for SqlStore {
    async fn append(&self, _: Author, _: Vec<NewEvent>, _: Timestamp) -> StoreResult<Appended> {
        soon()
    }
    async fn read(&self, _: SessionId, _: Seq, _: u32) -> StoreResult<Vec<Event>> {
        soon()
    }
    async fn tail(&self, _: SessionId, _: u32) -> StoreResult<Vec<Event>> {
        soon()
    }
}
impl Wakes for SqlStore {
    fn listen(&self, topic: Topic) -> Listener {
        self.hub.listen(topic)
    }
}
