//! The two sides of a dialogue: the agent's stdio, and the run that it belongs to.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::asking::{Answer, Ask};
use super::ending::TurnEnd;
use super::said::Said;

/// The stdio of an agent: what it says, and what is said to it. What it writes to stderr is not here.
pub(crate) struct Wire {
    /// Its stdout.
    pub(crate) from_agent: Box<dyn AsyncRead + Send + Unpin>,
    /// Its stdin. The dialogue closes it when it has nothing more to say.
    pub(crate) to_agent: Box<dyn AsyncWrite + Send + Unpin>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

/// Whom a dialogue tells what the agent says, and asks on its behalf.
#[async_trait]
pub(crate) trait Desk: Send + Sync {
    /// Takes what was said, in order. Nothing more is read from the agent until this returns, and the dialogue waits for it
    /// also when the turn is over or cancelled: how long a store may be out of reach is the desk's to decide.
    async fn said(&self, said: Said);

    /// Asks for an answer, however long it takes. The dialogue goes on meanwhile, also with other questions. When
    /// `withdrawn` fires the agent no longer wants to know: the desk takes the question back and returns, with any answer.
    async fn ask(&self, ask: Ask, withdrawn: CancellationToken) -> Answer;
}

/// Holds one turn.
#[async_trait]
pub(crate) trait Dialogue: Send {
    /// Holds the turn over the agent's stdio, to its end.
    ///
    /// When `cancel` fires the agent is interrupted in the way that it has, open questions are withdrawn, and its own end
    /// is waited for, within bounds. Ending the processes is the caller's, whatever the turn came to.
    async fn hold(self: Box<Self>, wire: Wire, desk: Arc<dyn Desk>, cancel: CancellationToken) -> TurnEnd;
}
