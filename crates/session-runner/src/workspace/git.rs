//! git as a tool: arguments as data, never a shell, never a question to a person.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::guard::{self, Guarded};
use sandbox::{PATHS_MAX, Policy};
use session_core::sandbox::{SandboxLevel, SandboxSpec};

use super::environment::HostEnvironment;
use super::error::WorkspaceError;
use crate::Launcher;
use crate::process::tool;
use crate::scope::toolchains;

/// The longest that git may take; checking out a very large project takes minutes.
const BOUND: Duration = Duration::from_mins(15);
/// The most that an error repeats of what git said, in characters.
const SAID_CHARS: usize = 2000;

/// Variables of the host that would point git at another repository are not passed on. These make it silent, and have it
/// start no hook, monitor or transport that a repository names: a session may have worked there.
const SETTINGS: [(&str, &str); 15] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("LC_ALL", "C"),
    ("GIT_EDITOR", "true"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_LFS_SKIP_SMUDGE", "1"),
    ("GIT_CONFIG_COUNT", "4"),
    ("GIT_CONFIG_KEY_0", "core.hooksPath"),
    ("GIT_CONFIG_VALUE_0", "/dev/null"),
    ("GIT_CONFIG_KEY_1", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_1", "false"),
    ("GIT_CONFIG_KEY_2", "protocol.allow"),
    ("GIT_CONFIG_VALUE_2", "never"),
    ("GIT_CONFIG_KEY_3", "core.sshCommand"),
    ("GIT_CONFIG_VALUE_3", "false"),
];

/// Variables that lead to a person's settings, which are none of a sandbox's business.
const OF_PERSON: [&str; 2] = ["HOME", "XDG_CONFIG_HOME"];
/// A home in which nothing is.
const NO_HOME: &str = "/nonexistent";
/// What git says where a repository borrows objects from another that it cannot read.
const ALTERNATES_MISSED: [&str; 2] = ["alternate object path", "info/alternates"];
/// Sessions may write what names them, so it is not followed by itself.
const ALTERNATES_ADVICE: &str = "; the repository borrows objects from another one (.git/objects/info/alternates): name that \
                                 directory with --allow-read, or copy them with `git repack -a` and remove that file";

/// git, with the environment that it runs in.
#[derive(Debug, Clone)]
pub struct Git {
    environment: Vec<(String, String)>,
    launcher: Option<Arc<Launcher>>,
}

impl Git {
    /// The git in this environment's `PATH`.
    #[must_use]
    pub fn new(host: &HostEnvironment) -> Self {
        let is_set_here = |name: &str| SETTINGS.iter().any(|(setting, _)| *setting == name);
        let inherited = host.pairs().iter().filter(|(name, _)| !is_set_here(name)).cloned();
        let settings = SETTINGS.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Self { environment: inherited.chain(settings).collect(), launcher: None }
    }

    /// With a launcher of sandboxes for trees that sessions have worked in.
    #[must_use]
    pub fn with_launcher(mut self, launcher: Arc<Launcher>) -> Self {
        self.launcher = Some(launcher);
        self
    }

    /// git for one repository, and for nothing else wherever its files lead. A session in a sandbox may have worked there, or
    /// be at it now, so git works in a sandbox of its own: it reads the repository, the working tree and what the session
    /// may read, and finds nothing besides. What no sandbox holds it works on without one.
    pub(super) fn at(&self, place: Pinned, spec: &SandboxSpec) -> PinnedGit<'_> {
        let is_there = |root: &&Utf8PathBuf| root.canonicalize_utf8().is_ok_and(|real| real == **root);
        PinnedGit {
            git: self,
            place,
            confined: spec.level != SandboxLevel::Off,
            readable: spec.read.iter().chain(&spec.write).filter(is_there).cloned().collect(),
            leave: Leave::Look,
        }
    }

    /// What git says of itself, such as `git version 2.47.3`.
    pub fn version(&self) -> Result<String, WorkspaceError> {
        self.run(Utf8Path::new("/"), &["version"])
    }

    /// Runs git in a directory of the project; its standard output without the last newline.
    pub(super) fn run(&self, project: &Utf8Path, arguments: &[&str]) -> Result<String, WorkspaceError> {
        let finished = self.try_run(project, arguments)?;
        if finished.success {
            return text(finished.stdout, project, arguments);
        }
        Err(failed(project, arguments, &finished.stderr))
    }

    /// Runs git and leaves it to the caller what a failure means.
    pub(super) fn try_run(
        &self,
        project: &Utf8Path,
        arguments: &[&str],
    ) -> Result<tool::Finished, WorkspaceError> {
        tool::run("git", arguments, project, &self.environment, BOUND)
            .map_err(|source| not_run("run git in", project, source))
    }
}

/// Where git works: told to it, so that it looks for nothing itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pinned {
    /// What errors name: the project or the working tree.
    pub(super) named: Utf8PathBuf,
    /// What of the repository belongs to the working tree.
    pub(super) own: Utf8PathBuf,
    /// The repository.
    pub(super) common: Utf8PathBuf,
    /// The working tree, for what concerns one or makes one.
    pub(super) work: Option<Utf8PathBuf>,
}

