//! `session.json`: what people and scripts see of a session. The database is the truth; this file is written
//! and never read back.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use session_core::{RunId, SessionId};

use super::file::{Outlives, replace};
use crate::process::Exit;

/// The file. Fields may be added within a version; a reader ignores what it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionMetadata {
    /// The version of this format, [`SessionMetadata::VERSION`].
    pub v: u32,
    /// The session.
    pub id: SessionId,
    /// Free text for people.
    pub label: Option<String>,
    /// The agent that works in it.
    pub agent: Option<String>,
    /// The session's state: `active`, `idle`, `suspended` or `terminated`.
    pub state: String,
    /// Its last run.
    pub last_run: Option<RunMetadata>,
    /// Its working directory.
    pub workspace: WorkspaceMetadata,
    /// When it was created.
    pub created_at: Timestamp,
    /// When this file was written.
    pub updated_at: Timestamp,
    /// Whatever its creator wants to remember.
    pub metadata: serde_json::Value,
}

impl SessionMetadata {
    /// The version that is written.
    pub const VERSION: u32 = 1;

    /// Writes the file, whole or not at all.
    pub fn write(&self, path: &Utf8Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        replace(path, &text, Outlives::TheMachine)
    }
}

/// The last run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunMetadata {
    /// The run.
    pub id: RunId,
    /// Its state.
    pub state: String,
    /// Why it ended, where it did not just complete.
    pub reason: Option<String>,
    /// What its program came to.
    pub exit: Option<Exit>,
    /// The program and its arguments.
    pub argv: Vec<String>,
}

/// The working directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkspaceMetadata {
    /// `scratch`, `worktree` or `in-place`.
    pub kind: String,
    /// The directory that programs start in.
    pub cwd: Utf8PathBuf,
    /// The project, for every kind but `scratch`.
    pub project: Option<Utf8PathBuf>,
    /// The branch of a worktree.
    pub branch: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn example() -> SessionMetadata {
        SessionMetadata {
            v: SessionMetadata::VERSION,
            id: "ses_0123456789abcdef0123456789abcdef".parse().unwrap(),
            label: Some("nightly \"build\"\n$(id)".into()),
            agent: None,
            state: "idle".into(),
            last_run: Some(RunMetadata {
                id: "run_0123456789abcdef0123456789abcdef".parse().unwrap(),
                state: "failed".into(),
                reason: Some("exit_nonzero".into()),
                exit: Some(Exit::Code(3)),
                argv: vec!["sh".into(), "-c".into(), "echo \"'\n".into()],
            }),
            workspace: WorkspaceMetadata {
                kind: "scratch".into(),
                cwd: "/w".into(),
                project: None,
                branch: None,
            },
            created_at: "2026-11-21T04:31:00.123Z".parse().unwrap(),
            updated_at: "2026-11-21T04:32:00Z".parse().unwrap(),
            metadata: serde_json::json!({"ticket": [1, null, "\u{1}"]}),
        }
    }

    #[test]
    fn the_file_is_whole_private_and_says_everything_verbatim() {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap().join("session.json");
        fs::write(&path, "an older one").unwrap();
        example().write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<SessionMetadata>(&text).unwrap(), example());
        assert!(text.contains(r#""created_at": "2026-11-21T04:31:00.123Z""#), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_directory_that_cannot_be_written_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap().join("gone/session.json");
        assert_eq!(example().write(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
