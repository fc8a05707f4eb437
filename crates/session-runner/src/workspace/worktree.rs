//! A git worktree of the project, on a branch of its own.

use std::fmt;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::guard::{Discovered, discover, is_own_part, own_part, repositories_inside};
use session_core::sandbox::{SandboxLevel, SandboxSpec};

use super::error::WorkspaceError;
use super::file::{Outlives, replace};
use super::git::{Git, Pinned, PinnedGit, failed};
use super::layout::SessionDir;
use super::tree::remove_tree_plainly;

/// git looks at all worktrees of a repository when it makes or forgets one or deletes a branch, and stops at one that is
/// half made: so this process does one at a time. Each takes milliseconds.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// How long another process, which does not wait for its turn, may take to make a worktree from half to whole: so many
/// looks, and the time between two.
const HALF_MADE_LOOKS: usize = 40;
const HALF_MADE_PAUSE: Duration = Duration::from_millis(50);

/// The repository that a project lies in: the one that was recorded when the session was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    /// The project, as it was given, with symlinks resolved.
    project: Utf8PathBuf,
    found: Discovered,
    /// Where the project lies in its repository; empty for the repository itself.
    pub(super) below: Utf8PathBuf,
    sandbox: SandboxSpec,
}

impl Repository {
    /// Finds the repository of a project, which must exist. What leads to another one than was recorded is refused: a
    /// session could have the host and those after it work there.
    pub(super) fn of(git: &Git, project: &Utf8Path, sandbox: &SandboxSpec) -> Result<Self, WorkspaceError> {
        let is_confined = sandbox.level != SandboxLevel::Off;
        let recorded = sandbox.repository.as_deref();
        let found = discover(project, |target| !is_confined || recorded == Some(target))
            .map_err(|misleading| WorkspaceError::Misled { project: project.to_owned(), misleading })?;
        let found = found.ok_or_else(|| WorkspaceError::NotARepository(project.to_owned()))?;
        if let Some(given) = recorded.filter(|given| **given != found.common) {
            let (project, found, given) = (project.to_owned(), found.common, given.to_owned());
            return Err(WorkspaceError::AnotherRepository { project, found, given });
        }
        if !is_confined {
            // Whether git would work there at all: of a repository that is told to it, it does not ask who owns it.
            git.run(project, &["rev-parse", "--git-dir"])?;
        }
        let below = project.strip_prefix(&found.top).unwrap_or(Utf8Path::new("")).to_owned();
        Ok(Self { project: project.to_owned(), found, below, sandbox: sandbox.clone() })
    }

