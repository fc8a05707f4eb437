//! The scribe before the clients of the Model Context Protocol: on stdio, and over Streamable HTTP without sessions.
//!
//! It remembers nothing of its clients but, on stdio, the one root that they told: who calls is found out with each call. So
//! revisions of the protocol with sessions and without are served alike, and a restart between two calls loses nothing.

mod front;
mod resources;

use std::io;
use std::sync::Arc;

use camino::Utf8PathBuf;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities, ServerConfig,
    Tool,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Map, Value};
use session_core::Env;
use session_core::token::Bearer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use self::front::Front;
pub use self::front::{Here, Places};
use crate::context::{Context, Layer};
use crate::desk::{Answer, Desk};
use crate::identity::whole;
use crate::refused::{Code, Refused};
use crate::tools::{Call, TOOLS};

/// The longest message over HTTP in bytes: an entry that is too long is still told so.
pub const MESSAGE_MAX: usize = 16 * 1024 * 1024;

/// The longest line of a client in bytes. A longer one is never answered, so this is far beyond what a client can mean: ten
/// megabytes of what grows sixfold by being quoted are told that they are too many.
const LINE_MAX: usize = 64 * 1024 * 1024;

/// What agents are told of the scribe when they connect.
const INSTRUCTIONS: &str = "Your own notebook in this repository, found again by who you are: `append_entry` keeps, \
`read_recent` reads again what you kept, also after a restart. Call `whoami` first: it names the identity in use. If others \
work in the same repository, say who you are in every call (`agent`), and name the piece of work (`execution_id`); the \
same words lead to the same notebook. `start_session` starts other agents, and `get_result` has what they came to.";

/// The server of one connection, or of one request. Clones share everything.
#[derive(Clone)]
pub struct Scribe {
    desk: Arc<dyn Desk>,
    front: Arc<Front>,
    env: Env,
}

impl std::fmt::Debug for Scribe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scribe").field("front", &self.front).finish_non_exhaustive()
    }
}

/// What a client on stdio brings: its environment, and the directory that it started the server in.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Who it is.
    pub bearer: Bearer,
    /// Its environment.
    pub variables: Vec<(String, String)>,
    /// The directory.
    pub directory: Option<Utf8PathBuf>,
    /// It is a run, and who it is its token says: nothing of the connection is asked.
    pub in_room: bool,
}

/// The scribe as a service of HTTP requests.
pub type Service = StreamableHttpService<Scribe, NeverSessionManager>;