/// What git may change there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// Nothing.
    Look,
    /// The working tree and what belongs to it: for filters run then, which others may have written.
    CheckOut,
    /// All but hooks and configuration. Nothing runs but git itself.
    Change,
}

/// git for one repository, in a sandbox where one holds the session.
#[derive(Debug)]
pub(super) struct PinnedGit<'g> {
    git: &'g Git,
    place: Pinned,
    confined: bool,
    readable: BTreeSet<Utf8PathBuf>,
    leave: Leave,
}

impl PinnedGit<'_> {
    /// With leave to change the working tree, for a check-out.
    pub(super) fn may_check_out(self) -> Self {
        Self { leave: Leave::CheckOut, ..self }
    }

    /// With leave to change the repository, for orders by which nothing of it is run.
    pub(super) fn may_change(self) -> Self {
        Self { leave: Leave::Change, ..self }
    }

    /// Runs git there and leaves it to the caller what a failure means.
    pub(super) fn try_run(&self, arguments: &[&str]) -> Result<tool::Finished, WorkspaceError> {
        let Pinned { named, own, common, work } = &self.place;
        // What is only made now is no working tree yet.
        let work = work.as_ref().filter(|_| self.leave != Leave::Change);
        let mut pins = vec![("GIT_DIR", own), ("GIT_COMMON_DIR", common)];
        pins.extend(work.map(|work| ("GIT_WORK_TREE", work)));
        let pins = pins.into_iter().map(|(name, path)| (name.to_owned(), path.to_string()));
        let here = work.map_or(Utf8Path::new("/"), |work| work);
        let Some(launcher) = self.git.launcher.as_ref().filter(|_| self.confined) else {
            let environment: Vec<_> = self.git.environment.iter().cloned().chain(pins).collect();
            return tool::run("git", arguments, here, &environment, BOUND)
                .map_err(|source| not_run("run git in", named, source));
        };
        let policy = pins.fold(self.policy(here), |policy, (name, value)| policy.with_variable(name, value));
        let argv: Vec<_> = ["git"].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
        tool::run_confined(launcher, policy, &argv, BOUND).map_err(|source| WorkspaceError::Io {
            doing: "look in a sandbox at",
            path: named.clone(),
            source,
        })
    }

    fn policy(&self, here: &Utf8Path) -> Policy {
        let Pinned { own, common, work, .. } = &self.place;
        let passed = self.git.environment.iter().filter(|(name, _)| !OF_PERSON.contains(&name.as_str()));
        let path =
            self.git.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_str());
        let tools = toolchains(path.unwrap_or_default(), None, |_| true).roots;
        // Settings may name files in a home: git wants one, and is content if nothing is there.
        let policy = Policy::new(here)
            .with_variable("GIT_CONFIG_GLOBAL", "/dev/null")
            .with_variable("HOME", NO_HOME)
            .with_variable("XDG_CONFIG_HOME", NO_HOME);
        let policy = passed.fold(policy, |policy, (name, value)| policy.with_variable(name, value));
        let of_work = || [own].into_iter().chain(work);
        let (writable, guarded): (Vec<_>, _) = match self.leave {
            Leave::Look => (vec![], Guarded::default()),
            Leave::CheckOut => (of_work().collect(), guard::guarded(work.as_slice())),
            Leave::Change => ([common].into_iter().chain(of_work()).collect(), guard::of_git(common)),
        };
        let policy = writable.into_iter().fold(policy, Policy::allow_write).guard(guarded);
        let wanted = [common].into_iter().chain(of_work()).chain(&tools).chain(&self.readable);
        let readable: Vec<_> = wanted.filter(|root| !policy.read_write.contains(*root)).collect();
        readable.into_iter().take(PATHS_MAX).fold(policy, Policy::allow_read)
    }

    /// Runs git there; its standard output without the last newline.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String, WorkspaceError> {
        let finished = self.try_run(arguments)?;
        if finished.success {
            return text(finished.stdout, &self.place.named, arguments);
        }
        Err(self.failed(arguments, &finished.stderr))
    }

    /// The error of what git has said here.
    pub(super) fn failed(&self, arguments: &[&str], stderr: &[u8]) -> WorkspaceError {
        failed(&self.place.named, arguments, stderr)
    }
}

fn not_run(doing: &'static str, path: &Utf8Path, source: io::Error) -> WorkspaceError {
    // The directory has been looked at before, so what was not found is git.
    if source.kind() == io::ErrorKind::NotFound {
        return WorkspaceError::NoGit;
    }
    WorkspaceError::Io { doing, path: path.to_owned(), source }
}

/// The error of a git that has said why.
pub(super) fn failed(project: &Utf8Path, arguments: &[&str], stderr: &[u8]) -> WorkspaceError {
    let mut said: String = String::from_utf8_lossy(stderr).trim().chars().take(SAID_CHARS).collect();
    if ALTERNATES_MISSED.iter().any(|missed| said.contains(missed)) {
        said.push_str(ALTERNATES_ADVICE);
    }
    WorkspaceError::Git { project: project.to_owned(), command: arguments.join(" "), said }
}

fn text(stdout: Vec<u8>, project: &Utf8Path, arguments: &[&str]) -> Result<String, WorkspaceError> {
    let mut text = String::from_utf8(stdout)
        .map_err(|_| failed(project, arguments, b"it printed a path that is not UTF-8"))?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}
