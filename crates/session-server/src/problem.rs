//! Errors as problems: one place where a store's refusal becomes a code.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use session_api::paths;
use session_api::problem::{Code, Problem};
use session_core::error::{Conflict, StoreError};
use session_manager::DispatchError;

use crate::state::Unsettled;

/// A request was not done.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Problem);

impl Refusal {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail))
    }

    /// A part of the request is not valid.
    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self(Problem::new(Code::Invalid, reason).at(field))
    }

    /// The same for what is not there and for what is somebody else's.
    pub(crate) fn unknown(what: &str, id: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} {id}"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = self.0.code;
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(paths::PROBLEM));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"roomette\""));
        }
        if code.may_pass() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::UnknownSession(_)
            | StoreError::UnknownRun(_)
            | StoreError::UnknownApproval(_)
            | StoreError::UnknownRunner(_)
            | StoreError::UnknownToken(_) => Code::NotFound,
            StoreError::Busy { .. } => Code::Busy,
            StoreError::Fenced { .. } => Code::StaleEpoch,
            StoreError::Transition(_) => Code::WrongState,
            StoreError::Conflict(conflict @ Conflict::Otherwise { .. }) => {
                return Self(Problem::new(of_conflict(conflict), error.to_string()).at("key"));
            }
            StoreError::Conflict(conflict) => of_conflict(conflict),
            StoreError::Exhausted(_) => Code::BudgetExhausted,
            StoreError::Unavailable(source) => {
                tracing::warn!(error = source.as_ref(), "the store is unavailable");
                return Self::new(Code::Unavailable, "the store cannot be reached at the moment");
            }
            StoreError::Corrupt { .. } | StoreError::Backend(_) => return internal(&error),
        };
        Self::new(code, error.to_string())
    }
}

/// A fault of the program: told to its log, not to the caller.
pub(crate) fn internal(error: &dyn std::error::Error) -> Refusal {
    tracing::error!(%error, source = error.source(), "a request failed");
    Refusal::new(Code::Internal, "this is a fault of the program; its log says more")
}

fn of_conflict(conflict: &Conflict) -> Code {
    match conflict {
        Conflict::Origin { .. } => Code::OriginConflict,
        Conflict::Bound(_) => Code::AlreadyBound,
        Conflict::Unbound(_) => Code::NotBound,
        Conflict::Executor { .. } => Code::WrongExecutor,
        Conflict::Exists(_) | Conflict::Otherwise { .. } => Code::Exists,
        Conflict::NoEvent { .. } | Conflict::Dependencies | Conflict::Refused(_) => Code::Invalid,
        Conflict::Reserved(_) => Code::ReservedKind,
        Conflict::Answered { .. } => Code::AlreadyAnswered,
        Conflict::ApprovalsFull(_) => Code::TooManyApprovals,
        Conflict::TokenEnded(_) => Code::Unauthenticated,
        Conflict::Stronger { .. } => Code::StrongerToken,
        Conflict::Reused(_) => Code::KeyReused,
        Conflict::Superseded { .. } => Code::Superseded,
        Conflict::RunnerBusy { .. } => Code::RunnerBusy,
        Conflict::TooDeep { .. } => Code::TooDeep,
        Conflict::TooManyChildren { .. } => Code::TooManyChildren,
        Conflict::Wider { .. } => Code::WiderSandbox,
        Conflict::NotDue(_) => Code::NotDue,
    }
}

impl From<DispatchError> for Refusal {
    fn from(error: DispatchError) -> Self {
        match error {
            // One task is submitted at a time: which one it is says nothing.
            DispatchError::Invalid { field, reason } => {
                Self::invalid(in_request(field.strip_prefix("tasks[0].").unwrap_or(&field)), reason)
            }
            DispatchError::Store(error) => error.into(),
        }
    }
}

/// A part of a task by the name that it has in the request.
fn in_request(part: &str) -> &str {
    match part {
        "turn" | "turn.prompt" => "prompt",
        "turn.model" => "model",
        "turn.from_history" => "from_history",
        "turn.permissions.allow" => "allow_tools",
        "turn.permissions.asking" => "ask",
        "project" => "project_dir",
        "timeout" => "timeout_s",
        "claim_within" => "claim_within_s",
        other => other,
    }
}

impl From<Unsettled> for Refusal {
    fn from(Unsettled { field, reason }: Unsettled) -> Self {
        Self::invalid(field, reason)
    }
}
