//! The bridge over HTTP: which request is for which server, whose it is, and what it is answered with.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use session_core::names::Principal;
use tokio_util::sync::CancellationToken;

use crate::bridge::Bridge;
use crate::host::{Host, ServerName};
use crate::settings::Settings;
use crate::shares::Shares;

pub mod access;
mod arguments;
mod batch;
mod body;
mod head;
mod metrics;
mod modern;
mod reply;
mod session;
mod sse;

use self::access::Access;
use self::head::Head;
use self::metrics::Metrics;
use self::reply::{Failure, failure};

/// What a bridge serves, and to whom.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// The servers, each at `/{name}/mcp`; where there is one, it is at `/mcp` as well.
    pub servers: Vec<ServerName>,
    /// Who is let in.
    pub access: Access,
    /// Who owns a process that clients share.
    pub owner: Principal,
    /// Times and numbers.
    pub settings: Settings,
}

/// What every request needs.
pub(crate) struct Shell {
    pub(crate) bridge: Arc<Bridge>,
    servers: Vec<ServerName>,
    access: Access,
    metrics: Metrics,
    /// Requests of the revision without sessions that wait for an answer of their clients.
    parked: modern::Parked,
    lists: arguments::Lists,
    requests: Arc<Shares>,
    streams: Arc<Shares>,
    /// Bytes of messages that wait to be read by their servers.
    waiting: Arc<Shares>,
}

/// A bridge that is at work.
#[derive(Clone)]
pub struct Running(Arc<Shell>);

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    /// Waits until `drain` has fired and every process and task of the bridge has come to its end. Sessions do not end by
    /// that: the next bridge brings them back.
    pub async fn closed(&self) {
        self.0.bridge.drain.cancelled().await;
        self.0.parked.clear();
        self.0.bridge.closed().await;
    }

    /// How many sessions are in memory.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.0.bridge.sessions()
    }
}

/// A bridge over this host. When `drain` fires, streams end and processes are stopped.
pub fn router(
    host: Arc<dyn Host>,
    configuration: Configuration,
    drain: CancellationToken,
) -> (Router, Running) {
    let Configuration { servers, access, owner, settings } = configuration;
    let caps = settings.caps;
    let shell = Arc::new(Shell {
        bridge: Arc::new(Bridge::new(host, settings, owner, drain)),
        servers,
        access,
        metrics: Metrics::default(),
        parked: modern::Parked::default(),
        lists: arguments::Lists::default(),
        requests: Shares::new(caps.requests),
        streams: Shares::new(caps.streams),
        waiting: Shares::new(caps.waiting),
    });
    let router = Router::new().fallback(answer).with_state(Arc::clone(&shell));
    (router, Running(shell))
}

const HEALTHZ: &str = "/healthz";
const METRICS: &str = "/metrics";
/// Where a client looks up who issues tokens; the path of the server follows.
pub(crate) const PROTECTED_RESOURCE: &str = "/.well-known/oauth-protected-resource";

/// Which server a path names, and which session of a client that has none of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) server: ServerName,
    pub(crate) name: Option<String>,
}

impl Shell {
    /// What a path names: `/mcp`, `/mcp/{session}`, `/{server}/mcp` or `/{server}/mcp/{session}`.
    fn target(&self, path: &str) -> Option<Target> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let first = parts.next()?;
        let server = if first == "mcp" {
            let [only] = &self.servers[..] else { return None };
            only.clone()
        } else {
            let server = self.servers.iter().find(|server| server.as_str() == first)?;
            parts.next().filter(|part| *part == "mcp")?;
            server.clone()
        };
        let name = parts.next().map(str::to_owned);
        let fits = name.as_deref().is_none_or(|name| name.parse::<ServerName>().is_ok());
        (fits && parts.next().is_none()).then_some(Target { server, name })
    }
}

