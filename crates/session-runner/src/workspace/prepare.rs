//! Making the workspace of a session, or finding it again.

use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::guard::discover;
use session_core::sandbox::SandboxSpec;
use session_core::{SessionId, WorkspaceKind};

use super::error::WorkspaceError;
use super::git::Git;
use super::home;
use super::layout::{Layout, SessionDir};
use super::tree::{make_beneath, make_link, remove_tree};
use super::worktree::{Noted, Repository};
use crate::private;
use crate::scope::Settlement;

/// What workspace a session wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRequest {
    /// The session.
    pub session: SessionId,
    /// The kind.
    pub kind: WorkspaceKind,
    /// The project, for every kind but `scratch`.
    pub project: Option<Utf8PathBuf>,
    /// What a worktree begins from, as git names commits; the commit that is checked out, where it is `None`.
    pub base: Option<String>,
    /// Its sandbox, and the repository that was recorded with it: what is made for it is made in a sandbox too, as far as
    /// others have a say in it, and of that repository.
    pub sandbox: SandboxSpec,
    /// What this machine has made of its scope, to be kept with what is made for it.
    pub settlement: Option<Settlement>,
}

/// A workspace that can be worked in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Where everything of the session lies.
    pub dir: SessionDir,
    /// The kind.
    pub kind: WorkspaceKind,
    /// The directory that programs start in.
    pub cwd: Utf8PathBuf,
    /// The project, with symlinks resolved.
    pub project: Option<Utf8PathBuf>,
    /// The branch of a worktree.
    pub branch: Option<String>,
    /// It was there already.
    pub found: bool,
}

/// Whether a worktree can be made of this project: there is git, and the project is in a repository. Where that is kept
/// is looked at when the session is made. Changes nothing.
pub fn check_repository(git: &Git, project: &Utf8Path) -> Result<(), WorkspaceError> {
    git.version()?;
    // One that is not there is told by whoever makes something of it.
    let real = project.canonicalize_utf8().unwrap_or_else(|_| project.to_owned());
    match discover(&real, |_| true) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(WorkspaceError::NotARepository(project.to_owned())),
        Err(misleading) => Err(WorkspaceError::Misled { project: project.to_owned(), misleading }),
    }
}

/// Makes the workspace, or finds it again and sees that nothing is missing. When this fails nothing half made
/// is left behind, not even after a crash: the next call starts over.
///
/// Blocks, for as long as git takes to check out: on a runtime, call it from a thread that may.
pub fn prepare(layout: &Layout, git: &Git, request: &WorkspaceRequest) -> Result<Workspace, WorkspaceError> {
    let dir = layout.session(request.session);
    let project = project(request)?;
    let repository = match (&project, request.kind) {
        (Some(project), WorkspaceKind::Worktree) => Some(Repository::of(git, project, &request.sandbox)?),
        (Some(_) | None, WorkspaceKind::Scratch | WorkspaceKind::Worktree | WorkspaceKind::InPlace) => None,
    };
    let branch = repository.as_ref().map(|_| dir.branch());
    let plan = Plan { git, request, dir: &dir, repository: repository.as_ref() };
    for parent in [layout.data_dir().to_owned(), layout.sessions(), layout.outputs()] {
        make_directory(&parent)?;
    }
    if dir.making().exists() {
        plan.take_back(branch.as_deref())?;
    }
    let found = exists(dir.root())?;
    if found {
        plan.verify()?;
    } else {
        plan.make(branch.as_deref())?;
    }
    plan.make_parts()?;
    if let Some(project) = &project
        && !found
    {
        home::introduce(git, project, &request.sandbox, &dir.home())?;
    }
    let cwd = match (&project, &repository) {
        (Some(project), None) => project.clone(),
        (_, Some(repository)) if !repository.below.as_str().is_empty() => dir.work().join(&repository.below),
        (_, Some(_)) | (None, None) => dir.work(),
    };
    // Only a part of the project that is not committed can be missing from its worktree.
    if let Some(repository) = &repository {
        make_beneath(&dir.work(), &repository.below)?;
    }
    Ok(Workspace { dir, kind: request.kind, cwd, project, branch, found })
}

/// Whether a workspace was made here once, also if it is gone by now: what outlives it is there. Half of one is none, nobody
/// has worked in it.
pub fn was_made(dir: &SessionDir) -> Result<bool, WorkspaceError> {
    Ok((exists(dir.root())? || exists(dir.output_dir())?) && !exists(&dir.making())?)
}

