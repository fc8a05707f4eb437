//! Every path of the API, once: the server's routes and the client's requests are made of them.

/// Runs: make one, list them.
pub const RUNS: &str = "/v1/runs";
/// One run.
pub const RUN: &str = "/v1/runs/{id}";
/// Ask for a run's end.
pub const RUN_STOP: &str = "/v1/runs/{id}/stop";
/// A runner's report: workspace and executor are being made.
pub const RUN_STARTING: &str = "/v1/runs/{id}/starting";
/// A runner's report: the executor is up.
pub const RUN_STARTED: &str = "/v1/runs/{id}/started";
/// A runner prolongs its claim.
pub const RUN_RENEW: &str = "/v1/runs/{id}/renew";
/// A runner's report: it did what it was asked to.
pub const RUN_COMPLETED: &str = "/v1/runs/{id}/completed";
/// A runner's report: it did not.
pub const RUN_FAILED: &str = "/v1/runs/{id}/failed";
/// A runner's report: it was ended.
pub const RUN_STOPPED: &str = "/v1/runs/{id}/stopped";
/// Ask a person on behalf of a run.
pub const RUN_APPROVALS: &str = "/v1/runs/{id}/approvals";
/// Take such a question back.
pub const RUN_APPROVAL_WITHDRAW: &str = "/v1/runs/{id}/approvals/{approval_id}/withdraw";

/// Sessions: list them.
pub const SESSIONS: &str = "/v1/sessions";
/// One session.
pub const SESSION: &str = "/v1/sessions/{id}";
/// Where it stands, in few words.
pub const SESSION_STATUS: &str = "/v1/sessions/{id}/status";
/// What its last run came to.
pub const SESSION_RESULT: &str = "/v1/sessions/{id}/result";
/// Ask for the end of what runs in it.
pub const SESSION_STOP: &str = "/v1/sessions/{id}/stop";
/// Where it can be resumed.
pub const SESSION_AFFINITY: &str = "/v1/sessions/{id}/affinity";
/// The sessions that it started.
pub const SESSION_CHILDREN: &str = "/v1/sessions/{id}/children";
/// Tie it to a framework's own conversation.
pub const SESSION_BIND: &str = "/v1/sessions/{id}/bind";
/// Its log: append, read, follow.
pub const SESSION_EVENTS: &str = "/v1/sessions/{id}/events";
/// What was asked in it.
pub const SESSION_APPROVALS: &str = "/v1/sessions/{id}/approvals";

/// Questions of agents in all sessions of the caller.
pub const APPROVALS: &str = "/v1/approvals";
/// One of them: look, answer.
pub const APPROVAL: &str = "/v1/approvals/{id}";

/// Runners: register, list.
pub const RUNNERS: &str = "/v1/runners";
/// One of them: look, forget.
pub const RUNNER: &str = "/v1/runners/{id}";
/// It is to take no more runs, or some again.
pub const RUNNER_DRAIN: &str = "/v1/runners/{id}/drain";
/// It waits for the next run.
pub const RUNNER_CLAIM: &str = "/v1/runners/{id}/claim";
/// It lives, and holds these claims.
pub const RUNNER_HEARTBEAT: &str = "/v1/runners/{id}/heartbeat";
/// It waits for orders.
pub const RUNNER_ORDERS: &str = "/v1/runners/{id}/orders";
/// The runs that it holds.
pub const RUNNER_RUNS: &str = "/v1/runners/{id}/runs";
/// It has started again, and takes over what it held.
pub const RUNNER_TAKE_OVER: &str = "/v1/runners/{id}/take-over";
/// It reports what happened in a run or session of its own.
pub const RUNNER_REPORTS: &str = "/v1/runners/{id}/reports";
/// It reports what happened to a session that lives on it.
pub const RUNNER_SESSION_REPORTS: &str = "/v1/runners/{id}/session-reports";
/// It waits for the answer to a question.
pub const RUNNER_ANSWER: &str = "/v1/runners/{id}/answer";
/// It reads a session in which it holds a run.
pub const RUNNER_SESSION: &str = "/v1/runners/{id}/session";

/// Tokens: issue one, list them.
pub const TOKENS: &str = "/v1/tokens";
/// One of them: revoke.
pub const TOKEN: &str = "/v1/tokens/{id}";

/// Have a tool of the scribe do something.
pub const TOOL: &str = "/v1/tools/{name}";
/// The scribe, for clients of MCP over Streamable HTTP.
pub const SCRIBE: &str = "/mcp/scribe";

/// Whether the process lives.
pub const HEALTHZ: &str = "/healthz";
/// Whether it can do its work.
pub const READYZ: &str = "/readyz";
/// Figures, in the text format of Prometheus.
pub const METRICS: &str = "/metrics";
/// This API, described.
pub const OPENAPI: &str = "/openapi.json";

/// The header under which a repeated call is known.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header with which a reader of a stream says what it has.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// The media type of a stream of events.
pub const EVENT_STREAM: &str = "text/event-stream";
/// The media type of a problem.
pub const PROBLEM: &str = "application/problem+json";

/// The path of this tool.
#[must_use]
pub fn of_tool(name: &str) -> String {
    TOOL.replace("{name}", name)
}

/// The path with this id in its place.
#[must_use]
pub fn with_id(path: &str, id: &str) -> String {
    path.replace("{id}", id)
}
