//! Why a tool did not do what it was called for, so that an agent knows what to do about it.

use serde::{Deserialize, Serialize};
use session_core::error::{Conflict, StoreError};
use thiserror::Error;

/// A call that was not done. Nothing has changed, except where the code says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Refused {
    /// By what a program decides.
    pub code: Code,
    /// What happened, to what.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What kind of refusal it is. Stable: a code never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// An argument is unknown, missing, of the wrong type, or its value is not valid.
    InvalidArgument,
    /// Who calls, or for which work, is not said and cannot be inferred.
    MissingContext,
    /// There is no such session, or it is none of the caller's: the answer is the same.
    NotFound,
    /// The caller may not do this.
    Forbidden,
    /// The key was used before, for something else.
    KeyReused,
    /// What is there already, or where it stands, does not go with it.
    Conflict,
    /// The session has a run that is not over: wait for its end, or stop it.
    Busy,
    /// What may be used up is used up.
    BudgetExhausted,
    /// It may be done when it is tried again. What has a key is done once, however often it is tried.
    Unavailable,
    /// A fault of the program.
    Internal,
}

impl Code {
    /// The code as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::MissingContext => "missing_context",
            Self::NotFound => "not_found",
            Self::Forbidden => "forbidden",
            Self::KeyReused => "key_reused",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::BudgetExhausted => "budget_exhausted",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }
}

impl Refused {
    /// A refusal with a sentence.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// An argument is not valid.
    #[must_use]
    pub fn argument(name: &str, reason: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, format!("{name}: {reason}"))
    }

    /// The same for what is not there and for what is somebody else's.
    #[must_use]
    pub fn unknown_session(id: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no session {id} among yours"))
            .hint("list_sessions names your own session and those that it started")
    }

    /// A fault of the program: told to its log, not to the caller.
    #[must_use]
    pub fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!(%error, source = error.source(), "a tool failed");
        Self::new(Code::Internal, "this is a fault of the program; its log says more")
    }

    /// What an agent reads: the code, the sentence, and what to do.
    #[must_use]
    pub fn text(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("\n{hint}")).unwrap_or_default();
        format!("{}: {}{hint}", self.code.as_str(), self.message)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::UnknownSession(id) => return Self::unknown_session(id),
            StoreError::UnknownRun(_)
            | StoreError::UnknownApproval(_)
            | StoreError::UnknownRunner(_)
            | StoreError::UnknownToken(_) => Code::NotFound,
            StoreError::Busy { .. } => Code::Busy,
            StoreError::Fenced { .. } => Code::Forbidden,
            StoreError::Exhausted(_) => Code::BudgetExhausted,
            StoreError::Conflict(Conflict::Origin { .. }) => {
                return Self::new(Code::KeyReused, "something else was appended under this key before")
                    .hint("repeat that call as it was, or take a new key");
            }
            StoreError::Conflict(Conflict::Reused(_)) => Code::KeyReused,
            StoreError::Transition(_) | StoreError::Conflict(_) => Code::Conflict,
            StoreError::Unavailable(source) => {
                tracing::warn!(error = source.as_ref(), "the store is unavailable");
                return Self::new(Code::Unavailable, "the store cannot be reached at the moment")
                    .hint("try the same call again");
            }
            StoreError::Corrupt { .. } | StoreError::Backend(_) => return Self::internal(&error),
        };
        Self::new(code, error.to_string())
    }
}
