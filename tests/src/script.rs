//! What a prompt tells a fake agent, or the model behind a real one, to do: so one prompt does the same with each of them.
//!
//! One step a line; a line that is no step is repeated. Only what stands behind the last blank line counts, so that an
//! account of an earlier conversation, or any filling, may stand before it.

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `say TEXT`: says it.
    Say(String),
    /// `half TEXT`: begins to say it, and says nothing more until it is interrupted.
    Half(String),
    /// `think TEXT`: thinks it aloud.
    Think(String),
    /// `tool COMMAND`: runs it with a shell, by the tool that the agent has for that. `tool mcp NAME JSON`: calls that tool of
    /// an MCP server.
    Tool(String),
    /// `recall`: says all that it was told before, in this conversation.
    Recall,
    /// `usage N`: counts so many tokens in this turn.
    Usage(u64),
    /// `fail MESSAGE`: the turn fails with it.
    Fail(String),
    /// `hang`: says nothing more until it is interrupted.
    Hang,
    /// `long BYTES`: says so many letters in one line.
    Long(usize),
    /// `garbage`: prints what is no message of any protocol.
    Garbage,
    /// `wander`: the next time that the conversation is resumed, another one is taken up.
    Wander,
    /// `leave CODE`: ends the program without an end of its turn.
    Leave(u8),
}

impl Step {
    fn of(line: &str) -> Self {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let known = match word {
            "say" => Some(Self::Say(rest.into())),
            "half" => Some(Self::Half(rest.into())),
            "think" => Some(Self::Think(rest.into())),
            "tool" => Some(Self::Tool(rest.into())),
            "recall" => Some(Self::Recall),
            "usage" => rest.parse().ok().map(Self::Usage),
            "fail" => Some(Self::Fail(rest.into())),
            "hang" => Some(Self::Hang),
            "long" => rest.parse().ok().map(Self::Long),
            "garbage" => Some(Self::Garbage),
            "wander" => Some(Self::Wander),
            "leave" => rest.parse().ok().map(Self::Leave),
            _ => None,
        };
        known.unwrap_or_else(|| Self::Say(format!("heard: {line}")))
    }
}

/// The steps of a text, and what stands before them.
#[must_use]
pub fn steps(text: &str) -> (Vec<Step>, &str) {
    let (before, script) = text.trim_end().rsplit_once("\n\n").unwrap_or(("", text));
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    (lines.map(Step::of).collect(), before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_the_last_blank_line_is_done_step_by_step() {
        let (found, before) = steps("say no\n\nUser: say no\n\nsay a b\n recall\nusage 7\nlong x\n--help\n");
        let heard = |line: &str| Step::Say(format!("heard: {line}"));
        assert_eq!(
            found,
            [Step::Say("a b".into()), Step::Recall, Step::Usage(7), heard("long x"), heard("--help")]
        );
        assert_eq!(before, "say no\n\nUser: say no");
        assert_eq!(steps("hang"), (vec![Step::Hang], ""));
    }
}
