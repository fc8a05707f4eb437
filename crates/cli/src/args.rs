//! The command line.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use jiff::SignedDuration;
use session_core::names::ExecutorType;

use crate::{duration, money};

pub mod agents;
pub mod bridge;
pub mod family;
pub mod import;
pub mod ps;
pub mod runner;
pub mod sandbox;
pub mod serve;

pub use agents::{AnswerArgs, ApprovalsArgs, ApprovalsCommand, AttachArgs, NextTurnArgs, SendArgs, TurnArgs};
pub use bridge::BridgeArgs;
pub use family::FamilyArgs;
pub use import::ImportArgs;
pub use ps::PsArgs;
pub use runner::{RunnerArgs, RunnerCommand};
pub use sandbox::SandboxArgs;
pub use serve::{ServeArgs, TokenArgs, TokenCommand};

/// A host for AI agent sessions: each in a room of its own.
///
/// Every session has a stable id, its own workspace and its own log, survives a crash of the host, and is
/// resumed in the right place.
#[derive(Debug, Parser)]
#[command(name = "roomette", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// Keep everything under this directory (also `ROOMETTE_HOME`).
    #[arg(long, global = true, value_name = "DIR")]
    pub home: Option<Utf8PathBuf>,
    /// Where sessions are recorded: `sqlite:PATH` or `postgres://…` (also `store.url`).
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Write JSON to stdout.
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more on stderr about what is done.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a task, the same task several times, or a crew of tasks, each in a session of its own.
    Run(Box<RunArgs>),
    /// List sessions.
    Ps(PsArgs),
    /// Show everything about a session.
    Inspect(OneSession),
    /// Show what a session's tasks wrote.
    Logs(LogsArgs),
    /// Show a session's event log.
    Events(EventsArgs),
    /// Watch a session live; what is typed goes in.
    Attach(Box<AttachArgs>),
    /// Wait until sessions have nothing left to run.
    Wait(WaitArgs),
    /// End what runs in sessions; they can be resumed.
    Stop(StopArgs),
    /// End sessions at once and for good.
    Kill(KillArgs),
    /// Let go of what is alive behind sessions; they keep everything and can be resumed.
    Suspend(Sessions),
    /// Run again in the same session: same id, same workspace.
    Resume(ResumeArgs),
    /// Start a new session from any point of another one's log; the other one stays as it is.
    Fork(ForkArgs),
    /// Show or change what a session may use up.
    Budget(BudgetArgs),
    /// Ask the agent of a session for something more.
    Send(SendArgs),
    /// Show what a session's last run came to: the agent's last word, or the last line of its output.
    Result(OneSession),
    /// Show and answer the questions of agents.
    Approvals(ApprovalsArgs),
    /// Give a session another label.
    Label(LabelArgs),
    /// Deal with the runs of a host that went away.
    Recover(RecoverArgs),
    /// Remove the workspaces of sessions that ended a while ago; files that git ignores go with them.
    Cleanup(CleanupArgs),
    /// Write a session and its event log as JSON lines.
    Export(OneSession),
    /// Make a session of an exported one.
    Import(ImportArgs),
    /// Be the host of the data directory, until told to end.
    Serve(ServeArgs),
    /// Serve stdio MCP servers over HTTP: each client session a process of its own, confined to its own directories.
    Bridge(Box<BridgeArgs>),
    /// Be an MCP server on stdin and stdout: tools by which an agent finds its own session again.
    ///
    /// Add it to an agent as the command `roomette mcp`. Inside a room, or where `ROOMETTE_URL` and `ROOMETTE_TOKEN` name a
    /// coordinator and a token, it passes calls on to that; else to the host of the data directory, which it starts where none is up.
    Mcp,
    /// Issue, list and revoke the tokens by which the HTTP API knows whom it lets in.
    Token(TokenArgs),
    /// Execute the runs of a coordinator on another machine, or see to the runners that there are.
    ///
    /// A runner takes commands, agents of the Agent Client Protocol, and turns of those agents whose programs it finds by its
    /// own PATH when it starts; it says which.
    Runner(RunnerArgs),
    /// Check what this machine offers, and what is missing.
    Doctor,
    /// Show the settings and where each came from.
    Config(ConfigArgs),
    /// Write a completion script for a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// `roomette run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run the task this many times, each in a session of its own.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, conflicts_with = "file",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,
    /// Run the tasks of a crew file.
    #[arg(long, short, value_name = "CREW.TOML", conflicts_with = "argv")]
    pub file: Option<Utf8PathBuf>,
    /// How many run at once; default: as many as the host takes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub at_once: Option<u32>,
    /// Do not wait: print the session ids and leave the host to it.
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub task: TaskArgs,
    /// Work in a git worktree of the project, on a branch of its own.
    #[arg(long, conflicts_with_all = ["in_place", "file"])]
    pub worktree: bool,
    /// Work in the project directory itself.
    #[arg(long, conflicts_with = "file")]
    pub in_place: bool,
    /// The project; default: the current directory. Without --in-place it means --worktree.
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub project: Option<Utf8PathBuf>,
    /// Free text to find the session by.
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub label: Option<String>,
    /// Higher ones first.
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0,
        allow_negative_numbers = true,
        conflicts_with = "file"
    )]
    pub priority: i32,
    /// A JSON object to keep with the session.
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    pub metadata: Option<String>,
    /// Your own name for the session, such as `telegram:dm:42`: the session that bears it is used again, or made as the other
    /// options say.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["file", "count"])]
    pub key: Option<String>,
    #[command(flatten)]
    pub family: FamilyArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// Have this agent do it; `acp` is any program that speaks the Agent Client Protocol, named behind `--`.
    #[arg(long, value_name = "AGENT", conflicts_with = "file",
          value_parser = clap::builder::PossibleValuesParser::new(ExecutorType::AGENTS))]
    pub agent: Option<String>,
    #[command(flatten)]
    pub turn: TurnArgs,
    /// What the agent is asked for; `-` reads it from stdin.
    #[arg(value_name = "PROMPT", requires = "agent")]
    pub prompt: Option<String>,
    /// The program and its arguments, passed on as they are; of an agent, arguments of its own.
    #[arg(last = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// What a run gets, however it is started.