impl Scribe {
    /// Serves one client on these streams until it closes them, or `stop` fires.
    pub async fn serve<R, W>(
        desk: Arc<dyn Desk>,
        surroundings: Surroundings,
        env: Env,
        (input, output): (R, W),
        stop: CancellationToken,
    ) -> io::Result<()>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let scribe = Self { desk, front: Arc::new(Front::of_stdio(surroundings)), env };
        let transport = AsyncRwTransport::new(input, output).with_max_line_length(LINE_MAX);
        let serving = scribe.serve_with_ct(transport, stop).await.map_err(io::Error::other)?;
        serving.waiting().await.map(drop).map_err(io::Error::other)
    }

    /// The service of HTTP requests, each of which carries its [`Bearer`] among the extensions of its head. Hosts, origins
    /// and tokens were checked before.
    #[must_use]
    pub fn service(
        desk: Arc<dyn Desk>,
        places: Arc<dyn Places>,
        env: Env,
        stop: CancellationToken,
    ) -> Service {
        let scribe = Self { desk, front: Arc::new(Front::of_http(places)), env };
        let mut config = StreamableHttpServerConfig::default().disable_allowed_hosts();
        config.legacy_session_mode = false;
        config.json_response = true;
        config.max_request_body_bytes = MESSAGE_MAX;
        config.cancellation_token = stop;
        StreamableHttpService::new(
            move || Ok(scribe.clone()),
            Arc::new(NeverSessionManager::default()),
            config,
        )
    }

    /// Does what a call asks for, on behalf of whom it is from.
    async fn answer(
        &self,
        name: &str,
        mut arguments: Map<String, Value>,
        request: &RequestContext<RoleServer>,
    ) -> Result<Answer, Refused> {
        let own = Layer::of_arguments(&mut arguments)?;
        let call = Call::parse(name, arguments)?;
        let bearer = self.front.bearer(request)?;
        let context = self.context(&bearer, own, request).await?;
        self.desk.call(bearer, context, call).await
    }

    /// What the caller said of itself, in the order of [`crate::context`], with its repository resolved.
    async fn context(
        &self,
        bearer: &Bearer,
        own: Layer,
        request: &RequestContext<RoleServer>,
    ) -> Result<Context, Refused> {
        let mut layers = vec![own, Layer::of_meta(&request.meta.0.0)?];
        // A run's token says more than its connection could.
        let of_run = self.front.in_room || matches!(bearer, Bearer::Run(_));
        if !of_run {
            layers.extend(self.front.layers(request));
        }
        let mut context = Context::gather(&layers);
        if context.repo_root.is_none() && !of_run {
            let connection = self.front.roots(request).await;
            layers.extend(connection);
            context = Context::gather(&layers);
        }
        context.call = Some(self.env.claim_id().to_string());
        if let Some(part) = context.repo_root.as_mut().filter(|_| !of_run) {
            whole(&part.value)?;
            // The paths of another machine are known there alone.
            if context.machine.is_none() {
                part.value = self.front.resolve(bearer, &part.value).await?;
            }
        }
        Ok(context)
    }
}

/// The answer as clients read it: what was refused too, for whoever called to see.
fn told(answer: Result<Answer, Refused>) -> CallToolResult {
    match answer {
        Ok(answer) => CallToolResult::structured(Value::Object(answer)),
        Err(refused) => CallToolResult::error(vec![ContentBlock::text(refused.text())]),
    }
}

/// The same where only an error of the protocol can say it.
fn error(refused: &Refused) -> ErrorData {
    let text = refused.text();
    match refused.code {
        Code::NotFound => ErrorData::resource_not_found(text, None),
        Code::Internal | Code::Unavailable => ErrorData::internal_error(text, None),
        Code::InvalidArgument
        | Code::MissingContext
        | Code::Forbidden
        | Code::KeyReused
        | Code::Conflict
        | Code::Busy
        | Code::BudgetExhausted => ErrorData::invalid_params(text, None),
    }
}

impl ServerHandler for Scribe {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let program =
            Implementation::new("roomette", env!("CARGO_PKG_VERSION")).with_title("roomette scribe");
        ServerConfig::new(capabilities).with_server_info(program).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(crate::tools::ToolRow::tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        TOOLS.iter().find(|row| row.name == name).map(crate::tools::ToolRow::tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !TOOLS.iter().any(|row| row.name == request.name) {
            let name: String = request.name.chars().take(80).collect();
            return Err(ErrorData::invalid_params(format!("there is no tool {name:?}"), None));
        }
        let answer = self.answer(&request.name, request.arguments.unwrap_or_default(), &context).await;
        Ok(told(answer).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        // Who is nobody yet has nothing to read.
        let listed = self.answer("list_resources", Map::new(), &context).await;
        let resources = match listed {
            Err(refused) if refused.code == Code::MissingContext => Vec::new(),
            listed => resources::of(&listed.map_err(|refused| error(&refused))?),
        };
        Ok(ListResourcesResult::with_all_items(resources))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = resources::parse(&request.uri).map_err(|refused| error(&refused))?;
        let answer = self.answer(read.tool(), read.arguments(), &context).await;
        let answer = answer.map_err(|refused| error(&refused))?;
        Ok(ReadResourceResult::new(vec![read.contents(&request.uri, &answer)]).into())
    }

    async fn on_roots_list_changed(&self, _: NotificationContext<RoleServer>) {
        self.front.forget_roots().await;
    }
}

#[cfg(test)]
mod tests;
