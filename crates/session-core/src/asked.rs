//! What is asked of the session that a key names: it is as it was made, and who asks for something else is told, not ignored.

use camino::Utf8PathBuf;

use crate::budget::Budget;
use crate::event::Payload;
use crate::ids::SessionId;
use crate::names::Label;
use crate::sandbox::{Pending, SandboxSpec};
use crate::session::{ManagedSession, WorkspaceKind};

/// What was said of a session by whoever names it by its key; `None` for what nothing was said of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// What it may use up.
    pub budget: Option<Budget>,
    /// Its label.
    pub label: Option<Label>,
    /// Its sandbox, settled as that of the session was.
    pub sandbox: Option<SandboxSpec>,
    /// What its creator wants to remember.
    pub metadata: Option<Payload>,
    /// The session that starts it.
    pub parent: Option<SessionId>,
    /// The directory that it works in.
    pub workspace: Option<(WorkspaceKind, Option<Utf8PathBuf>)>,
}

impl Asked {
    /// What of it is otherwise in this session, in words for people; nothing where all is as it was asked for.
    #[must_use]
    pub fn differs(&self, session: &ManagedSession) -> Vec<&'static str> {
        let Self { budget, label, sandbox, metadata, parent, workspace } = self;
        let of_session = (session.workspace.kind, session.workspace.project.clone());
        let parts = [
            (is_other(budget.as_ref(), &session.budget), "limits"),
            (label.is_some() && *label != session.label, "a label"),
            (sandbox.as_ref().is_some_and(|asked| !is_same(asked, &session.sandbox)), "a sandbox"),
            (is_other(metadata.as_ref(), &session.metadata), "metadata"),
            (parent.is_some() && *parent != session.parent, "a parent"),
            (is_other(workspace.as_ref(), &of_session), "a workspace"),
        ];
        parts.into_iter().filter_map(|(differs, what)| differs.then_some(what)).collect()
    }
}

fn is_other<T: PartialEq>(asked: Option<&T>, found: &T) -> bool {
    asked.is_some_and(|asked| asked != found)
}

/// Which repository it was, and what the installation allowed at all, is nothing that was asked for.
fn is_same(asked: &SandboxSpec, found: &SandboxSpec) -> bool {
    let plain = |spec: &SandboxSpec| {
        let pending =
            spec.pending.as_ref().map(|pending| Pending { plain: pending.plain, ..Pending::default() });
        SandboxSpec { repository: None, pending, ..spec.clone() }
    };
    plain(asked) == plain(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemoryStore;
    use crate::testing::conformance::Fixture;

    async fn session() -> ManagedSession {
        let f = Fixture::new(std::sync::Arc::new(MemoryStore::new()));
        f.store.create(f.new_session(), f.now()).await.unwrap()
    }

    #[tokio::test]
    async fn what_was_not_said_does_not_differ() {
        let session = session().await;
        assert_eq!(Asked::default().differs(&session), Vec::<&str>::new());
        let same = Asked {
            budget: Some(session.budget),
            sandbox: Some(session.sandbox.clone()),
            metadata: Some(session.metadata.clone()),
            workspace: Some((session.workspace.kind, None)),
            ..Asked::default()
        };
        assert_eq!(same.differs(&session), Vec::<&str>::new());
    }

    #[tokio::test]
    async fn what_is_otherwise_is_named() {
        let session = session().await;
        let other = Asked {
            budget: Some(Budget { turns_max: Some(1), ..session.budget }),
            label: Some("other".parse().unwrap()),
            sandbox: Some(SandboxSpec { read: ["/srv".into()].into(), ..session.sandbox.clone() }),
            metadata: Some(Payload::parse("{\"a\":1}").unwrap()),
            parent: Some(session.id),
            workspace: Some((WorkspaceKind::InPlace, Some("/srv".into()))),
        };
        let all = ["limits", "a label", "a sandbox", "metadata", "a parent", "a workspace"];
        assert_eq!(other.differs(&session), all);
    }

    #[tokio::test]
    async fn what_the_installation_allows_is_not_asked_for() {
        let mut session = session().await;
        let pending =
            |roots: &[&str], plain| Some(Pending { roots: roots.iter().map(Into::into).collect(), plain });
        session.sandbox.pending = pending(&["/srv"], false);
        session.sandbox.repository = Some("/srv/.git".into());
        let asked = |pending| Asked {
            sandbox: Some(SandboxSpec { pending, repository: None, ..session.sandbox.clone() }),
            ..Asked::default()
        };
        assert_eq!(asked(pending(&["/srv", "/home"], false)).differs(&session), Vec::<&str>::new());
        assert_eq!(asked(pending(&[], true)).differs(&session), ["a sandbox"]);
        assert_eq!(asked(None).differs(&session), ["a sandbox"], "it was settled otherwise");
    }
}
