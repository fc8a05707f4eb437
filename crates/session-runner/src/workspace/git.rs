//! git as a tool: arguments as data, never a shell, never a question to a person.

use std::io;
use std::time::Duration;

use camino::Utf8Path;

use super::environment::HostEnvironment;
use super::error::WorkspaceError;
use crate::process::tool;

/// The longest that git may take; checking out a very large project takes minutes.
const BOUND: Duration = Duration::from_mins(15);
/// The most that an error repeats of what git said, in characters.
const SAID_CHARS: usize = 2000;

/// Variables of the host that would point git at another repository are not passed on. These make it silent, and have it
/// start no program that a repository names: a session may have worked there.
const SETTINGS: [(&str, &str); 9] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("LC_ALL", "C"),
    ("GIT_EDITOR", "true"),
    ("GIT_CONFIG_COUNT", "2"),
    ("GIT_CONFIG_KEY_0", "core.hooksPath"),
    ("GIT_CONFIG_VALUE_0", "/dev/null"),
    ("GIT_CONFIG_KEY_1", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_1", "false"),
];

/// git, with the environment that it runs in.
#[derive(Debug, Clone)]
pub struct Git {
    environment: Vec<(String, String)>,
}

impl Git {
    /// The git in this environment's `PATH`.
    #[must_use]
    pub fn new(host: &HostEnvironment) -> Self {
        let is_set_here = |name: &str| SETTINGS.iter().any(|(setting, _)| *setting == name);
        let inherited = host.pairs().iter().filter(|(name, _)| !is_set_here(name)).cloned();
        let settings = SETTINGS.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Self { environment: inherited.chain(settings).collect() }
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