async fn answer(State(shell): State<Arc<Shell>>, request: Request) -> Response {
    let began = tokio::time::Instant::now();
    let method = request.method().clone();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match shell.access.admit(request.headers(), request.uri()) {
        Ok(()) => {
            let mut response = route(&shell, request).await;
            if let Some(origin) = origin {
                access::let_pages_read(&mut response, origin, asked.as_ref());
            }
            response
        }
        Err(refused) => failure(&refused),
    };
    shell.metrics.answered(&method, response.status(), began.elapsed());
    // An answer is for who asked, now.
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn route(shell: &Arc<Shell>, request: Request) -> Response {
    let path = request.uri().path();
    match path {
        HEALTHZ => return text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
        METRICS => {
            // What it does is told to those whom it works for.
            return match shell.access.who(request.headers()).await {
                Ok(_) => shell.metrics.page(&shell.bridge),
                Err(refused) => shell.unauthorized(&refused, &request),
            };
        }
        _ => {}
    }
    if let Some(resource) = path.strip_prefix(PROTECTED_RESOURCE) {
        return shell.metadata(resource, &request);
    }
    let Some(target) = shell.target(path) else {
        return failure(&Failure::new(StatusCode::NOT_FOUND, "there is no server at this path"));
    };
    if request.method() == Method::OPTIONS {
        return allowed(StatusCode::NO_CONTENT);
    }
    let principal = match shell.access.who(request.headers()).await {
        Ok(principal) => principal,
        Err(refused) => return shell.unauthorized(&refused, &request),
    };
    let Some(_share) = shell.requests.take(&principal, 1) else {
        return failure(&Failure::busy("as many requests as there may be are worked on"));
    };
    let (parts, body) = request.into_parts();
    let head = match Head::read(&parts.headers) {
        Ok(head) => head,
        Err(refused) => return failure(&refused),
    };
    let headers = &parts.headers;
    let client = session::Client { shell, target: &target, principal: &principal, head: &head, headers };
    let answered = match parts.method {
        Method::POST => client.post(body).await,
        Method::GET => client.get().await,
        Method::DELETE => client.delete().await,
        _ => return allowed(StatusCode::METHOD_NOT_ALLOWED),
    };
    answered.unwrap_or_else(|refused| failure(&refused))
}

impl Shell {
    /// Who issues tokens for a server here (RFC 9728).
    fn metadata(&self, resource: &str, request: &Request) -> Response {
        let issuers = &self.access.issuers;
        if issuers.is_empty() || self.target(resource).is_none() {
            return failure(&Failure::new(
                StatusCode::NOT_FOUND,
                "tokens for this are issued by its operator",
            ));
        }
        let base = self.access.base(request.headers());
        let document = serde_json::json!({
            "resource": format!("{base}{resource}"),
            "authorization_servers": issuers,
            "bearer_methods_supported": ["header"],
        });
        text(StatusCode::OK, "application/json", document.to_string())
    }

    fn unauthorized(&self, refused: &Failure, request: &Request) -> Response {
        let mut response = failure(refused);
        if response.status() != StatusCode::UNAUTHORIZED {
            return response;
        }
        let mut challenge = "Bearer".to_owned();
        if !self.access.issuers.is_empty() {
            let (base, path) = (self.access.base(request.headers()), request.uri().path());
            challenge = format!("Bearer resource_metadata=\"{base}{PROTECTED_RESOURCE}{path}\"");
        }
        if let Ok(challenge) = HeaderValue::try_from(challenge) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

fn allowed(status: StatusCode) -> Response {
    let mut response = if status == StatusCode::METHOD_NOT_ALLOWED {
        failure(&Failure::new(status, "this path takes POST, GET and DELETE"))
    } else {
        Response::new(Body::empty())
    };
    *response.status_mut() = status;
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST, GET, DELETE, OPTIONS"));
    response
}

/// An answer of this type.
pub(crate) fn text(status: StatusCode, media_type: &'static str, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

#[cfg(test)]
mod tests;
