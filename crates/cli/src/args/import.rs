//! The arguments of an import.

use camino::Utf8PathBuf;
use clap::Args;
use session_core::names::ExecutorType;

/// `roomette import`
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A file that `roomette export` wrote; `-` for standard input.
    #[arg(required_unless_present = "legacy")]
    pub file: Option<Utf8PathBuf>,
    /// The SQLite database of a legacy coordinator: each of its sessions becomes one, and a second import changes nothing.
    #[arg(long, value_name = "FILE.db", conflicts_with = "file")]
    pub legacy: Option<Utf8PathBuf>,
    /// What that database is called: a copy of it under the same name is the same one.
    #[arg(long, value_name = "NAME", default_value = "legacy", requires = "legacy")]
    pub source: String,
    /// The machine that has the files of sessions that name none; default: this one.
    #[arg(long, value_name = "NAME", requires = "legacy")]
    pub hostname: Option<String>,
    /// The agent of sessions that name none.
    #[arg(long, value_name = "AGENT", default_value = "claude-code", requires = "legacy",
          value_parser = clap::builder::PossibleValuesParser::new(ExecutorType::AGENTS))]
    pub agent: String,
    /// Only say what would be done.
    #[arg(long, requires = "legacy")]
    pub dry_run: bool,
}
