//! What a host that stays has to do besides: sessions are entered, and time goes by.

use std::sync::Arc;

use session_runner::{DirectOrder, Rooms};
use tokio::sync::mpsc;

use super::Operations;
use crate::failure::Outcome;
use crate::resume::Resumer;

impl Operations {
    /// Orders that the store cannot take go here from now on.
    pub fn attach(&mut self, direct: mpsc::Sender<DirectOrder>) {
        self.direct = Some(direct);
    }

    /// Opens sessions that are to be used.
    pub fn resumer(&self) -> &Arc<Resumer<Rooms>> {
        &self.resumer
    }

    /// Moves those along whose time has come and that do not live here: the manager sees to its own.
    pub async fn sweep_records(&self) -> Outcome<()> {
        self.sweep(self.limits.idle_timeout).await
    }
}
