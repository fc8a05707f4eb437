//! What host and keeper say to each other, and what the keeper leaves on disk.
//!
//! One [`KeeperSpec`] and then [`Order`]s go down the keeper's stdin, [`KeeperReport`]s come up its stdout, one
//! JSON object a line. The [`KeeperRecord`] lies in the state file, so that the exit of a run outlives both.

use std::fmt;

use camino::Utf8PathBuf;
use jiff::Timestamp;
use sandbox::guard::Change;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use session_core::{RunId, SessionId};
use thiserror::Error;

use super::identity::ProcessIdentity;
use super::scope::{Applied, LimitHit, Setting, TreeLimits};
use crate::workspace::log::LogRotation;

/// The longest spec that a keeper reads: more than the kernel takes as arguments and environment of one process.
pub const MAX_SPEC_BYTES: usize = 8 << 20;
/// Until SIGTERM is followed by SIGKILL, unless the order says otherwise.
pub const DEFAULT_GRACE_MS: u64 = 10_000;
/// The most characters of a run's last output line that a report carries.
pub const LAST_LINE_CHARS: usize = 200;
/// The most changes to watched names that a record lists.
pub const CHANGES_MAX: usize = 64;

/// All that a keeper needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeeperSpec {
    /// The session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The program and its arguments, verbatim. The program is looked up in the `PATH` of its environment.
    pub argv: Vec<String>,
    /// Where it runs: confined or not, in which directory, with which environment.
    pub setting: Setting,
    /// What the whole tree may use up.
    #[serde(default)]
    pub limits: TreeLimits,
    /// Workspaces in which the names are watched that run code later, see [`sandbox::guard`].
    #[serde(default)]
    pub watch: Vec<Utf8PathBuf>,
    /// The session's log; the files of its rotation lie beside it.
    pub log: Utf8PathBuf,
    /// When the log is rotated.
    pub rotation: LogRotation,
    /// Where the [`KeeperRecord`] goes.
    pub state_file: Utf8PathBuf,
    /// The longest that the run may take, in milliseconds; `None` is for ever.
    pub timeout_ms: Option<u64>,
    /// From SIGTERM to SIGKILL, in milliseconds, where no order says otherwise.
    pub grace_ms: u64,
    /// What to do when the host is gone.
    pub on_host_loss: OnHostLoss,
    /// Whether to look for a cgroup.
    pub cgroup: CgroupPreference,
    /// Where the program's stdin and stdout lead.
    #[serde(default)]
    pub wiring: Wiring,
}

/// Where a program's stdin and stdout lead. Its stderr leads into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wiring {
    /// It reads nothing, and what it writes goes into the log.
    #[default]
    Logged,
    /// It holds a conversation: both are carried to the socket that the keeper has as stderr, and what it writes goes into
    /// the log as well.
    Carried,
    /// Both are pipes whose other ends are handed out over the socket that the keeper has as stderr. Nothing of what goes
    /// through them is seen or kept by the keeper.
    HandedOut,
}

impl KeeperSpec {
    /// Refuses what no process can be started with. Nothing has been made when this fails.
    pub fn check(&self) -> Result<(), SpecError> {
        match self.argv.first() {
            None => return Err(SpecError::NoProgram),
            Some(program) if program.is_empty() => return Err(SpecError::NoProgram),
            Some(_) => {}
        }
        if let Some(index) = self.argv.iter().position(|argument| argument.contains('\0')) {
            return Err(SpecError::Nul(format!("argv[{index}]")));
        }
        self.setting.check()?;
        self.limits.check()?;
        let paths = [
            ("cwd", self.setting.directory()),
            ("log", self.log.as_path()),
            ("state_file", &self.state_file),
        ];
        for (field, path) in paths.into_iter().chain(self.watch.iter().map(|path| ("watch", path.as_path())))
        {
            if path.as_str().contains('\0') {
                return Err(SpecError::Nul(field.into()));
            }
            if !path.is_absolute() {
                return Err(SpecError::Relative { field, path: path.to_owned() });
            }
        }
        Ok(())
    }
}

/// What is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// There is nothing to start.
    #[error("argv is empty: name the program to run")]
    NoProgram,
    /// The kernel ends texts at a NUL byte.
    #[error("{0} contains a NUL byte, which no argument of a process can hold")]
    Nul(String),
    /// Not a name for an environment variable.
    #[error("{0:?} cannot name an environment variable: it is empty, or has a `=` or a NUL byte in it")]
    VariableName(String),
    /// The keeper has a working directory of its own.
    #[error("{field} must be absolute, got {path:?}")]
    Relative {
        /// The field of the spec.
        field: &'static str,
        /// Its value.
        path: Utf8PathBuf,
    },
    /// A limit under which nothing can run.
    #[error("limits: {name} is {given}, and less than {min} lets no program start")]
    Limit {
        /// The field of [`TreeLimits`].
        name: &'static str,
        /// What was given.
        given: u64,
        /// The least that is allowed.
        min: u64,
    },
    /// The sandbox's policy cannot be meant.
    #[error(transparent)]
    Policy(#[from] sandbox::PolicyError),
}

/// What a keeper does when its host is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnHostLoss {
    /// Ends the tree, as after a stop.
    #[default]
    End,
    /// Lets it go on; the next host finds it by the state file.
    Adopt,
}

