//! What this machine makes of a session that any runner may execute: once, and then never again.

use std::sync::Arc;

use session_core::run::{EndKind, Ending, ReasonCode};
use session_core::{ManagedSession, WorkspaceKind};
use thiserror::Error;

use super::execution::{Execution, sentence};
use crate::scope::{InPlace, Machine, ScopeError, Settlement};
use crate::workspace::{Layout, WorkspaceError, was_made};

/// Why a session has no scope here.
#[derive(Debug, Error)]
enum Unsettled {
    /// What was asked for cannot be had on this machine.
    #[error(transparent)]
    Refused(#[from] ScopeError),
    /// It is not known whether it was settled.
    #[error(transparent)]
    Unclear(#[from] WorkspaceError),
    /// It was settled, and that is gone.
    #[error(
        "what it was given when it was opened cannot be read any more, and is given once: make a new session (`roomette fork` keeps its log)"
    )]
    Lost(#[source] std::io::Error),
}

impl Execution {
    /// Puts what this machine made of the session's scope in the place of what was asked for, if its record leaves that to us.
    pub(super) async fn settle(&mut self) -> Result<(), Ending> {
        if self.session.sandbox.pending.is_none() {
            return Ok(());
        }
        let (layout, session) = (self.layout.clone(), self.session.clone());
        let options = Arc::clone(&self.options);
        let settled = tokio::task::spawn_blocking(move || settled(&layout, &session, &options.machine)).await;
        let settled = settled.map_err(|error| {
            Ending::because(EndKind::Failed, ReasonCode::SandboxUnavailable, None, error.to_string())
        })?;
        let settlement = settled.map_err(|error| {
            let message = format!("on runner {}: {}", self.profile.hostname, sentence(&error));
            Ending::because(EndKind::Failed, reason(&error), None, message)
        })?;
        self.session.sandbox = settlement.sandbox.clone();
        self.session.workspace.project.clone_from(&settlement.project);
        self.settlement = Some(settlement);
        Ok(())
    }
}

/// What holds for the session on this machine. A session that was opened here, whether or not it came to run, has what it got
/// then: what its names lead to by now is not looked at. One that could not be opened is looked at anew.
fn settled(layout: &Layout, session: &ManagedSession, machine: &Machine) -> Result<Settlement, Unsettled> {
    let directory = layout.session(session.id);
    if was_made(&directory)? {
        return Settlement::read(&directory).map_err(Unsettled::Lost);
    }
    let workspace = &session.workspace;
    let in_place = if workspace.kind == WorkspaceKind::InPlace { InPlace::Yes } else { InPlace::No };
    let project = workspace.project.as_deref().map(|project| (project, in_place));
    // What nothing can be read of gives nothing.
    let parent = session.parent.and_then(|parent| Settlement::read(&layout.session(parent)).ok());
    let parent = parent.as_ref().map(|parent| &parent.sandbox);
    Ok(Settlement::of(&session.sandbox, project, machine, parent, layout.data_dir())?)
}

/// What of the session is in the way.
fn reason(error: &Unsettled) -> ReasonCode {
    match error {
        Unsettled::Refused(
            ScopeError::Directory { field: "project", .. }
            | ScopeError::HoldsData { field: "project", .. }
            | ScopeError::Repository { .. }
            | ScopeError::Beyond { .. },
        )
        | Unsettled::Unclear(_) => ReasonCode::WorkspaceFailed,
        Unsettled::Refused(
            ScopeError::Directory { .. }
            | ScopeError::HoldsData { .. }
            | ScopeError::TooMany { .. }
            | ScopeError::TooLittle { .. }
            | ScopeError::NetworkWantsFull { .. }
            | ScopeError::Unenforced { .. },
        )
        | Unsettled::Lost(_) => ReasonCode::SandboxUnavailable,
    }
}
