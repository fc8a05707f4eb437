//! The executor `mcp`: a program whose stdin and stdout are handed to the bridge of this host. What goes over them is not in
//! the log; what it writes to stderr is.

use std::sync::Arc;
use std::time::Duration;

use session_core::run::{EndKind, Ending, ReasonCode};
use session_manager::recovery;
use tokio_util::sync::CancellationToken;

use super::execution::{Came, Execution, end_now};
use crate::process::Supervised;
use crate::wires::{Unwanted, Wire, Wires};

/// How long a program whose stdin is closed has to go by itself.
const MOMENT: Duration = Duration::from_millis(250);
/// Between SIGTERM and SIGKILL, for one that did not.
const GRACE: Duration = Duration::from_millis(250);

impl Execution {
    /// Who takes the pipes of the run's program.
    pub(super) fn wires(&self) -> Result<&Arc<dyn Wires>, Ending> {
        self.wires.as_ref().ok_or_else(|| {
            failed("this host has no bridge, and what an MCP server says is for one: `roomette bridge` has")
        })
    }

    /// Hands the program out, and watches it until its tree has ended.
    pub(super) async fn bridge(&mut self, mut supervised: Supervised) -> Came {
        let ends = supervised.take_ends().ok_or_else(|| failed("its keeper handed out no pipes"));
        let taken = ends.and_then(|ends| Ok((ends, self.wires()?)));
        let (ends, wires) = match taken {
            Ok(taken) => taken,
            Err(ending) => {
                end_now(supervised).await;
                return Came::ToEnd(ending, None);
            }
        };
        let stop = CancellationToken::new();
        let wire = Wire { ends, stop: stop.clone() };
        if let Err(Unwanted) = wires.take(self.session.id, self.run.id, wire).await {
            end_now(supervised).await;
            return Came::ToEnd(recovery::stopped(None), None);
        }
        let let_go = async move {
            stop.cancelled().await;
            tokio::time::sleep(MOMENT).await;
            GRACE
        };
        self.supervise(supervised, let_go).await
    }

    /// Tells whoever took the pipes that the run is over.
    pub(super) async fn tell_over(&self, ending: Option<&Ending>) {
        if self.run.affinity.executor.is_mcp()
            && let Some(wires) = &self.wires
        {
            wires.over(self.session.id, self.run.id, ending).await;
        }
    }
}

fn failed(message: &str) -> Ending {
    Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, message)
}
