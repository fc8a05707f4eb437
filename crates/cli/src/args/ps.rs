//! The arguments of `roomette ps`.

use clap::Args;

/// `roomette ps`
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub struct PsArgs {
    /// Also sessions that are terminated.
    #[arg(long, short)]
    pub all: bool,
    /// Only sessions with this label.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Only sessions with a run that is not over.
    #[arg(long, short)]
    pub busy: bool,
    /// As families: each session below the one that started it, with all that belongs to it.
    #[arg(long, short, conflicts_with = "after")]
    pub tree: bool,
    /// At most so many, newest first; with --tree so many families.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// Only what comes behind this place, as the page before says it.
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
    /// Print ids only, one a line.
    #[arg(long, short)]
    pub quiet: bool,
}
