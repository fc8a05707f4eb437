//! The arguments of what concerns agents.

use clap::{Args, Subcommand};
use session_core::names::ExecutorType;
use session_core::turn::Asking;

use super::TaskArgs;
use crate::duration;

/// How an agent is asked.
#[derive(Debug, Clone, Default, Args)]
pub struct TurnArgs {
    /// The model, in the agent's own words.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// A tool that the agent may call without asking, by its own name for it. Repeatable.
    #[arg(long = "allow-tool", value_name = "TOOL")]
    pub allow_tool: Vec<String>,
    /// Who is asked about the others: `wait` for a person however long it takes, `never`, or for a person so long at the most,
    /// such as `10m`.
    #[arg(long, value_name = "wait|never|DURATION", value_parser = asking)]
    pub ask: Option<Asking>,
}

fn asking(text: &str) -> Result<Asking, String> {
    match text {
        "wait" => Ok(Asking::Wait),
        "never" => Ok(Asking::Never),
        text => duration::parse(text).map(Asking::For),
    }
}

/// `roomette send`
#[derive(Debug, Args)]
pub struct SendArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// What the agent is asked for; `-` reads it from stdin.
    pub prompt: String,
    /// Do not wait.
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub next: NextTurnArgs,
    #[command(flatten)]
    pub turn: TurnArgs,
    #[command(flatten)]
    pub task: TaskArgs,
}

/// `roomette attach`
#[derive(Debug, Args)]
#[command(
    after_help = "A line is the next prompt of the session's agent; it waits for the turn in flight. /stop interrupts that \
turn, and a second time ends it at once. An open question is shown and answered: y (yes), a (always in this session), n (no), \
or n TEXT to say why. Ctrl-D or /detach leaves (exit code 0), Ctrl-C too (130); what runs goes on.\n\nWithout a terminal each \
line of stdin is dealt with before the next one is read, and the command ends with the last answer. A session that runs commands \
takes no input; it is followed."
)]
pub struct AttachArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// Show the log from behind this event on; default: from the beginning of the turn in flight, or what comes.
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    #[command(flatten)]
    pub next: NextTurnArgs,
    #[command(flatten)]
    pub turn: TurnArgs,
    #[command(flatten)]
    pub task: TaskArgs,
}

/// With whom a session goes on.
#[derive(Debug, Clone, Default, Args)]
pub struct NextTurnArgs {
    /// Begin a new conversation of the agent's, which is told what was said so far: where its own is gone, or for another agent.
    #[arg(long)]
    pub from_history: bool,
    /// Go on with this agent.
    #[arg(long, value_name = "AGENT", value_parser = clap::builder::PossibleValuesParser::new(ExecutorType::AGENTS))]
    pub agent: Option<String>,
}

/// `roomette approvals`
#[derive(Debug, Args)]
pub struct ApprovalsArgs {
    /// What to do; default: list what is open.
    #[command(subcommand)]
    pub command: Option<ApprovalsCommand>,
}

/// What to do with the questions of agents.
#[derive(Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// List them, newest first.
    Ls {
        /// Only of this session: an id, the beginning of one, or a label.
        session: Option<String>,
        /// Also those that are answered or withdrawn.
        #[arg(long, short)]
        all: bool,
    },
    /// Say yes.
    Allow(AnswerArgs),
    /// Say no.
    Deny(AnswerArgs),
}

/// An answer.
#[derive(Debug, Args)]
pub struct AnswerArgs {
    /// The question's id, or the beginning of one.
    pub approval: String,
    /// For the rest of the session: for this command where it is about one, else for the tool.
    #[arg(long)]
    pub always: bool,
    /// What the agent is told with it.
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
}
