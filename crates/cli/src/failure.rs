//! What a person is told when something did not work, and the exit code that says it to scripts.
//!
//! Libraries have typed errors; here, at the edge, each becomes one kind with one exit code, a sentence, its causes
//! and a hint. The same value travels over the host's socket, so that both sides say the same.

use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use session_core::error::{Conflict, StoreError};
use session_core::ids::SessionRefError;
use session_manager::DispatchError;
use session_store::OpenError;

/// What kind of failure it is; each has its own exit code (SPEC section 11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Something went wrong.
    Error,
    /// The command, a file or a value is not valid.
    Usage,
    /// It took longer than it may.
    Timeout,
    /// There is no such thing.
    NotFound,
    /// It is not allowed.
    Denied,
    /// Something else is in the way.
    Conflict,
    /// What the session may use up is used up.
    Budget,
    /// There is no room.
    Capacity,
    /// The host does not answer.
    Unreachable,
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

impl Kind {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Error => 1,
            Self::Usage => 2,
            Self::Timeout => 3,
            Self::NotFound => 4,
            Self::Denied => 5,
            Self::Conflict => 6,
            Self::Budget => 7,
            Self::Capacity => 8,
            Self::Unreachable => 9,
            Self::Interrupted => 130,
        }
    }
}

/// A failure as a person sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind it is.
    pub kind: Kind,
    /// What happened, to what.
    pub message: String,
    /// Why, from the nearest cause to the farthest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The result of whatever a command does.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with a sentence.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), causes: Vec::new(), hint: None }
    }

    /// A part of the command, a file or a value is not valid.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Something went wrong, because of `error` and what lies behind it.
    pub fn caused(kind: Kind, message: impl Into<String>, error: &(dyn StdError + 'static)) -> Self {
        let mut causes = vec![error.to_string()];
        let mut next = error.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if causes.last() != Some(&text) {
                causes.push(text);
            }
            next = cause.source();
        }
        Self { kind, message: message.into(), causes, hint: None }
    }

    /// An error whose own sentence is the message.
    pub fn of(kind: Kind, error: &(dyn StdError + 'static)) -> Self {
        let mut failure = Self::caused(kind, String::new(), error);
        failure.message = failure.causes.remove(0);
        failure
    }

    /// Nothing is started on this system, as [`std::env::consts::OS`] names it.
    #[cfg(any(not(target_os = "linux"), test))]
    pub fn no_sandbox_on(os: &str) -> Self {
        let refusal = sandbox::Refusal::no_sandbox_on(os);
        let what = session_core::run::ReasonCode::SandboxUnavailable.code();
        let message = format!(
            "{what}: {refusal}, so no session is started here, nor with `--sandbox=off`: there would be no keeper that \
             ends it, holds its limits and knows its processes"
        );
        Self::new(Kind::Denied, message).hint(refusal.code.advice())
    }

    /// Message and causes in one line.
    pub fn in_one_line(&self) -> String {
        self.causes.iter().fold(self.message.clone(), |text, cause| text + ": " + cause)
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        for cause in &self.causes {
            write!(f, "\n  because: {cause}")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (kind, hint) = match &error {
            StoreError::UnknownSession(_) | StoreError::UnknownRun(_) => {
                (Kind::NotFound, Some("`roomette ps --all` lists the sessions"))
            }
            StoreError::UnknownApproval(_) | StoreError::UnknownRunner(_) | StoreError::UnknownToken(_) => {
                (Kind::NotFound, None)
            }
            StoreError::Busy { .. } => {
                (Kind::Conflict, Some("wait for it (`roomette wait`) or stop it (`roomette stop`)"))
            }
            StoreError::Conflict(Conflict::Dependencies | Conflict::NoEvent { .. }) => (Kind::Usage, None),
            StoreError::Exhausted(_) => {
                (Kind::Budget, Some("`roomette budget top-up SESSION` gives it more"))
            }
            StoreError::Transition(error) if error.machine == "session" && error.from == "terminated" => (
                Kind::Conflict,
                Some(
                    "a session that is over never comes back; `roomette fork SESSION` makes a new one of its log",
                ),
            ),
            StoreError::Transition(_) | StoreError::Fenced { .. } | StoreError::Conflict(_) => {
                (Kind::Conflict, None)
            }
            StoreError::Unavailable(_) => {
                (Kind::Error, Some("check that the disk has room and that the data directory can be written"))
            }
            StoreError::Corrupt { .. } | StoreError::Backend(_) => (Kind::Error, None),
        };
        let failure = Self::of(kind, &error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<DispatchError> for Failure {
    fn from(error: DispatchError) -> Self {
        match error {
            DispatchError::Store(error) => error.into(),
            DispatchError::Invalid { .. } => Self::of(Kind::Usage, &error),
        }
    }
}

impl From<SessionRefError> for Failure {
    fn from(error: SessionRefError) -> Self {
        Self::of(Kind::Usage, &error).hint("`roomette ps --all` lists the sessions")
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::of(Kind::Error, &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_held_is_refused_and_says_where_it_can() {
        let refused = Failure::no_sandbox_on("macos");
        assert_eq!(refused.kind.code(), 5);
        assert_eq!(
            refused.to_string(),
            "error: sandbox_unavailable: macos has no sandbox of ours, so no session is started here, nor with \
             `--sandbox=off`: there would be no keeper that ends it, holds its limits and knows its processes\n  hint: run \
             it on Linux, or in a Linux virtual machine or container"
        );
    }

    #[test]
    fn causes_are_told_once_and_in_order() {
        let inner = std::io::Error::other("the disk is on fire");
        let failure: Failure = StoreError::Unavailable(Box::new(inner)).into();
        assert_eq!(
            failure.to_string(),
            "error: the store is unavailable\n  because: the disk is on fire\n  hint: check that the disk has room \
             and that the data directory can be written"
        );
        let json = serde_json::to_string(&failure).unwrap();
        assert_eq!(serde_json::from_str::<Failure>(&json).unwrap(), failure);
    }
}
