//! What a run may reach and use up: as it is asked for in a spec, and as it was really applied.

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::{Level, Place, Policy, Report};
use serde::{Deserialize, Serialize};

use super::protocol::SpecError;

/// Where the program runs, and what it sees of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Setting {
    /// Without a sandbox: it may do whatever the host's user may.
    Open {
        /// The complete environment, see [`child_environment`](crate::workspace::environment::child_environment).
        env: Vec<(String, String)>,
        /// The directory to start in.
        cwd: Utf8PathBuf,
    },
    /// In a sandbox, or not at all.
    Confined(Box<Confinement>),
}

/// A sandbox as it was approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// What the program may reach. Its environment and the directory to start in are part of it.
    pub policy: Policy,
    /// Which directories the roots were when they were approved, see
    /// [`SealedPolicy::places`](sandbox::SealedPolicy::places). One that is another by now is refused.
    pub roots: Vec<Place>,
    /// The level that was chosen for it.
    pub level: Level,
    /// The arguments by which the keeper's own binary is the launcher, see [`sandbox::launcher`].
    pub launcher: Vec<String>,
}

/// What all processes of a run together may use up, in a sandbox or not. `None` is without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeLimits {
    /// Memory at one time, in bytes, held by a cgroup. At least [`sandbox::MEMORY_BYTES_MIN`].
    pub memory_bytes: Option<u64>,
    /// Processes and threads at one time, held by a cgroup. At least [`sandbox::PROCESSES_MIN`].
    pub processes: Option<u64>,
    /// What may be written to disks in all, in bytes, counted by the keeper. What is written and removed again counts;
    /// what is only reserved (`fallocate`), shared with another file or kept in memory does not. It ends a program that
    /// writes without measure; one that means to hide what it writes can, so it is no layer of a sandbox.
    pub write_bytes: Option<u64>,
}

/// What was really applied to a run that has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The sandbox, with what the keeper adds to it; `None` where the run has none.
    pub report: Option<Report>,
    /// The digest of the sandbox's policy, see [`SealedPolicy::digest`](sandbox::SealedPolicy::digest).
    pub digest: Option<String>,
    /// The limits that want a cgroup.
    pub cgroup: Held,
    /// Whether what the tree writes is counted, and the tree ended when it is too much.
    pub write_budget: bool,
}

/// What the run's cgroup holds, limit by limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// [`TreeLimits::memory_bytes`]
    pub memory: Hold,
    /// [`TreeLimits::processes`]
    pub processes: Hold,
}

/// Whether a limit is held.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "hold")]
pub enum Hold {
    /// There is no such limit.
    #[default]
    NotAsked,
    /// The kernel holds it.
    Held {
        /// The directory of the group that does.
        group: Utf8PathBuf,
    },
    /// Nothing holds it.
    Missing {
        /// Why not, for people.
        why: String,
    },
}

impl Held {
    /// For a group that is of no use after all: what it held is missing.
    pub(super) fn lost(self, why: &str) -> Self {
        let lost = |hold| match hold {
            Hold::Held { .. } => Hold::Missing { why: why.to_owned() },
            Hold::NotAsked | Hold::Missing { .. } => hold,
        };
        Self { memory: lost(self.memory), processes: lost(self.processes) }
    }

    /// For a run that is not to have a cgroup.
    pub(super) fn switched_off(limits: &TreeLimits) -> Self {
        let hold = |limit: Option<u64>| match limit {
            None => Hold::NotAsked,
            Some(_) => Hold::Missing { why: "cgroups are switched off for this run".into() },
        };
        Self { memory: hold(limits.memory_bytes), processes: hold(limits.processes) }
    }
}

impl Hold {
    /// Whether the kernel holds the limit.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }
}

/// A limit of a tree that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    /// [`TreeLimits::memory_bytes`]: the kernel has killed for it.
    Memory,
    /// [`TreeLimits::write_bytes`]: the keeper has killed for it.
    Writes,
}

impl Setting {
    /// The variables of the program.
    #[must_use]
    pub fn variables(&self) -> Vec<(&str, &str)> {
        match self {
            Self::Open { env, .. } => {
                env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
            }
            Self::Confined(confinement) => {
                let variables = confinement.policy.environment.iter();
                variables.map(|(name, value)| (name.as_str(), value.as_str())).collect()
            }
        }
    }

    /// The directory that the program starts in.
    #[must_use]
    pub fn directory(&self) -> &Utf8Path {
        match self {
            Self::Open { cwd, .. } => cwd,
            Self::Confined(confinement) => &confinement.policy.directory,
        }
    }

    /// Refuses what no process can be started in, as far as that is seen without looking at the disk.
    pub(super) fn check(&self) -> Result<(), SpecError> {
        for (name, value) in self.variables() {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(SpecError::VariableName(name.into()));
            }
            if value.contains('\0') {
                return Err(SpecError::Nul(format!("env {name}")));
            }
        }
        if let Self::Confined(confinement) = self {
            if let Some(index) = confinement.launcher.iter().position(|argument| argument.contains('\0')) {
                return Err(SpecError::Nul(format!("launcher[{index}]")));
            }
            confinement.policy.check()?;
        }
        Ok(())
    }
}

impl TreeLimits {
    /// Refuses limits under which nothing can run.
    pub(super) fn check(&self) -> Result<(), SpecError> {
        for (name, given, min) in [
            ("memory_bytes", self.memory_bytes, sandbox::MEMORY_BYTES_MIN),
            ("processes", self.processes, sandbox::PROCESSES_MIN),
        ] {
            if let Some(given) = given.filter(|given| *given < min) {
                return Err(SpecError::Limit { name, given, min });
            }
        }
        Ok(())
    }
}
