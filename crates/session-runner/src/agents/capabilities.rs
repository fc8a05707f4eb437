//! What can be expected of an agent.

use super::said::UsageQuality;

/// What an agent can do, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// A conversation can be continued by another process.
    pub resume: Support,
    /// A conversation can be continued on another machine, given the agent's HOME.
    pub portable: Support,
    /// How well it tells what it used up.
    pub usage: UsageQuality,
    /// It asks before it calls a tool that may do harm, and takes no for an answer.
    pub approvals: Support,
    /// How a turn is interrupted.
    pub cancelling: Cancelling,
    /// We choose the conversation's id, so that it is known before the agent runs.
    pub chosen_id: bool,
}

/// Whether an agent can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot.
    No,
    /// It says so itself when it starts.
    Announced,
}

/// How a turn is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelling {
    /// By a message, to which the agent answers by ending its turn.
    Message,
    /// Only by ending its processes; what it has said by then stays resumable.
    Processes,
}
