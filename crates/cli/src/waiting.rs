//! What long commands wait for beside their work: signals and deadlines.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::failure::{Failure, Kind, Outcome};

/// The signals by which a person or a supervisor asks a process to end.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Receives them from now on.
    pub fn new() -> Outcome<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::caused(Kind::Error, "signals cannot be received", &error))
        };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits until then; without a time, for ever.
pub async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
