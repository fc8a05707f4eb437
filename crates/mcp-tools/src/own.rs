//! The desk over the ports: it finds the caller's session, once for every call, and does there what is asked for. Who has
//! something to keep there gets one where there is none; who only looks does not.

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
use session_core::session::{NewSession, OpenSession, Opened, Validity};
use session_core::state::Trigger;
use session_core::token::{Bearer, RunToken, Verb, Verbs};
use session_core::{ManagedSession, SessionId, Store, StoreError, WorkspaceKind};
use session_manager::Coordinator;

use crate::context::{Context, Part, Provenance};
use crate::desk::{Answer, Desk};
use crate::identity::{Known, Rules, known};
use crate::refused::{Code, Refused};
use crate::tools::{Call, ListArguments, WhoAmI};
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

/// Who calls.
#[derive(Debug, Clone)]
enum Who {
    /// By what it said of itself.
    Identity(Box<Known>),
    /// By the token of a run.
    Run(RunToken),
}

/// A caller's own session.
#[derive(Debug, Clone, Copy)]
struct Own {
    session: SessionId,
    /// How its identity led there; `None` of a run.
    opened: Option<Opened>,
}

#[async_trait]
impl Desk for OwnDesk {
    async fn call(&self, bearer: Bearer, context: Context, call: Call) -> Result<Answer, Refused> {
        call.check()?;
        may(&bearer, verb(&call))?;
        let who = self.who(&bearer, &context).await?;
        match call {
            Call::SetProject(arguments) => object(&self.set_project(&bearer, &who, &arguments).await?),
            Call::AppendEntry(arguments) => object(&self.append(&bearer, &who, &context, &arguments).await?),
            Call::StartSession(arguments) => object(&self.start(&bearer, &who, &context, arguments).await?),
            Call::GetProject(_) => object(&self.project(self.led_to(&who).await?).await?),
            Call::ReadRecent(arguments) => object(&self.recent(self.led_to(&who).await?, &arguments).await?),
            Call::Whoami(_) => object(&self.whoami(&bearer, &who).await?),
            Call::ListSessions(arguments) => {
                object(&self.list(&bearer, self.led_to(&who).await?, &arguments).await?)
            }
            Call::ListResources(_) => {
                // Clients ask for it unbidden: that is no use.
                let own = self.look(&who, None).await?.map(|own| own.session);
                object(&self.list(&bearer, own, &ListArguments::default()).await?)
            }
            Call::SessionStatus(arguments) => {
                let own = self.led_to(&who).await?;
                let session = self.seen(&bearer, own, named(arguments.session()?.or(own))?).await?;
                object(&self.status(own, session).await?)
            }
            Call::Send(arguments) => object(&self.send(&bearer, &who, &context, arguments).await?),
            Call::GetResult(arguments) => {
                let session = self.seen(&bearer, self.led_to(&who).await?, arguments.session()?).await?;
                object(&self.result(&session).await?)
            }
            Call::StopSession(arguments) => object(&self.stop(&bearer, &who, &arguments).await?),
            Call::ReadLog(arguments) => {
                let session = self.seen(&bearer, self.led_to(&who).await?, arguments.session()?).await?;
                object(&self.log(session.id).await?)
            }
        }
    }
}

