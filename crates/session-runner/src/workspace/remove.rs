//! Removing a workspace: what is worth keeping first, and so that a crash half way can be made good.

use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use session_core::sandbox::SandboxSpec;
use session_core::{SessionId, WorkspaceKind};

use super::archive;
use super::error::WorkspaceError;
use super::git::Git;
use super::layout::{Layout, SessionDir};
use super::tree::remove_tree;
use super::worktree::{BranchFate, Noted, Repository, WorktreeState, forget, inspect};

/// The ending of the name of a directory that is being removed.
const REMOVING: &str = ".removing";

/// What is to be removed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal<'a> {
    /// The session, which must have ended.
    pub session: SessionId,
    /// The kind of its workspace.
    pub kind: WorkspaceKind,
    /// The project of a worktree.
    pub project: Option<&'a Utf8Path>,
    /// Whether work that is saved nowhere else may go too.
    pub force: bool,
    /// Whether to archive the workspace before.
    pub archive: bool,
    /// The sandbox that has held the session, and the repository that was recorded with it: git looks at its tree in one
    /// too, and goes nowhere else.
    pub sandbox: &'a SandboxSpec,
}

/// What a removal came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// The archive.
    pub archive: Option<Utf8PathBuf>,
    /// What became of a worktree's branch; `None` where there is no repository to ask.
    pub branch: Option<BranchFate>,
}

/// Removes the workspace of a session that has ended. Output and archives stay; an `in-place` project is not
/// touched; links are removed and not followed. Calling it again after a crash finishes what was begun.
///
/// Blocks: on a runtime, call it from a thread that may.
pub fn remove(layout: &Layout, git: &Git, removal: &Removal<'_>) -> Result<Removed, WorkspaceError> {
    let dir = layout.session(removal.session);
    let mut removed = Removed::default();
    if is_directory(dir.root())? {
        let worktree = worktree(git, &dir, removal)?;
        if removal.archive {
            removed.archive = Some(archive::write(layout, &dir)?);
        }
        if removal.kind == WorkspaceKind::Worktree {
            // Known before its end of the way between the two is gone.
            let own = Noted::read(&dir).and_then(|noted| noted.own_part(&dir.work()));
            // By us: git would walk it by paths and by its stack.
            remove_tree(&dir.work())?;
            if let Some(own) = own {
                forget(&own, &dir.work())?;
            }
        }
        if let Some(repository) = &worktree {
            let fate = repository.delete_branch(git, &dir.branch());
            if let BranchFate::Refused { why } = &fate {
                tracing::warn!(session = %removal.session, branch = dir.branch(), why, "the branch of a worktree stays");
            }
            removed.branch = Some(fate);
        }
        remove_tree(&dir.removing())?;
        fs::rename(dir.root(), dir.removing())
            .map_err(|error| WorkspaceError::io("rename", dir.root(), error))?;
    }
    remove_tree(&dir.removing())?;
    Ok(removed)
}

/// Finishes all removals that a crash has left half done; those it finished. For the start of a host.
pub fn finish_removals(layout: &Layout) -> Result<Vec<SessionId>, WorkspaceError> {
    let sessions = layout.sessions();
    let entries = match sessions.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(WorkspaceError::io("list", &sessions, error)),
    };
    let mut finished = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| WorkspaceError::io("list", &sessions, error))?;
        let session = entry.file_name().strip_suffix(REMOVING).and_then(|id| id.parse::<SessionId>().ok());
        let Some(session) = session else { continue };
        match remove_tree(entry.path()) {
            Ok(()) => finished.push(session),
            // It takes room, and nothing more; a host must not be kept from starting by what a session has left.
            Err(error) => {
                tracing::warn!(%session, %error, "the removal of a workspace could not be finished");
            }
        }
    }
    Ok(finished)
}

/// The repository of a worktree that may be removed; `None` if there is none to speak of any more.
fn worktree(
    git: &Git,
    dir: &SessionDir,
    removal: &Removal<'_>,
) -> Result<Option<Repository>, WorkspaceError> {
    if removal.kind != WorkspaceKind::Worktree {
        return Ok(None);
    }
    if !removal.force {
        let state = inspect(git, dir, removal.sandbox);
        match state {
            WorktreeState::Gone | WorktreeState::Saved => {}
            WorktreeState::Unsaved { .. } | WorktreeState::Unknown { .. } => {
                return Err(WorkspaceError::InUse { path: dir.work(), why: state.to_string() });
            }
        }
    }
    // A project that was removed or moved has no say in it; its worktree is a directory like any other.
    let Some(project) = removal.project.filter(|project| project.is_dir()) else { return Ok(None) };
    match Repository::of(git, project, removal.sandbox) {
        Ok(repository) => Ok(Some(repository)),
        Err(WorkspaceError::NotARepository(_)) => Ok(None),
        // What leads elsewhere by now has no say either, and is not gone to.
        Err(WorkspaceError::Misled { .. } | WorkspaceError::AnotherRepository { .. }) if removal.force => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether it is there. What is no directory of ours is refused.
fn is_directory(path: &Utf8Path) -> Result<bool, WorkspaceError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(true),
        Ok(_) => Err(WorkspaceError::NotADirectory(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(WorkspaceError::io("look at", path, error)),
    }
}
