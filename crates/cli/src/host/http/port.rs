//! What the API asks of the process around it: this host's settings and its operations.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use camino::Utf8PathBuf;
use session_api::sandbox::SandboxRequest;
use session_api::tools::{ToolAnswer, ToolCall};
use session_core::affinity::Place;
use session_core::budget::Budget;
use session_core::error::StoreResult;
use session_core::sandbox::SandboxLevel;
use session_core::token::Bearer;
use session_core::{SessionId, StoreError, WorkspaceKind};
use session_runner::scope::{InPlace, ScopeError};
use session_runner::workspace::environment::check_variable;
use session_server::state::{Host, Settled, Unsettled, Wanted};

use crate::config::{Net, SandboxConfig};
use crate::environment;
use crate::failure::Failure;
use crate::host::operations::Operations;
use crate::host::protocol::{Inherited, SandboxWire};
use crate::host::scope;
use crate::host::tools::Tools;

/// This host, as the API asks it.
#[derive(Debug)]
pub(in crate::host) struct Port {
    /// It ends before whoever may still ask.
    operations: Weak<Operations>,
    /// The scribe, but for itself.
    tools: Option<Tools>,
}

impl Port {
    pub(in crate::host) fn new(operations: &Arc<Operations>, tools: Option<Tools>) -> Self {
        Self { operations: Arc::downgrade(operations), tools }
    }
}

#[async_trait]
impl Host for Port {
    async fn settle(&self, wanted: Wanted<'_>) -> Result<Settled, Unsettled> {
        let operations = self.operations.upgrade().ok_or_else(leaving)?;
        let context = operations.context();
        let wire = wire(wanted.sandbox)?;
        let own = context.principal().is_ok_and(|own| own == *wanted.principal);
        // A `PATH` that somebody else names opens none of this user's directories.
        let (base_env, named) = if own {
            let passed = environment::base(context, &[]);
            let unsettled =
                |failure: Failure| Unsettled { field: "env".into(), reason: failure.in_one_line() };
            (passed.map_err(unsettled)?, wanted.env)
        } else {
            only_within(&context.config.sandbox, &wire, &wanted)?;
            // What the user whose host this is passes on to tasks is for that user's own.
            let own = context.host_environment().pairs().to_vec();
            (Inherited { own, named: Vec::new() }, [].as_slice())
        };
        let settling = wanted.found.map_or_else(|| operations.settling(), scope::Settling::of);
        let base_env = base_env.given(settling == scope::Settling::AtRunner);
        let in_place = if wanted.kind == WorkspaceKind::InPlace { InPlace::Yes } else { InPlace::No };
        let project = wanted.project.map(|project| (Utf8PathBuf::from(project), in_place));
        let settled = operations.settle(settling, wanted.parent, &wire, project, base_env, named);
        let scope::Settled { sandbox, tools, base_env } = settled.map_err(|error| unsettled(&error))?;
        Ok(Settled { sandbox, tools, base_env })
    }

    fn check_env(&self, env: &[(String, String)]) -> Result<(), Unsettled> {
        let check = |(name, value): &(String, String)| check_variable(name, value);
        let found = env.iter().try_for_each(check);
        found.map_err(|error| Unsettled { field: "env".into(), reason: error.to_string() })
    }

    fn budget(&self) -> Budget {
        let Some(operations) = self.operations.upgrade() else { return Budget::default() };
        let limits = &operations.config().limits;
        Budget {
            tokens_max: limits.tokens,
            tool_calls_max: limits.tool_calls,
            turns_max: limits.turns,
            cost_micros_max: limits.cost_micros,
        }
    }

    fn place(&self) -> Place {
        self.operations.upgrade().map_or(Place::Anywhere, |operations| operations.place())
    }

    async fn terminate(&self, session: SessionId) -> StoreResult<()> {
        match self.operations.upgrade() {
            Some(operations) => operations.end_for_good(session).await,
            None => Err(StoreError::Unavailable(leaving().reason.into())),
        }
    }

    async fn tool(&self, bearer: Bearer, name: &str, call: ToolCall) -> ToolAnswer {
        match &self.tools {
            Some(tools) => tools.over_http(bearer, name, call).await,
            None => ToolAnswer::refused("unavailable", "there is no scribe here"),
        }
    }
}

fn leaving() -> Unsettled {
    Unsettled { field: "request".into(), reason: "the host is leaving: ask again".into() }
}

/// Others than the user whose host this is get a sandbox, and of this user's files what `sandbox.roots` names: without it
/// nothing.
fn only_within(config: &SandboxConfig, wire: &SandboxWire, wanted: &Wanted<'_>) -> Result<(), Unsettled> {
    let refused = |field: &str, reason: &str| {
        let reason = format!("{reason}: {} is not the user whose host this is", wanted.principal);
        Err(Unsettled { field: field.into(), reason })
    };
    if wire.level.unwrap_or(config.level) == SandboxLevel::Off {
        return refused("sandbox.level", "a session without a sandbox is for the host's own user");
    }
    if !config.roots.is_empty() {
        return Ok(());
    }
    let named = [
        ("project_dir", wanted.project.is_some()),
        ("sandbox.allow_read", !wire.allow_read.is_empty()),
        ("sandbox.allow_write", !wire.allow_write.is_empty()),
    ];
    match named.into_iter().find(|(_, named)| *named) {
        Some((field, _)) => refused(field, "the setting sandbox.roots names no directory for others"),
        None => Ok(()),
    }
}

