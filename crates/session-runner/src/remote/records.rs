//! What the manager of a runner's sessions reports, sent to the coordinator that keeps the records.

use async_trait::async_trait;
use session_api::paths;
use session_api::runners::{Move, Reported, SessionChange, SessionReport, Settlement};
use session_core::SessionId;
use session_core::budget::{Account, Exhausted};
use session_core::error::StoreError;
use session_core::ports::{LifecycleEvent, LifecycleSink, SinkError};
use session_core::state::Trigger;
use session_manager::Dispatcher as _;

use super::Remote;
use super::answers::About;

fn refused(error: StoreError) -> SinkError {
    if error.may_pass() {
        SinkError::Unavailable(Box::new(error))
    } else {
        SinkError::Superseded(error.to_string())
    }
}

/// A move that a runner may make. The end of a session is its owner's or the coordinator's.
fn moved(trigger: Trigger) -> Option<Move> {
    let milliseconds = |ttl: jiff::SignedDuration| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    match trigger {
        Trigger::Activity => Some(Move::Activity),
        Trigger::IdleTimeout => Some(Move::IdleTimeout),
        Trigger::GraceElapsed { ttl } => Some(Move::GraceElapsed(milliseconds(ttl))),
        Trigger::Suspend { ttl } => Some(Move::Suspended(milliseconds(ttl))),
        Trigger::Resume => Some(Move::Resume),
        Trigger::TtlExpired | Trigger::Terminate(_) => None,
    }
}

impl Remote {
    async fn tell(&self, session: SessionId, what: SessionChange) -> Result<(), SinkError> {
        let report = SessionReport { session_id: session.to_string(), what };
        let reported: Reported = self
            .ask_for(paths::RUNNER_SESSION_REPORTS, &report, About::Session(session))
            .await
            .map_err(refused)?;
        if let Some(view) = reported.exhausted {
            let exhausted = Exhausted::try_from(&view);
            return Err(
                exhausted.map_or_else(|error| SinkError::Unavailable(Box::new(error)), SinkError::from)
            );
        }
        match (reported.busy, reported.superseded) {
            (Some(why), _) => Err(SinkError::Busy(why)),
            (None, Some(why)) => Err(SinkError::Superseded(why)),
            (None, None) => Ok(()),
        }
    }
}

#[async_trait]
impl LifecycleSink for Remote {
    async fn account(&self, session: SessionId) -> Result<Option<Account>, SinkError> {
        let record = self.session(session).await.map_err(refused)?;
        Ok(record.map(|record| record.account()))
    }

    async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError> {
        match event {
            LifecycleEvent::Moved { session, trigger } => match moved(*trigger) {
                Some(to) => self.tell(*session, SessionChange::Moved(to)).await,
                None => Err(SinkError::Superseded("a runner ends no session".into())),
            },
            LifecycleEvent::Resuming { session, step } => {
                self.tell(*session, SessionChange::Resuming(step.code().into())).await
            }
            LifecycleEvent::Reserved { session, worst } => {
                self.tell(*session, SessionChange::Reserve((*worst).into())).await
            }
            // It goes along with the end of the run: that comes once, and so what was used is booked once.
            LifecycleEvent::Settled { run: Some(run), worst, actual, .. } => {
                let settlement = Settlement { worst: (*worst).into(), actual: (*actual).into() };
                self.state().settlements.insert(*run, settlement);
                Ok(())
            }
            LifecycleEvent::Settled { session, run: None, .. } => {
                self.tell(*session, SessionChange::Forfeit).await
            }
            LifecycleEvent::Created(_)
            | LifecycleEvent::BudgetChanged { .. }
            | LifecycleEvent::Granted { .. } => {
                Err(SinkError::Superseded("a runner neither makes sessions nor changes what they may".into()))
            }
        }
    }
}
