//! The scribe of this host: its desk, what that needs of the process, and the ways that lead to it.

use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use mcp_tools::context::Context as Said;
use mcp_tools::desk::{Answer, Desk};
use mcp_tools::identity::{Rules, has_detour, whole};
use mcp_tools::own::OwnDesk;
use mcp_tools::refused::{Code, Refused};
use mcp_tools::server::{Here, Places, Scribe};
use mcp_tools::tools::{Call, SendArguments, SessionResult, StartArguments};
use mcp_tools::work::{Started, Work};
use session_api::Problem;
use session_api::runs::{CreateRun, RunCreated};
use session_api::tools::{ToolAnswer, ToolCall, ToolRefusal};
use session_core::budget::Budget;
use session_core::names::{MachineNamespace, Principal};
use session_core::run::StopMode;
use session_core::sandbox::SandboxLevel;
use session_core::token::{Bearer, Verbs};
use session_core::{ManagedSession, RunId, SandboxSpec, SessionId};
use session_server::Acting;
use session_server::state::{Access, Limits, State};
use tokio_util::sync::CancellationToken;

use super::http::port::Port;
use super::operations::Operations;
use super::protocol::{BudgetWire, Reply, SandboxWire, ToolWire};
use crate::failure::{Failure, Kind, Outcome};

/// The scribe of this host. Clones share everything.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    desk: OwnDesk,
    grounds: Arc<Grounds>,
    env: session_core::Env,
}

impl Tools {
    /// Over what this host has. What it starts ends no later than `drain` fires.
    pub(super) fn new(operations: &Arc<Operations>, drain: CancellationToken) -> Outcome<Self> {
        let config = operations.config();
        let machine = match config.scribe.machine.as_str() {
            "" => operations.profile().id.to_string(),
            machine => machine.into(),
        };
        let rules = Rules {
            machine: MachineNamespace::new(&machine)
                .map_err(|error| Failure::caused(Kind::Usage, "scribe.machine", &error))?,
            require_agent: config.scribe.require_agent,
            require_execution: config.scribe.require_execution,
            ttl: config.scribe.ttl,
            lifetime: config.scribe.lifetime,
        };
        let coordinator = operations.coordinator().clone();
        let port = Arc::new(Port::new(operations, None));
        let nobody = Access { without_token: None, hosts: Vec::new() };
        let state = State::new(coordinator.clone(), port, nobody, Limits::default(), drain);
        let own = operations.principal()?;
        let hands = Hands {
            state,
            own: own.clone(),
            rooms: Rooms::of(operations),
            budget: operations.budget(BudgetWire::default()),
        };
        let grounds = Grounds { own, roots: config.sandbox.roots.clone() };
        Ok(Self {
            desk: OwnDesk::new(coordinator, Arc::new(hands), rules),
            grounds: Arc::new(grounds),
            env: operations.context().env.clone(),
        })
    }

    /// Answers a command of the user whose host this is.
    pub(super) async fn answer(&self, wire: ToolWire) -> Reply {
        let ToolWire { context, call } = wire;
        // Whatever the environment of an agent calls the user: the socket lets in one alone.
        let bearer = Bearer::Owner { principal: self.grounds.own.clone(), verbs: Verbs::all() };
        match self.desk.call(bearer, context, call).await {
            Ok(answer) => Reply::Answered(answer),
            Err(refused) => Reply::Refused(refused),
        }
    }

    /// Answers a request of the HTTP API.
    pub(super) async fn over_http(&self, bearer: Bearer, name: &str, call: ToolCall) -> ToolAnswer {
        match self.called(bearer, name, call).await {
            Ok(answer) => ToolAnswer { answer: Some(answer), refused: None },
            Err(Refused { code, message, hint }) => {
                let refused = ToolRefusal { code: code.as_str().into(), message, hint };
                ToolAnswer { answer: None, refused: Some(refused) }
            }
        }
    }

    async fn called(&self, bearer: Bearer, name: &str, call: ToolCall) -> Result<Answer, Refused> {
        let ToolCall { arguments, context } = call;
        let context = serde_json::to_value(context).and_then(serde_json::from_value);
        let mut context: Said = context.map_err(|error| Refused::argument("context", error))?;
        let call = Call::parse(name, arguments)?;
        // Who says of which machine a path is has looked there; otherwise it is this one's.
        if let (Bearer::Owner { .. }, Some(part), None) = (&bearer, &mut context.repo_root, &context.machine)
        {
            whole(&part.value)?;
            part.value = self.grounds.resolve(&bearer, Utf8Path::new(&part.value)).await?;
        }
        self.desk.call(bearer, context, call).await
    }

    /// The scribe for clients of Streamable HTTP.
    pub(super) fn service(&self, drain: CancellationToken) -> mcp_tools::server::Service {
        let desk = Arc::new(self.desk.clone());
        Scribe::service(desk, Arc::clone(&self.grounds) as Arc<dyn Places>, self.env.clone(), drain)
    }
}

/// What holds for a session in which an agent keeps notes, should it ever run: what holds for every session about which
/// nobody says anything.
struct Rooms {
    /// Of the user whose host this is.
    own: SandboxSpec,
    /// Of others: never without a sandbox.
    others: SandboxSpec,
}