/// The request in the host's own words.
fn wire(asked: &SandboxRequest) -> Result<SandboxWire, Unsettled> {
    fn wrong(field: &str, error: impl std::fmt::Display) -> Unsettled {
        Unsettled { field: format!("sandbox.{field}"), reason: error.to_string() }
    }
    let level = asked.level.as_deref().map(str::parse).transpose();
    let net = match asked.net.as_deref() {
        None => None,
        Some("open") => Some(Net::Open),
        Some("none") => Some(Net::None),
        Some("loopback") => Some(Net::Loopback),
        Some("allow") => Some(Net::Allow),
        Some(other) => {
            return Err(wrong("net", format!("{other:?} is none of open, none, loopback and allow")));
        }
    };
    let net_allow: Result<Vec<_>, _> = asked.net_allow.iter().map(|endpoint| endpoint.parse()).collect();
    let paths = |paths: &[String]| paths.iter().map(Utf8PathBuf::from).collect();
    Ok(SandboxWire {
        level: level.map_err(|error| wrong("level", error))?,
        net,
        net_allow: net_allow.map_err(|error| wrong("net_allow", error))?,
        allow_read: paths(&asked.allow_read),
        allow_write: paths(&asked.allow_write),
        memory_bytes: asked.memory_bytes,
        processes: asked.processes,
        file_size_bytes: asked.file_size_bytes,
        write_bytes: asked.write_bytes,
    })
}

fn unsettled(error: &ScopeError) -> Unsettled {
    let field = match error {
        ScopeError::Directory { field, .. }
        | ScopeError::HoldsData { field, .. }
        | ScopeError::TooMany { field, .. }
        | ScopeError::TooLittle { field, .. }
        | ScopeError::Unenforced { field } => field,
        ScopeError::NetworkWantsFull { .. } => "net",
        ScopeError::Repository { .. } | ScopeError::Beyond { .. } => "project",
    };
    let text = error.to_string();
    // The sentence begins with the field where that is not part of it.
    let reason = text.strip_prefix(&format!("{field}: ")).unwrap_or(&text).to_owned();
    let field = if field == "project" { "project_dir".into() } else { format!("sandbox.{field}") };
    Unsettled { field, reason }
}

#[cfg(test)]
mod tests {
    use session_core::names::Principal;

    use super::*;

    fn refused(config: &SandboxConfig, asked: &SandboxRequest, project: Option<&str>) -> Option<String> {
        let principal: Principal = "guest".parse().unwrap();
        let wanted = Wanted {
            principal: &principal,
            parent: None,
            kind: WorkspaceKind::Scratch,
            project,
            sandbox: asked,
            env: &[],
            found: None,
        };
        only_within(config, &wire(asked).unwrap(), &wanted).err().map(|error| error.field)
    }

    #[test]
    fn others_get_a_sandbox_and_what_the_settings_name_for_them() {
        let closed = SandboxConfig::default();
        let open = SandboxConfig { roots: vec!["/srv".into()], ..SandboxConfig::default() };
        let plain = SandboxRequest::default();
        let off = SandboxRequest { level: Some("off".into()), ..SandboxRequest::default() };
        let read = SandboxRequest { allow_read: vec!["/srv/a".into()], ..SandboxRequest::default() };
        assert_eq!(refused(&closed, &plain, None), None);
        assert_eq!(refused(&closed, &off, None).as_deref(), Some("sandbox.level"));
        assert_eq!(refused(&open, &off, None).as_deref(), Some("sandbox.level"));
        assert_eq!(refused(&closed, &plain, Some("/srv/a")).as_deref(), Some("project_dir"));
        assert_eq!(refused(&closed, &read, None).as_deref(), Some("sandbox.allow_read"));
        assert_eq!(refused(&open, &read, Some("/srv/a")), None);
        let nothing = SandboxConfig { level: SandboxLevel::Off, ..open };
        assert_eq!(refused(&nothing, &plain, None).as_deref(), Some("sandbox.level"));
    }

    #[test]
    fn what_cannot_be_read_is_said_of_its_field() {
        let field = |asked: SandboxRequest| wire(&asked).unwrap_err().field;
        let default = SandboxRequest::default;
        assert_eq!(field(SandboxRequest { level: Some("high".into()), ..default() }), "sandbox.level");
        assert_eq!(field(SandboxRequest { net: Some("wide".into()), ..default() }), "sandbox.net");
        assert_eq!(field(SandboxRequest { net_allow: vec!["a b".into()], ..default() }), "sandbox.net_allow");
    }
}
