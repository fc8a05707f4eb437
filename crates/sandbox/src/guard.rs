//! Names in a workspace that later run code outside: which to protect, and which have appeared or changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Names that editors, agents and shells act on when somebody opens the workspace or works in it.
const WATCHED: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".codex/config.toml",
    ".cursor/mcp.json",
    ".envrc",
    ".gitmodules",
    ".idea/workspace.xml",
    ".mcp.json",
    ".npmrc",
    ".profile",
    ".vscode/extensions.json",
    ".vscode/launch.json",
    ".vscode/settings.json",
    ".vscode/tasks.json",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];
/// What of a repository decides which programs git starts.
const OF_GIT: &[&str] = &["commondir", "config", "config.worktree", "hooks", "modules"];
/// Those that every repository has; where one is missing, the report says that it is not protected.
const ALWAYS_OF_GIT: &[&str] = &["config", "hooks"];
/// A pointer file of a worktree is one short line.
const POINTER_BYTES_MAX: u64 = 8 << 10;
/// How much of a file is read to tell whether it changed, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How many entries of a protected directory are looked at.
const ENTRIES_MAX: usize = 4096;

/// The paths of the repository in `workspace` by which a session could have git run something outside: hooks and
/// configuration, and more where it exists. In a worktree it is the pointer file; the repository behind it, see
/// [`common_git_directory`], has such paths of its own.
///
/// A name that does not exist cannot be protected. One of them is worth a look after every session: with a file
/// `.git/commondir` git takes hooks and configuration from elsewhere. [`Watch`] tells of it.
#[must_use]
pub fn git_paths(workspace: &Utf8Path) -> Vec<Utf8PathBuf> {
    let git = workspace.join(".git");
    match fs::symlink_metadata(&git) {
        Ok(data) if data.is_dir() => {
            let matters = |name: &&&str| ALWAYS_OF_GIT.contains(name) || exists(&git.join(name));
            OF_GIT.iter().filter(matters).map(|name| git.join(name)).collect()
        }
        Ok(data) if data.is_file() => vec![git],
        Ok(_) | Err(_) => vec![],
    }
}

/// The directory of the repository that a worktree's `.git` file points to, and which git must be able to write:
/// `…/.git` of `…/.git/worktrees/name`. `None` where `.git` is a directory or no pointer.
#[must_use]
pub fn common_git_directory(workspace: &Utf8Path) -> Option<Utf8PathBuf> {
    let text = read(&workspace.join(".git"), POINTER_BYTES_MAX).ok()?;
    let pointer = String::from_utf8(text).ok()?;
    let target = Utf8PathBuf::from(pointer.trim_end().strip_prefix("gitdir: ")?);
    let worktrees = target.parent()?;
    (target.is_absolute() && worktrees.file_name() == Some("worktrees"))
        .then(|| worktrees.parent())?
        .map(Into::into)
}

/// How the watched names of a workspace looked at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    workspace: Utf8PathBuf,
    seen: BTreeMap<Utf8PathBuf, String>,
}

/// A watched name that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The path.
    pub path: Utf8PathBuf,
    /// What became of it.
    pub kind: ChangeKind,
}

/// What became of a watched name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there before.
    Appeared,
    /// It has other content, or is another kind of file.
    Changed,
    /// It is gone.
    Vanished,
}

impl Watch {
    /// Looks at the workspace before a session. Reads no more than a megabyte of each file.
    #[must_use]
    pub fn before(workspace: &Utf8Path) -> Self {
        Self { workspace: workspace.to_owned(), seen: look(workspace) }
    }

    /// What is different now: to be shown to whoever goes on working there.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let now = look(&self.workspace);
        let mut changes = Vec::new();
        for (path, mark) in &now {
            match self.seen.get(path) {
                None => changes.push(Change { path: path.clone(), kind: ChangeKind::Appeared }),
                Some(before) if before != mark => {
                    changes.push(Change { path: path.clone(), kind: ChangeKind::Changed });
                }
                Some(_) => {}
            }
        }
        let gone = self.seen.keys().filter(|path| !now.contains_key(*path));
        changes.extend(gone.map(|path| Change { path: path.clone(), kind: ChangeKind::Vanished }));
        changes
    }
}

