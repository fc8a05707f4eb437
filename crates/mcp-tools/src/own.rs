//! The desk over the ports: it finds the caller's session, once for every call, and does there what is asked for.

mod notes;
mod sessions;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use session_core::event::Payload;
use session_core::session::{NewSession, OpenSession, Opened};
use session_core::state::Trigger;
use session_core::token::{Bearer, RunToken, Verb, Verbs};
use session_core::{ManagedSession, SessionId, Store, StoreError, WorkspaceKind};
use session_manager::Coordinator;

use crate::context::{Context, Part, Provenance};
use crate::desk::{Answer, Desk};
use crate::identity::{Known, Rules, known};
use crate::refused::{Code, Refused};
use crate::tools::{Call, ListArguments, SessionList, WhoAmI};
use crate::work::Work;

/// The desk over a store. Clones share everything; it remembers nothing.
#[derive(Clone)]
pub struct OwnDesk {
    coordinator: Coordinator,
    work: Arc<dyn Work>,
    rules: Rules,
}

impl std::fmt::Debug for OwnDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnDesk").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// A caller whose session is found.
#[derive(Debug, Clone)]
struct Found {
    session: SessionId,
    how: How,
}

/// How it was found.
#[derive(Debug, Clone)]
enum How {
    /// By who the caller is.
    Identity(Box<(Known, Opened)>),
    /// By the token of a run.
    Token(RunToken),
}

#[async_trait]
impl Desk for OwnDesk {
    async fn call(&self, bearer: Bearer, context: Context, call: Call) -> Result<Answer, Refused> {
        call.check()?;
        may(&bearer, verb(&call))?;
        if matches!(call, Call::ListResources(_)) {
            // Clients ask for it unbidden: nothing is made for that.
            return object(&self.resources(&bearer, &context).await?);
        }
        let found = self.find(&bearer, &context).await?;
        match call {
            Call::SetProject(arguments) => {
                object(&self.set_project(&bearer, &context, found, &arguments).await?)
            }
            Call::GetProject(_) => object(&self.project(found.session).await?),
            Call::AppendEntry(arguments) => object(&self.append(&bearer, &context, found, &arguments).await?),
            Call::ReadRecent(arguments) => object(&self.recent(found.session, &arguments).await?),
            Call::Whoami(_) => object(&self.whoami(&bearer, &found).await?),
            Call::ListSessions(arguments) => object(&self.list(&bearer, found.session, &arguments).await?),
            Call::SessionStatus(arguments) => {
                let session =
                    self.seen(&bearer, &found, arguments.session()?.unwrap_or(found.session)).await?;
                object(&self.status(&found, session).await?)
            }
            Call::StartSession(arguments) => object(&self.start(&bearer, &found, &context, arguments).await?),
            Call::Send(arguments) => object(&self.send(&bearer, &found, &context, arguments).await?),
            Call::GetResult(arguments) => {
                let session = self.seen(&bearer, &found, arguments.session()?).await?;
                object(&self.result(&session).await?)
            }
            Call::StopSession(arguments) => object(&self.stop(&bearer, &found, &arguments).await?),
            Call::ReadLog(arguments) => {
                let session = self.seen(&bearer, &found, arguments.session()?).await?;
                object(&self.log(session.id).await?)
            }
            Call::ListResources(_) => object(&self.resources(&bearer, &context).await?),
        }
    }
}

/// What of an opaque token a call takes. To be found makes a session where there is none, so that no call only reads.
fn verb(call: &Call) -> Verb {
    match call {
        Call::StopSession(_) => Verb::Control,
        Call::SetProject(_)
        | Call::GetProject(_)
        | Call::AppendEntry(_)
        | Call::ReadRecent(_)
        | Call::Whoami(_)
        | Call::ListSessions(_)
        | Call::SessionStatus(_)
        | Call::StartSession(_)
        | Call::Send(_)
        | Call::GetResult(_)
        | Call::ReadLog(_)
        | Call::ListResources(_) => Verb::Run,
    }
}

fn may(bearer: &Bearer, verb: Verb) -> Result<(), Refused> {
    let has = |verbs: &Verbs| verbs.has(verb);
    match bearer {
        Bearer::Owner { verbs, .. } if !has(verbs) => {
            Err(Refused::new(Code::Forbidden, format!("the token lacks the verb `{verb}`")))
        }
        // What a run's token is for is its own session and the children of that.
        Bearer::Owner { .. } | Bearer::Run(_) => Ok(()),
    }
}

fn object(answer: &impl Serialize) -> Result<Answer, Refused> {
    match serde_json::to_value(answer) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Refused::new(Code::Internal, "the answer of the tool is no object")),
        Err(error) => Err(Refused::internal(&error)),
    }
}

impl OwnDesk {
    /// A desk by these rules. What it does not do itself the process around it does.
    #[must_use]
    pub fn new(coordinator: Coordinator, work: Arc<dyn Work>, rules: Rules) -> Self {
        Self { coordinator, work, rules }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.coordinator.store()
    }

    fn now(&self) -> Timestamp {
        self.coordinator.env().now()
    }