    /// git for this repository, without a working tree.
    pub(super) fn git<'g>(&self, git: &'g Git) -> PinnedGit<'g> {
        git.at(self.place(), &self.sandbox)
    }

    /// The same without a sandbox, for what the person's own settings say: it is told where, and to look at those alone.
    pub(super) fn git_of_person<'g>(&self, git: &'g Git) -> PinnedGit<'g> {
        git.at(self.place(), &SandboxSpec { level: SandboxLevel::Off, ..SandboxSpec::default() })
    }

    fn place(&self) -> Pinned {
        let Discovered { own, common, .. } = self.found.clone();
        Pinned { named: self.project.clone(), own, common, work: None }
    }

    /// The commit that this names; without a name, the one that is checked out.
    pub(super) fn commit(&self, git: &Git, base: Option<&str>) -> Result<String, WorkspaceError> {
        let revision = format!("{}^{{commit}}", base.unwrap_or("HEAD"));
        let question = ["rev-parse", "--verify", "--quiet", "--end-of-options", &revision];
        let project = self.project.clone();
        if let Some(base) = base.filter(|base| base.contains('\0')) {
            return Err(WorkspaceError::NoSuchBase { project, base: base.into() });
        }
        let git = self.git(git);
        let answer = git.try_run(&question)?;
        match (answer.success, base) {
            (true, _) => Ok(String::from_utf8_lossy(&answer.stdout).trim_end().to_owned()),
            // It is quiet where there is no such commit, and otherwise says what is in the way.
            (false, _) if !answer.stderr.is_empty() => Err(git.failed(&question, &answer.stderr)),
            (false, Some(base)) => Err(WorkspaceError::NoSuchBase { project, base: base.into() }),
            (false, None) => Err(WorkspaceError::NoCommits(project)),
        }
    }

    /// Makes the worktree in an empty directory, with the new branch in it. Returns what of the repository is its own.
    pub(super) fn add(
        &self,
        git: &Git,
        work: &Utf8Path,
        branch: &str,
        commit: &str,
    ) -> Result<Utf8PathBuf, WorkspaceError> {
        self.git(git).may_change().run(&["branch", "--no-track", "--", branch, commit])?;
        let made = self.add_and_check_out(git, work, branch);
        if made.is_err() {
            self.take_back(git, work, Some(branch));
        }
        made
    }

    fn add_and_check_out(
        &self,
        git: &Git,
        work: &Utf8Path,
        branch: &str,
    ) -> Result<Utf8PathBuf, WorkspaceError> {
        let order = ["worktree", "add", "--no-checkout", "--", work.as_str(), branch];
        let place = Pinned { work: Some(work.to_owned()), ..self.place() };
        self.run_in_turn(&git.at(place, &self.sandbox).may_change(), &order)?;
        let common = &self.found.common;
        let own = own_part(work, common).ok_or_else(|| {
            let why = b"the worktree that was made does not lead back to its repository";
            failed(&self.project, &order, why)
        })?;
        // This runs the filters that the repository names, and somebody else may have named them.
        let check_out = ["read-tree", "--reset", "-u", "HEAD"];
        self.at(git, &own, work).may_check_out().run(&check_out)?;
        Ok(own)
    }

    /// git for a worktree of this repository.
    fn at<'g>(&self, git: &'g Git, own: &Utf8Path, work: &Utf8Path) -> PinnedGit<'g> {
        let place = Pinned { own: own.to_owned(), work: Some(work.to_owned()), ..self.place() };
        git.at(place, &self.sandbox)
    }

    /// Removes what was made a moment ago, so that nothing half made is left. There is no work in it yet.
    pub(super) fn take_back(&self, git: &Git, work: &Utf8Path, branch: Option<&str>) {
        let own = own_part(work, &self.found.common);
        if let Some(error) = own.and_then(|own| forget(&own, work).err()) {
            tracing::debug!(project = %self.project, %error, "a part of the repository could not be taken back");
        }
        if let Some(branch) = branch {
            let fate = self.delete_branch(git, branch);
            if fate != BranchFate::Deleted {
                tracing::debug!(project = %self.project, ?fate, "a branch could not be taken back");
            }
        }
    }

    /// Deletes the branch if it carries nothing of its own.
    pub(super) fn delete_branch(&self, git: &Git, branch: &str) -> BranchFate {
        self.try_delete_branch(git, branch)
            .unwrap_or_else(|error| BranchFate::Refused { why: error.to_string() })
    }

    fn try_delete_branch(&self, git: &Git, branch: &str) -> Result<BranchFate, WorkspaceError> {
        let looking = self.git(git);
        if !looking.try_run(&is_branch(&ref_of(branch)))?.success {
            return Ok(BranchFate::Deleted);
        }
        let commits = own_commits(&looking, &[branch], branch)?;
        if commits > 0 {
            return Ok(BranchFate::Kept { commits });
        }
        self.run_in_turn(&self.git(git).may_change(), &["branch", "-D", "--", branch])?;
        Ok(BranchFate::Deleted)
    }

    /// Runs git where it looks at all worktrees, when no other thread of this process does. A person, a session or another
    /// host may be making a worktree: until that is whole git stops before it changes anything.
    fn run_in_turn(&self, git: &PinnedGit<'_>, order: &[&str]) -> Result<(), WorkspaceError> {
        let run = || {
            let _turn = turn();
            git.try_run(order)
        };
        let mut answer = run()?;
        for _ in 1..HALF_MADE_LOOKS {
            if answer.success || !is_stopped_by_half_made(&answer.stderr) {
                break;
            }
            thread::sleep(HALF_MADE_PAUSE);
            answer = run()?;
        }
        if answer.success { Ok(()) } else { Err(failed(&self.project, order, &answer.stderr)) }
    }
}

fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was written down of a worktree when it was made, before a session could lead it elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Its repository.
    pub(crate) common: Utf8PathBuf,
    /// What of that is its own; older worktrees do not say.
    pub(crate) own: Option<Utf8PathBuf>,
}

impl Noted {
    /// Reads it; `None` where there is none.
    pub(crate) fn read(dir: &SessionDir) -> Option<Self> {
        let text = fs::read_to_string(dir.repository()).ok()?;
        let mut lines = text.lines().map(Utf8PathBuf::from);
        Some(Self { common: lines.next()?, own: lines.next() })
    }

    /// Writes down what was made.
    pub(super) fn write(
        dir: &SessionDir,
        repository: &Repository,
        own: &Utf8Path,
    ) -> Result<(), WorkspaceError> {
        let (path, text) = (dir.repository(), format!("{}\n{own}\n", repository.found.common));
        replace(&path, text.as_bytes(), Outlives::Processes)
            .map_err(|error| WorkspaceError::io("write the file", &path, error))
    }

    /// The part of the repository that is this worktree's, whatever the worktree says by now.
    pub(super) fn own_part(&self, work: &Utf8Path) -> Option<Utf8PathBuf> {
        match &self.own {
            Some(own) => is_own_part(own, work).then(|| own.clone()),
            None => own_part(work, &self.common),
        }
    }
}

