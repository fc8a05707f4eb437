//! What would start something, and refuses.

use std::convert::Infallible;
use std::process::Command;

use async_trait::async_trait;
use camino::Utf8PathBuf;
use sandbox::{LaunchError, Support};
use session_core::ManagedSession;
use session_core::context::Restored;
use session_core::ports::{Engine, EngineError, Orchestrator, Release, SessionFactory};

/// That nothing is started here, and what to do.
pub(super) fn sentence() -> String {
    let refusal = sandbox::Refusal::no_sandbox_on(std::env::consts::OS);
    format!("{refusal}: {}", refusal.code.advice())
}

/// The launcher of sandboxes that this system does not have.
#[derive(Debug)]
pub struct Launcher {
    program: Utf8PathBuf,
    arguments: Vec<String>,
}

impl Launcher {
    /// The program that would be the launcher with these arguments.
    #[must_use]
    pub fn new(program: impl Into<Utf8PathBuf>, arguments: Vec<String>) -> Self {
        Self { program: program.into(), arguments }
    }

    /// By which arguments it would be the launcher.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// It, as a command. Nobody starts it: what is asked for it refuses before.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a command that nobody starts")]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear();
        command
    }

    /// What this system offers: no level.
    pub fn support(&self) -> Result<Support, LaunchError> {
        Support::probe(|| self.command())
    }
}

/// Would make rooms.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rooms;

#[async_trait]
impl SessionFactory for Rooms {
    type Engine = Room;

    async fn create(&self, _: &ManagedSession) -> Result<Room, EngineError> {
        Err(EngineError::Failed(sentence()))
    }
}

/// The engine that no session has here.
#[derive(Debug)]
pub struct Room {
    never: Infallible,
}

#[async_trait]
impl Engine for Room {
    async fn suspend(&self) -> Result<(), EngineError> {
        match self.never {}
    }

    async fn shutdown(&self, _: Release) {
        match self.never {}
    }
}

#[async_trait]
impl Orchestrator for Room {
    fn wants_history(&self) -> bool {
        match self.never {}
    }

    async fn restore_history(&self, _: &Restored) -> Result<(), EngineError> {
        match self.never {}
    }
}
