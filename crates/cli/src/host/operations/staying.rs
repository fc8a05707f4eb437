//! What a host that stays has to do besides: sessions are entered, and time goes by.

use std::sync::Arc;

use session_core::names::ProgramVersion;
use session_core::ports::RunnerStore as _;
use session_core::run::Epoch;
use session_runner::{DirectOrder, Rooms};
use tokio::sync::mpsc;

use super::Operations;
use crate::failure::{Failure, Kind, Outcome};
use crate::resume::Resumer;

impl Operations {
    /// Makes the runner of this host known. Returns which instance of it this is.
    pub async fn register(&self) -> Outcome<Epoch> {
        let version = ProgramVersion::new(env!("CARGO_PKG_VERSION"))
            .map_err(|error| Failure::of(Kind::Error, &error))?;
        Ok(self.store.register(self.profile.clone(), version, self.now()).await?.instance)
    }

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
        self.coordinator.forget_calls().await?;
        self.sweep(self.limits.idle_timeout).await
    }
}