/// Takes down what a repository keeps of a worktree, by us: git would walk it by paths, ask whether it is locked, and look
/// at what sessions have put beside it.
pub(super) fn forget(own: &Utf8Path, work: &Utf8Path) -> Result<(), WorkspaceError> {
    let _turn = turn();
    if !is_own_part(own, work) {
        return Ok(());
    }
    remove_tree_plainly(own)?;
    // git takes the directory for all of them away with the last one; it is no link.
    let _others_are_left = own.parent().map(fs::remove_dir);
    Ok(())
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchFate {
    /// It carried nothing of its own.
    Deleted,
    /// It carries commits that no other branch, remote or tag has.
    Kept {
        /// How many.
        commits: u64,
    },
    /// It is kept because git would not delete it.
    Refused {
        /// Why.
        why: String,
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
pub fn inspect(git: &Git, dir: &SessionDir, sandbox: &SandboxSpec) -> WorktreeState {
    if !dir.work().is_dir() {
        return WorktreeState::Gone;
    }
    look(git, dir, sandbox).unwrap_or_else(|error| WorktreeState::Unknown { why: error.to_string() })
}

fn look(git: &Git, dir: &SessionDir, sandbox: &SandboxSpec) -> Result<WorktreeState, WorkspaceError> {
    let (work, branch) = (dir.work(), dir.branch());
    let nowhere = || WorkspaceError::NotARepository(work.clone());
    // Without this file it is not the session's worktree any more.
    if !work.join(".git").exists() {
        return Err(nowhere());
    }
    let noted = Noted::read(dir).or_else(|| Some(Noted { common: sandbox.repository.clone()?, own: None }));
    let (common, own) = match noted {
        Some(noted) => (noted.common.clone(), noted.own_part(&work).ok_or_else(nowhere)?),
        None => match discover(&work, |_| false) {
            Ok(Some(found)) => (found.common, found.own),
            Ok(None) | Err(_) => return Err(nowhere()),
        },
    };
    let place = Pinned { named: work.clone(), own: own.clone(), common, work: Some(work.clone()) };
    let git_there = git.at(place.clone(), sandbox);
    let status = [
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=none",
    ];
    let files = git_there.try_run(&status)?;
    if !files.success {
        return Err(git_there.failed(&status, &files.stderr));
    }
    let files = files.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).count();
    let has_branch = git_there.try_run(&is_branch(&ref_of(&branch)))?.success;
    let tips: &[&str] = if has_branch { &["HEAD", &branch] } else { &["HEAD"] };
    let commits = own_commits(&git_there, tips, &branch)?;
    if files == 0
        && commits == 0
        && let Some(why) = kept_inside(git, &place, sandbox)?
    {
        return Ok(WorktreeState::Unknown { why });
    }
    Ok(if files == 0 && commits == 0 {
        WorktreeState::Saved
    } else {
        WorktreeState::Unsaved { files, commits }
    })
}

/// What the repositories that would go with a worktree hold alone: those of its submodules, and others that lie in it.
fn kept_inside(git: &Git, place: &Pinned, sandbox: &SandboxSpec) -> Result<Option<String>, WorkspaceError> {
    let Some(work) = &place.work else { return Ok(None) };
    let Some(inside) = repositories_inside(work, &place.own) else {
        let why = "it holds more repositories than are looked at; push what is in them, then remove it with --force";
        return Ok(Some(why.to_owned()));
    };
    for inner in inside {
        let place = Pinned { own: inner.clone(), common: inner.clone(), work: None, ..place.clone() };
        let question = ["rev-list", "--count", "--all", "--not", "--remotes", "--tags", "--"];
        let commits = count(&git.at(place, sandbox), &question)?;
        if commits > 0 {
            return Ok(Some(format!(
                "{inner} would go with it, a submodule's or another repository with {commits} commits that no remote or tag \
                 has; push them, or remove it with --force"
            )));
        }
    }
    Ok(None)
}

fn ref_of(branch: &str) -> String {
    format!("refs/heads/{branch}")
}

/// The question whether there is such a branch.
fn is_branch(name: &str) -> [&str; 4] {
    ["show-ref", "--verify", "--quiet", name]
}

/// How many commits of the tips no other branch, remote or tag has.
fn own_commits(git: &PinnedGit<'_>, tips: &[&str], branch: &str) -> Result<u64, WorkspaceError> {
    let exclude = format!("--exclude={branch}");
    let mut question = vec!["rev-list", "--count"];
    question.extend_from_slice(tips);
    question.extend_from_slice(&["--not", &exclude, "--branches", "--remotes", "--tags", "--"]);
    count(git, &question)
}

fn count(git: &PinnedGit<'_>, question: &[&str]) -> Result<u64, WorkspaceError> {
    let count = git.run(question)?;
    count.parse().map_err(|_| git.failed(question, count.as_bytes()))
}
