//! What the routes work with: the coordinator, the settings, and the process around them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use camino::Utf8PathBuf;
use session_api::sandbox::SandboxRequest;
use session_api::tools::{ToolAnswer, ToolCall};
use session_core::affinity::Place;
use session_core::budget::Budget;
use session_core::error::StoreResult;
use session_core::names::Principal;
use session_core::sandbox::{Pending, SandboxLevel};
use session_core::token::Bearer;
use session_core::wake::Topic;
use session_core::{SandboxSpec, SessionId, StoreError, WorkspaceKind};
use session_manager::Coordinator;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::pages::Pages;
use crate::readers::Readers;
use crate::remembered::Remembered;

/// Bounds, one for each thing that could grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest body in bytes.
    pub body_bytes: usize,
    /// How long a body may take to come.
    pub body_time: Duration,
    /// How long one request may take beside the coming of its body, but for streams.
    pub request_time: Duration,
    /// The most requests that are worked on at once.
    pub requests: usize,
    /// The most readers of streams at once. One principal has no more than half of them.
    pub readers: usize,
    /// How often a stream says that it lives.
    pub heartbeat: Duration,
}

impl Default for Limits {
    /// 8 MiB in 30 s, 30 s a request, 512 requests, 4096 readers, a heartbeat every 15 s.
    fn default() -> Self {
        Self {
            body_bytes: 8 * 1024 * 1024,
            body_time: Duration::from_secs(30),
            request_time: Duration::from_secs(30),
            requests: 512,
            readers: 4_096,
            heartbeat: Duration::from_secs(15),
        }
    }
}

/// Who is let in, and under which names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Who somebody without a token is, with every verb; `None` for nobody. Only where the socket itself lets in one user
    /// alone.
    pub without_token: Option<Principal>,
    /// The hosts by whose name it answers, each as a `Host` header says it: `127.0.0.1:7777`, `localhost:7777`.
    pub hosts: Vec<String>,
}

/// What the process around the API does.
#[async_trait]
pub trait Host: Send + Sync {
    /// Settles what a new session's processes may touch, reach and use up, and their first environment.
    async fn settle(&self, wanted: Wanted<'_>) -> Result<Settled, Unsettled>;

    /// Refuses variables that were given by name and that no program can be given, or that are ours to set.
    fn check_env(&self, env: &[(String, String)]) -> Result<(), Unsettled>;

    /// What a session's runs may use up where nothing is said.
    fn budget(&self) -> Budget;

    /// Where runs are executed that are bound to no place.
    fn place(&self) -> Place;

    /// Ends a session for good, with whatever is alive behind it. One that is over stays as it is.
    async fn terminate(&self, session: SessionId) -> StoreResult<()>;

    /// Has a tool of the scribe do something on behalf of this one.
    async fn tool(&self, _: Bearer, _: &str, _: ToolCall) -> ToolAnswer {
        ToolAnswer::refused("unavailable", "this coordinator has no scribe")
    }
}

/// What is asked for of a new session.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'r> {
    /// Whose session it is going to be.
    pub principal: &'r Principal,
    /// What its parent's processes may, if it is a child: it may that much at the most.
    pub parent: Option<&'r SandboxSpec>,
    /// The kind of directory it works in.
    pub kind: WorkspaceKind,
    /// The project.
    pub project: Option<&'r str>,
    /// What its processes may touch, reach and use up.
    pub sandbox: &'r SandboxRequest,
    /// Variables that were given by name.
    pub env: &'r [(String, String)],
    /// The sandbox of the session that is there already: what is asked for is settled as that was, to be compared with it.
    pub found: Option<&'r SandboxSpec>,
}

/// What a new session gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxSpec,
    /// Directories of it that nobody named: of tools that came along.
    pub tools: BTreeSet<Utf8PathBuf>,
    /// Its first environment; what was given by name comes on top.
    pub base_env: Vec<(String, String)>,
}

/// What was asked for cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Unsettled {
    /// Which part, such as `sandbox.net`.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub reason: String,
}

/// Variables that begin so are the program's own.
const RESERVED: &str = "ROOMETTE_";

