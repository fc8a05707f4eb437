//! What an agent asks leave for, and the answer.

use session_core::event::Payload;
use session_core::names::ToolName;

/// An agent asks whether it may call a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The tool, by the agent's own name for it.
    pub(crate) tool: ToolName,
    /// What it is about to do, in one line for people.
    pub(crate) title: String,
    /// What it would run, where the tool runs something: an argv, or the line for a shell as its only element.
    pub(crate) command: Option<Vec<String>>,
    /// The tool's whole input, as JSON.
    pub(crate) input: Payload,
    /// The agent offers no leave for this once: to allow is to allow it for as long as the agent lives.
    pub(crate) lasting: bool,
}

/// What a person, or what a person said before, makes of an [`Ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It may.
    Allow,
    /// It may not, and why, which is told to the agent.
    Deny {
        /// The reason.
        message: String,
    },
    /// Nobody answered: the question was withdrawn, or the turn is over.
    Cancelled,
}
