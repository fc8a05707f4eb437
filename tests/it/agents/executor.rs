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
    /// It tells what it thinks.
    Think,
    /// It ends its turn when it is told to.
    Interrupt,
    /// It tells what it says by the word, while it is being said.
    Stream,
    /// It tells where one thing that it says ends and the next begins.
    Separate,
    /// It can be made to do what no agent should.
    Misbehave,
}

/// One executor.
pub(super) struct Executor {
    /// By what name roomette knows it.
    pub(super) name: &'static str,
    /// What it can do.
    pub(super) can: &'static [Can],
    /// What the user names behind `--`; `{model}` stands for the model's URL.
    pub(super) arguments: &'static [&'static str],
    /// What it finds in its environment, in the same way.
    environment: &'static [&'static str],
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
    can: &[
        Can::Converse,
        Can::Ask,
        Can::Remember,
        Can::Count,
        Can::Think,
        Can::Interrupt,
        Can::Stream,
        Can::Separate,
        Can::Misbehave,
    ],
    arguments: &[],
    environment: &[],
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
    can: &[
        Can::Converse,
        Can::Ask,
        Can::Remember,
        Can::Count,
        Can::Think,
        Can::Interrupt,
        Can::Stream,
        Can::Separate,
    ],
    // One try again is enough: the model is as near as can be.
    environment: &["ANTHROPIC_BASE_URL={model}", "ANTHROPIC_API_KEY=none", "CLAUDE_CODE_MAX_RETRIES=1"],
    keeps: ".claude",
    real: true,
    ..CLAUDE_CODE
};

/// The real Codex, which asks nobody: within the sandbox it may do what it wants.
pub(super) const REAL_CODEX: Executor = Executor {
    name: "codex",
    can: &[Can::Converse, Can::Remember, Can::Count, Can::Think, Can::Separate],
    arguments: &[
        "-c",
        // Of a model that it does not know it makes nothing but plain use.
        "model=ours",
        "-c",
        "model_provider=ours",
        "-c",
        "model_providers.ours.name=ours",
        "-c",
        "model_providers.ours.base_url={model}/v1",
        "-c",
        "model_providers.ours.wire_api=responses",
        "-c",
        "model_providers.ours.env_key=MODEL_KEY",
        "-c",
        "model_providers.ours.request_max_retries=1",
        "-c",
        "model_providers.ours.stream_max_retries=1",
    ],
    environment: &["MODEL_KEY=none"],
    tool: "shell",
    program: "codex",
    keeps: ".codex",
    real: true,
};

/// The real Gemini CLI, which asks nobody and has the tools that it is given.
pub(super) const REAL_GEMINI: Executor = Executor {
    name: "gemini",
    can: &[Can::Converse, Can::Remember, Can::Count, Can::Stream],
    arguments: &[],
    // Of all ways to sign in the one that wants no file of settings beside the key and the place.
    environment: &[
        "GOOGLE_GENAI_USE_VERTEXAI=true",
        "GOOGLE_VERTEX_BASE_URL={model}",
        "GOOGLE_API_KEY=none",
        "GEMINI_CLI_TRUST_WORKSPACE=true",
    ],
    tool: "run_shell_command",
    program: "node",
    keeps: ".gemini",
    real: true,
};

/// The real Claude Code behind its adapter.
pub(super) const REAL_CLAUDE_ACP: Executor = Executor {
    name: "acp",
    can: &[Can::Converse, Can::Ask, Can::Remember, Can::Count, Can::Think, Can::Interrupt, Can::Stream],
    arguments: &["claude-agent-acp"],
    program: "node",
    ..REAL_CLAUDE_CODE
};

/// The real Goose.
pub(super) const REAL_GOOSE: Executor = Executor {
    name: "acp",
    arguments: &["goose", "acp"],
    environment: &[
        "GOOSE_PROVIDER=anthropic",
        "GOOSE_MODEL=ours",
        "GOOSE_MODE=approve",
        "GOOSE_DISABLE_KEYRING=1",
        "ANTHROPIC_HOST={model}",
        // Whom a session is handed over to finds it here.
        "ANTHROPIC_BASE_URL={model}",
        "ANTHROPIC_API_KEY=none",
    ],
    tool: "shell",
    program: "goose",
    keeps: ".local/share/goose",
    ..REAL_CLAUDE_ACP
};

/// A script for the shell that does what the prompt says.
pub(super) const COMMAND: Executor = Executor {
    name: "command",
    can: &[],
    arguments: &[],
    environment: &[],
    tool: "",
    program: "sh",
    keeps: "",
    real: false,
};

/// Puts the model's URL in its place.
fn with_model(texts: &[&str], model: &str) -> Vec<String> {
    texts.iter().map(|text| text.replace("{model}", model)).collect()
}

impl Executor {
    /// Whether it can do that.
    pub(super) fn can(&self, what: Can) -> bool {
        self.can.contains(&what)
    }

    /// What its programs find in their environment, where the model is here.
    pub(super) fn environment(&self, model: &str) -> Vec<String> {
        with_model(self.environment, model)
    }

    /// What the user names behind `--`, where the model is here.
    pub(super) fn behind(&self, model: Option<&str>) -> Vec<String> {
        with_model(self.arguments, model.unwrap_or_default())
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
