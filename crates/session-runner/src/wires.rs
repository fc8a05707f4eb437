//! Where the pipes of a run go whose program a bridge of the same host speaks with.

use std::fmt;

use async_trait::async_trait;
use session_core::run::Ending;
use session_core::{RunId, SessionId};
use tokio_util::sync::CancellationToken;

use crate::process::Ends;

/// The program of a run, for whoever speaks with it.
#[derive(Debug)]
pub struct Wire {
    /// Its stdin to write and its stdout to read. Nobody else reads or keeps what goes through them.
    pub ends: Ends,
    /// To be cancelled when the program is to end. Its stdin is closed by then: it has a quarter of a second to go by
    /// itself, then SIGTERM comes, and SIGKILL as long after that. The whole tree is gone within a second.
    pub stop: CancellationToken,
}

/// Nobody waits for the program of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwanted;

/// Takes the pipes of runs of the executor `mcp`. The composition root gives one to the runner of a host that has a bridge;
/// without it no such run is executed.
#[async_trait]
pub trait Wires: Send + Sync + fmt::Debug + 'static {
    /// The program of this run of a session is there.
    async fn take(&self, session: SessionId, run: RunId, wire: Wire) -> Result<(), Unwanted>;

    /// The run is over, and nothing of it is left; also where its program never came to be. `None` where what it came to is
    /// not for this host to say.
    async fn over(&self, session: SessionId, run: RunId, ending: Option<&Ending>);
}
