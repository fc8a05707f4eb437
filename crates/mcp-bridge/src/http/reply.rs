//! Answers: what is refused, and why, as a JSON-RPC error that people and programs can read.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::text;
use crate::answers::AnswerError;
use crate::bridge::{BeginError, FindError};
use crate::gate::Refusal;
use crate::host::HostError;
use crate::router::error_line;

/// The media type of a message.
pub(super) const JSON: &str = "application/json";
/// JSON-RPC's code for what this side cannot do.
const SERVER_ERROR: i32 = -32_000;
/// JSON-RPC's code for a request that is none.
const INVALID_REQUEST: i32 = -32_600;
/// The code for a session that is not there, as the SDKs use it.
const SESSION_NOT_FOUND: i32 = -32_001;

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    status: StatusCode,
    code: i32,
    why: String,
    /// The id of the request, as JSON.
    id: Option<String>,
    retry_after: Option<Duration>,
    data: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        let code = match status {
            StatusCode::NOT_FOUND => SESSION_NOT_FOUND,
            status if status.is_client_error() => INVALID_REQUEST,
            _ => SERVER_ERROR,
        };
        Self { status, code, why: why.into(), id: None, retry_after: None, data: None }
    }

    /// There is no room just now.
    pub(crate) fn busy(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why).retry_after(Duration::from_secs(1))
    }

    pub(crate) fn coded(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    /// Answers the request with this id, which is JSON.
    pub(crate) fn of(mut self, id: Option<&str>) -> Self {
        self.id = id.map(str::to_owned);
        self
    }

    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// More for programs, as JSON.
    pub(crate) fn with(mut self, data: String) -> Self {
        self.data = Some(data);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// It as a message.
    pub(crate) fn line(&self) -> String {
        let id = self.id.as_deref().unwrap_or("null");
        let mut line = error_line(id, self.code, &self.why);
        if let Some(data) = &self.data {
            line.truncate(line.len() - 2);
            line.push_str(r#","data":"#);
            line.push_str(data);
            line.push_str("}}");
        }
        line
    }
}

/// The answer that says so.
pub(crate) fn failure(failure: &Failure) -> Response {
    let mut response = text(failure.status, JSON, failure.line());
    if let Some(after) = failure.retry_after {
        let seconds = after.as_secs_f64().ceil().max(1.0);
        if let Ok(value) = HeaderValue::try_from(seconds.to_string()) {
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
    }
    response
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        let why = error.to_string();
        match error {
            FindError::Over(Refusal::Changed) => Self::new(StatusCode::FORBIDDEN, why),
            FindError::Unknown | FindError::Over(_) => Self::new(StatusCode::NOT_FOUND, why),
            FindError::Full => Self::busy(why).retry_after(Duration::from_secs(5)),
            FindError::Host(error) => of_host(&error),
        }
    }
}

/// What the host could not do.
pub(crate) fn of_host(error: &HostError) -> Failure {
    let why = error.to_string();
    match error {
        HostError::Limit { retry_after, .. } => Failure::busy(why).retry_after(*retry_after),
        HostError::Other(_) => Failure::busy(why).retry_after(Duration::from_secs(5)),
        // The operator's to mend: it is no better a moment later.
        HostError::Sandbox(_) | HostError::Budget(_) => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, why),
        HostError::Broken(_) => Failure::new(StatusCode::BAD_GATEWAY, why),
        HostError::Scope { .. } => Failure::new(StatusCode::FORBIDDEN, why),
        HostError::Over(_) => Failure::new(StatusCode::NOT_FOUND, why),
    }
}

/// Why a session did not begin.
pub(crate) fn not_begun(error: &BeginError) -> Failure {
    let failed = Failure::new(StatusCode::BAD_GATEWAY, error.to_string());
    match error {
        BeginError::Full => Failure::busy(error.to_string()).retry_after(Duration::from_secs(5)),
        BeginError::Answer(AnswerError::Host(error)) => of_host(error),
        BeginError::Answer(AnswerError::Timeout(_)) => {
            Failure::new(StatusCode::GATEWAY_TIMEOUT, error.to_string())
        }
        BeginError::Answer(AnswerError::Gone(_) | AnswerError::Malformed | AnswerError::Refused(_)) => failed,
    }
}
