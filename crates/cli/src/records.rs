//! What the manager of sessions reports, written to the store: the manager does not know that there is one.

use async_trait::async_trait;
use session_core::budget::Account;
use session_core::error::StoreError;
use session_core::ports::{
    Author, EventStore as _, Ledger as _, LifecycleEvent, LifecycleSink, SessionStore as _, SinkError,
};
use session_core::state::Trigger;
use session_core::{Env, NewEvent, SessionId, StoreResult, record};
use session_store::SqlStore;

/// Writes what a manager reports.
#[derive(Debug)]
pub struct Records {
    store: SqlStore,
    env: Env,
}

impl Records {
    /// Into this store.
    pub fn new(store: SqlStore, env: Env) -> Self {
        Self { store, env }
    }

    async fn write(&self, event: &LifecycleEvent) -> StoreResult<()> {
        let now = self.env.now();
        match event {
            LifecycleEvent::Created(new) => self.store.create((**new).clone(), now).await.map(drop),
            LifecycleEvent::Moved { session, trigger } => {
                match self.store.transition(*session, *trigger, now).await {
                    Ok(_) => Ok(()),
                    // An answer that was lost: it was recorded before.
                    Err(StoreError::Transition(error)) if error.from == leads_to(*trigger) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            LifecycleEvent::Resuming { session, step } => {
                self.append(*session, record::session_resume(*step)).await
            }
            LifecycleEvent::Reserved { session, worst } => {
                self.store.reserve(*session, *worst, now).await.map(drop)
            }
            LifecycleEvent::Settled { session, run, worst, actual } => {
                self.store.settle(*session, *worst, *actual, *run, now).await.map(drop)
            }
            LifecycleEvent::BudgetChanged { session, change, by } => {
                self.store.set_budget(*session, *change, by, now).await.map(drop)
            }
            LifecycleEvent::Granted { session, grant } => self.append(*session, grant.event()).await,
        }
    }

    async fn append(&self, session: SessionId, event: NewEvent) -> StoreResult<()> {
        self.store.append(Author::Session(session), vec![event], self.env.now()).await.map(drop)
    }
}

/// The state that a trigger leads to.
fn leads_to(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Activity | Trigger::Resume => "active",
        Trigger::IdleTimeout => "idle",
        Trigger::GraceElapsed { .. } | Trigger::Suspend { .. } => "suspended",
        Trigger::TtlExpired | Trigger::Terminate(_) => "terminated",
    }
}

#[async_trait]
impl LifecycleSink for Records {
    async fn account(&self, session: SessionId) -> Result<Option<Account>, SinkError> {
        let record =
            self.store.session(session).await.map_err(|error| SinkError::Unavailable(Box::new(error)))?;
        Ok(record.map(|record| record.account()))
    }

    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError> {
        self.write(event).await.map_err(|error| match error {
            StoreError::Exhausted(exhausted) => SinkError::Exhausted(exhausted),
            // A run of it is in the queue: it does not rest now.
            StoreError::Busy { .. } => SinkError::Busy(error.to_string()),
            StoreError::UnknownSession(_)
            | StoreError::UnknownRun(_)
            | StoreError::UnknownApproval(_)
            | StoreError::UnknownRunner(_)
            | StoreError::UnknownToken(_)
            | StoreError::Fenced { .. }
            | StoreError::Transition(_)
            | StoreError::Conflict(_) => SinkError::Superseded(error.to_string()),
            StoreError::Corrupt { .. } | StoreError::Unavailable(_) | StoreError::Backend(_) => {
                SinkError::Unavailable(Box::new(error))
            }
        })
    }
}
