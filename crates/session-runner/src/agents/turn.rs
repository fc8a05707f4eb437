//! One turn, as an agent is asked for it.

use camino::Utf8PathBuf;
use session_core::names::{ExecutorSessionId, ToolName};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    /// What the user says.
    pub(crate) prompt: String,
    /// The directory that the agent works in, absolute.
    pub(crate) cwd: Utf8PathBuf,
    /// The conversation that the turn belongs to.
    pub(crate) conversation: Conversation,
    /// What was said before, for an agent that does not know it: told before the prompt of a new conversation.
    pub(crate) primer: Option<String>,
    /// The model, by the agent's own name for it; `None` for the agent's choice.
    pub(crate) model: Option<String>,
    /// The mode of permissions, by the agent's own name for it; `None` for the one that asks, or that forbids where the
    /// agent cannot ask.
    pub(crate) mode: Option<String>,
    /// The tools that need no leave, for agents that ask nobody and have to be told beforehand.
    pub(crate) allow: Vec<ToolName>,
    /// What the user adds to the command line; for an ACP agent the whole command.
    pub(crate) arguments: Vec<String>,
}

/// The conversation that a turn belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Conversation {
    /// It begins with this turn.
    New {
        /// The id that we choose, where the agent lets us; otherwise it is not used.
        id: ExecutorSessionId,
    },
    /// The agent holds it already.
    Resumed {
        /// The agent's id of it.
        id: ExecutorSessionId,
        /// What the agent had counted up in it when it last said so.
        totals: Totals,
    },
}

impl Conversation {
    /// The agent's id of a conversation that it holds already.
    pub(crate) fn resumed(&self) -> Option<&ExecutorSessionId> {
        match self {
            Self::Resumed { id, .. } => Some(id),
            Self::New { .. } => None,
        }
    }

    /// What the agent has counted up in it so far.
    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Resumed { totals, .. } => *totals,
            Self::New { .. } => Totals::default(),
        }
    }
}

/// What an agent has counted up over a whole conversation, in its own count. Only such sums are remembered that the agent
/// itself continues; what it does not sum up is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    /// Tokens, input and output together, those read from a cache included.
    pub(crate) tokens: u64,
    /// Cost in millionths of a US dollar.
    pub(crate) cost_micros: u64,
}

impl Turn {
    /// What the agent is told: the primer, where there is one and the conversation is new, and the prompt.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        let primer = self.primer.as_deref().filter(|_| self.conversation.resumed().is_none());
        primer.into_iter().chain([self.prompt.as_str()])
    }

    /// The same as one text.
    pub(crate) fn text(&self) -> String {
        self.words().collect::<Vec<_>>().join("\n\n")
    }
}