fn look(workspace: &Utf8Path) -> BTreeMap<Utf8PathBuf, String> {
    let mut paths: Vec<_> = WATCHED.iter().map(|name| workspace.join(name)).collect();
    let git = workspace.join(".git");
    paths.extend(OF_GIT.iter().map(|name| git.join(name)));
    let hooks =
        fs::read_dir(git.join("hooks")).into_iter().flatten().filter_map(Result::ok).take(ENTRIES_MAX);
    paths.extend(hooks.filter_map(|entry| Utf8PathBuf::from_path_buf(entry.path()).ok()));
    paths.push(git);
    paths.into_iter().filter_map(|path| mark(&path).map(|mark| (path, mark))).collect()
}

/// What a path is, in a form that can be compared; `None` if it is not there.
fn mark(path: &Utf8Path) -> Option<String> {
    let data = fs::symlink_metadata(path).ok()?;
    Some(if data.is_symlink() {
        format!("link to {:?}", fs::read_link(path).ok())
    } else if data.is_file() {
        let content = read(path, FILE_BYTES_MAX).unwrap_or_default();
        format!("file of {} bytes, {:?}", data.len(), Sha256::digest(content))
    } else if data.is_dir() {
        "directory".to_owned()
    } else {
        "special file".to_owned()
    })
}

fn read(path: &Utf8Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // A fifo in the place of a file would keep the reader waiting.
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut content)?;
    Ok(content)
}

fn exists(path: &Utf8Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Utf8PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        (directory, path)
    }

    #[test]
    fn what_is_there_of_a_repository_is_protected() {
        let (_directory, path) = place();
        assert_eq!(git_paths(&path), [] as [Utf8PathBuf; 0]);
        fs::create_dir_all(path.join(".git/hooks")).unwrap();
        fs::write(path.join(".git/config"), "").unwrap();
        assert_eq!(git_paths(&path), [path.join(".git/config"), path.join(".git/hooks")]);
        assert_eq!(common_git_directory(&path), None);
    }

    #[test]
    fn a_worktree_points_to_its_repository() {
        let (_directory, path) = place();
        fs::write(path.join(".git"), "gitdir: /srv/repo/.git/worktrees/x\n").unwrap();
        assert_eq!(git_paths(&path), [path.join(".git")]);
        assert_eq!(common_git_directory(&path), Some("/srv/repo/.git".into()));
        fs::write(path.join(".git"), "gitdir: ../elsewhere\n").unwrap();
        assert_eq!(common_git_directory(&path), None);
    }

    #[test]
    fn what_appears_changes_and_vanishes_is_told() {
        let (_directory, path) = place();
        fs::create_dir_all(path.join(".git/hooks")).unwrap();
        fs::write(path.join(".git/config"), "[core]").unwrap();
        fs::write(path.join(".envrc"), "").unwrap();
        let watch = Watch::before(&path);
        assert_eq!(watch.changes(), []);
        fs::create_dir(path.join(".vscode")).unwrap();
        fs::write(path.join(".vscode/tasks.json"), "{}").unwrap();
        fs::write(path.join(".git/hooks/pre-commit"), "").unwrap();
        fs::write(path.join(".git/config"), "[evil]").unwrap();
        fs::remove_file(path.join(".envrc")).unwrap();
        let change = |name: &str, kind| Change { path: path.join(name), kind };
        let mut changes = watch.changes();
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        assert_eq!(
            changes,
            [
                change(".envrc", ChangeKind::Vanished),
                change(".git/config", ChangeKind::Changed),
                change(".git/hooks/pre-commit", ChangeKind::Appeared),
                change(".vscode/tasks.json", ChangeKind::Appeared),
            ]
        );
    }
}
