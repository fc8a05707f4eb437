//! Where everything of a session lies. Only parsed ids form paths, so that no text of a caller can.

use camino::{Utf8Path, Utf8PathBuf};
use session_core::SessionId;

/// The data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data_dir: Utf8PathBuf,
}

impl Layout {
    /// The layout below this directory, which should be absolute. Nothing is made.
    pub fn new(data_dir: impl Into<Utf8PathBuf>) -> Self {
        Self { data_dir: data_dir.into() }
    }

    /// The data directory itself.
    #[must_use]
    pub fn data_dir(&self) -> &Utf8Path {
        &self.data_dir
    }

    /// Where the workspaces are.
    #[must_use]
    pub fn sessions(&self) -> Utf8PathBuf {
        self.data_dir.join("sessions")
    }

    /// Where the output directories are.
    #[must_use]
    pub fn outputs(&self) -> Utf8PathBuf {
        self.data_dir.join("output")
    }

    /// Where archives of removed workspaces are.
    #[must_use]
    pub fn archives(&self) -> Utf8PathBuf {
        self.data_dir.join("archive")
    }

    /// The archive of this session.
    #[must_use]
    pub fn archive(&self, session: SessionId) -> Utf8PathBuf {
        self.archives().join(format!("{session}.tar.zst"))
    }

    /// The directory of this session, whether it exists or not.
    #[must_use]
    pub fn session(&self, session: SessionId) -> SessionDir {
        SessionDir {
            session,
            root: self.sessions().join(session.to_string()),
            output: self.outputs().join(session.to_string()),
        }
    }
}

/// The directory of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionDir {
    session: SessionId,
    root: Utf8PathBuf,
    output: Utf8PathBuf,
}

impl SessionDir {
    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The directory that holds all but the output.
    #[must_use]
    pub fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// The working directory of a `scratch` or `worktree` session.
    #[must_use]
    pub fn work(&self) -> Utf8PathBuf {
        self.root.join("work")
    }

    /// The private `TMPDIR`.
    #[must_use]
    pub fn tmp(&self) -> Utf8PathBuf {
        self.root.join("tmp")
    }

    /// The link to [`output_dir`](Self::output_dir).
    #[must_use]
    pub fn output_link(&self) -> Utf8PathBuf {
        self.root.join("output")
    }

    /// The output itself. It lies apart, so that the cleanup of the workspace keeps it.
    #[must_use]
    pub fn output_dir(&self) -> &Utf8Path {
        &self.output
    }

    /// The log; the files of its rotation lie beside it.
    #[must_use]
    pub fn log(&self) -> Utf8PathBuf {
        self.root.join("log")
    }

    /// `session.json`, for people and scripts.
    #[must_use]
    pub fn metadata(&self) -> Utf8PathBuf {
        self.root.join("session.json")
    }

    /// The private `HOME` of programs in a sandbox.
    #[must_use]
    pub fn home(&self) -> Utf8PathBuf {
        self.root.join("home")
    }

    /// What the host tells the session's programs. They can read it, and in a sandbox not change it.
    #[must_use]
    pub fn context(&self) -> Utf8PathBuf {
        self.root.join("context")
    }

    /// `history.json`: the conversation that the session was resumed with, for the program that goes on with it.
    #[must_use]
    pub fn history(&self) -> Utf8PathBuf {
        self.context().join("history.json")
    }

    /// Holds the socket of the session's proxy, where it has one, and nothing else.
    #[must_use]
    pub fn egress(&self) -> Utf8PathBuf {
        self.root.join("egress")
    }

    /// Which repository a worktree is of, as it was when the worktree was made. No session can write it.
    #[must_use]
    pub fn repository(&self) -> Utf8PathBuf {
        self.root.join("repository")
    }

    /// What this machine has made of the session's scope, where its record leaves that to the machine. No session in a sandbox
    /// can write it.
    #[must_use]
    pub fn settlement(&self) -> Utf8PathBuf {
        self.root.join("scope.json")
    }

    /// What the session's agent has counted up in its own conversation. No session can write it.
    #[must_use]
    pub fn agent_state(&self) -> Utf8PathBuf {
        self.root.join("agent.json")
    }

    /// The state file of the last run's keeper.
    #[must_use]
    pub fn keeper_state(&self) -> Utf8PathBuf {
        self.root.join("keeper.json")
    }

    /// Beside the root, for as long as the workspace is being made: if it is there after a crash, what was
    /// made is half of one, and nobody has worked in it yet.
    pub(super) fn making(&self) -> Utf8PathBuf {
        Utf8PathBuf::from(format!("{}.making", self.root))
    }

    /// What the root is called while it is being removed.
    pub(super) fn removing(&self) -> Utf8PathBuf {
        Utf8PathBuf::from(format!("{}.removing", self.root))
    }

    /// The branch of a worktree session.
    #[must_use]
    pub fn branch(&self) -> String {
        let id = self.session.to_string();
        let digits = id.split_once('_').map_or(id.as_str(), |(_, digits)| digits);
        format!("roomette/{}", digits.chars().take(12).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_its_place() {
        let id: SessionId = "ses_0123456789abcdef0123456789abcdef".parse().unwrap();
        let layout = Layout::new("/data");
        let dir = layout.session(id);
        assert_eq!(dir.root(), "/data/sessions/ses_0123456789abcdef0123456789abcdef");
        assert_eq!(dir.work(), dir.root().join("work"));
        assert_eq!(dir.output_dir(), "/data/output/ses_0123456789abcdef0123456789abcdef");
        assert_eq!(dir.branch(), "roomette/0123456789ab");
        assert_eq!(layout.archive(id), "/data/archive/ses_0123456789abcdef0123456789abcdef.tar.zst");
        assert_eq!(dir.removing(), "/data/sessions/ses_0123456789abcdef0123456789abcdef.removing");
    }
}
