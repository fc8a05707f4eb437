//! What can go wrong with a workspace. Every error names its path.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::guard::Misleading;
use session_core::{SessionId, WorkspaceKind};
use thiserror::Error;

/// Why a workspace could not be made, found again or removed.
#[derive(Debug, Error)]
pub enum WorkspaceError {
    /// The kind needs a project.
    #[error("a workspace of kind {0} needs a project directory: name one")]
    ProjectNeeded(WorkspaceKind),
    /// There is no such project.
    #[error("the project {0} does not exist")]
    NoProject(Utf8PathBuf),
    /// Something else is where a directory must be.
    #[error("{0} is not a directory")]
    NotADirectory(Utf8PathBuf),
    /// The path leads through something that is not UTF-8.
    #[error("{0} leads to a path that is not UTF-8")]
    NotUtf8(Utf8PathBuf),
    /// Writing is not allowed there.
    #[error("cannot write to {path}: {why}")]
    NotWritable {
        /// Where.
        path: Utf8PathBuf,
        /// A read-only file system, or missing permission.
        why: &'static str,
    },
    /// There is no room.
    #[error("no space is left for {0}")]
    Full(Utf8PathBuf),
    /// A worktree needs a repository.
    #[error(
        "the project {0} is not in a git repository: make one (git init), or use another kind of workspace"
    )]
    NotARepository(Utf8PathBuf),
    /// The way to the repository may have been laid by somebody else.
    #[error(
        "the project {project} cannot be worked on by the host's git: {misleading}; look at who put it there, and put back \
         what was there"
    )]
    Misled {
        /// The project or the worktree.
        project: Utf8PathBuf,
        /// What leads elsewhere.
        misleading: Misleading,
    },
    /// It is not the repository that the session was given.
    #[error(
        "the project {project} leads to the repository {found} now, and {given} is the one that its session was given: put it \
         back, or make a new session"
    )]
    AnotherRepository {
        /// The project or the worktree.
        project: Utf8PathBuf,
        /// The repository that is found.
        found: Utf8PathBuf,
        /// The recorded one.
        given: Utf8PathBuf,
    },
    /// A worktree needs a commit.
    #[error(
        "the git repository of {0} has no commits, so there is nothing to work from: commit something first"
    )]
    NoCommits(Utf8PathBuf),
    /// The commit to begin from does not exist.
    #[error("{base:?} names no commit in the git repository of {project}")]
    NoSuchBase {
        /// The project.
        project: Utf8PathBuf,
        /// What was to be the beginning.
        base: String,
    },
    /// git is not installed, or not in the `PATH`.
    #[error("git was not found: install it, or see that it is in the PATH of the host")]
    NoGit,
    /// git refused.
    #[error("git {command} failed in the project {project}: {said}")]
    Git {
        /// The project.
        project: Utf8PathBuf,
        /// What git was to do.
        command: String,
        /// What it said.
        said: String,
    },
    /// A session that had a workspace has lost it.
    #[error("the workspace of {session} is gone: {path} does not exist any more")]
    Lost {
        /// The session.
        session: SessionId,
        /// What is missing.
        path: Utf8PathBuf,
    },
    /// It holds work that a removal would destroy.
    #[error("{path} is kept: {why}")]
    InUse {
        /// The worktree.
        path: Utf8PathBuf,
        /// What would be lost.
        why: String,
    },
    /// Anything else that the system says.
    #[error("cannot {doing} {path}")]
    Io {
        /// What was to be done, such as `create the directory`.
        doing: &'static str,
        /// To what.
        path: Utf8PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl WorkspaceError {
    /// The error for what the system said, told apart by what a person can do about it.
    pub(super) fn io(doing: &'static str, path: &Utf8Path, source: io::Error) -> Self {
        let path = path.to_owned();
        let kind = source.kind();
        if kind == io::ErrorKind::NotADirectory {
            Self::NotADirectory(path)
        } else if kind == io::ErrorKind::ReadOnlyFilesystem {
            Self::NotWritable { path, why: "the file system is read-only" }
        } else if kind == io::ErrorKind::PermissionDenied {
            Self::NotWritable { path, why: "permission denied" }
        } else if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            Self::Full(path)
        } else {
            Self::Io { doing, path, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_can_do_about_it_is_told_apart() {
        let check = |kind: io::ErrorKind, expect: &str| {
            let error = WorkspaceError::io("create the directory", Utf8Path::new("/data/x"), kind.into());
            assert_eq!(error.to_string(), expect);
        };
        check(io::ErrorKind::StorageFull, "no space is left for /data/x");
        check(io::ErrorKind::QuotaExceeded, "no space is left for /data/x");
        check(io::ErrorKind::ReadOnlyFilesystem, "cannot write to /data/x: the file system is read-only");
        check(io::ErrorKind::PermissionDenied, "cannot write to /data/x: permission denied");
        check(io::ErrorKind::NotADirectory, "/data/x is not a directory");
        check(io::ErrorKind::Interrupted, "cannot create the directory /data/x");
    }
}
