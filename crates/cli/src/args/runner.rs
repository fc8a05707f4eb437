//! The arguments of what concerns runners.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use session_core::RunnerId;

/// `roomette runner`
#[derive(Debug, Args)]
pub struct RunnerArgs {
    /// The coordinator's address, such as `https://roomette.example.org`; without it the host of the data directory is asked.
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// A file with a token for the coordinator. A runner needs it the first time alone: then it has one of its own.
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<Utf8PathBuf>,
    /// How many runs it executes at once; default: the setting `host.runs_at_once`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs_at_once: Option<u32>,
    /// A project directory that it serves, an absolute path; default: any. Repeatable.
    #[arg(long = "project-dir", value_name = "DIR")]
    pub project_dirs: Vec<Utf8PathBuf>,
    /// What to do; without it this process is a runner, until told to end.
    #[command(subcommand)]
    pub command: Option<RunnerCommand>,
}

/// What to do with runners.
#[derive(Debug, Subcommand)]
pub enum RunnerCommand {
    /// List the runners that there are.
    Ls,
    /// Have a runner take no more runs; what it has it brings to its end.
    Drain(OneRunner),
    /// Have a runner take runs again.
    Undrain(OneRunner),
    /// Forget a runner that holds no run.
    Rm(OneRunner),
}

/// One runner.
#[derive(Debug, Args)]
pub struct OneRunner {
    /// Its id.
    pub runner: RunnerId,
}
