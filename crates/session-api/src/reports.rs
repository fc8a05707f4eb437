//! What whoever executes a run reports of it. Every report names the claim it speaks for: one whose claim is no longer the
//! current one changes nothing.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use session_core::budget::Budget;
use session_core::ports::Directive;
use session_core::run::StopMode;
use utoipa::ToSchema;

use crate::claims::Amounts;

/// A claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRef {
    /// The claim's epoch.
    pub epoch: u32,
}

/// The executor is up.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Started {
    /// The claim's epoch.
    pub epoch: u32,
    /// What the kernel really holds of the session's sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub sandbox: Option<Box<RawValue>>,
}

/// The run did what it was asked to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Completed {
    /// The claim's epoch.
    pub epoch: u32,
    /// What the process left with, 0 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// What it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Box<RawValue>>,
}

/// The run ended another way.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// The claim's epoch.
    pub epoch: u32,
    /// Why: a reason code, such as `exit_nonzero` or `stopped_by_user`.
    pub reason: String,
    /// What the process left with, 0 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The signal that ended the process, 1 to 64. Not with `exit_code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// A sentence that a person can act on, of at most 4000 bytes.
    pub message: String,
    /// What it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Box<RawValue>>,
}

/// The longest message of a report in bytes.
pub const MESSAGE_MAX: usize = 4_000;

/// The claim holds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Renewed {
    /// What is to be done with the run.
    pub directive: DirectiveView,
    /// What the run may use in all by now, where it is to go on. Less when its session starts children, more when they are
    /// over or its owner adds to the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Amounts>,
}

impl From<Directive> for Renewed {
    fn from(directive: Directive) -> Self {
        let left = match directive {
            Directive::Continue { left } => left.map(|left| Budget::of(left).into()),
            Directive::Stop(_) => None,
        };
        Self { directive: directive.into(), left }
    }
}

/// What is to be done with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DirectiveView {
    /// Go on.
    Continue,
    /// End it: ask first, force after a grace.
    Stop,
    /// End it at once.
    Kill,
}

impl From<Directive> for DirectiveView {
    fn from(directive: Directive) -> Self {
        match directive {
            Directive::Continue { .. } => Self::Continue,
            Directive::Stop(StopMode::Graceful) => Self::Stop,
            Directive::Stop(StopMode::Kill) => Self::Kill,
        }
    }
}
