//! What services beside the routes do on behalf of a caller, by the rules of the routes.

use session_api::runs::{CreateRun, RunCreated, RunType};
use session_api::sessions::ResultView;
use session_api::{Code, Problem};
use session_core::family::narrower;
use session_core::names::IdempotencyKey;
use session_core::run::StopMode;
use session_core::token::{Bearer, Verb};
use session_core::{ManagedSession, RunId, SessionId};
use session_manager::Submission;

use super::plan::{self, Confined};
use super::{runs, sessions};
use crate::auth::Caller;
use crate::problem::{Refusal, internal};
use crate::state::State;

/// What a service beside the routes does on behalf of a caller. Whether the caller may see a session is known before.
#[derive(Debug)]
pub struct Acting {
    state: State,
    caller: Caller,
}

impl Acting {
    /// On behalf of this one.
    #[must_use]
    pub fn new(state: State, bearer: Bearer) -> Self {
        Self { state, caller: bearer.into() }
    }

    /// Starts a child of `parent`, at most once a key. Below a run's own session it reaches no farther than that; an owner, who
    /// is in no room, has it bounded by the settings alone.
    pub async fn start(
        &self,
        parent: SessionId,
        request: CreateRun,
        key: Option<IdempotencyKey>,
    ) -> Result<RunCreated, Problem> {
        let request =
            CreateRun { kind: RunType::Start, parent_session_id: Some(parent.to_string()), ..request };
        let confined = match &self.caller {
            Caller::Principal(_) => Confined::BySettings,
            Caller::Run(_) => Confined::ByParent,
        };
        let plan = plan::start(&self.state, &self.caller, request.clone(), confined);
        self.submit(parent, &request, key, plan).await.map_err(|Refusal(problem)| problem)
    }

    /// Has `child`, which `parent` started, do something more, at most once a key. A run has none work for it that its session's
    /// owner gave more than the run has.
    pub async fn send(
        &self,
        parent: SessionId,
        child: &ManagedSession,
        request: CreateRun,
        key: Option<IdempotencyKey>,
    ) -> Result<RunCreated, Problem> {
        let request = CreateRun { kind: RunType::Resume, session_id: Some(child.id.to_string()), ..request };
        let plan = async {
            if let Caller::Run(_) = &self.caller {
                let found = self.state.coordinator().store().session(parent).await?;
                let found = found.ok_or_else(|| Refusal::unknown("session", parent))?;
                narrower(&found, child).map_err(|wider| {
                    let detail = format!("session {} reaches farther than the run's own: {wider}", child.id);
                    Refusal(Problem::new(Code::Forbidden, detail))
                })?;
            }
            plan::further(&self.state, child.clone(), &request).await
        };
        self.submit(parent, &request, key, plan).await.map_err(|Refusal(problem)| problem)
    }

    async fn submit(
        &self,
        parent: SessionId,
        request: &CreateRun,
        key: Option<IdempotencyKey>,
        plan: impl Future<Output = Result<Submission, Refusal>>,
    ) -> Result<RunCreated, Refusal> {
        let coordinator = self.state.coordinator();
        // A run may do so as long as its claim holds, if its token is for that.
        self.caller.parent(&self.state, None).await?;
        let once = key.map(|key| runs::once_under(&self.caller, key, Some(parent), request)).transpose()?;
        let recalled = match &once {
            Some(once) => coordinator.store().recall(once, coordinator.env().now()).await?,
            None => None,
        };
        let runs = if let Some(runs) = recalled {
            runs
        } else {
            let runs = coordinator.submit_once(plan.await?, once).await?;
            self.state.metrics().run_is("pending");
            runs
        };
        let run = runs.first().ok_or_else(|| internal(&std::io::Error::other("nothing was enqueued")))?;
        Ok(RunCreated { run_id: run.id.to_string(), session_id: run.session.to_string() })
    }

    /// What the last run of a session came to; `None` where it never ran.
    pub async fn result(&self, session: SessionId) -> Result<Option<ResultView>, Problem> {
        sessions::result_of(&self.state, session).await.map_err(|Refusal(problem)| problem)
    }

    /// Asks for the end of what runs in a session that this one started.
    pub async fn stop(&self, session: SessionId, mode: StopMode) -> Result<Vec<RunId>, Problem> {
        let stop = async {
            match &self.caller {
                Caller::Principal(_) => drop(self.caller.person(Verb::Control)?),
                Caller::Run(_) => drop(self.caller.parent(&self.state, None).await?),
            }
            let runs = self.state.coordinator().stop(&[session], mode).await?;
            Ok::<_, Refusal>(runs.iter().map(|run| run.id).collect())
        };
        stop.await.map_err(|Refusal(problem)| problem)
    }
}
