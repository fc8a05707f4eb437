//! `roomette mcp`: the scribe on stdin and stdout, for an agent that starts it as its MCP server.
//!
//! It decides nothing and remembers nothing: each call goes to the host of the data directory, or to a coordinator that the
//! environment names. So whatever of them is started anew between two calls, the agent does not notice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_tools::context::{Context as Said, Part, Provenance};
use mcp_tools::desk::{Answer, Desk};
use mcp_tools::refused::{Code, Refused};
use mcp_tools::server::{Scribe, Surroundings};
use mcp_tools::tools::Call;
use session_api::client::{Client, ClientError};
use session_api::paths;
use session_api::tools::{ToolAnswer, ToolCall, ToolRefusal};
use session_core::token::{Bearer, Verbs};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::context::{Context, current_directory};
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::{self, ensure_host};
use crate::host::lock::HostLock;
use crate::host::protocol::{Reply, Request, ToolWire};
use crate::host::runner_id;
use crate::remote_client;

/// So many calls are under way at once; further ones wait their turn.
const AT_ONCE: usize = 16;
/// For so long a call is tried whose answer may come when it is asked again: a coordinator that is started anew is back by
/// then, and clients wait for a minute.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the first two tries; each further pause is twice as long, up to the last one.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_LAST: Duration = Duration::from_secs(3);

/// Serves until its client closes stdin.
pub async fn execute(context: &Context) -> Outcome<()> {
    let named = |name: &str| context.variable(name).filter(|value| !value.is_empty());
    let remote = match (named("ROOMETTE_URL"), named("ROOMETTE_TOKEN")) {
        (Some(url), Some(token)) => Some(Remote::new(context, url, token).await?),
        (_, _) => None,
    };
    let in_room = remote.as_ref().is_some_and(|remote| remote.machine.is_none());
    let desk: Arc<dyn Desk> = match remote {
        Some(remote) => Arc::new(remote),
        None => Arc::new(Local { context: context.clone(), room: Semaphore::new(AT_ONCE) }),
    };
    let bearer = Bearer::Owner { principal: context.principal()?, verbs: Verbs::all() };
    let surroundings = Surroundings {
        bearer,
        variables: context.environment.clone(),
        directory: current_directory().ok(),
        in_room,
    };
    let streams = (tokio::io::stdin(), tokio::io::stdout());
    let serving = Scribe::serve(desk, surroundings, context.env.clone(), streams, CancellationToken::new());
    serving.await.map_err(|error| Failure::caused(Kind::Error, "the client cannot be served", &error))
}

/// The host of the data directory.
struct Local {
    context: Context,
    room: Semaphore,
}

#[async_trait]
impl Desk for Local {
    async fn call(&self, _: Bearer, said: Said, call: Call) -> Result<Answer, Refused> {
        let _turn = self.room.acquire().await;
        let request = Request::Tool(Box::new(ToolWire { context: said, call }));
        let mut patience = Patience::new();
        loop {
            match ask(&self.context, &request).await {
                Ok(Reply::Answered(answer)) => return Ok(answer),
                Ok(Reply::Refused(refused)) => return Err(refused),
                Ok(reply) => return Err(refused(&reply.into_failure())),
                // A host that went away may have done it: the call has a name, so that it is done once.
                Err(failure) if failure.kind == Kind::Unreachable && patience.lasts().await => {}
                Err(failure) => return Err(refused(&failure)),
            }
        }
    }
}

/// How long a call is tried.
struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    fn new() -> Self {
        Self { until: Instant::now() + PATIENCE, pause: PAUSE_FIRST }
    }

    /// Whether it is to be tried once more, after a pause.
    async fn lasts(&mut self) -> bool {
        if Instant::now() + self.pause >= self.until {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_LAST);
        true
    }
}

async fn ask(context: &Context, request: &Request) -> Outcome<Reply> {
    ensure_host(context).await?.ask(request).await
}

/// A failure of this program as an agent is told of it.
fn refused(failure: &Failure) -> Refused {
    let code = match failure.kind {
        Kind::Usage => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::Denied => Code::Forbidden,
        Kind::Conflict => Code::Conflict,
        Kind::Budget => Code::BudgetExhausted,
        Kind::Timeout | Kind::Capacity | Kind::Unreachable | Kind::Interrupted => Code::Unavailable,
        Kind::Error => Code::Internal,
    };
    let refused = Refused::new(code, failure.in_one_line());
    match &failure.hint {
        Some(hint) => refused.hint(hint),
        None => refused,
    }
}

/// A coordinator that the environment names.
struct Remote {
    client: Client,
    room: Semaphore,
    /// Whose paths this process speaks of. With the token of a run nobody asks.
    machine: Option<String>,
}

impl Remote {
    async fn new(context: &Context, url: &str, token: &str) -> Outcome<Self> {
        let client = Client::new(url, Some(token)).map_err(|error| remote_client::failure(&error))?;
        let machine = if token.starts_with("rmr_") { None } else { Some(machine(context).await?) };
        Ok(Self { client, room: Semaphore::new(AT_ONCE), machine })
    }

    async fn post(&self, path: &str, call: &ToolCall) -> Result<ToolAnswer, ClientError> {
        let mut patience = Patience::new();
        loop {
            match self.client.post(path, call, Duration::ZERO).await {
                Err(error) if error.may_pass() && patience.lasts().await => {}
                answer => return answer,
            }
        }
    }
}

#[async_trait]
impl Desk for Remote {
    async fn call(&self, _: Bearer, mut said: Said, call: Call) -> Result<Answer, Refused> {
        let _turn = self.room.acquire().await;
        let inferred = |value: &String| Part { value: value.clone(), from: Provenance::Inferred };
        said.machine = said.machine.or_else(|| self.machine.as_ref().map(inferred));
        let context = serde_json::to_value(&said).and_then(serde_json::from_value);
        let context = context.map_err(|error| Refused::internal(&error))?;
        let request = ToolCall { arguments: call.arguments()?, context };
        let answered = self.post(&paths::of_tool(call.name()), &request).await;
        match answered.map_err(|error| refused(&remote_client::failure(&error)))? {
            ToolAnswer { answer: Some(answer), .. } => Ok(answer),
            ToolAnswer { refused: Some(refused), .. } => Err(told(refused)),
            ToolAnswer { answer: None, refused: None } => {
                Err(Refused::new(Code::Internal, "the coordinator answered nothing"))
            }
        }
    }
}

fn told(refusal: ToolRefusal) -> Refused {
    let ToolRefusal { code, message, hint } = refusal;
    // A code of a newer coordinator.
    let code = serde_json::from_value(code.into()).unwrap_or(Code::Internal);
    Refused { code, message, hint }
}

/// This installation's name for its machine, minted where there is none.
async fn machine(context: &Context) -> Outcome<String> {
    if !context.config.scribe.machine.is_empty() {
        return Ok(context.config.scribe.machine.clone());
    }
    let path = context.paths.runner_id();
    if let Some(id) = runner_id::load(&path)? {
        return Ok(id.to_string());
    }
    context.paths.make_data()?;
    let lock = HostLock::acquire(&context.paths, "roomette mcp", context.env.now(), link::PATIENCE).await?;
    let id = runner_id::load_or_make(&path, &context.env)?;
    drop(lock);
    Ok(id.to_string())
}
