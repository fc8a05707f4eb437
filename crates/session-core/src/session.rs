//! A session as a value: what is stored of it, apart from whatever is alive behind it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// What kind of directory a session works in (SPEC section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkspaceKind {
    /// A fresh, empty directory.
    Scratch,
    /// A git worktree of the project, on a branch of its own.
    Worktree,
    /// The project directory itself.
    InPlace,
}

impl WorkspaceKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Scratch, Self::Worktree, Self::InPlace];

    /// The name in files, rows and options.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scratch => "scratch",
            Self::Worktree => "worktree",
            Self::InPlace => "in-place",
        }
    }
}

impl fmt::Display for WorkspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no kind of workspace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no kind of workspace: scratch, worktree or in-place")]
pub struct UnknownWorkspaceKind(String);

impl FromStr for WorkspaceKind {
    type Err = UnknownWorkspaceKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownWorkspaceKind(crate::ids::excerpt(text)))
    }
}
