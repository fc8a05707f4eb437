//! The flags of a new session's sandbox.

use camino::Utf8PathBuf;
use clap::Args;
use session_core::sandbox::{Endpoint, SandboxLevel};

use crate::config::Net;
use crate::size;

/// What a session's processes may touch, reach and use up. Settled when the session is made, for good.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxArgs {
    /// How much the kernel must enforce: `best` (what the machine offers, never less than floor), `full`, `floor`, or `off`.
    #[arg(long, value_name = "LEVEL", conflicts_with = "file")]
    pub sandbox: Option<SandboxLevel>,
    /// A directory to read beyond the session's own. Repeatable.
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub allow_read: Vec<Utf8PathBuf>,
    /// A directory to change beyond the session's own. Repeatable.
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub allow_write: Vec<Utf8PathBuf>,
    /// What to reach over the network.
    #[arg(long, value_name = "NET", conflicts_with = "file")]
    pub net: Option<Net>,
    /// Reach this and itself alone: `HOST:PORT`, or `*.DOMAIN:PORT` for all hosts below a domain. Repeatable.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["file", "net"])]
    pub net_allow: Vec<Endpoint>,
    /// The most memory of each run, such as `512M` or `16G`; `none` for no limit.
    #[arg(long, value_name = "SIZE", conflicts_with = "file", value_parser = size::parse)]
    pub max_memory: Option<u64>,
    /// The most processes and threads of each run at once; 0 for no limit.
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub max_processes: Option<u64>,
    /// The largest file that each run may write; `none` for no limit.
    #[arg(long, value_name = "SIZE", conflicts_with = "file", value_parser = size::parse)]
    pub max_file_size: Option<u64>,
    /// The most that each run may write to disk in all; `none` for no limit.
    #[arg(long, value_name = "SIZE", conflicts_with = "file", value_parser = size::parse)]
    pub max_writes: Option<u64>,
}
