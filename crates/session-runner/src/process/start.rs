//! The start of a run: the tree's group, the record that it begins, and the program itself, confined or not.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;

use sandbox::{Confined, Level, Lifeline, Report};
use session_core::env::{Clock as _, SystemClock};

use super::cgroup::{Entered, RunCgroup};
use super::handing::Handing;
use super::identity::ProcessIdentity;
use super::protocol::{CgroupPreference, KeeperRecord, KeeperSpec, SpawnFailure, SpawnFailureKind, Wiring};
use super::pump::{Pump, RunLog};
use super::scope::{Applied, Held, Setting, TreeLimits};
use super::wire::Wire;
use super::{confined, record, spawn};
use crate::workspace::log::Stream;

/// Processes of a launcher that stay beside the program at full: the one that stands for it, and the first one inside.
const LAUNCHER_PROCESSES: u64 = 2;

/// A program that runs.
#[derive(Debug)]
pub(super) struct Begun {
    /// Its pid, or that of the launcher that stands for it.
    pub(super) child: i32,
    pub(super) stdout: Pump,
    pub(super) stderr: Pump,
    pub(super) wire: Option<Wire>,
    pub(super) group: Option<RunCgroup>,
    /// What a sandbox at full hangs on.
    pub(super) lifeline: Option<Lifeline>,
    /// What the first process of a sandbox at full has written and waited for.
    pub(super) account: Option<File>,
}

/// The program's process, and what confines it.
struct Program {
    pid: i32,
    identity: Option<ProcessIdentity>,
    stdout: Pump,
    stderr: Pump,
    report: Option<Report>,
    digest: Option<String>,
    lifeline: Option<Lifeline>,
    account: Option<File>,
}

impl Program {
    fn new(mut process: Child) -> io::Result<Self> {
        let pid = i32::try_from(process.id()).unwrap_or_default();
        Ok(Self {
            pid,
            stdout: Pump::new(Stream::Stdout, process.stdout.take().map(OwnedFd::from))?,
            stderr: Pump::new(Stream::Stderr, process.stderr.take().map(OwnedFd::from))?,
            // The child is reaped in one place with all the others, so its handle is let go. It cannot be reaped
            // before this point: even if it has ended, its identity can be read.
            identity: ProcessIdentity::of(pid)?,
            report: None,
            digest: None,
            lifeline: None,
            account: None,
        })
    }
}

/// Nothing runs, or is to be ended at once.
#[derive(Debug)]
pub(super) struct NotBegun {
    pub(super) failure: SpawnFailure,
    /// To be removed when nothing is in it any more.
    pub(super) group: Option<RunCgroup>,
}

/// Leaves a record that the run begins, and then starts the program. What was applied goes into the record.
/// `writes_are_counted` says whether the kernel counts them.
pub(super) fn begin(
    spec: &KeeperSpec,
    record: &mut KeeperRecord,
    writes_are_counted: bool,
    log: &mut RunLog,
) -> Result<Begun, NotBegun> {
    spec.check().map_err(|error| NotBegun {
        failure: SpawnFailure { kind: SpawnFailureKind::Spec, message: error.to_string() },
        group: None,
    })?;
    let (entered, held) = match spec.cgroup {
        CgroupPreference::Auto => RunCgroup::enter(spec.run, &limits(spec)),
        CgroupPreference::Off => (None, Held::switched_off(&spec.limits)),
    };
    record.cgroups = entered.as_ref().map(|entered| entered.group().paths().to_owned()).unwrap_or_default();
    let started = record::write(&spec.state_file, record)
        .map_err(|error| SpawnFailure {
            kind: SpawnFailureKind::StateFile,
            message: format!("cannot write {}: {}", spec.state_file, spawn::reason(&error)),
        })
        .and_then(|()| Laid::of(spec.wiring).map_err(|error| other(&error)))
        .and_then(|laid| laid.start(spec));
    let (group, held) = match entered.map(Entered::leave) {
        None => (None, held),
        Some(Ok(group)) => (Some(group), held),
        Some(Err(why)) => (None, held.lost(&why)),
    };
    let (program, wire) = match started {
        Ok(started) => started,
        Err(failure) => {
            log.state(SystemClock.now(), &format!("not started: {}", failure.message));
            return Err(NotBegun { failure, group });
        }
    };
    let pid = program.pid;
    log.state(SystemClock.now(), &format!("started pid {pid}: {}", shown_argv(&spec.argv)));
    let write_budget = spec.limits.write_bytes.is_some() && writes_are_counted;
    record.child = program.identity;
    record.applied = Some(Applied {
        report: program.report.map(|report| with_keeper(report, &held, group.is_some())),
        digest: program.digest,
        cgroup: held,
        write_budget,
    });
    Ok(Begun {
        child: pid,
        stdout: program.stdout,
        stderr: program.stderr,
        wire,
        group,
        lifeline: program.lifeline,
        account: program.account,
    })
}

