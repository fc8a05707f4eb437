//! The caller's own session and those that it started.

use session_core::ports::SessionFilter;
use session_core::run::{ReasonCode, StopMode};
use session_core::token::Bearer;
use session_core::{ManagedSession, SessionId, SessionSummary};

use super::{OwnDesk, Who};
use crate::context::Context;
use crate::refused::{Code, Refused};
use crate::tools::{
    ListArguments, LogView, SendArguments, SessionList, SessionResult, SessionSummaryView, StartArguments,
    StartedView, StopArguments, StoppedView,
};
use crate::work::Started;

/// So many events of a log are shown, the last ones, and no more than so many bytes of them.
const LOG_EVENTS: u32 = 500;
const LOG_BYTES: usize = 1024 * 1024;

impl OwnDesk {
    pub(super) async fn list(
        &self,
        bearer: &Bearer,
        own: Option<SessionId>,
        arguments: &ListArguments,
    ) -> Result<SessionList, Refused> {
        let Some(own) = own else {
            return Ok(SessionList { sessions: Vec::new(), next: None });
        };
        let page = arguments.page()?;
        let mut sessions = Vec::new();
        if page.after.is_none() {
            let session = self.own_session(own).await?;
            sessions.push(view(own, &self.summary(session).await?));
        }
        let principal = Some(bearer.principal().clone());
        let filter = SessionFilter { principal, parent: Some(own), ..SessionFilter::default() };
        let listing = self.store().list(&filter, &page).await?;
        sessions.extend(listing.items.iter().map(|item| view(own, item)));
        Ok(SessionList { sessions, next: listing.next.map(ListArguments::cursor) })
    }

    async fn summary(&self, session: ManagedSession) -> Result<SessionSummary, Refused> {
        let last_run = self.store().runs(session.id, 1).await?.pop();
        Ok(SessionSummary { session, last_run })
    }

    pub(super) async fn status(
        &self,
        own: Option<SessionId>,
        session: ManagedSession,
    ) -> Result<SessionSummaryView, Refused> {
        Ok(view(own.unwrap_or(session.id), &self.summary(session).await?))
    }

    pub(super) async fn start(
        &self,
        bearer: &Bearer,
        who: &Who,
        context: &Context,
        mut arguments: StartArguments,
    ) -> Result<StartedView, Refused> {
        arguments.key = arguments.key.or_else(|| context.call.clone());
        let own = self.open(bearer, who).await?;
        Ok(started(self.work.start(bearer, own, arguments).await?))
    }

    pub(super) async fn send(
        &self,
        bearer: &Bearer,
        who: &Who,
        context: &Context,
        mut arguments: SendArguments,
    ) -> Result<StartedView, Refused> {
        arguments.key = arguments.key.or_else(|| context.call.clone());
        let child = self.child(bearer, who, arguments.session()?).await?;
        Ok(started(self.work.send(bearer, &child, arguments).await?))
    }

    pub(super) async fn result(&self, session: &ManagedSession) -> Result<SessionResult, Refused> {
        let result = self.work.result(session).await?;
        result.ok_or_else(|| Refused::new(Code::NotFound, format!("session {} never ran", session.id)))
    }

    pub(super) async fn stop(
        &self,
        bearer: &Bearer,
        who: &Who,
        arguments: &StopArguments,
    ) -> Result<StoppedView, Refused> {
        let child = self.child(bearer, who, arguments.session()?).await?;
        let mode = if arguments.now == Some(true) { StopMode::Kill } else { StopMode::Graceful };
        let runs = self.work.stop(&child, mode).await?;
        Ok(StoppedView {
            session_id: child.id.to_string(),
            run_ids: runs.iter().map(ToString::to_string).collect(),
        })
    }

    /// A session that the caller started: with its own it does nothing of that kind.
    async fn child(&self, bearer: &Bearer, who: &Who, id: SessionId) -> Result<ManagedSession, Refused> {
        let own = self.led_to(who).await?;
        let session = self.seen(bearer, own, id).await?;
        if Some(session.id) == own {
            return Err(Refused::argument("session_id", "is your own: name one that you started"));
        }
        Ok(session)
    }

    pub(super) async fn log(&self, session: SessionId) -> Result<LogView, Refused> {
        let events = self.store().tail(session, LOG_EVENTS).await?;
        let line = |event: &session_core::Event| {
            let mut line = serde_json::json!({
                "seq": event.seq.0,
                "at": event.at.to_string(),
                "kind": event.body.kind.as_str(),
                "payload": event.body.payload.value().unwrap_or_default(),
            });
            if let Some(run) = event.body.run {
                line["run"] = run.to_string().into();
            }
            line.to_string()
        };
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for event in events.iter().rev() {
            let line = line(event);
            bytes += line.len() + 1;
            if bytes > LOG_BYTES {
                break;
            }
            lines.push(line);
        }
        lines.reverse();
        Ok(LogView { session_id: session.to_string(), lines: lines.join("\n") })
    }
}

fn started(started: Started) -> StartedView {
    StartedView { session_id: started.session.to_string(), run_id: started.run.to_string() }
}

fn view(own: SessionId, summary: &SessionSummary) -> SessionSummaryView {
    let SessionSummary { session, last_run } = summary;
    let ending = last_run.as_ref().and_then(|run| run.ended()).and_then(|(_, ending)| ending.reason);
    SessionSummaryView {
        session_id: session.id.to_string(),
        relation: if session.id == own { "own" } else { "child" }.into(),
        status: summary.status().into(),
        state: session.state.name().into(),
        label: session.label.as_ref().map(ToString::to_string),
        agent: session.agent.as_ref().map(ToString::to_string),
        run_id: last_run.as_ref().map(|run| run.id.to_string()),
        reason: ending.map(ReasonCode::code).map(Into::into),
        created_at: session.created_at.to_string(),
        active_at: session.active_at.to_string(),
    }
}
