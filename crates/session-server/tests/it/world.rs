//! An API over the store in memory, and how its tests speak with it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::SignedDuration;
use serde_json::{Value, json};
use session_core::affinity::RunnerProfile;
use session_core::budget::Budget;
use session_core::names::ExecutorType;
use session_core::ports::{ClaimedRun, RunProgress};
use session_core::run::Ending;
use session_core::testing::{self, ManualClock, MemoryStore};
use session_core::token::{Bearer, NewToken, RunToken, Secret, SigningKey, Subject, Verbs};
use session_core::{Env, RunnerId, SandboxSpec, Store};
use session_manager::{Coordinator, DispatchOptions};
use session_server::state::{Access, Apart, Limits, State};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// An API of its own.
pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) coordinator: Coordinator,
    pub(crate) router: Router,
    pub(crate) drain: CancellationToken,
    pub(crate) state: State,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// What is there at this place, such as `/items/0/id`, as text.
    #[track_caller]
    pub(crate) fn text(&self, at: &str) -> String {
        let found = self.body.pointer(at).and_then(Value::as_str);
        found.unwrap_or_else(|| panic!("nothing at {at} of {}", self.body)).to_owned()
    }

    /// That it is a problem with this status and code; and of which field.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> Option<String> {
        assert_eq!((self.status.as_u16(), self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["status"], json!(status));
        assert!(!self.body["detail"].as_str().unwrap().is_empty());
        self.body["field"].as_str().map(Into::into)
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default(), vec!["localhost".into()])
    }

    pub(crate) fn with(limits: Limits, hosts: Vec<String>) -> Self {
        let (env, clock) = testing::env();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let coordinator = Coordinator::new(env.clone(), store, DispatchOptions::default());
        let host = Apart {
            coordinator: coordinator.clone(),
            sandbox: SandboxSpec::default(),
            budget: Budget::default(),
        };
        let access = Access { without_token: None, hosts };
        let drain = CancellationToken::new();
        let state = State::new(coordinator.clone(), Arc::new(host), access, limits, drain.clone());
        let router = session_server::router_with(state.clone(), tower::service_fn(whose));
        Self { env, clock, coordinator, router, drain, state }
    }

    /// A token of this principal with these verbs.
    pub(crate) async fn token(&self, principal: &str, verbs: &str) -> String {
        self.token_of(principal, verbs, Subject::Principal).await
    }

    /// The token of a runner.
    pub(crate) async fn runner_token(&self, runner: RunnerId) -> String {
        self.token_of("fleet", "runner", Subject::Runner(runner)).await
    }

    pub(crate) async fn token_of(&self, principal: &str, verbs: &str, subject: Subject) -> String {
        let secret = Secret::new(self.env.secret());
        let new = NewToken {
            id: self.env.token_id(),
            digest: secret.digest(),
            name: "test".parse().unwrap(),
            subject,
            principal: principal.parse().unwrap(),
            verbs: if verbs == "all" { Verbs::all() } else { verbs.parse().unwrap() },
            expires_at: None,
            parent: None,
        };
        self.coordinator.store().issue(new, self.env.now()).await.unwrap();
        secret.reveal()
    }

    /// The token of a claim.
    pub(crate) async fn run_token(&self, claimed: &ClaimedRun, verbs: &str) -> String {
        let key = SigningKey::new(self.env.secret());
        let key = self.coordinator.store().signing_key(key).await.unwrap();
        let token = RunToken {
            session: claimed.session.id,
            run: claimed.run.id,
            epoch: claimed.run.epoch,
            principal: claimed.session.principal.clone(),
            verbs: verbs.parse().unwrap(),
            expires_at: self.env.now() + SignedDuration::from_hours(1),
        };
        token.seal(&key)
    }

    /// Asks, with these headers.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        self.send(request("GET", token, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn delete(&self, token: &str, path: &str) -> Answer {
        self.send(request("DELETE", token, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, token: &str, path: &str, body: &Value) -> Answer {
        let request = request("POST", token, path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// The same under the caller's own name for the call.
    pub(crate) async fn post_once(&self, token: &str, path: &str, call: &str, body: &Value) -> Answer {
        let request = request("POST", token, path).header("content-type", "application/json");
        let request = request.header("idempotency-key", call);
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// A run of `true` in a new session of whoever has the token: session and run.
    pub(crate) async fn start(&self, token: &str) -> (String, String) {
        let answer = self.post(token, "/v1/runs", &json!({"type": "start", "argv": ["true"]})).await.is(201);
        (answer.text("/session_id"), answer.text("/run_id"))
    }

    /// A runner with every executor takes the next run.
    pub(crate) async fn claim(&self) -> ClaimedRun {
        let profile = RunnerProfile {
            id: self.env.runner_id(),
            hostname: "box".parse().unwrap(),
            executors: vec![ExecutorType::command(), "codex".parse().unwrap()],
            project_dirs: None,
        };
        self.coordinator.claim(&profile).await.unwrap().unwrap()
    }

    /// What was claimed is begun, and completes.
    pub(crate) async fn complete(&self, claimed: &ClaimedRun) {
        let fence = claimed.run.fence();
        for step in [RunProgress::Starting, RunProgress::RUNNING] {
            self.coordinator.advance(fence, step).await.unwrap();
        }
        self.coordinator.finish(fence, Ending::completed(None), None).await.unwrap();
    }
}

/// A service beside the routes: tells whose a request is.
async fn whose(request: Request<Body>) -> Result<String, std::convert::Infallible> {
    Ok(match request.extensions().get::<Bearer>() {
        Some(Bearer::Owner { principal, verbs }) => format!("of {principal} for {verbs}"),
        Some(Bearer::Run(token)) => format!("of {}", token.run),
        None => "of nobody".into(),
    })
}

/// A request, with a token where there is one.
pub(crate) fn request(method: &str, token: &str, path: &str) -> axum::http::request::Builder {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    if token.is_empty() { request } else { request.header("authorization", format!("Bearer {token}")) }
}
