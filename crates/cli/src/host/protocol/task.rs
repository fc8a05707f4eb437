//! What is asked for with a task: the session it works in, what that may use up and touch, and what an agent is told.

use camino::Utf8PathBuf;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use session_core::SessionId;
use session_core::sandbox::{Endpoint, SandboxLevel};
use session_core::turn::Asking;

use crate::config::Net;

/// Tasks to enqueue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submit {
    /// Whose they are.
    pub principal: String,
    /// How many of them at once.
    pub at_once: Option<u32>,
    /// The tasks.
    pub tasks: Vec<TaskWire>,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskWire {
    /// By what others refer to it.
    pub name: Option<String>,
    /// Whom it comes after.
    pub after: Vec<String>,
    /// In which session.
    pub session: SessionWire,
    /// The program and its arguments; nothing for those of the session's last run.
    pub argv: Vec<String>,
    /// With what it is executed; nothing for `command`, or for what the session's last run had.
    #[serde(default)]
    pub executor: Option<String>,
    /// What an agent is asked for.
    #[serde(default)]
    pub turn: Option<TurnWire>,
    /// What the caller's environment gives. A further run of a session keeps what its last one had.
    pub base_env: Inherited,
    /// What was set by name; comes on top.
    pub env: Vec<(String, String)>,
    /// The longest wall time.
    pub timeout: Option<SignedDuration>,
    /// For how long it waits for a runner that may take it.
    #[serde(default)]
    pub claim_within: Option<SignedDuration>,
    /// Higher ones first.
    pub priority: i32,
}

/// What a caller's environment gives.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inherited {
    /// What the allow-list lets through: it tells of the caller's machine.
    pub own: Vec<(String, String)>,
    /// What the caller and the settings name (`--allow-env`, `run.pass_env`).
    pub named: Vec<(String, String)>,
}

impl Inherited {
    /// What of it goes to a run: all, or, where `anywhere` is set and the run's machine may be another one, what was named.
    pub fn given(self, anywhere: bool) -> Vec<(String, String)> {
        let Self { own, named } = self;
        if anywhere {
            return named;
        }
        let more: Vec<_> =
            named.into_iter().filter(|(name, _)| own.iter().all(|(known, _)| known != name)).collect();
        own.into_iter().chain(more).collect()
    }
}

/// What an agent is asked for; what is not given is as in the session's last turn.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TurnWire {
    /// What the user says; nothing to have it go on.
    pub prompt: Option<String>,
    /// A new conversation that is told what was said so far.
    pub from_history: bool,
    /// The model, in the agent's own words.
    pub model: Option<String>,
    /// The tools that need no leave.
    pub allow: Option<Vec<String>>,
    /// Who is asked about the others.
    pub asking: Option<Asking>,
}

/// The session of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionWire {
    /// A new one.
    New(NewSessionWire),
    /// One that exists.
    Existing(SessionId),
    /// The one that bears this key of the caller's, or a new one that bears it.
    Keyed {
        /// The key.
        key: String,
        /// What to make if there is none.
        new: NewSessionWire,
    },
}

/// A session to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSessionWire {
    /// Free text for people.
    pub label: Option<String>,
    /// The agent that works in it.
    pub agent: Option<String>,
    /// `scratch`, `worktree` or `in-place`.
    pub workspace: String,
    /// The project.
    pub project: Option<String>,
    /// A JSON object, as text.
    pub metadata: String,
    /// What it may use up.
    pub budget: BudgetWire,
    /// What its processes may touch, reach and use up.
    #[serde(default)]
    pub sandbox: SandboxWire,
    /// The session that starts it.
    pub parent: Option<SessionId>,
    /// That session is to hear of the end of each of its runs.
    #[serde(default)]
    pub callback: bool,
}

/// What a session may use up; what is not given is the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetWire {
    /// Tokens.
    pub tokens: Option<u64>,
    /// Tool calls.
    pub tool_calls: Option<u64>,
    /// Turns.
    pub turns: Option<u64>,
    /// Cost in millionths of a US dollar.
    pub cost_micros: Option<u64>,
}

/// What a session's processes may touch, reach and use up; what is not given is the installation's setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxWire {
    /// How much the kernel must enforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<SandboxLevel>,
    /// What they may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<Net>,
    /// What they may reach through the host's proxy; without `net` it means `allow`.
    pub net_allow: Vec<Endpoint>,
    /// Directories that they may read, beyond those of the installation.
    pub allow_read: Vec<Utf8PathBuf>,
    /// Directories that they may change, beyond those of the installation.
    pub allow_write: Vec<Utf8PathBuf>,
    /// Memory in bytes; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// The largest file in bytes; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// What may be written to disk in all, in bytes; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
}

/// How limits change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetChangeWire {
    /// They rise by so much.
    Add(BudgetWire),
    /// They become these; what is not given stays.
    Set {
        /// The new limits.
        to: BudgetWire,
        /// Turns are to have no limit.
        any_turns: bool,
        /// Cost is to have no limit.
        any_cost: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_of_the_caller_s_machine_stays_there() {
        let pairs = |names: &[&str]| names.iter().map(|&name| (name.into(), name.into())).collect::<Vec<_>>();
        let inherited = Inherited { own: pairs(&["LANG", "PATH"]), named: pairs(&["PATH", "A_KEY"]) };
        assert_eq!(inherited.clone().given(false), pairs(&["LANG", "PATH", "A_KEY"]));
        assert_eq!(inherited.given(true), pairs(&["PATH", "A_KEY"]), "named by whoever asks");
    }
}
