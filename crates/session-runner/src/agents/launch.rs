//! What is started for a turn: a pure function of the agent and the turn.

use super::framework::Framework;
use super::turn::Turn;

/// What is started. The agent's stdin and stdout are the dialogue's [`Wire`](super::Wire); prompts go down it, whatever
/// their length, so that they are neither cut off at the kernel's limit nor shown to everybody who lists processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// What is added to its environment, unless the user has set it.
    pub(crate) env: Vec<(String, String)>,
}

/// What Claude Code is told by its environment: to reach for the model and for nothing else.
const CLAUDE_ENV: &[&str] = &[
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
];
/// What Codex is told on its command line, to the same end.
const CODEX_SETTINGS: &[&str] =
    &["check_for_update_on_startup=false", "analytics.enabled=false", "features.plugins=false"];

impl Launch {
    /// What is started for this turn. `program`: the agent's program; an ACP agent's is the first of the turn's arguments,
    /// so there it is not used.
    #[must_use]
    pub(crate) fn new(framework: Framework, program: &str, turn: &Turn) -> Self {
        match framework {
            Framework::ClaudeCode => claude_code(program, turn),
            Framework::Codex => codex(program, turn),
            Framework::Gemini => gemini(program, turn),
            Framework::Acp => Self { argv: turn.arguments.clone(), env: Vec::new() },
        }
    }
}

/// `claude -p`, both ways in JSON, asking on the same wire.
fn claude_code(program: &str, turn: &Turn) -> Launch {
    let mut argv = argv(&[
        program,
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--include-partial-messages",
        "--verbose",
        "--permission-prompt-tool",
        "stdio",
        "--permission-mode",
        turn.mode.as_deref().unwrap_or("default"),
    ]);
    argv.extend(conversation(turn));
    argv.extend(option("--model", turn.model.as_deref()));
    argv.extend(turn.arguments.iter().cloned());
    Launch { argv, env: CLAUDE_ENV.iter().map(|name| ((*name).into(), "1".into())).collect() }
}

/// `codex exec`, with the prompt on stdin. It cannot ask, so its mode says what its tools may do.
fn codex(program: &str, turn: &Turn) -> Launch {
    let mode = turn.mode.as_deref().unwrap_or("workspace-write");
    let mut argv = argv(&[program, "exec", "--json", "--skip-git-repo-check", "--sandbox", mode]);
    for setting in CODEX_SETTINGS {
        argv.extend(option("-c", Some(setting)));
    }
    argv.extend(option("--model", turn.model.as_deref()));
    argv.extend(turn.arguments.iter().cloned());
    if let Some(id) = turn.conversation.resumed() {
        argv.extend(["resume".to_owned(), "--".to_owned(), id.to_string()]);
    }
    argv.push("-".into());
    Launch { argv, env: Vec::new() }
}

/// `gemini`, with the prompt on stdin and one process instead of two. It cannot ask: what would want leave and is not among
/// the tools that have it is not offered to the model.
fn gemini(program: &str, turn: &Turn) -> Launch {
    let mode = turn.mode.as_deref().unwrap_or("default");
    let mut argv = argv(&[program, "--output-format", "stream-json", "--approval-mode", mode]);
    argv.extend(turn.allow.iter().map(|tool| format!("--allowed-tools={tool}")));
    argv.extend(conversation(turn));
    argv.extend(option("--model", turn.model.as_deref()));
    argv.extend(turn.arguments.iter().cloned());
    Launch { argv, env: vec![("GEMINI_CLI_NO_RELAUNCH".into(), "true".into())] }
}

/// Which conversation, for agents whose new ones bear the id that we choose.
fn conversation(turn: &Turn) -> [String; 2] {
    match &turn.conversation {
        super::Conversation::New { id } => ["--session-id".into(), id.to_string()],
        super::Conversation::Resumed { id, .. } => ["--resume".into(), id.to_string()],
    }
}

fn argv(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

fn option(name: &str, value: Option<&str>) -> Vec<String> {
    value.map(|value| vec![name.to_owned(), value.to_owned()]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{resumed, turn};
    use super::*;

    fn line(framework: Framework, turn: &Turn) -> String {
        Launch::new(framework, "agent", turn).argv.join(" ")
    }

    #[test]
    fn who_asks_nobody_is_told_beforehand_what_needs_no_leave() {
        let turn = Turn { allow: vec!["run_shell_command".parse().unwrap()], ..turn() };
        assert!(line(Framework::Gemini, &turn).contains(" --allowed-tools=run_shell_command "));
        for asks in [Framework::ClaudeCode, Framework::Codex, Framework::Acp] {
            assert!(!line(asks, &turn).contains("run_shell_command"), "{asks:?}");
        }
    }

    #[test]
    fn a_new_conversation_bears_our_id_where_we_may_choose() {
        let turn = Turn { model: Some("m".into()), ..turn() };
        assert_eq!(
            line(Framework::ClaudeCode, &turn),
            "agent -p --input-format stream-json --output-format stream-json \
             --include-partial-messages --verbose --permission-prompt-tool stdio --permission-mode default --session-id 11111111-1111-4111-8111-111111111111 --model m"
        );
        assert_eq!(
            line(Framework::Codex, &turn),
            "agent exec --json --skip-git-repo-check --sandbox workspace-write -c check_for_update_on_startup=false -c \
             analytics.enabled=false -c features.plugins=false --model m -"
        );
        assert_eq!(
            line(Framework::Gemini, &turn),
            "agent --output-format stream-json --approval-mode default --session-id \
             11111111-1111-4111-8111-111111111111 --model m"
        );
    }

    #[test]
    fn a_conversation_is_resumed_by_its_id() {
        let id = "01a200ed-b71c-77a2-a41d-03b9f1707942";
        let turn = Turn { mode: Some("plan".into()), ..resumed(id) };
        for framework in [Framework::ClaudeCode, Framework::Gemini] {
            let line = line(framework, &turn);
            assert!(line.contains(&format!("--resume {id}")) && line.contains("-mode plan"), "{line}");
        }
        assert!(line(Framework::Codex, &turn).ends_with(&format!("resume -- {id} -")));
    }

    #[test]
    fn prompts_stay_off_the_command_line_and_arguments_are_verbatim() {
        let odd = vec!["--flag".to_owned(), "two words; $(x)".to_owned()];
        let turn = Turn { prompt: "--secret".into(), arguments: odd.clone(), ..turn() };
        for framework in Framework::ALL {
            let argv = Launch::new(framework, "agent", &turn).argv;
            assert!(!argv.iter().any(|argument| argument.contains("secret")), "{argv:?}");
            assert!(argv.windows(2).any(|pair| pair == odd), "{argv:?}");
        }
        assert_eq!(Launch::new(Framework::Acp, "", &turn).argv, odd);
    }
}
