//! Where no run is started no host stays: every command is the host itself for a moment.

use std::convert::Infallible;
use std::time::Duration;

use super::lock::HostLock;
use super::operations::Operations;
use super::protocol::{Reply, Request};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// For how long another command is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// What it means that no host is there.
pub const NO_HOST: &str = "none stays on this system: each command is its own";

/// A connection to a host in another process. There is none.
#[derive(Debug)]
pub struct Connection {
    never: Infallible,
}

impl Connection {
    /// No host is there.
    #[expect(clippy::unused_async, reason = "as on Linux, where it has to be asked")]
    pub async fn open(_: &Context) -> Outcome<Option<Self>> {
        Ok(None)
    }

    /// The host's process.
    pub fn process(&self) -> u32 {
        match self.never {}
    }

    /// Whether new sessions may be executed on other machines.
    pub fn has_fleet(&self) -> bool {
        match self.never {}
    }

    /// Asks, and takes the first reply.
    #[expect(clippy::unused_async, reason = "as on Linux, where the host answers")]
    pub async fn ask(&mut self, _: &Request) -> Outcome<Reply> {
        match self.never {}
    }

    /// Asks, and leaves it to the caller to wait for replies.
    #[expect(clippy::unused_async, reason = "as on Linux, where the host listens")]
    pub async fn send(&mut self, _: &Request) -> Outcome<()> {
        match self.never {}
    }

    /// The next reply.
    #[expect(clippy::unused_async, reason = "as on Linux, where the host answers")]
    pub async fn next(&mut self) -> Outcome<Reply> {
        match self.never {}
    }
}

/// Whoever does what a command asks for: this process.
#[derive(Debug)]
pub struct Link {
    operations: Operations,
    lock: HostLock,
}

impl Link {
    /// This process in the place of a host.
    pub async fn attach(context: &Context, purpose: &str) -> Outcome<Self> {
        context.paths.make_data()?;
        let lock = HostLock::acquire(&context.paths, purpose, context.env.now(), PATIENCE).await?;
        let mut operations = Operations::open(context).await?;
        operations.recover().await?;
        Ok(Self { operations, lock })
    }

    /// Does it.
    pub async fn ask(&mut self, request: Request) -> Outcome<Reply> {
        self.operations.handle(request).await
    }

    /// Leaves everything in order.
    pub async fn close(self) {
        self.operations.close().await;
        drop(self.lock);
    }
}

/// Refuses: nothing is started on this system.
pub fn check_system() -> Outcome<()> {
    Err(Failure::no_sandbox_on(std::env::consts::OS))
}

/// Refuses: whoever wants a host wants something started.
#[expect(clippy::unused_async, reason = "as on Linux, where one is started")]
pub async fn ensure_host(_: &Context) -> Outcome<Connection> {
    Err(Failure::no_sandbox_on(std::env::consts::OS))
}
