//! The start of a run: the tree's group, the record that it begins, and the program itself, confined or not.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;

use sandbox::{Lifeline, Report};
use session_core::env::{Clock as _, SystemClock};

use super::cgroup::{Home, RunCgroup};
use super::identity::ProcessIdentity;
use super::protocol::{CgroupPreference, KeeperRecord, KeeperSpec, SpawnFailure, SpawnFailureKind};
use super::pump::{Pump, RunLog};
use super::scope::{Applied, Held, Setting};
use super::{confined, record, spawn};
use crate::workspace::log::Stream;

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
pub(super) fn begin(
    spec: &KeeperSpec,
    record: &mut KeeperRecord,
    log: &mut RunLog,
) -> Result<Begun, SpawnFailure> {
    spec.check()
        .map_err(|error| SpawnFailure { kind: SpawnFailureKind::Spec, message: error.to_string() })?;
    let entered = match spec.cgroup {
        CgroupPreference::Auto => RunCgroup::enter(spec.run),
        CgroupPreference::Off => None,
    };
    record.cgroups = entered.iter().map(|(group, _)| group.path().to_owned()).collect();
    let started = record::write(&spec.state_file, record)
        .map_err(|error| SpawnFailure {
            kind: SpawnFailureKind::StateFile,
            message: format!("cannot write {}: {}", spec.state_file, spawn::reason(&error)),
        })
        .and_then(|()| start(spec));
    let group = entered.and_then(leave);
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
    record.applied = Some(Applied {
        report: program.report,
        digest: program.digest,
        cgroup: Held::default(),
        write_budget: false,
    });
    Ok(Begun { child: pid, stdout, stderr, group, lifeline: program.lifeline })
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

/// Takes the keeper out of the run's group again. If it cannot come back the group is of no use: its end would
/// be ours.
fn leave((group, home): (RunCgroup, Home)) -> Option<RunCgroup> {
    home.come_back().is_ok().then_some(group)
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
