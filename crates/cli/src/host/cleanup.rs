//! Removing old workspaces: what goes, what stays and why.

use jiff::Timestamp;
use session_core::ports::{Page, SessionFilter, SessionStore as _};
use session_core::session::SessionSummary;
use session_core::state::{SessionState, TerminationReason, Trigger};
use session_core::{RunPhase, RunnerId, SandboxSpec, SessionId, WorkspaceKind};
use session_runner::scope::Settlement;
use session_runner::workspace::cleanup::{CleanupCandidate, CleanupRules, SessionEnd, Verdict, decide};
use session_runner::workspace::{Git, Layout, Removal, WorktreeState, inspect_worktree, remove};
use session_store::SqlStore;

use super::protocol::{Cleaned, Cleanup};
use crate::failure::{Failure, Kind, Outcome};

/// The parts of a host that a cleanup works on.
#[derive(Debug, Clone)]
pub(super) struct Cleaner {
    pub(super) store: SqlStore,
    pub(super) layout: Layout,
    pub(super) git: Git,
    pub(super) runner: RunnerId,
    pub(super) now: Timestamp,
}

impl Cleaner {
    /// Goes through all workspaces on this machine, and says of each what became of it.
    pub(super) async fn run(&self, request: &Cleanup) -> Outcome<Vec<Cleaned>> {
        let filter = SessionFilter { with_workspace: true, ..SessionFilter::default() };
        let mut page = Page::first(Page::MAX);
        let mut cleaned = Vec::new();
        loop {
            let listing = self.store.list(&filter, &page).await?;
            for summary in &listing.items {
                let wanted = request.sessions.is_empty() || request.sessions.contains(&summary.session.id);
                // A session that never had a run has nothing here, and another machine's lies there.
                if wanted && summary.session.workspace.runner == Some(self.runner) {
                    cleaned.push(self.one(summary, request).await?);
                }
            }
            match listing.next {
                Some(cursor) => page = page.after(cursor),
                None => return Ok(cleaned),
            }
        }
    }

    async fn one(&self, summary: &SessionSummary, request: &Cleanup) -> Outcome<Cleaned> {
        let session = &summary.session;
        let mut cleaned = Cleaned {
            session: session.id,
            label: session.label.as_ref().map(ToString::to_string),
            removed: false,
            kept_because: None,
            archive: None,
        };
        let candidate =
            CleanupCandidate { session: end_of(summary), worktree: self.worktree(summary).await? };
        let rules = CleanupRules { older_than: request.older_than, force: request.force, now: self.now };
        let verdict = decide(&candidate, &rules);
        if verdict == Verdict::Remove
            && let Some(child) = self.at_work_below(session.id).await?
        {
            cleaned.kept_because = Some(format!("{child}, which belongs to its family, is running"));
            return Ok(cleaned);
        }
        match verdict {
            Verdict::Keep(reason) => cleaned.kept_because = Some(reason.to_string()),
            Verdict::Remove if request.dry_run => cleaned.removed = true,
            Verdict::Remove => match self.remove(summary, request).await {
                Ok(archive) => {
                    cleaned.removed = true;
                    cleaned.archive = archive;
                }
                Err(failure) => cleaned.kept_because = Some(failure.in_one_line()),
            },
        }
        Ok(cleaned)
    }

    /// A session below this one that works, if one does: it would end with this one.
    async fn at_work_below(&self, session: SessionId) -> Outcome<Option<SessionId>> {
        let mut open = vec![session];
        while let Some(parent) = open.pop() {
            let filter = SessionFilter { parent: Some(parent), live: true, ..SessionFilter::default() };
            let mut page = Page::first(Page::MAX);
            loop {
                let listing = self.store.list(&filter, &page).await?;
                for item in &listing.items {
                    if item.last_run.as_ref().is_some_and(|run| is_open(run.state.phase())) {
                        return Ok(Some(item.session.id));
                    }
                    open.push(item.session.id);
                }
                match listing.next {
                    Some(cursor) => page = page.after(cursor),
                    None => break,
                }
            }
        }
        Ok(None)
    }

    async fn worktree(&self, summary: &SessionSummary) -> Outcome<Option<WorktreeState>> {
        if summary.session.workspace.kind != WorkspaceKind::Worktree {
            return Ok(None);
        }
        let directory = self.layout.session(summary.session.id);
        let git = self.git.clone();
        let recorded = summary.session.sandbox.clone();
        let inspect = move || {
            // By the names of the record nothing is looked at: they may lead elsewhere by now.
            let sandbox = match Settlement::found(&directory, &recorded) {
                Ok(settled) => settled.map_or(recorded, |settled| settled.sandbox),
                Err(error) => return Some(unsettled(&error)),
            };
            Some(inspect_worktree(&git, &directory, &sandbox))
        };
        blocking(inspect).await
    }

    /// Terminates the session first, so that nobody begins to work in what goes.
    async fn remove(&self, summary: &SessionSummary, request: &Cleanup) -> Outcome<Option<String>> {
        let (id, mut workspace) = (summary.session.id, summary.session.workspace.clone());
        if !summary.session.state.is_terminated() {
            let trigger = Trigger::Terminate(TerminationReason::CleanedUp);
            self.store.transition(id, trigger, self.now).await?;
        }
        let (layout, git) = (self.layout.clone(), self.git.clone());
        let (force, archive, mut sandbox) = (request.force, request.archive, summary.session.sandbox.clone());
        let removed = blocking(move || {
            match Settlement::found(&layout.session(id), &sandbox) {
                Ok(Some(settled)) => (workspace.project, sandbox) = (settled.project, settled.sandbox),
                Ok(None) => {}
                // Its directory goes, by force where that is a worktree; to its repository nothing leads any more.
                Err(_) => (workspace.project, sandbox) = (None, SandboxSpec::default()),
            }
            let (project, kind) = (workspace.project.as_deref(), workspace.kind);
            let removal = Removal { session: id, kind, project, force, archive, sandbox: &sandbox };
            remove(&layout, &git, &removal)
        });
        let removed = removed.await?.map_err(|error| Failure::of(Kind::Error, &error))?;
        self.store.workspace_removed(id, self.now).await?;
        Ok(removed.archive.map(|path| path.to_string()))
    }
}

/// A session whose last run is over counts as ended, for as long as nobody resumes it.
fn end_of(summary: &SessionSummary) -> SessionEnd {
    let ended_at = |run: &session_core::Run| run.ended().map(|(at, _)| at);
    match (&summary.last_run, summary.session.state) {
        (Some(run), _) if is_open(run.state.phase()) => SessionEnd::Running,
        (Some(run), _) => ended_at(run).map_or(SessionEnd::Open, SessionEnd::Ended),
        (None, SessionState::Terminated { at, .. }) => SessionEnd::Ended(at),
        (None, SessionState::Active | SessionState::Idle { .. } | SessionState::Suspended { .. }) => {
            SessionEnd::Open
        }
    }
}

fn is_open(phase: RunPhase) -> bool {
    !phase.is_ended()
}

/// What is said of a worktree where it cannot be read any more which repository it is of.
fn unsettled(error: &std::io::Error) -> WorktreeState {
    WorktreeState::Unknown { why: format!("what it was given when it was opened cannot be read ({error})") }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::caused(Kind::Error, "the cleanup was interrupted", &error))
}