    /// The caller's session: one read where it is known, and a write where its stamp is old.
    async fn find(&self, bearer: &Bearer, context: &Context) -> Result<Found, Refused> {
        match bearer {
            Bearer::Run(token) => {
                self.of_run(token, context).await?;
                Ok(Found { session: token.session, how: How::Token(token.clone()) })
            }
            Bearer::Owner { principal, .. } => {
                let now = self.now();
                let known = known(context, principal, &self.rules, now)?;
                let (sandbox, budget) = self.work.room(principal);
                let metadata = Payload::from_value(&known.record());
                let new = NewSession {
                    id: self.coordinator.env().session_id(),
                    principal: principal.clone(),
                    key: None,
                    label: None,
                    agent: known.given_agent(),
                    kind: WorkspaceKind::Scratch,
                    project: None,
                    sandbox,
                    metadata,
                    budget,
                    parent: None,
                };
                let Rules { ttl, lifetime, .. } = self.rules;
                let request = OpenSession { identity: known.identity.clone(), new, ttl, lifetime };
                let opened = self.store().open(request, now).await?;
                self.used(&opened, now).await?;
                Ok(Found { session: opened.session, how: How::Identity(Box::new((known, opened))) })
            }
        }
    }

    /// The caller's session and those that it started, where there is one yet.
    async fn resources(&self, bearer: &Bearer, context: &Context) -> Result<SessionList, Refused> {
        let session = match bearer {
            Bearer::Run(_) => Some(self.find(bearer, context).await?.session),
            Bearer::Owner { principal, .. } => {
                let now = self.now();
                let key = known(context, principal, &self.rules, now)?.identity.key();
                self.store().opened(key, now).await?.map(|opened| opened.session)
            }
        };
        match session {
            Some(session) => self.list(bearer, session, &ListArguments::default()).await,
            None => Ok(SessionList { sessions: Vec::new(), next: None }),
        }
    }

    /// To be found is use: where the stamp was written, the session is active.
    async fn used(&self, opened: &Opened, now: Timestamp) -> Result<(), Refused> {
        let stamped = now.saturating_add(self.rules.ttl).is_ok_and(|end| opened.expires_at >= end);
        if opened.created || !stamped {
            return Ok(());
        }
        match self.store().transition(opened.session, Trigger::Activity, now).await {
            // What is suspended stays so, as nothing is alive behind it; and what ended meanwhile is found out by who writes.
            Ok(_) | Err(StoreError::Transition(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a run whose claim is over, and one that says that it is somebody else.
    async fn of_run(&self, token: &RunToken, context: &Context) -> Result<(), Refused> {
        let run = self.store().run(token.run).await?;
        if !run.is_some_and(|run| run.epoch == token.epoch && run.state.phase().is_in_flight()) {
            return Err(Refused::new(
                Code::Forbidden,
                "the run is over, or another claim of it has taken the place of the token's",
            ));
        }
        let said = context.of_call();
        if said.is_empty() {
            return Ok(());
        }
        let session = self.own_session(token.session).await?;
        for (name, part) in said {
            let own = match name {
                "agent" => session.agent.as_ref().map(|agent| agent.as_str().to_owned()),
                "repo_root" => session.workspace.project.as_ref().map(ToString::to_string),
                _ => None,
            };
            if own.as_deref() != Some(part.value.as_str()) {
                return Err(Refused::new(
                    Code::Forbidden,
                    format!("{name}: a run that roomette started is who its token says, and nobody else"),
                )
                .hint(format!("leave `{name}` out: your session is {}", token.session)));
            }
        }
        Ok(())
    }

    async fn own_session(&self, id: SessionId) -> Result<ManagedSession, Refused> {
        self.store().session(id).await?.ok_or_else(|| Refused::unknown_session(id))
    }

    /// The session, if it is the caller's own or one that it started; any other one is as if it did not exist.
    async fn seen(&self, bearer: &Bearer, found: &Found, id: SessionId) -> Result<ManagedSession, Refused> {
        let session = self.store().session(id).await?;
        let visible = |session: &ManagedSession| {
            session.principal == *bearer.principal()
                && (session.id == found.session || session.parent == Some(found.session))
        };
        session.filter(visible).ok_or_else(|| Refused::unknown_session(id))
    }

    async fn whoami(&self, bearer: &Bearer, found: &Found) -> Result<WhoAmI, Refused> {
        let principal = bearer.principal().to_string();
        let session_id = found.session.to_string();
        match &found.how {
            How::Identity(identity) => {
                let (known, opened) = identity.as_ref();
                Ok(WhoAmI {
                    session_id,
                    principal,
                    generation: Some(opened.generation),
                    previous: opened.previous.map(|id| id.to_string()),
                    expires_at: Some(opened.expires_at.to_string()),
                    agent: known.agent.clone(),
                    repo_root: Some(known.repo_root.clone()),
                    mode: Some(known.mode.clone()),
                    scope: Some(known.scope.clone()),
                    machine: Some(known.machine.clone()),
                    run_id: None,
                })
            }
            How::Token(token) => {
                let session = self.own_session(token.session).await?;
                let of_token = |value: String| Part { value, from: Provenance::Token };
                let agent = session.agent.map(|agent| of_token(agent.to_string()));
                Ok(WhoAmI {
                    session_id,
                    principal,
                    generation: None,
                    previous: None,
                    expires_at: None,
                    agent: agent.unwrap_or_else(|| Part {
                        value: session_core::identity::AgentContext::DEFAULT.into(),
                        from: Provenance::Inferred,
                    }),
                    repo_root: session.workspace.project.map(|project| of_token(project.into_string())),
                    mode: None,
                    scope: None,
                    machine: None,
                    run_id: Some(token.run.to_string()),
                })
            }
        }
    }
}
