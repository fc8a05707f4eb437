//! What is recorded of a bridge's session, as part of its metadata: made with the session, in one write, and never changed.

use mcp_bridge::gate::Scope;
use mcp_bridge::host::{Ending, Handshake, Recalled, Record, ServerName};
use mcp_bridge::revision::Revision;
use mcp_bridge::roots;
use serde::{Deserialize, Serialize};
use session_core::ManagedSession;
use session_core::SessionState;
use session_core::event::{Payload, PayloadError};
use session_core::state::TerminationReason;

/// The metadata of a session that a bridge has made.
#[derive(Debug, Serialize, Deserialize)]
struct Metadata {
    mcp: Mcp,
}

#[derive(Debug, Serialize, Deserialize)]
struct Mcp {
    server: String,
    /// What the handshake came to; none where each request stands for itself, or where it is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    /// The directories that its client named; none where the operator's count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    roots: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    initialize: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    initialized: String,
    /// It was only asked how it begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    provisional: bool,
}

/// What a session that is begun with this record remembers.
pub(super) fn metadata(record: &Record) -> Result<Payload, PayloadError> {
    let Handshake { initialize, initialized, revision } = &record.handshake;
    let roots = match &record.scope {
        Scope::Roots(roots) => Some(roots.iter().map(|root| root.path().to_string()).collect()),
        Scope::Default => None,
    };
    payload(Mcp {
        server: record.server.to_string(),
        revision: Some(revision.name().to_owned()),
        roots,
        initialize: initialize.clone(),
        initialized: initialized.clone(),
        provisional: false,
    })
}

/// What a session remembers that is begun before its handshake.
pub(super) fn bare(server: &ServerName, provisional: bool) -> Result<Payload, PayloadError> {
    payload(Mcp {
        server: server.to_string(),
        revision: None,
        roots: None,
        initialize: String::new(),
        initialized: String::new(),
        provisional,
    })
}

fn payload(mcp: Mcp) -> Result<Payload, PayloadError> {
    Payload::parse(&serde_json::to_string(&Metadata { mcp })?)
}

/// What is recorded of a session; `None` where no bridge has made it, or its metadata say nothing that makes sense.
pub(super) fn recalled(session: &ManagedSession) -> Option<Recalled> {
    let Metadata { mcp } = serde_json::from_str(session.metadata.as_str()).ok()?;
    if mcp.provisional {
        return None;
    }
    let root = |path: &String| roots::parse(&uri(path)).ok();
    let scope = match &mcp.roots {
        Some(paths) => Scope::Roots(paths.iter().map(root).collect::<Option<_>>()?),
        None => Scope::Default,
    };
    let revision = mcp.revision.as_deref().map_or(Some(Revision::V2026_07_28), Revision::named)?;
    let record = Record {
        server: mcp.server.parse().ok()?,
        principal: session.principal.clone(),
        scope,
        handshake: Handshake { initialize: mcp.initialize, initialized: mcp.initialized, revision },
    };
    Some(Recalled { record, ended: ended(session) })
}

/// Why a session is over, if it is.
pub(super) fn ended(session: &ManagedSession) -> Option<Ending> {
    match session.state {
        SessionState::Terminated { reason, .. } => Some(ending(reason)),
        SessionState::Active | SessionState::Idle { .. } | SessionState::Suspended { .. } => None,
    }
}

/// A client that ends its session stops it.
fn ending(reason: TerminationReason) -> Ending {
    if reason == TerminationReason::Stopped { Ending::Deleted } else { Ending::named(reason.code()) }
}

/// The same in the words of a session.
pub(super) fn reason(ending: &Ending) -> TerminationReason {
    match ending {
        Ending::Deleted => TerminationReason::Stopped,
        Ending::RootsChanged => TerminationReason::RootsChangeRejected,
        Ending::Other(code) => code.parse().unwrap_or(TerminationReason::Stopped),
    }
}

/// A path as a client writes it.
fn uri(path: &str) -> String {
    let mut uri = String::from("file://");
    for character in path.chars() {
        match character {
            '%' => uri.push_str("%25"),
            '?' => uri.push_str("%3F"),
            '#' => uri.push_str("%23"),
            other => uri.push(other),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reason_leads_back_to_its_ending() {
        for of in [Ending::Deleted, Ending::RootsChanged, Ending::Other("killed".into())] {
            assert_eq!(ending(reason(&of)), of);
        }
        assert_eq!(reason(&Ending::Other("never heard of".into())), TerminationReason::Stopped);
    }

    proptest! {
        #[test]
        fn a_root_is_recalled_as_it_was(names in proptest::collection::vec("[^/\\\\\\x00-\\x1f\\x7f-\\x9f]{1,8}", 1..5)) {
            let path = format!("/{}", names.join("/"));
            if let Ok(root) = roots::parse(&uri(&path)) {
                prop_assert_eq!(roots::parse(&uri(root.path().as_str())), Ok(root));
            }
        }
    }
}