#[derive(Debug, Args)]
pub struct TaskArgs {
    /// A variable for the task: `NAME=VALUE`, or `NAME` to pass on the caller's. Repeatable.
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// A variable to pass on from the caller's environment, if it is there; `NAME*` for all that begin so. Repeatable.
    #[arg(long, value_name = "NAME")]
    pub allow_env: Vec<String>,
    /// The longest wall time, such as `90s` or `1h 30m`.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub timeout: Option<SignedDuration>,
    /// Give up when no runner that may take it has done so after this long; default: of a further run `run.resume_within`, of
    /// a first one never.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub claim_within: Option<SignedDuration>,
}

/// What a session may use up.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct LimitArgs {
    /// Tokens that the session may use, input and output together.
    #[arg(long = "max-tokens", value_name = "N", conflicts_with = "file")]
    pub tokens: Option<u64>,
    /// Tool calls that it may make.
    #[arg(long = "max-tool-calls", value_name = "N", conflicts_with = "file")]
    pub tool_calls: Option<u64>,
    /// Turns that it may take; each run is one.
    #[arg(long = "max-turns", value_name = "N", conflicts_with = "file")]
    pub turns: Option<u64>,
    /// What it may cost, in US dollars, such as `2.50`.
    #[arg(long = "max-cost", value_name = "USD", conflicts_with = "file", value_parser = money::parse)]
    pub cost: Option<u64>,
}

/// One session.
#[derive(Debug, Args)]
pub struct OneSession {
    /// A session id, the beginning of one, or a label.
    pub session: String,
}

/// Several sessions.
#[derive(Debug, Args)]
pub struct Sessions {
    /// Session ids, beginnings of them, or labels.
    #[arg(required = true)]
    pub sessions: Vec<String>,
}

/// `roomette kill`
#[derive(Debug, Args)]
pub struct KillArgs {
    /// Session ids, beginnings of them, or labels.
    #[arg(required_unless_present_any = ["all", "principal"])]
    pub sessions: Vec<String>,
    /// Every session there is, whoever owns it.
    #[arg(long, conflicts_with_all = ["sessions", "principal"])]
    pub all: bool,
    /// Every session of this owner.
    #[arg(long, value_name = "NAME", conflicts_with = "sessions")]
    pub principal: Option<String>,
}

/// `roomette fork`: log and settings of the other one, a fresh budget, no label unless one is given.
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// The last event that the new session has in common with it, as `roomette events` numbers them; default: the last
    /// there is.
    #[arg(long, value_name = "SEQ", allow_negative_numbers = true)]
    pub at: Option<u64>,
    /// Free text to find the new session by.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
}

/// `roomette budget`
#[derive(Debug, Args)]
pub struct BudgetArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: BudgetCommand,
}