/// The project that the kind needs, with symlinks resolved.
fn project(request: &WorkspaceRequest) -> Result<Option<Utf8PathBuf>, WorkspaceError> {
    let given = match (request.kind, &request.project) {
        (WorkspaceKind::Scratch, _) => return Ok(None),
        (kind @ (WorkspaceKind::Worktree | WorkspaceKind::InPlace), None) => {
            return Err(WorkspaceError::ProjectNeeded(kind));
        }
        (WorkspaceKind::Worktree | WorkspaceKind::InPlace, Some(given)) => given,
    };
    let real = fs::canonicalize(given).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return WorkspaceError::NoProject(given.clone());
        }
        WorkspaceError::io("open the project", given, error)
    })?;
    let real = Utf8PathBuf::from_path_buf(real).map_err(|_| WorkspaceError::NotUtf8(given.clone()))?;
    if !real.is_dir() {
        return Err(WorkspaceError::NotADirectory(given.clone()));
    }
    Ok(Some(real))
}

struct Plan<'a> {
    git: &'a Git,
    request: &'a WorkspaceRequest,
    dir: &'a SessionDir,
    repository: Option<&'a Repository>,
}

impl Plan<'_> {
    /// Makes root and work. A marker stands beside the root for as long as it takes.
    fn make(&self, branch: Option<&str>) -> Result<(), WorkspaceError> {
        let commit = match self.repository {
            Some(repository) => Some(repository.commit(self.git, self.request.base.as_deref())?),
            None => None,
        };
        let marker = self.dir.making();
        private::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&marker)
            .map_err(|error| WorkspaceError::io("create the file", &marker, error))?;
        if let Err(error) = self.make_work(branch, commit.as_deref()) {
            // What git could not make has been taken back already; of another's branch nothing is touched.
            self.take_back(None)?;
            return Err(error);
        }
        if let Err(error) = self.make_parts() {
            self.take_back(branch)?;
            return Err(error);
        }
        fs::remove_file(&marker).map_err(|error| WorkspaceError::io("remove the file", &marker, error))
    }

    fn make_work(&self, branch: Option<&str>, commit: Option<&str>) -> Result<(), WorkspaceError> {
        make_directory(self.dir.root())?;
        if let Some(settlement) = &self.request.settlement {
            let path = self.dir.settlement();
            let kept = settlement.write(self.dir);
            kept.map_err(|error| WorkspaceError::io("write the file", &path, error))?;
        }
        let work = self.dir.work();
        if self.request.kind == WorkspaceKind::InPlace {
            return Ok(());
        }
        make_directory(&work)?;
        let (Some(repository), Some(branch), Some(commit)) = (self.repository, branch, commit) else {
            return Ok(());
        };
        let own = repository.add(self.git, &work, branch, commit)?;
        // Before a session could lead its worktree elsewhere.
        let noted = Noted::write(self.dir, repository, &own);
        if noted.is_err() {
            repository.take_back(self.git, &work, Some(branch));
        }
        noted
    }

    /// Makes what a session may have removed itself, and nothing is lost by.
    fn make_parts(&self) -> Result<(), WorkspaceError> {
        for part in [self.dir.tmp(), self.dir.home(), self.dir.context()] {
            make_directory(&part)?;
        }
        make_directory(self.dir.output_dir())?;
        let link = self.dir.output_link();
        // Relative, so that a data directory can be moved as a whole.
        let target = format!("../../output/{}", self.dir.session());
        match make_link(&target, &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(WorkspaceError::io("create the link", &link, error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Sees that what a session works in is still there.
    fn verify(&self) -> Result<(), WorkspaceError> {
        let work = self.dir.work();
        let needed = match self.request.kind {
            WorkspaceKind::InPlace => return Ok(()),
            WorkspaceKind::Scratch => work,
            WorkspaceKind::Worktree if !work.is_dir() => work,
            WorkspaceKind::Worktree => work.join(".git"),
        };
        if !exists(&needed)? {
            return Err(WorkspaceError::Lost { session: self.dir.session(), path: needed });
        }
        if self.request.kind == WorkspaceKind::Scratch && !needed.is_dir() {
            return Err(WorkspaceError::NotADirectory(needed));
        }
        Ok(())
    }

    /// Removes what was half made. Nobody has worked in it.
    fn take_back(&self, branch: Option<&str>) -> Result<(), WorkspaceError> {
        if let Some(repository) = self.repository {
            repository.take_back(self.git, &self.dir.work(), branch);
        }
        remove_tree(self.dir.root())?;
        // The output directory goes only if it is empty, as one that was just made is.
        let _holds_something = fs::remove_dir(self.dir.output_dir());
        let marker = self.dir.making();
        fs::remove_file(&marker).map_err(|error| WorkspaceError::io("remove the file", &marker, error))
    }
}

/// Whether something is there, a dangling link included.
fn exists(path: &Utf8Path) -> Result<bool, WorkspaceError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(WorkspaceError::io("look at", path, error)),
    }
}

/// Makes a directory, and those above it, with mode 0700, unless it is there.
pub(super) fn make_directory(path: &Utf8Path) -> Result<(), WorkspaceError> {
    match private::make_directory(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(WorkspaceError::NotADirectory(path.to_owned()))
        }
        Err(error) => Err(WorkspaceError::io("create the directory", path, error)),
    }
}
