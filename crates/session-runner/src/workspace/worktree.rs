//! A git worktree of the project, on a branch of its own.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::error::WorkspaceError;
use super::git::{Git, failed};
use crate::process::tool;

/// git looks at all worktrees of a repository when it makes or forgets one or deletes a branch, and stops at one that is
/// half made: so this process does one at a time. Each takes milliseconds.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// How long another process, which does not wait for its turn, may take to make a worktree from half to whole: so many
/// looks, and the time between two.
const HALF_MADE_LOOKS: usize = 40;
const HALF_MADE_PAUSE: Duration = Duration::from_millis(50);

/// The repository that a project lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    /// The project, as it was given, with symlinks resolved.
    project: Utf8PathBuf,
    /// Where the project lies in its repository; empty for the repository itself.
    pub(super) below: Utf8PathBuf,
}

impl Repository {
    /// Finds the repository of a project, which must exist.
    pub(super) fn of(git: &Git, project: &Utf8Path) -> Result<Self, WorkspaceError> {
        let question = ["rev-parse", "--show-prefix"];
        let answer = git.try_run(project, &question)?;
        if !answer.success {
            let said = String::from_utf8_lossy(&answer.stderr);
            if said.contains("not a git repository") {
                return Err(WorkspaceError::NotARepository(project.to_owned()));
            }
            return Err(failed(project, &question, &answer.stderr));
        }
        let prefix = git.run(project, &question)?;
        Ok(Self { project: project.to_owned(), below: prefix.trim_end_matches('/').into() })
    }

    /// The commit that this names; without a name, the one that is checked out.
    pub(super) fn commit(&self, git: &Git, base: Option<&str>) -> Result<String, WorkspaceError> {
        let revision = format!("{}^{{commit}}", base.unwrap_or("HEAD"));
        let question = ["rev-parse", "--verify", "--quiet", "--end-of-options", &revision];
        let project = self.project.clone();
        let missing = match base {
            Some(base) => WorkspaceError::NoSuchBase { project, base: base.into() },
            None => WorkspaceError::NoCommits(project),
        };
        if base.is_some_and(|base| base.contains('\0')) || !git.try_run(&self.project, &question)?.success {
            return Err(missing);
        }
        git.run(&self.project, &question)
    }

    /// Makes the worktree, with the new branch in it.
    pub(super) fn add(
        &self,
        git: &Git,
        work: &Utf8Path,
        branch: &str,
        commit: &str,
        confined: bool,
    ) -> Result<(), WorkspaceError> {
        git.run(&self.project, &["branch", "--no-track", "--", branch, commit])?;
        let order = ["worktree", "add", "--no-checkout", "--", work.as_str(), branch];
        let added = self.run_in_turn(git, &order);
        // Checking out runs the filters that the repository names, and somebody else may have named them: in a sandbox.
        let check_out = ["reset", "--hard", "--quiet"];
        let made = added.and_then(|()| git.confined_to(work, confined).may_change().run(work, &check_out));
        let Err(error) = made else { return Ok(()) };
        self.take_back(git, work, Some(branch));
        Err(error)
    }

    /// Removes what was made a moment ago, so that nothing half made is left. There is no work in it yet.
    pub(super) fn take_back(&self, git: &Git, work: &Utf8Path, branch: Option<&str>) {
        let mut failures = Vec::new();
        if work.exists() {
            let order = ["worktree", "remove", "--force", "--", work.as_str()];
            failures.extend(self.run_in_turn(git, &order).err());
        }
        if let Some(branch) = branch {
            failures.extend(self.delete_branch(git, branch).err());
        }
        for error in failures {
            tracing::debug!(project = %self.project, %error, "something of a worktree could not be taken back");
        }
    }

    /// Has git forget a worktree whose directory is gone. Whether what it held was saved was seen before, in a sandbox: git
    /// itself would look without one, and run what the session's repository names.
    pub(super) fn forget(&self, git: &Git, work: &Utf8Path) -> Result<(), WorkspaceError> {
        let order = ["worktree", "remove", "--force", "--", work.as_str()];
        let answer = self.try_in_turn(git, &order)?;
        let unknown = String::from_utf8_lossy(&answer.stderr).contains("is not a working tree");
        if answer.success || unknown { Ok(()) } else { Err(failed(&self.project, &order, &answer.stderr)) }
    }

    /// Deletes the branch if it carries nothing of its own.
    pub(super) fn delete_branch(&self, git: &Git, branch: &str) -> Result<BranchFate, WorkspaceError> {
        if !self.has_branch(git, branch)? {
            return Ok(BranchFate::Deleted);
        }
        let ask = |question: &[&str]| git.run(&self.project, question);
        let commits = own_commits(ask, &self.project, &[branch], branch)?;
        if commits > 0 {
            return Ok(BranchFate::Kept { commits });
        }
        self.run_in_turn(git, &["branch", "-D", "--", branch])?;
        Ok(BranchFate::Deleted)
    }

