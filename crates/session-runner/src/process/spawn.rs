//! The one place where processes are started: always with a directory, a clean environment and no stdin by
//! accident.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use camino::Utf8Path;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use super::protocol::{SpawnFailure, SpawnFailureKind};

/// Marks the second start of a keeper, see [`close_strays`].
const STRAYS_CLOSED: &str = "--inherited-descriptors-closed";

/// Marks every descriptor that this process was given, apart from the standard ones, so that no keeper inherits it.
/// A keeper that did would have to start itself a second time to be rid of it.
pub fn keep_descriptors_private() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// Lets this process have as many files open as the system lets it: one for each connection of each session adds up.
pub fn open_as_many_files_as_may_be() -> io::Result<()> {
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now }).map_err(io::Error::from)
}

/// Lets no other process of the same user look into this one, nor attach to it, and leaves no core of it.
pub fn keep_memory_private() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// A command that inherits nothing: no environment, no stdin.
#[expect(clippy::disallowed_methods, reason = "the one place where processes are started")]
pub(super) fn command(program: impl AsRef<std::ffi::OsStr>, directory: &Utf8Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(directory).stdin(Stdio::null());
    command
}

/// A keeper: its pipes are all that it gets.
#[expect(clippy::disallowed_methods, reason = "the one place where processes are started")]
pub(super) fn keeper(program: &Utf8Path, arguments: &[String], stderr: Stdio) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr);
    command
}

/// A launcher of sandboxes that is only tried.
#[expect(clippy::disallowed_methods, reason = "the one place where processes are started")]
pub(crate) fn tried_launcher(program: &Utf8Path, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir("/");
    command
}

/// Descriptors that the host did not open close-on-exec, or inherited itself, must not reach the program, nor be
/// held open by us (a lock, a pipe that somebody waits on). They are marked, and the program is replaced by
/// itself: that closes them.
pub(super) fn close_strays() -> io::Result<()> {
    close_fds::set_fds_cloexec(3, &[]);
    let is_second = std::env::args_os().next_back().is_some_and(|last| last == STRAYS_CLOSED);
    if is_second || count_strays()? == 0 {
        return Ok(());
    }
    let again = std::env::args_os().chain([STRAYS_CLOSED.into()]).collect();
    Err(replace_self(again))
}

/// Open descriptors from 3 on, without the one that lists them.
fn count_strays() -> io::Result<usize> {
    let mut open = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        open += usize::from(name.to_str().and_then(|name| name.parse::<u32>().ok()).is_some_and(|fd| fd > 2));
    }
    Ok(open - 1)
}

/// Puts the same program in the place of the calling one. Returns only if that fails.
#[expect(clippy::disallowed_methods, reason = "the one place where processes are started")]
fn replace_self(arguments: Vec<OsString>) -> io::Error {
    let mut arguments = arguments.into_iter();
    let name = arguments.next().unwrap_or_default();
    Command::new("/proc/self/exe").arg0(name).args(arguments).env_clear().exec()
}

/// The launcher of a sandbox: this program once more, leader of a process group of its own.
pub(super) fn launcher(arguments: &[String]) -> Command {
    let mut command = command("/proc/self/exe", Utf8Path::new("/"));
    command.args(arguments).process_group(0);
    command
}

/// The program of a run, leader of a process group of its own. Without `stdin` it reads nothing.
pub(super) fn child(
    argv: &[String],
    env: &[(String, String)],
    cwd: &Utf8Path,
    stdin: Option<OwnedFd>,
) -> Result<std::process::Child, SpawnFailure> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(SpawnFailure { kind: SpawnFailureKind::Spec, message: "argv is empty".into() });
    };
    // Asked beforehand: the error of the start itself does not say which of the two paths it means.
    match fs::metadata(cwd) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(bad_directory(cwd, "it is not a directory")),
        Err(error) => return Err(bad_directory(cwd, &reason(&error))),
    }
    command(program, cwd)
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .args(arguments)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failure(program, &error))
}

fn bad_directory(cwd: &Utf8Path, why: &str) -> SpawnFailure {
    let message = format!("cannot start in {cwd}: {why}");
    SpawnFailure { kind: SpawnFailureKind::WorkingDirectory, message }
}

fn failure(program: &str, error: &io::Error) -> SpawnFailure {
    let shown: String = program.chars().take(200).collect();
    SpawnFailure { kind: kind_of(error), message: format!("cannot start {shown:?}: {}", reason(error)) }
}

/// What the system's error says about a start.
pub(super) fn kind_of(error: &io::Error) -> SpawnFailureKind {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => SpawnFailureKind::NotFound,
        Some(Errno::ACCESS | Errno::PERM) => SpawnFailureKind::Permission,
        Some(Errno::TOOBIG) => SpawnFailureKind::TooLong,
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => SpawnFailureKind::Exhausted,
        _ => SpawnFailureKind::Other,
    }
}

/// What the system says, without the number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
