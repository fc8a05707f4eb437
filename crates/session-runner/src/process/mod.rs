//! Processes: the keeper of a run, and everything about ending process trees.
//!
//! A host starts one keeper for each run with [`Supervised::start`]; the keeper ([`keeper_main`]) starts the
//! program, confined as its [`Setting`] says, drains its output, holds the limits of its tree, ends the tree and records
//! what was applied and how it ended. A host that comes later finds it with [`recover_keeper`], and ends with
//! [`orphans::end_run`] what a dead keeper has left behind.
//!
//! Invariant: no process is ever signalled by a bare pid or by its name, see [`ProcessIdentity`].

pub(crate) mod cgroup;
mod confined;
mod given_up;
mod handing;
mod host_link;
pub mod identity;
mod keeper;
mod keeper_signals;
pub mod orphans;
pub mod protocol;
mod pump;
pub mod record;
pub mod scope;
pub(crate) mod spawn;
mod start;
mod stop;
pub mod supervised;
pub(crate) mod tool;
mod tree;
pub(crate) mod watching;
mod wire;
mod writes;

pub use cgroup::usable_cgroups;
pub use handing::Ends;
pub use identity::ProcessIdentity;
pub use keeper::keeper_main;
pub use orphans::OrphansEnded;
pub use protocol::{
    CgroupPreference, EndCause, Exit, KeeperSpec, OnHostLoss, Progress, RunEnd, RunOutcome, SpawnFailure,
    SpawnFailureKind, Wiring,
};
pub use record::{
    KeeperState, LivingKeeper, any_living_keeper, keeper_record, living_keeper, recover_keeper,
};
pub use scope::{Applied, Confinement, Held, Hold, LimitHit, Setting, TreeLimits};
pub use spawn::{keep_descriptors_private, keep_memory_private, open_as_many_files_as_may_be};
pub use supervised::{Control, KeeperProgram, RunReport, SpawnError, Supervised};
