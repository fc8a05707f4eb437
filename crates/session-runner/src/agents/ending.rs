//! What a turn came to.

use session_core::names::ExecutorSessionId;

use super::framework::Framework;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// The agent says that it is done.
    Completed {
        /// Its last word, where it has one.
        text: Option<String>,
        /// Why it stopped.
        stop: Stop,
    },
    /// The agent says that it failed.
    Failed {
        /// What it says.
        message: String,
    },
    /// It was cancelled by us.
    Cancelled,
    /// The conversation that was to be resumed is not there. It can be begun anew from our log.
    Gone {
        /// What the agent says.
        message: String,
    },
    /// The agent took up another conversation than the one that was wanted; nothing it said there was taken.
    WrongConversation {
        /// The one that was wanted.
        wanted: ExecutorSessionId,
        /// The one that it took up.
        got: String,
    },
    /// The stream ended, or a bound was passed, without the agent's own end of the turn.
    Cut {
        /// What is known of it.
        message: String,
    },
}

/// Why an agent stopped that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It had nothing more to say.
    EndTurn,
    /// The model's longest answer was reached.
    MaxTokens,
    /// The agent's own limit of model calls in a turn was reached.
    MaxTurnRequests,
    /// The model refused to go on.
    Refusal,
    /// It asked for something that it was not allowed, and would not go on without.
    Denied,
}

/// What agents print to stderr, and nowhere else, where the conversation is not there.
const GONE: &[(Framework, &str)] = &[
    (Framework::ClaudeCode, "No conversation found with session ID"),
    (Framework::Codex, "no rollout found for thread id"),
    (Framework::Gemini, "Invalid session identifier"),
    (Framework::Gemini, "No previous sessions found for this project"),
];

impl TurnEnd {
    /// The same end, with what the agent's last lines on stderr add to it: some agents say there, and nowhere else, that a
    /// conversation is gone or why they would not start. `resumed`: a conversation was to be resumed.
    #[must_use]
    pub(crate) fn explained_by(self, framework: Framework, resumed: bool, stderr: &str) -> Self {
        let Self::Cut { message } = self else { return self };
        let of_this = |phrase: &&(Framework, &str)| phrase.0 == framework;
        let says_gone = |line: &&str| GONE.iter().filter(of_this).any(|(_, phrase)| line.contains(phrase));
        if let Some(line) = stderr.lines().find(says_gone).filter(|_| resumed) {
            return Self::Gone { message: line.trim().into() };
        }
        match stderr.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            Some(line) => Self::Cut { message: format!("{message}; the last thing it printed: {line}") },
            None => Self::Cut { message },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut() -> TurnEnd {
        TurnEnd::Cut { message: "it ended".into() }
    }

    #[test]
    fn stderr_tells_what_stdout_does_not() {
        let stderr =
            "Reading…\nError: thread/resume failed: no rollout found for thread id 01 (code -32600)\n\n";
        let TurnEnd::Gone { message } = cut().explained_by(Framework::Codex, true, stderr) else {
            panic!("not gone")
        };
        assert!(message.starts_with("Error: thread/resume"), "{message}");

        let unresumed = cut().explained_by(Framework::Codex, false, stderr);
        assert!(
            matches!(&unresumed, TurnEnd::Cut { message } if message.contains("no rollout")),
            "{unresumed:?}"
        );
        let another = cut().explained_by(Framework::Gemini, true, stderr);
        assert!(matches!(another, TurnEnd::Cut { .. }), "{another:?}");
        assert_eq!(cut().explained_by(Framework::Codex, true, " \n"), cut());
    }

    #[test]
    fn what_the_agent_said_itself_stays() {
        let failed = TurnEnd::Failed { message: "no".into() };
        assert_eq!(
            failed.clone().explained_by(Framework::Codex, true, "no rollout found for thread id"),
            failed
        );
    }
}
