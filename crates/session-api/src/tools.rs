//! The tools of the scribe, as `roomette mcp` calls them from where it runs: inside a room, or on another machine.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolCall {
    /// The tool's own arguments.
    pub arguments: Map<String, Value>,
    /// What the caller said of itself. A run's token says more than all of it.
    pub context: ToolContext,
}

/// What a caller said of itself; what nobody said is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolContext {
    /// Which agent it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<ToolPart>,
    /// The repository that it works in, with every link resolved where that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo_root: Option<ToolPart>,
    /// `project` or `sentinel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ToolPart>,
    /// Its name for what it works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ToolPart>,
    /// Whose paths it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<ToolPart>,
    /// The caller's own name for this call: the same again makes nothing more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
}

/// A part of what a caller said of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolPart {
    /// Its value.
    pub value: String,
    /// Where it was said: `argument`, `meta`, `header`, `environment`, `roots`, `token` or `inferred`.
    pub from: String,
}

/// What became of a call: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolAnswer {
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Map<String, Value>>,
    /// Why it did nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<ToolRefusal>,
}

/// Why a tool did nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolRefusal {
    /// The code. Stable: it never changes its meaning.
    pub code: String,
    /// What happened, to what.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ToolAnswer {
    /// A refusal.
    #[must_use]
    pub fn refused(code: &str, message: impl Into<String>) -> Self {
        let refused = ToolRefusal { code: code.into(), message: message.into(), hint: None };
        Self { answer: None, refused: Some(refused) }
    }
}