/// What of an opaque token a call takes.
fn verb(call: &Call) -> Verb {
    match call {
        Call::GetProject(_)
        | Call::ReadRecent(_)
        | Call::Whoami(_)
        | Call::ListSessions(_)
        | Call::SessionStatus(_)
        | Call::GetResult(_)
        | Call::ReadLog(_)
        | Call::ListResources(_) => Verb::Read,
        Call::SetProject(_) | Call::AppendEntry(_) | Call::StartSession(_) | Call::Send(_) => Verb::Run,
        Call::StopSession(_) => Verb::Control,
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

fn named(session: Option<SessionId>) -> Result<SessionId, Refused> {
    session.ok_or_else(|| {
        Refused::new(Code::NotFound, "you have no session yet")
            .hint("append_entry, set_project and start_session make it; whoami says by what it is found")
    })
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

    /// Who calls, as far as that can be said without the store.
    async fn who(&self, bearer: &Bearer, context: &Context) -> Result<Who, Refused> {
        match bearer {
            Bearer::Run(token) => {
                self.of_run(token, context).await?;
                Ok(Who::Run(token.clone()))
            }
            Bearer::Owner { principal, .. } => {
                Ok(Who::Identity(Box::new(known(context, principal, &self.rules, self.now())?)))
            }
        }
    }

    /// The caller's session, where there is one: to look makes none. One read, and a write where its stamp is old.
    async fn led_to(&self, who: &Who) -> Result<Option<SessionId>, Refused> {
        Ok(self.look(who, Some(self.rules.validity())).await?.map(|own| own.session))
    }

    async fn look(&self, who: &Who, used: Option<Validity>) -> Result<Option<Own>, Refused> {
        match who {
            Who::Run(token) => Ok(Some(Own { session: token.session, opened: None })),
            Who::Identity(known) => {
                let now = self.now();
                let Some(opened) = self.store().opened(known.identity.key(), used, now).await? else {
                    return Ok(None);
                };
                self.used(&opened, now).await?;
                Ok(Some(Own { session: opened.session, opened: Some(opened) }))
            }
        }
    }

    /// The caller's session, made where there is none: for who has something to keep there.
    async fn open(&self, bearer: &Bearer, who: &Who) -> Result<SessionId, Refused> {
        let known = match who {
            Who::Run(token) => return Ok(token.session),
            Who::Identity(known) => known,
        };
        let (now, principal) = (self.now(), bearer.principal());
        let (sandbox, budget) = self.work.room(principal);
        let new = NewSession {
            id: self.coordinator.env().session_id(),
            principal: principal.clone(),
            key: None,
            label: None,
            agent: known.given_agent(),
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox,
            metadata: Payload::from_value(&known.record()),
            budget,
            parent: None,
        };
        let Validity { ttl, lifetime } = self.rules.validity();
        let request = OpenSession { identity: known.identity.clone(), new, ttl, lifetime };
        let opened = self.store().open(request, now).await?;
        self.used(&opened, now).await?;
        Ok(opened.session)
    }

    /// To be found is use: where the stamp was written, the session is active.
    async fn used(&self, opened: &Opened, now: Timestamp) -> Result<(), Refused> {
        if opened.created || !opened.stamped {
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
    async fn seen(
        &self,
        bearer: &Bearer,
        own: Option<SessionId>,
        id: SessionId,
    ) -> Result<ManagedSession, Refused> {
        let own = own.ok_or_else(|| Refused::unknown_session(id))?;
        let session = self.store().session(id).await?;
        let visible = |session: &ManagedSession| {
            session.principal == *bearer.principal() && (session.id == own || session.parent == Some(own))
        };
        session.filter(visible).ok_or_else(|| Refused::unknown_session(id))
    }

    async fn whoami(&self, bearer: &Bearer, who: &Who) -> Result<WhoAmI, Refused> {
        let principal = bearer.principal().to_string();
        match who {
            Who::Identity(known) => {
                let opened = self.look(who, Some(self.rules.validity())).await?.and_then(|own| own.opened);
                Ok(WhoAmI {
                    session_id: opened.map(|opened| opened.session.to_string()),
                    principal,
                    generation: opened.map(|opened| opened.generation),
                    previous: opened.and_then(|opened| opened.previous).map(|id| id.to_string()),
                    expires_at: opened.map(|opened| opened.expires_at.to_string()),
                    agent: known.agent.clone(),
                    repo_root: Some(known.repo_root.clone()),
                    mode: Some(known.mode.clone()),
                    scope: Some(known.scope.clone()),
                    machine: Some(known.machine.clone()),
                    run_id: None,
                })
            }
            Who::Run(token) => {
                let session = self.own_session(token.session).await?;
                let of_token = |value: String| Part { value, from: Provenance::Token };
                let agent = session.agent.map(|agent| of_token(agent.to_string()));
                Ok(WhoAmI {
                    session_id: Some(token.session.to_string()),
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