    /// Runs git where it looks at all worktrees, when no other thread of this process does.
    fn run_in_turn(&self, git: &Git, order: &[&str]) -> Result<(), WorkspaceError> {
        let answer = self.try_in_turn(git, order)?;
        if answer.success { Ok(()) } else { Err(failed(&self.project, order, &answer.stderr)) }
    }

    /// The same, and leaves it to the caller what a failure means. A person, a session or another host may be making a
    /// worktree: until that is whole git stops before it changes anything.
    fn try_in_turn(&self, git: &Git, order: &[&str]) -> Result<tool::Finished, WorkspaceError> {
        let run = || {
            let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            git.try_run(&self.project, order)
        };
        for _ in 1..HALF_MADE_LOOKS {
            let answer = run()?;
            if answer.success || !is_stopped_by_half_made(&answer.stderr) {
                return Ok(answer);
            }
            thread::sleep(HALF_MADE_PAUSE);
        }
        run()
    }

    fn has_branch(&self, git: &Git, branch: &str) -> Result<bool, WorkspaceError> {
        Ok(git.try_run(&self.project, &is_branch(&ref_of(branch)))?.success)
    }
}

/// Whether git has found a worktree whose `commondir` is made and not filled yet. git reads nothing there then, which is
/// no error of the system.
fn is_stopped_by_half_made(said: &[u8]) -> bool {
    String::from_utf8_lossy(said).lines().any(|line| {
        line.starts_with("fatal: failed to read ")
            && line.contains("/worktrees/")
            && line.contains("/commondir: ")
    })
}

/// What became of the branch of a worktree that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchFate {
    /// It carried nothing of its own.
    Deleted,
    /// It carries commits that no other branch, remote or tag has.
    Kept {
        /// How many.
        commits: u64,
    },
}

/// Whether a worktree holds work that would be lost with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorktreeState {
    /// There is none any more.
    Gone,
    /// All is saved elsewhere.
    Saved,
    /// There is work of its own.
    Unsaved {
        /// Files that were changed, or are new and not ignored.
        files: usize,
        /// Commits that no other branch, remote or tag has.
        commits: u64,
    },
    /// git could not tell.
    Unknown {
        /// Why.
        why: String,
    },
}

impl fmt::Display for WorktreeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("there is no worktree any more"),
            Self::Saved => f.write_str("all work is saved elsewhere"),
            Self::Unsaved { files, commits: 0 } => {
                write!(f, "{files} changed or new files are not committed")
            }
            Self::Unsaved { files: 0, commits } => {
                write!(f, "{commits} commits are on no other branch, remote or tag")
            }
            Self::Unsaved { files, commits } => write!(
                f,
                "{files} changed or new files are not committed, and {commits} commits are on no other branch, remote or tag"
            ),
            Self::Unknown { why } => write!(f, "git cannot tell whether all work is saved: {why}"),
        }
    }
}

/// Looks for unsaved work. What a session in a sandbox has left is looked at in one too. Changes nothing.
#[must_use]
pub fn inspect(git: &Git, work: &Utf8Path, branch: &str, confined: bool) -> WorktreeState {
    if !work.is_dir() {
        return WorktreeState::Gone;
    }
    look(git, work, branch, confined)
        .unwrap_or_else(|error| WorktreeState::Unknown { why: error.to_string() })
}

fn look(git: &Git, work: &Utf8Path, branch: &str, confined: bool) -> Result<WorktreeState, WorkspaceError> {
    // Without this file git would look further up, and speak of some other repository.
    if !work.join(".git").exists() {
        return Err(WorkspaceError::NotARepository(work.to_owned()));
    }
    let status = [
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=none",
    ];
    let git = git.confined_to(work, confined);
    let files = git.try_run(work, &status)?;
    if !files.success {
        return Err(failed(work, &status, &files.stderr));
    }
    let files = files.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).count();
    let has_branch = git.try_run(work, &is_branch(&ref_of(branch)))?.success;
    let tips: &[&str] = if has_branch { &["HEAD", branch] } else { &["HEAD"] };
    let commits = own_commits(|question| git.run(work, question), work, tips, branch)?;
    Ok(if files == 0 && commits == 0 {
        WorktreeState::Saved
    } else {
        WorktreeState::Unsaved { files, commits }
    })
}

fn ref_of(branch: &str) -> String {
    format!("refs/heads/{branch}")
}

/// The question whether there is such a branch.
fn is_branch(name: &str) -> [&str; 4] {
    ["show-ref", "--verify", "--quiet", name]
}

/// How many commits of the tips no other branch, remote or tag has.
fn own_commits(
    ask: impl Fn(&[&str]) -> Result<String, WorkspaceError>,
    directory: &Utf8Path,
    tips: &[&str],
    branch: &str,
) -> Result<u64, WorkspaceError> {
    let exclude = format!("--exclude={branch}");
    let mut question = vec!["rev-list", "--count"];
    question.extend_from_slice(tips);
    question.extend_from_slice(&["--not", &exclude, "--branches", "--remotes", "--tags", "--"]);
    let count = ask(&question)?;
    count.parse().map_err(|_| failed(directory, &question, count.as_bytes()))
}