impl Rooms {
    fn of(operations: &Operations) -> Self {
        let settled = |wire: &SandboxWire| {
            let settled = operations.settle(operations.settling(), None, wire, None, Vec::new(), &[]);
            match settled {
                Ok(settled) => settled.sandbox,
                Err(error) => {
                    tracing::warn!(%error, "[sandbox] opens nothing to sessions in which agents keep notes");
                    SandboxSpec::default()
                }
            }
        };
        let unconfined = operations.config().sandbox.level == SandboxLevel::Off;
        let level = unconfined.then_some(SandboxLevel::Best);
        Self {
            own: settled(&SandboxWire::default()),
            others: settled(&SandboxWire { level, ..SandboxWire::default() }),
        }
    }
}

/// Which directories of this machine a caller may name.
#[derive(Debug)]
struct Grounds {
    own: Principal,
    roots: Vec<Utf8PathBuf>,
}

#[async_trait]
impl Places for Grounds {
    async fn resolve(&self, bearer: &Bearer, path: &Utf8Path) -> Result<String, Refused> {
        if *bearer.principal() == self.own {
            return Here.resolve(bearer, path).await;
        }
        // Of what lies elsewhere others do not learn whether it is there.
        let within = |path: &Utf8Path| self.roots.iter().any(|root| path.starts_with(root));
        let outside = || {
            Refused::argument("repo_root", format!("{path} is in no directory that sandbox.roots names for others"))
                .hint("where you work on another machine, run `roomette mcp` there, with ROOMETTE_URL and ROOMETTE_TOKEN")
        };
        if has_detour(path.as_str()) || !within(path) {
            return Err(outside());
        }
        let real = Here.resolve(bearer, path).await?;
        if within(Utf8Path::new(&real)) { Ok(real) } else { Err(outside()) }
    }
}

/// What has others work for an agent: the rules of the HTTP API, whatever way the call came.
struct Hands {
    state: State,
    own: Principal,
    rooms: Rooms,
    budget: Budget,
}

#[async_trait]
impl Work for Hands {
    fn room(&self, principal: &Principal) -> (SandboxSpec, Budget) {
        let room = if *principal == self.own { &self.rooms.own } else { &self.rooms.others };
        (room.clone(), self.budget)
    }

    async fn start(
        &self,
        bearer: &Bearer,
        parent: SessionId,
        arguments: StartArguments,
    ) -> Result<Started, Refused> {
        let key = arguments.key()?;
        let StartArguments {
            prompt,
            argv,
            executor,
            model,
            label,
            as_agent,
            project_dir,
            workspace,
            timeout_s,
            key: _,
        } = arguments;
        let request = CreateRun {
            prompt,
            argv,
            executor,
            model,
            label,
            agent: as_agent,
            project_dir,
            workspace,
            timeout_s: timeout_s.map(f64::from),
            ..CreateRun::default()
        };
        let acting = Acting::new(self.state.clone(), bearer.clone());
        let created = acting.start(parent, request, key).await.map_err(|problem| refused(&problem))?;
        started(&created)
    }

    async fn send(
        &self,
        bearer: &Bearer,
        child: &ManagedSession,
        arguments: SendArguments,
    ) -> Result<Started, Refused> {
        let key = arguments.key()?;
        let SendArguments { session_id: _, prompt, argv, key: _ } = arguments;
        let request = CreateRun { prompt, argv, ..CreateRun::default() };
        let parent = child.parent.ok_or_else(|| Refused::unknown_session(child.id))?;
        let acting = Acting::new(self.state.clone(), bearer.clone());
        let created = acting.send(parent, child, request, key).await.map_err(|problem| refused(&problem))?;
        started(&created)
    }

    async fn result(&self, session: &ManagedSession) -> Result<Option<SessionResult>, Refused> {
        let bearer = Bearer::Owner { principal: session.principal.clone(), verbs: Verbs::all() };
        let found = Acting::new(self.state.clone(), bearer).result(session.id).await;
        let Some(view) = found.map_err(|problem| refused(&problem))? else { return Ok(None) };
        Ok(Some(SessionResult {
            session_id: view.session_id,
            run_id: view.run.id,
            over: view.over,
            state: view.run.state,
            reason: view.run.reason,
            message: view.run.message,
            text: view.text,
            result: view.result.and_then(|result| serde_json::from_str(result.get()).ok()),
        }))
    }

    async fn stop(&self, session: &ManagedSession, mode: StopMode) -> Result<Vec<RunId>, Refused> {
        // Whether the caller may was decided by the desk.
        let bearer = Bearer::Owner { principal: session.principal.clone(), verbs: Verbs::all() };
        let stopped = Acting::new(self.state.clone(), bearer).stop(session.id, mode).await;
        stopped.map_err(|problem| refused(&problem))
    }
}

fn started(created: &RunCreated) -> Result<Started, Refused> {
    let wrong = |error: session_core::IdError| Refused::internal(&error);
    Ok(Started {
        session: created.session_id.parse().map_err(wrong)?,
        run: created.run_id.parse().map_err(wrong)?,
    })
}

/// A problem of the API in the words of a tool.
fn refused(problem: &Problem) -> Refused {
    use session_api::Code as Api;
    let code = match (problem.code, problem.status) {
        (Api::Busy, _) => Code::Busy,
        (Api::BudgetExhausted, _) => Code::BudgetExhausted,
        (Api::KeyReused, _) => Code::KeyReused,
        (_, 404) => Code::NotFound,
        (_, 401 | 403) => Code::Forbidden,
        (_, 400 | 413 | 422) => Code::InvalidArgument,
        (_, 409) => Code::Conflict,
        (code, _) if code.may_pass() => Code::Unavailable,
        (_, _) => Code::Internal,
    };
    Refused::new(code, problem.to_string())
}
