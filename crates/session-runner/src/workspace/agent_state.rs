//! `agent.json`: what an agent has counted up in the conversation that a session is bound to. It stands beside the agent's
//! own files, on the machine that has them: where they are gone, it means nothing.

use std::fs;
use std::io;

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use session_core::names::{ExecutorSessionId, ExecutorType};

use super::file::{Outlives, replace};

/// The longest file that is read, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// What an agent has counted up in one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentState {
    /// The agent.
    pub(crate) executor: ExecutorType,
    /// Its id of the conversation.
    pub(crate) executor_session_id: ExecutorSessionId,
    /// Tokens, in its own count.
    pub(crate) tokens: u64,
    /// Cost in millionths of a US dollar, in its own count.
    pub(crate) cost_micros: u64,
}

impl AgentState {
    /// What is recorded; `None` where nothing is that can be read: then the agent's count begins at nothing.
    pub(crate) fn read(path: &Utf8Path) -> Option<Self> {
        fs::metadata(path).ok().filter(|data| data.len() <= FILE_MAX)?;
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Records it, whole or not at all. The file is its owner's only.
    pub(crate) fn write(&self, path: &Utf8Path) -> io::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        replace(path, &text, Outlives::Processes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap().join("agent.json");
        assert_eq!(AgentState::read(&path), None);
        let state = AgentState {
            executor: "codex".parse().unwrap(),
            executor_session_id: "01a2".parse().unwrap(),
            tokens: 7,
            cost_micros: 9,
        };
        state.write(&path).unwrap();
        assert_eq!(AgentState::read(&path), Some(state));
        for bad in ["", "{}", "nul\0"] {
            fs::write(&path, bad).unwrap();
            assert_eq!(AgentState::read(&path), None, "{bad:?}");
        }
    }
}
