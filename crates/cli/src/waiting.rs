//! What long commands wait for beside their work: signals and deadlines.

use tokio::time::{Instant, sleep_until};

use crate::failure::{Failure, Kind, Outcome};
use crate::system;

/// The signals by which a person or a supervisor asks a process to end.
#[derive(Debug)]
pub struct EndSignals {
    signals: system::EndSignals,
}

impl EndSignals {
    /// Receives them from now on.
    pub fn new() -> Outcome<Self> {
        let signals = system::EndSignals::new();
        let signals =
            signals.map_err(|error| Failure::caused(Kind::Error, "signals cannot be received", &error))?;
        Ok(Self { signals })
    }

    /// The next one.
    pub async fn next(&mut self) {
        self.signals.next().await;
    }
}

/// Waits until then; without a time, for ever.
pub async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
