//! What an agent says, in our words.

use session_core::event::{EventKind, Payload};
use session_core::names::ExecutorSessionId;

use super::turn::Totals;

/// One thing that an agent said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// The conversation's id. After a resume it was compared with the one that was wanted.
    Bound(ExecutorSessionId),
    /// From here on the conversation can be resumed: the agent has written something of it down.
    Resumable,
    /// One entry of the session's log, with the agent's own words in its `raw`.
    Event {
        /// What kind of entry.
        kind: EventKind,
        /// The entry.
        payload: Payload,
    },
    /// What was used up.
    Usage(Reported),
    /// The connection to the model is troubled, and how.
    Degraded(String),
    /// One line that a person may want to see while it lasts.
    Progress(String),
}

/// What an agent says that it used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reported {
    /// Tokens since the last report of this turn: input and output together, those read from a cache included.
    pub(crate) tokens: u64,
    /// Cost since then, in millionths of a US dollar; zero where the agent does not say.
    pub(crate) cost_micros: u64,
    /// What the agent has counted up over the conversation: given back with the next turn.
    pub(crate) totals: Totals,
    /// How much can be made of it.
    pub(crate) quality: UsageQuality,
    /// The agent's own words.
    pub(crate) raw: Payload,
}

/// How well an agent tells what it used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageQuality {
    /// All of the turn.
    Exact,
    /// The turn's last call of the model, or an unknown part of it: a lower bound.
    LastCall,
    /// Nothing.
    Unknown,
}

impl UsageQuality {
    /// Its name in the log and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::LastCall => "last_call",
            Self::Unknown => "unknown",
        }
    }
}