/// A coordinator of nothing but runners on other machines: the installation's sandbox for every session, and nothing alive
/// here.
#[derive(Debug, Clone)]
pub struct Apart {
    /// Over which store.
    pub coordinator: Coordinator,
    /// What every new session gets.
    pub sandbox: SandboxSpec,
    /// What every new session may use up where nothing is said.
    pub budget: Budget,
}

#[async_trait]
impl Host for Apart {
    async fn settle(&self, wanted: Wanted<'_>) -> Result<Settled, Unsettled> {
        if *wanted.sandbox != SandboxRequest::default() {
            let reason = "this coordinator gives every session the same sandbox: leave it out";
            return Err(Unsettled { field: "sandbox".into(), reason: reason.into() });
        }
        let plain = wanted.parent.is_some_and(|parent| parent.level != SandboxLevel::Off);
        // Each runner has directories of its own.
        let pending = Some(Pending { plain, ..Pending::default() });
        let sandbox = SandboxSpec { pending, ..self.sandbox.clone() };
        Ok(Settled { sandbox, tools: BTreeSet::new(), base_env: Vec::new() })
    }

    fn check_env(&self, env: &[(String, String)]) -> Result<(), Unsettled> {
        let wrong = |name: &str| name.is_empty() || name.contains(['=', '\0']) || name.starts_with(RESERVED);
        match env.iter().find(|(name, value)| wrong(name) || value.contains('\0')) {
            Some((name, _)) => {
                let reason =
                    format!("{name:?} is no variable that can be set; {RESERVED}… are the program's own");
                Err(Unsettled { field: "env".into(), reason })
            }
            None => Ok(()),
        }
    }

    fn budget(&self) -> Budget {
        self.budget
    }

    fn place(&self) -> Place {
        Place::Anywhere
    }

    async fn terminate(&self, session: SessionId) -> StoreResult<()> {
        match self.coordinator.kill(session).await {
            Ok(_) | Err(StoreError::Transition(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What the routes work with. Cheap to clone.
#[derive(Clone)]
pub struct State {
    inner: Arc<Inner>,
}

struct Inner {
    coordinator: Coordinator,
    host: Arc<dyn Host>,
    access: Access,
    limits: Limits,
    drain: CancellationToken,
    metrics: Metrics,
    requests: Arc<Semaphore>,
    readers: Readers,
    reading: Semaphore,
    pages: Pages,
    remembered: Remembered,
}

/// So many pages of logs are read at once: before it is read nobody knows how large the events of one are.
const PAGES_AT_ONCE: usize = 4;

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

impl State {
    /// Over this coordinator. When `drain` fires, streams end with a hint to come back and new requests are refused.
    #[must_use]
    pub fn new(
        coordinator: Coordinator,
        host: Arc<dyn Host>,
        access: Access,
        limits: Limits,
        drain: CancellationToken,
    ) -> Self {
        let (requests, readers) = (limits.requests, limits.readers);
        let remembered = Remembered::new(coordinator.listen(Topic::Tokens));
        Self {
            inner: Arc::new(Inner {
                coordinator,
                host,
                access,
                limits,
                drain,
                metrics: Metrics::default(),
                requests: Arc::new(Semaphore::new(requests)),
                readers: Readers::new(readers),
                reading: Semaphore::new(PAGES_AT_ONCE),
                pages: Pages::default(),
                remembered,
            }),
        }
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.inner.coordinator
    }

    pub(crate) fn host(&self) -> &dyn Host {
        self.inner.host.as_ref()
    }

    pub(crate) fn access(&self) -> &Access {
        &self.inner.access
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn drain(&self) -> &CancellationToken {
        &self.inner.drain
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(crate) fn requests(&self) -> &Semaphore {
        &self.inner.requests
    }

    /// Who reads a page of a log holds one of these meanwhile.
    pub(crate) fn reading(&self) -> &Semaphore {
        &self.inner.reading
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.inner.pages
    }

    /// Tokens and owners that were looked up lately.
    pub(crate) fn remembered(&self) -> &Remembered {
        &self.inner.remembered
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.inner.readers
    }
}
