//! The executors that the kit is performed with.

use session_tests::script::{Step, steps};

/// What an executor can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Can {
    /// It is asked by prompts, and what it says and does is told in events.
    Converse,
    /// It asks for leave.
    Ask,
    /// It goes on with a conversation of its own in a later run.
    Remember,
    /// It tells what it used up.
    Count,
    /// It ends its turn when it is told to.
    Interrupt,
    /// It tells what it says by the word, while it is being said.
    Stream,
    /// It can be made to do what no agent should.
    Misbehave,
}

/// One executor.
pub(super) struct Executor {
    /// By what name roomette knows it.
    pub(super) name: &'static str,
    /// What it can do.
    pub(super) can: &'static [Can],
    /// What the user names behind `--`.
    pub(super) arguments: &'static [&'static str],
    /// By what name it calls the tool that runs a command.
    pub(super) tool: &'static str,
    /// The beginning of its program's name.
    pub(super) program: &'static str,
    /// Where it keeps its conversations, below its HOME.
    pub(super) keeps: &'static str,
    /// It is the real one, and its model does what the prompts say.
    pub(super) real: bool,
}

/// The fake one, as `claude` on the PATH.
pub(super) const CLAUDE_CODE: Executor = Executor {
    name: "claude-code",
    can: &[Can::Converse, Can::Ask, Can::Remember, Can::Count, Can::Interrupt, Can::Stream, Can::Misbehave],
    arguments: &[],
    tool: "Bash",
    program: "claude",
    keeps: ".fake_agent",
    real: false,
};

/// The fake one, named behind `--`.
pub(super) const ACP: Executor = Executor {
    name: "acp",
    arguments: &["fake_agent", "acp"],
    tool: "execute",
    program: "fake_agent",
    ..CLAUDE_CODE
};

/// The real Claude Code.
pub(super) const REAL_CLAUDE_CODE: Executor = Executor {
    can: &[Can::Converse, Can::Ask, Can::Remember, Can::Count, Can::Interrupt, Can::Stream],
    keeps: ".claude",
    real: true,
    ..CLAUDE_CODE
};

/// The real Codex, which asks nobody: within the sandbox it may do what it wants.
pub(super) const REAL_CODEX: Executor = Executor {
    name: "codex",
    can: &[Can::Converse, Can::Remember, Can::Count],
    arguments: &[],
    tool: "shell",
    program: "codex",
    keeps: ".codex",
    real: true,
};

/// A script for the shell that does what the prompt says.
pub(super) const COMMAND: Executor =
    Executor { name: "command", can: &[], arguments: &[], tool: "", program: "sh", keeps: "", real: false };

impl Executor {
    /// Whether it can do that.
    pub(super) fn can(&self, what: Can) -> bool {
        self.can.contains(&what)
    }

    /// What its programs find in their environment, where the model is here.
    pub(super) fn environment(&self, model: &str) -> Vec<String> {
        if self.name == REAL_CODEX.name {
            return vec!["MODEL_KEY=none".into()];
        }
        // One try again is enough: the model is as near as can be.
        vec![
            format!("ANTHROPIC_BASE_URL={model}"),
            "ANTHROPIC_API_KEY=none".into(),
            "CLAUDE_CODE_MAX_RETRIES=1".into(),
        ]
    }

    /// What the user names behind `--`, where the model is here.
    pub(super) fn behind(&self, model: Option<&str>) -> Vec<String> {
        let mut arguments: Vec<String> = self.arguments.iter().map(|&argument| argument.to_owned()).collect();
        if let Some(model) = model.filter(|_| self.name == REAL_CODEX.name) {
            let of_model = |setting: &str| format!("model_providers.ours.{setting}");
            let settings = [
                // Of a model that it does not know it makes nothing but plain use.
                "model=ours".to_owned(),
                "model_provider=ours".to_owned(),
                of_model("name=ours"),
                of_model(&format!("base_url={model}/v1")),
                of_model("wire_api=responses"),
                of_model("env_key=MODEL_KEY"),
                of_model("request_max_retries=1"),
                of_model("stream_max_retries=1"),
            ];
            arguments.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        }
        arguments
    }

    /// It is an agent.
    pub(super) fn is_agent(&self) -> bool {
        self.can(Can::Converse)
    }
}

/// The prompt as a script of the shell.
pub(super) fn shell(prompt: &str) -> String {
    let line = |step| match step {
        Step::Say(text) | Step::Think(text) => format!("echo '{text}'"),
        Step::Tool(command) => command,
        Step::Fail(message) => format!("echo '{message}' >&2; exit 1"),
        Step::Half(text) => format!("printf %s '{text}'; while :; do sleep 600; done"),
        Step::Hang => "while :; do sleep 600; done".into(),
        Step::Long(bytes) => format!("head -c {bytes} /dev/zero | tr '\\0' x; echo"),
        Step::Leave(code) => format!("exit {code}"),
        Step::Recall | Step::Usage(_) | Step::Garbage | Step::Wander => {
            panic!("no command can do this: {step:?}")
        }
    };
    steps(prompt).0.into_iter().map(line).collect::<Vec<_>>().join("\n")
}
