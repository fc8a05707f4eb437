//! What is asked of the session that a key names: it is as it was made, and who asks for something else is told, not ignored.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;

use crate::budget::{Budget, BudgetChange, BudgetPatch};
use crate::event::Payload;
use crate::ids::SessionId;
use crate::names::AgentKey;
use crate::sandbox::{NetworkSpec, ProcessLimits, SandboxLevel, SandboxSpec};
use crate::session::{ManagedSession, WorkspaceKind};

/// What was said of a session by whoever names it by its key; what nothing was said of is as it is. A label is for people, and
/// counts when the session is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// What it may use up, as far as that was said.
    pub budget: BudgetPatch,
    /// The agent that works in it.
    pub agent: Option<AgentKey>,
    /// What its processes may, as far as that was said.
    pub sandbox: AskedSandbox,
    /// What its creator wants to remember.
    pub metadata: Option<Payload>,
    /// The session that starts it.
    pub parent: Option<SessionId>,
    /// That session is to hear of the end of each of its runs.
    pub callback: bool,
    /// The directory that it works in.
    pub workspace: Option<(WorkspaceKind, Option<Utf8PathBuf>)>,
}

/// What was said of a sandbox, settled as that of the session was. Directories that nobody named, such as those of tools, are
/// not in it: they may be others by now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedSandbox {
    /// How much the kernel must enforce.
    pub level: Option<SandboxLevel>,
    /// What it may reach.
    pub network: Option<NetworkSpec>,
    /// Directories that it may read, at the least.
    pub read: BTreeSet<Utf8PathBuf>,
    /// Directories that it may change, at the least.
    pub write: BTreeSet<Utf8PathBuf>,
    /// What each of its runs may use up.
    pub limits: Option<ProcessLimits>,
}

impl Asked {
    /// What of it is otherwise in this session, in words for people; nothing where all is as it was asked for. Limits are so
    /// when they are what the session has, or what it was `made` with, where that is known: its owner may have changed them
    /// since.
    #[must_use]
    pub fn differs(&self, session: &ManagedSession, made: Option<Budget>) -> Vec<&'static str> {
        let Self { budget, agent, sandbox, metadata, parent, callback, workspace } = self;
        let of_session = (session.workspace.kind, session.workspace.project.clone());
        let as_asked = |limits: Budget| BudgetChange::Set(*budget).applied_to(limits) == limits;
        let parts = [
            (!as_asked(session.budget) && !made.is_some_and(as_asked), "limits"),
            (agent.is_some() && *agent != session.agent, "an agent"),
            (!sandbox.is_in(&session.sandbox), "a sandbox"),
            (is_other(metadata.as_ref(), &session.metadata), "metadata"),
            (parent.is_some() && *parent != session.parent, "a parent"),
            (*callback && !session.callback, "no callbacks"),
            (is_other(workspace.as_ref(), &of_session), "a workspace"),
        ];
        parts.into_iter().filter_map(|(differs, what)| differs.then_some(what)).collect()
    }
}

impl AskedSandbox {
    /// Whether a session with this sandbox has what was asked for.
    fn is_in(&self, found: &SandboxSpec) -> bool {
        let Self { level, network, read, write, limits } = self;
        let may_read = |directory| found.read.contains(directory) || found.write.contains(directory);
        level.is_none_or(|level| level == found.level)
            && !is_other(network.as_ref(), &found.network)
            && !is_other(limits.as_ref(), &found.limits)
            && read.iter().all(may_read)
            && write.is_subset(&found.write)
    }
}

fn is_other<T: PartialEq>(asked: Option<&T>, found: &T) -> bool {
    asked.is_some_and(|asked| asked != found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::LimitChange;
    use crate::testing::MemoryStore;
    use crate::testing::conformance::Fixture;

    const NOTHING: [&str; 0] = [];

    async fn session() -> ManagedSession {
        let f = Fixture::new(std::sync::Arc::new(MemoryStore::new()));
        f.store.create(f.new_session(), f.now()).await.unwrap()
    }

    #[tokio::test]
    async fn what_was_not_said_does_not_differ() {
        let session = session().await;
        assert_eq!(Asked::default().differs(&session, None), NOTHING);
        let same = Asked {
            budget: session.budget.into(),
            metadata: Some(session.metadata.clone()),
            workspace: Some((session.workspace.kind, None)),
            ..Asked::default()
        };
        assert_eq!(same.differs(&session, None), NOTHING);
    }

    #[tokio::test]
    async fn what_is_otherwise_is_named() {
        let session = session().await;
        let other = Asked {
            budget: BudgetPatch { turns_max: LimitChange::To(1), ..BudgetPatch::default() },
            agent: Some("other".parse().unwrap()),
            sandbox: AskedSandbox { read: ["/srv".into()].into(), ..AskedSandbox::default() },
            metadata: Some(Payload::parse("{\"a\":1}").unwrap()),
            parent: Some(session.id),
            callback: true,
            workspace: Some((WorkspaceKind::InPlace, Some("/srv".into()))),
        };
        let all = ["limits", "an agent", "a sandbox", "metadata", "a parent", "no callbacks", "a workspace"];
        assert_eq!(other.differs(&session, Some(session.budget)), all);
    }

    #[tokio::test]
    async fn what_an_owner_changed_since_is_no_other_session() {
        let mut session = session().await;
        let turns = |max| Asked {
            budget: BudgetPatch { turns_max: LimitChange::To(max), ..BudgetPatch::default() },
            ..Asked::default()
        };
        let made = Budget { turns_max: Some(50), ..session.budget };
        // Topped up, and another default of tokens, which nobody asked for.
        session.budget = Budget { turns_max: Some(60), tokens_max: 7, ..session.budget };
        for asked in [50, 60] {
            assert_eq!(turns(asked).differs(&session, Some(made)), NOTHING);
        }
        assert_eq!(turns(50).differs(&session, None), ["limits"], "nobody knows that it was made so");
        assert_eq!(turns(70).differs(&session, Some(made)), ["limits"]);
    }

    #[tokio::test]
    async fn of_a_sandbox_what_was_said_counts() {
        let mut session = session().await;
        session.sandbox.read = ["/opt/tools".into(), "/srv".into()].into();
        session.sandbox.write = ["/data".into()].into();
        session.sandbox.repository = Some("/srv/.git".into());
        let of = |sandbox| Asked { sandbox, ..Asked::default() }.differs(&session, None);
        let read = |path: &str| AskedSandbox { read: [path.into()].into(), ..AskedSandbox::default() };
        assert_eq!((of(read("/srv")), of(read("/data"))), (vec![], vec![]));
        assert_eq!(of(read("/home")), ["a sandbox"]);
        for other in [
            AskedSandbox { write: ["/srv".into()].into(), ..AskedSandbox::default() },
            AskedSandbox { level: Some(SandboxLevel::Full), ..AskedSandbox::default() },
            AskedSandbox { network: Some(NetworkSpec::None), ..AskedSandbox::default() },
            AskedSandbox {
                limits: Some(ProcessLimits { processes: Some(1), ..ProcessLimits::NONE }),
                ..AskedSandbox::default()
            },
        ] {
            assert_eq!(of(other), ["a sandbox"]);
        }
    }
}