/// What to do with a budget.
#[derive(Debug, Subcommand)]
pub enum BudgetCommand {
    /// Show what a session may use, what it has used and what is set aside.
    Show(OneSession),
    /// Raise limits by so much.
    TopUp {
        /// A session id, the beginning of one, or a label.
        session: String,
        #[command(flatten)]
        by: AmountArgs,
    },
    /// Replace limits.
    Set {
        /// A session id, the beginning of one, or a label.
        session: String,
        #[command(flatten)]
        to: AmountArgs,
        /// Resources that are to have no limit: `turns`, `cost`. Repeatable.
        #[arg(long, value_name = "RESOURCE")]
        no_limit: Vec<Unlimited>,
    },
}

/// Amounts of what a budget limits; at least one.
#[derive(Debug, Clone, Copy, Args)]
#[group(required = false, multiple = true)]
pub struct AmountArgs {
    /// Tokens, input and output together.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub tokens: Option<u64>,
    /// Tool calls.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub tool_calls: Option<u64>,
    /// Turns; each run is one.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub turns: Option<u64>,
    /// Cost in US dollars, such as `2.50`.
    #[arg(long, value_name = "USD", allow_negative_numbers = true, value_parser = money::parse)]
    pub cost: Option<u64>,
}

impl AmountArgs {
    /// No amount was given.
    pub fn is_empty(self) -> bool {
        [self.tokens, self.tool_calls, self.turns, self.cost].iter().all(Option::is_none)
    }
}

/// What can be left without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Unlimited {
    /// Turns.
    Turns,
    /// Cost.
    Cost,
}

/// `roomette logs`
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// Go on as more is written, until the session has nothing left to run.
    #[arg(long, short)]
    pub follow: bool,
    /// Only the last lines.
    #[arg(long, short = 'n', value_name = "N")]
    pub tail: Option<usize>,
    /// Begin each line with its time.
    #[arg(long, short)]
    pub timestamps: bool,
    /// Also show the changes of state.
    #[arg(long)]
    pub states: bool,
}

/// `roomette events`
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// Only events behind this number.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// At most so many.
    #[arg(long, short = 'n', value_name = "N")]
    pub limit: Option<u64>,
}

/// `roomette wait`
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Session ids, beginnings of them, or labels.
    #[arg(required = true)]
    pub sessions: Vec<String>,
    /// Give up after this long, with exit code 3.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub timeout: Option<SignedDuration>,
}

/// `roomette stop`
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Session ids, beginnings of them, or labels.
    #[arg(required = true)]
    pub sessions: Vec<String>,
    /// Do not ask first.
    #[arg(long)]
    pub now: bool,
    /// Do not wait until it is done.
    #[arg(long, short)]
    pub detach: bool,
}

/// `roomette resume`
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// Only say where it can be resumed, what will be restored and what will not.
    #[arg(long, conflicts_with_all = ["detach", "env", "timeout"])]
    pub explain: bool,
    /// Do not wait.
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub next: NextTurnArgs,
    #[command(flatten)]
    pub task: TaskArgs,
    /// Another program and its arguments; default: those of the last run.
    #[arg(last = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `roomette label`
#[derive(Debug, Args)]
pub struct LabelArgs {
    /// A session id, the beginning of one, or a label.
    pub session: String,
    /// The new label.
    #[arg(required_unless_present = "remove", conflicts_with = "remove")]
    pub label: Option<String>,
    /// Take the label away.
    #[arg(long)]
    pub remove: bool,
}

/// `roomette recover`
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Then run every session again whose run was lost.
    #[arg(long)]
    pub resume: bool,
}

/// `roomette cleanup`
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Only these sessions'; default: all.
    pub sessions: Vec<String>,
    /// Whose last run ended at least so long ago (also `cleanup.older_than`).
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub older_than: Option<SignedDuration>,
    /// Also worktrees with work that is nowhere else.
    #[arg(long)]
    pub force: bool,
    /// Keep an archive of each (also `cleanup.archive`).
    #[arg(long)]
    pub archive: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// `roomette config`
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What to do with the settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the settings and where each came from.
    Show,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_task_is_passed_on_as_it_is() {
        let cli =
            Cli::parse_from(["roomette", "run", "-n", "2", "--", "sh", "-c", "echo \"$(x)\"", "--json"]);
        let Command::Run(run) = cli.command else { panic!() };
        assert_eq!(run.argv, ["sh", "-c", "echo \"$(x)\"", "--json"]);
        assert!(!cli.json);
        for bad in [&["roomette", "run", "-n", "0", "--", "true"][..], &["roomette", "run", "true"]] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let both = ["roomette", "run", "-f", "crew.toml", "--", "true"];
        assert!(Cli::try_parse_from(both).is_err());
    }
}