/// Whether a keeper puts the tree into a cgroup of its own. Without one no limit of [`TreeLimits`] is held that wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupPreference {
    /// Where one is writable: of version 2, and for limits that it does not hold, of version 1.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// What the host may tell a running keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// SIGTERM to the tree now, SIGKILL after the grace.
    Stop {
        /// In milliseconds; the spec's where it is `None`.
        grace_ms: Option<u64>,
    },
    /// SIGKILL to the tree now.
    Kill {},
}

/// What a keeper tells its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeeperReport {
    /// The program runs.
    Started(Started),
    /// It could not be started. Nothing more follows.
    SpawnFailed(SpawnFailure),
    /// There is new output. Sent now and then, and dropped when the host does not read.
    Progress(Progress),
    /// The whole tree has ended. Nothing more follows.
    Ended(RunEnd),
}

/// The program runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The keeper.
    pub keeper: ProcessIdentity,
    /// The program that it started.
    pub child: ProcessIdentity,
}

/// The program could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{message}")]
pub struct SpawnFailure {
    /// Why, for programs.
    pub kind: SpawnFailureKind,
    /// Why, for people: it names the program or the path.
    pub message: String,
}

/// Why a program could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpawnFailureKind {
    /// There is no such program.
    NotFound,
    /// It may not be executed.
    Permission,
    /// The working directory is missing, is no directory, or cannot be entered.
    WorkingDirectory,
    /// The sandbox cannot be had on this machine.
    Sandbox,
    /// The sandbox's policy does not fit the disk: a root is missing, or is not the directory that was approved.
    SandboxPolicy,
    /// Arguments and environment are more than the kernel takes.
    TooLong,
    /// Too many processes, or no memory.
    Exhausted,
    /// The spec itself is not usable.
    Spec,
    /// The state file could not be written: without a record nothing is started.
    StateFile,
    /// Anything else.
    Other,
}

/// How far the output is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes read from stdout so far.
    pub stdout_bytes: u64,
    /// Bytes read from stderr so far.
    pub stderr_bytes: u64,
    /// The last line that shows anything, without control characters, at most [`LAST_LINE_CHARS`] long.
    pub last_line: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// What the program itself came to; `None` if it would not die (see `survivors`).
    pub exit: Option<Exit>,
    /// Who or what ended it.
    pub cause: EndCause,
    /// A limit that the tree has reached. It need not have ended the run: the kernel may have killed one of its
    /// processes for memory, and the others went on.
    #[serde(default)]
    pub limit: Option<LimitHit>,
    /// The output.
    #[serde(default)]
    pub output: Progress,
    /// Processes of the tree that were still there when the program had ended, and were ended after it.
    pub leftover_killed: u32,
    /// Processes that even SIGKILL did not end in time: they hang in the kernel.
    pub survivors: u32,
    /// Pieces of output that could not be written to the log, a full disk for example.
    pub log_errors: u64,
    /// The first of these errors.
    pub log_error: Option<String>,
    /// Watched names that are not as they were before the run; the record lists them.
    #[serde(default)]
    pub changes: u32,
    /// When all of it was over.
    pub ended_at: Timestamp,
}

/// What a program came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited, with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Who or what ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// The program ended by itself.
    Exited,
    /// A stop order.
    Stopped,
    /// A kill order.
    Killed,
    /// The spec's timeout.
    TimedOut,
    /// The host was gone.
    HostLost,
    /// The tree has written more than it may.
    Limit,
}

/// The state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperRecord {
    /// The version of this format.
    pub v: u32,
    /// The session.
    pub session: SessionId,
    /// The run. The file of an earlier run says nothing about a later one.
    pub run: RunId,
    /// The keeper.
    pub keeper: ProcessIdentity,
    /// The program, once it was started.
    pub child: Option<ProcessIdentity>,
    /// The directories of the tree's cgroup, one for each hierarchy that it is in; none where there is no cgroup.
    #[serde(default, alias = "cgroup", deserialize_with = "one_or_several")]
    pub cgroups: Vec<Utf8PathBuf>,
    /// What was applied to the run, once it was started.
    #[serde(default)]
    pub applied: Option<Applied>,
    /// Watched names that are not as they were before the run, once it is over; at most [`CHANGES_MAX`].
    #[serde(default)]
    pub changes: Vec<Change>,
    /// How many more there are.
    #[serde(default)]
    pub more_changes: u32,
    /// What it came to, once it is over.
    pub outcome: Option<RunOutcome>,
}

impl KeeperRecord {
    /// The version that is written. A reader takes this one and older ones.
    pub const VERSION: u32 = 2;
}

/// Version 1 had one group, or `null`.
fn one_or_several<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Utf8PathBuf>, D::Error> {
    struct Groups;
    impl<'de> Visitor<'de> for Groups {
        type Value = Vec<Utf8PathBuf>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a path, a list of paths, or null")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_str<E>(self, path: &str) -> Result<Self::Value, E> {
            Ok(vec![path.into()])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut paths: A) -> Result<Self::Value, A::Error> {
            let mut groups = Vec::new();
            while let Some(path) = paths.next_element()? {
                groups.push(path);
            }
            Ok(groups)
        }
    }
    from.deserialize_any(Groups)
}

/// What a run came to, as its keeper recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// It never started.
    SpawnFailed(SpawnFailure),
    /// It ran.
    Ended(RunEnd),
}
