//! Which agents are known, and by which driver each is spoken with.

use session_core::names::ExecutorType;

use super::bounds::Bounds;
use super::capabilities::{Cancelling, Capabilities, Support};
use super::desk::Dialogue;
use super::jsonl::{Acp, ClaudeCode, Codex, Gemini, JsonLines};
use super::said::UsageQuality;
use super::turn::Turn;

/// An agent that can be spoken with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    /// Claude Code, both ways in its `stream-json`.
    ClaudeCode,
    /// Codex, by `codex exec --json`.
    Codex,
    /// Gemini CLI, by its `stream-json` output.
    Gemini,
    /// Any program that speaks the Agent Client Protocol.
    Acp,
}

impl Framework {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ClaudeCode, Self::Codex, Self::Gemini, Self::Acp];

    /// The agent that an executor type names; `None` for executors that are no agent.
    #[must_use]
    pub fn of(executor: &ExecutorType) -> Option<Self> {
        Self::ALL.into_iter().find(|framework| framework.as_str() == executor.as_str())
    }

    /// The name of its executor type.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Acp => "acp",
        }
    }

    /// The program that is started where none is configured; `None` where the user names the whole command.
    #[must_use]
    pub const fn program(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some("claude"),
            Self::Codex => Some("codex"),
            Self::Gemini => Some("gemini"),
            Self::Acp => None,
        }
    }

    /// What can be expected of it.
    #[must_use]
    pub const fn capabilities(self) -> Capabilities {
        match self {
            Self::ClaudeCode => Capabilities {
                resume: Support::Yes,
                portable: Support::Yes,
                usage: UsageQuality::Exact,
                approvals: Support::Yes,
                cancelling: Cancelling::Message,
                chosen_id: true,
            },
            Self::Codex => Capabilities {
                resume: Support::Yes,
                portable: Support::Yes,
                usage: UsageQuality::Exact,
                approvals: Support::No,
                cancelling: Cancelling::Processes,
                chosen_id: false,
            },
            Self::Gemini => Capabilities {
                resume: Support::Yes,
                portable: Support::No,
                usage: UsageQuality::Exact,
                approvals: Support::No,
                cancelling: Cancelling::Processes,
                chosen_id: true,
            },
            Self::Acp => Capabilities {
                resume: Support::Announced,
                portable: Support::No,
                usage: UsageQuality::LastCall,
                approvals: Support::Announced,
                cancelling: Cancelling::Message,
                chosen_id: false,
            },
        }
    }

    /// A dialogue that will hold this turn.
    pub(crate) fn dialogue(self, turn: Turn, bounds: Bounds) -> Box<dyn Dialogue> {
        match self {
            Self::ClaudeCode => JsonLines::boxed(ClaudeCode::new(turn), bounds),
            Self::Codex => JsonLines::boxed(Codex::new(turn), bounds),
            Self::Gemini => JsonLines::boxed(Gemini::new(turn), bounds),
            Self::Acp => JsonLines::boxed(Acp::new(turn), bounds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_is_an_executor_and_not_every_executor_an_agent() {
        for framework in Framework::ALL {
            let name = ExecutorType::new(framework.as_str()).unwrap();
            assert_eq!(Framework::of(&name), Some(framework));
        }
        assert_eq!(Framework::of(&ExecutorType::command()), None);
    }

    #[test]
    fn only_who_is_asked_at_the_start_announces() {
        for framework in Framework::ALL {
            let announced = framework.capabilities().resume == Support::Announced;
            assert_eq!(announced, framework.program().is_none(), "{framework:?}");
        }
    }
}
