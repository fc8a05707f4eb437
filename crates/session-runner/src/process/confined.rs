//! Starting a program in its sandbox, and saying in the keeper's words why it was not started.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::{Confined, Field, LaunchError, PolicyError, RefusalCode};

use super::protocol::{SpawnFailure, SpawnFailureKind};
use super::scope::Confinement;
use super::spawn;

/// The longest reason that is reported, in characters.
const REASON_CHARS: usize = 500;

/// Seals the policy and starts the program under it. Returns once every layer is on and checked from inside, within
/// [`sandbox::ANSWER_WAIT_MAX`]. The other is the digest of the policy.
pub(super) fn launch(
    confinement: &Confinement,
    argv: &[String],
    stdin: Option<OwnedFd>,
) -> Result<(Confined, String), SpawnFailure> {
    let sealed = confinement.policy.clone().seal_at(&confinement.roots).map_err(|error| refused(&error))?;
    leave_no_core();
    let mut launcher = spawn::launcher(&confinement.launcher);
    launcher.stdout(Stdio::piped()).stderr(Stdio::piped());
    let confined =
        sealed.launch(launcher, confinement.level, argv, stdin).map_err(|error| not_launched(&error))?;
    Ok((confined, sealed.digest().to_owned()))
}

/// The launcher that stands for a program ends as the program does. If that is by a signal that leaves an image of the
/// memory, the policy would be in it.
fn leave_no_core() {
    let most = getrlimit(Resource::Core).maximum;
    // Lowering is always allowed.
    let _always_possible = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: most });
}

/// The policy does not fit the disk.
fn refused(error: &PolicyError) -> SpawnFailure {
    let kind = match error {
        PolicyError::Path { field: Field::Directory, .. } => SpawnFailureKind::WorkingDirectory,
        PolicyError::Path { .. }
        | PolicyError::Places { .. }
        | PolicyError::TooMany { .. }
        | PolicyError::Variable { .. }
        | PolicyError::Limit { .. } => SpawnFailureKind::SandboxPolicy,
    };
    failure(kind, error)
}

fn not_launched(error: &LaunchError) -> SpawnFailure {
    match error {
        LaunchError::Refused { refusal, .. } => failure(kind_of(refusal.code), error),
        LaunchError::Start { source, .. } => {
            let exhausted = spawn::kind_of(source) == SpawnFailureKind::Exhausted;
            let kind = if exhausted { SpawnFailureKind::Exhausted } else { SpawnFailureKind::Sandbox };
            failure(kind, error)
        }
        LaunchError::Silent(_) => failure(SpawnFailureKind::Sandbox, error),
        LaunchError::Policy(error) => refused(error),
    }
}

fn kind_of(code: RefusalCode) -> SpawnFailureKind {
    match code {
        RefusalCode::RootChanged => SpawnFailureKind::SandboxPolicy,
        RefusalCode::Directory => SpawnFailureKind::WorkingDirectory,
        RefusalCode::ProgramNotFound => SpawnFailureKind::NotFound,
        RefusalCode::Program => SpawnFailureKind::Permission,
        RefusalCode::Request
        | RefusalCode::Threads
        | RefusalCode::Namespaces
        | RefusalCode::Mounts
        | RefusalCode::Network
        | RefusalCode::Limits
        | RefusalCode::Capabilities
        | RefusalCode::Landlock
        | RefusalCode::Seccomp
        | RefusalCode::SelfTest
        | RefusalCode::System => SpawnFailureKind::Sandbox,
    }
}

/// The error and what lies behind it, cut.
fn failure(kind: SpawnFailureKind, error: &(dyn std::error::Error + 'static)) -> SpawnFailure {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    SpawnFailure { kind, message: text.chars().take(REASON_CHARS).collect() }
}
