//! The start of a run: the tree's group, the record that it begins, and the program itself, confined or not.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;

use sandbox::{Level, Lifeline, Report};
use session_core::env::{Clock as _, SystemClock};

use super::cgroup::{Entered, RunCgroup};
use super::identity::ProcessIdentity;
use super::protocol::{CgroupPreference, KeeperRecord, KeeperSpec, SpawnFailure, SpawnFailureKind};
use super::pump::{Pump, RunLog};
use super::scope::{Applied, Held, Setting, TreeLimits};
use super::{confined, record, spawn, writes};
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
    pub(super) group: Option<RunCgroup>,
    /// What a sandbox at full hangs on.
    pub(super) lifeline: Option<Lifeline>,
}

/// The program's process, and what confines it.
struct Program {
    process: Child,
    report: Option<Report>,
    digest: Option<String>,
    lifeline: Option<Lifeline>,
}

/// Leaves a record that the run begins, and then starts the program. What was applied goes into the record.
/// `writes_are_counted` says whether the kernel counts them.
pub(super) fn begin(
    spec: &KeeperSpec,
    record: &mut KeeperRecord,
    writes_are_counted: bool,
    log: &mut RunLog,
) -> Result<Begun, SpawnFailure> {
    spec.check()
        .map_err(|error| SpawnFailure { kind: SpawnFailureKind::Spec, message: error.to_string() })?;
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
        .and_then(|()| start(spec));
    let group = entered.and_then(Entered::leave);
    let mut program = started.inspect_err(|failure| {
        if let Some(group) = &group {
            group.remove();
        }
        log.state(SystemClock.now(), &format!("not started: {}", failure.message));
    })?;
    let pid = i32::try_from(program.process.id()).unwrap_or_default();
    let pump = |stream, pipe: Option<OwnedFd>| Pump::new(stream, pipe).map_err(|error| other(&error));
    let stdout = pump(Stream::Stdout, program.process.stdout.take().map(OwnedFd::from))?;
    let stderr = pump(Stream::Stderr, program.process.stderr.take().map(OwnedFd::from))?;
    // The child is reaped in one place with all the others, so its handle is let go. It cannot be reaped
    // before this point: even if it has ended, its identity can be read.
    record.child = ProcessIdentity::of(pid).map_err(|error| other(&error))?;
    log.state(SystemClock.now(), &format!("started pid {pid}: {}", shown_argv(&spec.argv)));
    let write_budget = spec.limits.write_bytes.is_some() && writes_are_counted;
    record.applied = Some(Applied {
        report: program.report.map(|report| with_keeper(report, &held, write_budget)),
        digest: program.digest,
        cgroup: held,
        write_budget,
    });
    Ok(Begun { child: pid, stdout, stderr, group, lifeline: program.lifeline })
}

/// The sandbox's report, with what this keeper and the run's group add.
fn with_keeper(report: Report, held: &Held, write_budget: bool) -> Report {
    let report = report.with_keeper().with_cgroup(held.memory.is_held(), held.processes.is_held());
    if write_budget && writes::sees_everything() { report.with_write_budget() } else { report }
}

fn start(spec: &KeeperSpec) -> Result<Program, SpawnFailure> {
    match &spec.setting {
        Setting::Open { env, cwd } => {
            let process = spawn::child(&spec.argv, env, cwd)?;
            Ok(Program { process, report: None, digest: None, lifeline: None })
        }
        Setting::Confined(confinement) => {
            let (confined, digest) = confined::launch(confinement, &spec.argv)?;
            Ok(Program {
                process: confined.child,
                report: Some(confined.report),
                digest: Some(digest),
                lifeline: Some(confined.lifeline),
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

fn other(error: &io::Error) -> SpawnFailure {
    SpawnFailure { kind: SpawnFailureKind::Other, message: error.to_string() }
}

/// The arguments on one line, cut.
fn shown_argv(argv: &[String]) -> String {
    const LONGEST: usize = 500;
    let joined = argv.iter().map(|argument| format!("{argument:?}")).collect::<Vec<_>>().join(" ");
    joined.chars().take(LONGEST).collect()
}
