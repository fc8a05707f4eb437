//! The arguments of `roomette bridge`.

use camino::Utf8PathBuf;
use clap::{Args, ValueEnum};
use session_core::sandbox::SandboxLevel;

use crate::config::Net;

/// `roomette bridge`
#[derive(Debug, Args)]
pub struct BridgeArgs {
    /// Where to listen: an IP address and a port; port 0 for any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8808")]
    pub listen: String,
    /// Give every client session a process of its own, confined to the directories that its client names.
    #[arg(long)]
    pub session_isolation: bool,
    /// The directory of a session whose client names none, and of all clients without --session-isolation; there the default
    /// is the current directory. With --session-isolation such a session has private directories alone. Repeatable: the first
    /// one is the working directory.
    #[arg(long, value_name = "DIR")]
    pub sandbox_scope: Vec<Utf8PathBuf>,
    /// Clients may name directories below this one, and nowhere else. Repeatable. Default: wherever this user may; with
    /// --no-auth below --sandbox-scope.
    #[arg(long, value_name = "DIR")]
    pub allow_root: Vec<Utf8PathBuf>,
    /// Every session may read this directory, such as that of the server's own program. Repeatable.
    #[arg(long, value_name = "DIR")]
    pub allow_read: Vec<Utf8PathBuf>,
    /// How much the kernel must enforce: `best` (what the machine offers, never less than floor), `full`, `floor`, or `off`.
    #[arg(long, value_name = "LEVEL")]
    pub sandbox: Option<SandboxLevel>,
    /// What to reach over the network.
    #[arg(long, value_name = "NET")]
    pub net: Option<Net>,
    /// Servers by name, each under a path of its own: a file of the usual form, `mcpServers` in JSON or TOML.
    #[arg(long, value_name = "FILE", conflicts_with = "argv", required_unless_present = "argv")]
    pub config: Option<Utf8PathBuf>,
    /// What the server of the command line is called.
    #[arg(long, value_name = "NAME", default_value = "mcp", conflicts_with = "config")]
    pub name: String,
    /// Set a variable for the server: `NAME=VALUE`, or `NAME` for the caller's value. Repeatable.
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Let in whoever can reach it: on loopback alone.
    #[arg(long, conflicts_with = "token_file")]
    pub no_auth: bool,
    /// The file with the token that lets in; where there is none it is made. Default: bridge.token in the data directory.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<Utf8PathBuf>,
    /// Answer requests that call the bridge by this name, beside its address: `HOST:PORT`. Repeatable.
    #[arg(long, value_name = "HOST:PORT")]
    pub host: Vec<String>,
    /// Let pages of this origin speak to the bridge: `https://example.com`. Repeatable.
    #[arg(long, value_name = "ORIGIN")]
    pub origin: Vec<String>,
    /// How the bridge is reached from outside, where that is not its address: `https://example.com`.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The URL of an authorization server that issues tokens for this bridge: clients look it up (RFC 9728). Repeatable. The
    /// bridge itself knows no tokens but those of `roomette token create`: what stands before it checks the issuer's, and shows
    /// one of these.
    #[arg(long, value_name = "URL", conflicts_with = "no_auth")]
    pub issuer: Vec<String>,
    /// What becomes of a server that ends by itself.
    #[arg(long, value_name = "POLICY", default_value = "on-crash")]
    pub restart: Restart,
    /// How many servers run at once. Where all are at work, the one that rests longest gives way to one that is needed.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub sessions: u32,
    /// Start each server once, print its tools, and end. Nothing is recorded.
    #[arg(long)]
    pub check: bool,
    /// The server and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub argv: Vec<String>,
}

/// What becomes of a server that ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    /// Its session hears of it from then on.
    Never,
    /// It is started again, after a pause that grows, until it has gone three times in a row without an answer.
    OnCrash,
}
