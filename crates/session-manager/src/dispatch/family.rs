//! Families: parents are told of their children, what ends takes its children along, and what is left over is ended.

use std::collections::HashSet;

use session_core::digest::Digest;
use session_core::error::{Conflict, StoreError, StoreResult};
use session_core::ports::{NewRun, Page, SessionFilter};
use session_core::run::Run;
use session_core::state::{TerminationReason, Trigger};
use session_core::{ManagedSession, SessionId, SessionState};

use super::Coordinator;
use super::submit::claim_by;
use super::telling::{ENDS_MAX, Making, Telling, telling};

/// How many sessions are looked at in one go.
const BATCH: u32 = 100;
/// Among how many of its newest runs the last turn of a session's agent is looked for.
const RUNS: u32 = 16;

impl Coordinator {
    /// Tells every session to which something is due of the ends of its children's runs, and that is at rest: an agent by a
    /// turn, which takes all of it up to a bound, any other by its log alone. Returns the runs of those turns.
    ///
    /// Whoever calls this listens to `Topic::Family` before, and calls it again when that wakes: what becomes due meanwhile
    /// is told then. Any number of callers may do so at once, and each end is told once. A session that cannot be told, for
    /// a reason that does not pass, is left in peace until it is used again.
    pub async fn tell_parents(&self) -> StoreResult<Vec<Run>> {
        let (mut told, mut tried) = (Vec::new(), HashSet::new());
        loop {
            let due = self.store.callbacks_due(BATCH).await?;
            let next: Vec<_> = due.into_iter().filter(|parent| tried.insert(*parent)).collect();
            if next.is_empty() {
                return Ok(told);
            }
            for parent in next {
                match self.tell(parent).await {
                    Ok(run) => told.extend(run),
                    Err(error) if error.may_pass() => return Err(error),
                    // Somebody else was faster, or it is over.
                    Err(
                        StoreError::Busy { .. }
                        | StoreError::Conflict(Conflict::NotDue(_))
                        | StoreError::Transition(_),
                    ) => {}
                    Err(error) => {
                        tracing::warn!(
                            %parent,
                            error = &error as &dyn std::error::Error,
                            "a session cannot be told of its children before it is used"
                        );
                        self.store.hold_callbacks(&[parent]).await?;
                    }
                }
            }
        }
    }

    async fn tell(&self, parent: SessionId) -> StoreResult<Option<Run>> {
        let session = self.store.session(parent).await?.ok_or(StoreError::UnknownSession(parent))?;
        let runs = self.store.runs(parent, RUNS).await?;
        let mut due = self.store.callbacks(parent, ENDS_MAX).await?;
        if due.is_empty() {
            return Ok(None);
        }
        let now = self.env.now();
        let mark = Digest::of(self.env.secret()).to_string();
        let claim_by = claim_by(self.options.resume_within, now);
        let making = Making { run: self.env.run_id(), mark: &mark, claim_by };
        match telling(&session, &runs, &due, &making) {
            Telling::Turn(new) => {
                let batch: Vec<NewRun> = vec![*new];
                Ok(self.store.enqueue(batch, None, now).await?.pop())
            }
            Telling::Log => {
                while !due.is_empty() {
                    let ends: Vec<_> = due.iter().map(|callback| callback.run).collect();
                    self.store.callbacks_heard(parent, &ends).await?;
                    due = self.store.callbacks(parent, ENDS_MAX).await?;
                }
                Ok(None)
            }
        }
    }

    /// The live children of a session, newest first.
    pub async fn children(&self, session: SessionId) -> StoreResult<Vec<ManagedSession>> {
        let filter = SessionFilter { parent: Some(session), live: true, ..SessionFilter::default() };
        let (mut children, mut page) = (Vec::new(), Page::first(Page::MAX));
        loop {
            let listing = self.store.list(&filter, &page).await?;
            children.extend(listing.items.into_iter().map(|item| item.session));
            match listing.next {
                Some(cursor) => page = page.after(cursor),
                None => return Ok(children),
            }
        }
    }

    /// These sessions and all live ones below them, each once and behind its parent.
    pub async fn families(&self, of: &[SessionId]) -> StoreResult<Vec<SessionId>> {
        let mut known = HashSet::new();
        let mut found: Vec<_> = of.iter().copied().filter(|session| known.insert(*session)).collect();
        let mut next = 0;
        while let Some(&session) = found.get(next) {
            next += 1;
            let children = self.children(session).await?.into_iter().map(|child| child.id);
            found.extend(children.filter(|child| known.insert(*child)));
        }
        Ok(found)
    }

    /// Ends a session for good and all live ones below it, and whatever runs in them at once. Returns those that were ended,
    /// each behind its parent: one that is over gets no more children, and one that it started in this moment is found as an
    /// orphan.
    pub async fn kill_family(&self, session: SessionId) -> StoreResult<Vec<SessionId>> {
        let mut killed = Vec::new();
        for session in self.families(&[session]).await? {
            match self.kill(session).await {
                Ok(session) => killed.push(session.id),
                // Somebody else was faster.
                Err(StoreError::Transition(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(killed)
    }

    /// Ends the live sessions whose parent is over, and then theirs: what a crash left, and what a parent left that came to
    /// its end by itself. Whatever runs in them is ended at once. Below one that was killed they are killed too, else the
    /// reason is that their parent ended. Returns them with the reason.
    pub async fn end_orphans(&self) -> StoreResult<Vec<(SessionId, TerminationReason)>> {
        let (mut ended, mut tried) = (Vec::new(), HashSet::new());
        loop {
            let orphans = self.store.orphaned(BATCH).await?;
            let next: Vec<_> = orphans.into_iter().filter(|orphan| tried.insert(*orphan)).collect();
            if next.is_empty() {
                return Ok(ended);
            }
            for orphan in next {
                let reason = self.reason_of_parent(orphan).await?;
                let trigger = Trigger::Terminate(reason);
                match self.store.transition(orphan, trigger, self.env.now()).await {
                    Ok(_) => ended.push((orphan, reason)),
                    // Somebody else was faster.
                    Err(StoreError::Transition(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Why a session ends whose parent is over.
    async fn reason_of_parent(&self, orphan: SessionId) -> StoreResult<TerminationReason> {
        let parent = self.store.session(orphan).await?.and_then(|orphan| orphan.parent);
        let parent = match parent {
            Some(parent) => self.store.session(parent).await?,
            None => None,
        };
        let killed = parent.is_some_and(|parent| {
            matches!(parent.state, SessionState::Terminated { reason: TerminationReason::Killed, .. })
        });
        Ok(if killed { TerminationReason::Killed } else { TerminationReason::ParentEnded })
    }

    /// Whether a parent waits to be told, or an orphan to be ended.
    pub async fn has_family_work(&self) -> StoreResult<bool> {
        let due = self.store.callbacks_due(1).await?;
        Ok(!due.is_empty() || !self.store.orphaned(1).await?.is_empty())
    }
}
