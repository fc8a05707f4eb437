//! The executor `command`: any argv, run as it is under a keeper, in the session's workspace.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use session_core::error::StoreError;
use session_core::event::Payload;
use session_core::ports::RunProgress;
use session_core::run::{EndKind, Ending, Exit, Fence, ReasonCode, Run, RunPhase, StopMode};
use session_core::ManagedSession;
use session_manager::Coordinator;
use session_manager::recovery::{self, KeeperEnding, OnHostLoss};
use tokio::sync::mpsc;

use super::Order;
use crate::process::{
    self, CgroupPreference, KeeperEvent, KeeperReport, KeeperSpec, ProcessIdentity, RunEnd, Supervised,
};
use crate::progress::Progress;
use crate::runner::RunnerOptions;
use crate::workspace::{Layout, SessionDir, Workspace, WorkspaceRequest, environment, log};

/// One run, from its claim to its end.
pub(crate) struct Execution {
    pub(crate) coordinator: Coordinator,
    pub(crate) layout: Layout,
    pub(crate) options: Arc<RunnerOptions>,
    pub(crate) progress: Progress,
    pub(crate) orders: mpsc::Receiver<Order>,
    pub(crate) fence: Fence,
    pub(crate) session: ManagedSession,
    pub(crate) run: Run,
}

/// How an execution begins.
pub(crate) enum Start {
    /// From nothing.
    Fresh,
    /// With a keeper that outlived its host.
    Adopted(ProcessIdentity),
}

/// How the processes of a run came to their end.
enum Came {
    /// To this, and the run with them.
    ToEnd(Ending, Option<Payload>),
    /// Nothing is to be said about the run: it goes on, or belongs to another claim.
    ToNothing,
}

impl Execution {
    pub(crate) async fn execute(mut self, start: Start) {
        let came = match start {
            Start::Fresh => self.fresh().await,
            Start::Adopted(keeper) => self.adopted(keeper).await,
        };
        let came = came.unwrap_or_else(|ending| Came::ToEnd(*ending, None));
        if let Came::ToEnd(ending, result) = came {
            self.finish(ending, result).await;
        }
    }
}