/// The sandbox's report, with what this keeper and the run's group add. A write budget adds nothing to it: see
/// [`writes`](super::writes).
///
/// A keeper that is killed ends nothing any more. Without a group, what has left its parents and its environment then lives
/// on, so only with one it can be said that nothing does.
fn with_keeper(report: Report, held: &Held, grouped: bool) -> Report {
    let report = if grouped { report.with_keeper() } else { report };
    report.with_cgroup(held.memory.is_held(), held.processes.is_held())
}

/// Where the program's stdin and stdout will lead.
enum Laid {
    Nowhere,
    Carried(Wire, OwnedFd),
    HandedOut(Handing, OwnedFd),
}

impl Laid {
    fn of(wiring: Wiring) -> io::Result<Self> {
        Ok(match wiring {
            Wiring::Logged => Self::Nowhere,
            Wiring::Carried => {
                let (wire, stdin) = Wire::take()?;
                Self::Carried(wire, stdin)
            }
            Wiring::HandedOut => {
                let (handing, stdin) = Handing::take()?;
                Self::HandedOut(handing, stdin)
            }
        })
    }

    /// Starts the program with them.
    fn start(self, spec: &KeeperSpec) -> Result<(Program, Option<Wire>), SpawnFailure> {
        match self {
            Self::Nowhere => Ok((start(spec, None)?, None)),
            Self::Carried(wire, stdin) => {
                let program = start(spec, Some(stdin))?;
                program.stdout.widen();
                Ok((program, Some(wire)))
            }
            Self::HandedOut(handing, stdin) => {
                let mut program = start(spec, Some(stdin))?;
                if let Some(stdout) = program.stdout.take_pipe() {
                    // A host that has gone takes nothing; that it has is heard on its other pipe.
                    let _gone = handing.give(&stdout);
                }
                Ok((program, None))
            }
        }
    }
}

fn other(error: &io::Error) -> SpawnFailure {
    SpawnFailure { kind: SpawnFailureKind::Other, message: error.to_string() }
}

fn start(spec: &KeeperSpec, stdin: Option<OwnedFd>) -> Result<Program, SpawnFailure> {
    let taken_over = |process| Program::new(process).map_err(|error| other(&error));
    match &spec.setting {
        Setting::Open { env, cwd } => taken_over(spawn::child(&spec.argv, env, cwd, stdin)?),
        Setting::Confined(confinement) => {
            let (Confined { child, report, lifeline, account }, digest) =
                confined::launch(confinement, &spec.argv, stdin)?;
            let program = taken_over(child)?;
            Ok(Program {
                report: Some(report),
                digest: Some(digest),
                lifeline: Some(lifeline),
                account,
                ..program
            })
        }
    }
}

/// Room for the launcher as well, where it stays beside the program.
fn limits(spec: &KeeperSpec) -> TreeLimits {
    let launcher = match &spec.setting {
        Setting::Confined(confinement) if confinement.level == Level::Full => LAUNCHER_PROCESSES,
        Setting::Confined(_) | Setting::Open { .. } => 0,
    };
    let processes = spec.limits.processes.map(|processes| processes.saturating_add(launcher));
    TreeLimits { processes, ..spec.limits }
}

/// The arguments on one line, cut.
fn shown_argv(argv: &[String]) -> String {
    const LONGEST: usize = 500;
    let joined = argv.iter().map(|argument| format!("{argument:?}")).collect::<Vec<_>>().join(" ");
    joined.chars().take(LONGEST).collect()
}
