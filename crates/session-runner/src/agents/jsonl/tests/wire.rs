//! An agent at the other end of a pair of pipes, and the turn that is held with it.

use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, duplex};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agents::asking::Answer;
use crate::agents::bounds::Bounds;
use crate::agents::desk::Wire;
use crate::agents::ending::TurnEnd;
use crate::agents::framework::Framework;
use crate::agents::testing::{Recorder, turn};
use crate::agents::turn::Turn;

/// The agent's end of the wire.
pub(super) struct Agent {
    stdout: Option<DuplexStream>,
    stdin: Lines<BufReader<DuplexStream>>,
}

/// A turn that is being held.
pub(super) struct Held {
    pub(super) agent: Agent,
    pub(super) desk: Arc<Recorder>,
    pub(super) cancel: CancellationToken,
    pub(super) end: JoinHandle<TurnEnd>,
}

impl Held {
    pub(super) fn new(framework: Framework, turn: Turn, bounds: Bounds, desk: Arc<Recorder>) -> Self {
        let (from_agent, stdout) = duplex(1 << 10);
        let (to_agent, stdin) = duplex(1 << 10);
        let wire = Wire { from_agent: Box::new(from_agent), to_agent: Box::new(to_agent) };
        let cancel = CancellationToken::new();
        let dialogue = framework.dialogue(turn, bounds);
        let (heard, token) = (Arc::clone(&desk), cancel.clone());
        let end = tokio::spawn(async move { dialogue.hold(wire, heard, token).await });
        let agent = Agent { stdout: Some(stdout), stdin: BufReader::new(stdin).lines() };
        Self { agent, desk, cancel, end }
    }

    pub(super) fn claude(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::new(Framework::ClaudeCode, turn(), Bounds::default(), Recorder::answering(answers))
    }
}

impl Agent {
    pub(super) async fn say(&mut self, line: &str) {
        let stdout = self.stdout.as_mut().unwrap();
        // Nobody may be listening any more.
        drop(stdout.write_all(format!("{line}\n").as_bytes()).await);
    }

    pub(super) async fn hear(&mut self) -> Option<Value> {
        self.stdin.next_line().await.unwrap().map(|line| serde_json::from_str(&line).unwrap())
    }

    pub(super) fn die(&mut self) {
        self.stdout = None;
    }
}
