//! git as a tool: arguments as data, never a shell, never a question to a person.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::{Policy, guard};

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

    /// git for a tree that a session in a sandbox has left, or that is checked out for one. Repositories name programs in more
    /// ways than can be forbidden one by one (filters, drivers, repositories within), so git works there in a sandbox of its
    /// own: it may read the tree and the repository behind it, and nothing else. What no sandbox holds (`confined` is false)
    /// it works on without one.
    pub(super) fn confined_to(&self, work: &Utf8Path, confined: bool) -> ConfinedGit<'_> {
        ConfinedGit {
            confined,
            may_change: false,
            git: self,
            roots: guard::common_git_directory(work).into_iter().chain([work.to_owned()]).collect(),
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
        tool::run("git", arguments, project, &self.environment, BOUND).map_err(|source| {
            // The directory has been looked at before, so what was not found is git.
            if source.kind() == io::ErrorKind::NotFound {
                return WorkspaceError::NoGit;
            }
            WorkspaceError::Io { doing: "run git in", path: project.to_owned(), source }
        })
    }
}

/// git in a sandbox, for one tree and the repository behind it.
#[derive(Debug)]
pub(super) struct ConfinedGit<'g> {
    git: &'g Git,
    roots: Vec<Utf8PathBuf>,
    confined: bool,
    may_change: bool,
}

impl ConfinedGit<'_> {
    /// With leave to change the tree and the repository behind it.
    pub(super) fn may_change(self) -> Self {
        Self { may_change: true, ..self }
    }

    /// Runs git there and leaves it to the caller what a failure means.
    pub(super) fn try_run(
        &self,
        work: &Utf8Path,
        arguments: &[&str],
    ) -> Result<tool::Finished, WorkspaceError> {
        let Some(launcher) = self.git.launcher.as_ref().filter(|_| self.confined) else {
            return self.git.try_run(work, arguments);
        };
        let passed = self.git.environment.iter().filter(|(name, _)| !OF_PERSON.contains(&name.as_str()));
        let path =
            self.git.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_str());
        let tools = toolchains(path.unwrap_or_default(), None, |_| true).roots;
        let policy = Policy::new(work).with_variable("GIT_CONFIG_GLOBAL", "/dev/null");
        let policy = passed.fold(policy, |policy, (name, value)| policy.with_variable(name, value));
        let policy = tools.into_iter().fold(policy, Policy::allow_read);
        let allow = if self.may_change { Policy::allow_write } else { Policy::allow_read };
        let policy = self.roots.iter().cloned().fold(policy, allow);
        let argv: Vec<_> = ["git"].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
        tool::run_confined(launcher, policy, &argv, BOUND).map_err(|source| WorkspaceError::Io {
            doing: "look in a sandbox at",
            path: work.to_owned(),
            source,
        })
    }

    /// Runs git there; its standard output without the last newline.
    pub(super) fn run(&self, work: &Utf8Path, arguments: &[&str]) -> Result<String, WorkspaceError> {
        let finished = self.try_run(work, arguments)?;
        if finished.success {
            return text(finished.stdout, work, arguments);
        }
        Err(failed(work, arguments, &finished.stderr))
    }
}

/// The error of a git that has said why.
pub(super) fn failed(project: &Utf8Path, arguments: &[&str], stderr: &[u8]) -> WorkspaceError {
    let said: String = String::from_utf8_lossy(stderr).trim().chars().take(SAID_CHARS).collect();
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
