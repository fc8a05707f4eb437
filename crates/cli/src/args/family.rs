//! The arguments of what concerns parents and children.

use clap::Args;

/// Whose child a new session is.
#[derive(Debug, Clone, Default, Args)]
pub struct FamilyArgs {
    /// The session that starts it: a session id, the beginning of one, or a label. It reaches and uses up nothing that this one
    /// may not, and ends with it. Default: within a session that session.
    #[arg(long, value_name = "SESSION")]
    pub parent: Option<String>,
    /// Start it as nobody's child, also within a session.
    #[arg(long, conflicts_with = "parent")]
    pub no_parent: bool,
    /// Tell the parent when a run of it ends: an agent by a turn, a command by a `child.ended` event. The default.
    #[arg(long, conflicts_with_all = ["no_callback", "no_parent"])]
    pub callback: bool,
    /// Do not tell the parent.
    #[arg(long)]
    pub no_callback: bool,
}
