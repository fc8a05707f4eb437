//! What a host does to the lives of sessions: those that live in this process through their manager, all others through
//! their records.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use jiff::SignedDuration;
use session_core::budget::{BudgetChange, BudgetPatch, LimitChange, Usage};
use session_core::error::{StoreError, StoreResult};
use session_core::event::Seq;
use session_core::names::{Label, Principal};
use session_core::ports::{Ledger as _, Page, RunStore as _, SessionFilter, SessionStore as _, Sweep};
use session_core::run::StopMode;
use session_core::session::NewSession;
use session_core::state::{TerminationReason, Trigger};
use session_core::{SessionId, SessionState};
use session_manager::{ChangeError, StateError};
use tokio::time::{Instant, timeout_at};

use super::operations::{Operations, bad_name};
use super::protocol::{BudgetChangeWire, BudgetWire, Reply};
use crate::failpoint;
use crate::failure::{Failure, Kind, Outcome};

/// How many sessions are ended or suspended at once.
const AT_ONCE: usize = 32;
/// How long a session whose run has just ended may take until it can be suspended.
const SETTLE_BOUND: Duration = Duration::from_secs(5);
/// How many records are swept in one transaction.
const SWEEP_BATCH: u32 = 100;

impl Operations {
    /// Ends them for good, and all below them: every one, whatever becomes of the others; one that is over already is done.
    /// A parent goes first, so that it starts no more children; one that it started in this moment is found as an orphan.
    pub(super) async fn kill(&self, sessions: &[SessionId]) -> Outcome<Reply> {
        // Looked for before anything ends: below what is over there may be nothing alive any more.
        let (below, unknown) = match self.coordinator().families(sessions).await {
            Ok(mut family) => {
                family.retain(|session| !sessions.contains(session));
                (family, None)
            }
            Err(error) => (Vec::new(), Some(error.into())),
        };
        let (mut killed, failed) = self.kill_each(sessions).await;
        if !below.is_empty() {
            failpoint::reach("cascade");
        }
        let (more, failed_below) = self.kill_each(&below).await;
        killed.extend(more);
        let failed = failed.or(failed_below).or(unknown);
        failed.map_or(Ok(Reply::Killed(killed)), Err)
    }

    async fn kill_each(&self, sessions: &[SessionId]) -> (Vec<SessionId>, Option<Failure>) {
        let kills: Vec<_> = sessions.iter().map(|&session| self.kill_one(session)).collect();
        let kills: Vec<_> = stream::iter(kills).buffer_unordered(AT_ONCE).collect().await;
        let mut failed = None;
        let mut killed = Vec::with_capacity(sessions.len());
        for (session, done) in kills {
            match done {
                Ok(()) => killed.push(session),
                Err(failure) => failed = Some(failure),
            }
        }
        (killed, failed)
    }

    /// Ends the sessions whose parent is over.
    pub(super) async fn end_orphans(&self) -> Outcome<()> {
        let orphans = self.coordinator().end_orphans().await?;
        let goodbyes = orphans.into_iter().map(|(orphan, reason)| self.let_go(orphan, reason));
        let goodbyes: Vec<_> = goodbyes.collect();
        stream::iter(goodbyes).buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(())
    }

    async fn kill_one(&self, session: SessionId) -> (SessionId, Outcome<()>) {
        (session, self.kill_for_good(session).await)
    }

    async fn kill_for_good(&self, session: SessionId) -> Outcome<()> {
        self.end_for_good(session).await.map_err(|error| {
            let failure = self.past_the_store(&[session], StopMode::Kill, error);
            failure.hint("what runs in it is ended; kill it again when the store can be written")
        })
    }

    /// Ends one for good; one that is over already is done.
    pub(super) async fn end_for_good(&self, session: SessionId) -> StoreResult<()> {
        match self.manager().terminate(session, TerminationReason::Killed).await {
            Ok(()) | Err(StateError::Record { .. } | StateError::Unknown(_)) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%session, error, "a session did not end in order");
            }
        }
        // Its record has the last word, whatever this process thought of it.
        match self.coordinator().kill(session).await {
            Ok(_) | Err(StoreError::Transition(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The kill switch: every session of an owner, or of all, whatever becomes of the others.
    pub(super) async fn kill_all(&self, principal: Option<&str>) -> Outcome<Reply> {
        let principal = principal.map(Principal::new).transpose().map_err(bad_name)?;
        // What lives here goes first, all at once, also if the records are out of reach.
        let here = self.manager().terminate_all(principal.as_ref(), TerminationReason::Killed).await;
        let filter = SessionFilter { principal, live: true, ..SessionFilter::default() };
        let (mut killed, mut failed, mut page) = (here.sessions, None, Page::first(Page::MAX));
        loop {
            let listing = self.store().list(&filter, &page).await?;
            let sessions: Vec<_> = listing.items.iter().map(|item| item.session.id).collect();
            match self.kill(&sessions).await {
                Ok(Reply::Killed(done)) => killed.extend(done),
                Ok(_) => {}
                Err(failure) => failed = Some(failure),
            }
            match listing.next {
                Some(cursor) => page = page.after(cursor),
                None => return failed.map_or(Ok(Reply::Killed(killed)), Err),
            }
        }
    }

    /// Lets go of what is alive behind them.
    pub(super) async fn suspend(&self, sessions: &[SessionId]) -> Outcome<Reply> {
        for &session in sessions {
            self.suspend_one(session).await?;
        }
        Ok(Reply::Done)
    }

    async fn suspend_one(&self, session: SessionId) -> Outcome<()> {
        let mut changes = self.manager().subscribe();
        let (mut until, mut asked) = (Instant::now() + SETTLE_BOUND, false);
        loop {
            changes.mark_unchanged();
            match self.manager().suspend(session).await {
                Ok(()) => return Ok(()),
                Err(StateError::Unknown(_)) => return self.suspend_record(session).await,
                Err(error @ StateError::InUse(_)) => {
                    // A run whose end is recorded lets go of its session in a moment.
                    let last = self.store().runs(session, 1).await?.pop();
                    let last = last.filter(|run| !run.state.phase().is_ended());
                    let is_mcp = last.as_ref().is_some_and(|run| run.affinity.executor.is_mcp());
                    // The server of a bridge is started again when its client comes back.
                    if is_mcp && !std::mem::replace(&mut asked, true) {
                        until += self.config().run.grace.unsigned_abs();
                        self.coordinator().stop(&[session], StopMode::Graceful).await?;
                    }
                    if (last.is_some() && !is_mcp) || timeout_at(until, changes.changed()).await.is_err() {
                        return Err(state_failure(&error));
                    }
                }
                Err(error) => return Err(state_failure(&error)),
            }
        }
    }

    /// Nothing of it is alive here: its record says all.
    async fn suspend_record(&self, session: SessionId) -> Outcome<()> {
        let record = self.store().session(session).await?.ok_or(StoreError::UnknownSession(session))?;
        if record.workspace.runner.is_some_and(|runner| runner != self.profile().id) {
            let message = format!("session {session} lives with another host on this store");
            return Err(Failure::new(Kind::Conflict, message).hint("suspend it there"));
        }
        let ttl = self.limits().suspended_ttl.unwrap_or(SignedDuration::MAX);
        match self.store().transition(session, Trigger::Suspend { ttl }, self.now()).await {
            Ok(_) => Ok(()),
            Err(StoreError::Transition(error)) if error.from == "suspended" => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A new session with the beginning of another one's log, and otherwise like it.
    pub(super) async fn fork(
        &self,
        source: SessionId,
        upto: Option<u64>,
        label: Option<&str>,
    ) -> Outcome<Reply> {
        let label = label.map(Label::new).transpose().map_err(bad_name)?;
        let Some(like) = self.store().session(source).await? else {
            return Err(StoreError::UnknownSession(source).into());
        };
        let new = NewSession {
            id: self.session_id(),
            principal: like.principal,
            // A label that two sessions bear finds neither.
            label,
            agent: like.agent,
            kind: like.workspace.kind,
            project: like.workspace.project,
            sandbox: like.sandbox,
            metadata: like.metadata,
            budget: like.budget,
            parent: None,
            key: None,
        };
        let forked = self.store().fork(source, upto.map(Seq), new, self.now()).await?;
        // Nothing is alive behind it until somebody works in it.
        self.suspend_record(forked.id).await?;
        Ok(Reply::Forked(forked.id))
    }

    /// Changes what a session may use up.
    pub(super) async fn change_budget(
        &self,
        session: SessionId,
        change: BudgetChangeWire,
        by: &str,
    ) -> Outcome<Reply> {
        let by = Principal::new(by).map_err(bad_name)?;
        let change = budget_change(change);
        match self.manager().change_budget(session, change, by.clone()).await {
            Ok(()) => {}
            Err(ChangeError::Unknown(_)) => {
                self.store().set_budget(session, change, &by, self.now()).await?;
            }
            Err(error) => return Err(Failure::of(Kind::Error, &error)),
        }
        Ok(Reply::Done)
    }

    /// When a host begins, nothing is alive behind any session yet: those that are recorded as active or idle are suspended,
    /// except where a run waits.
    pub(super) async fn suspend_what_was_left(&self) -> Outcome<()> {
        self.sweep(Some(SignedDuration::ZERO)).await
    }

    /// Moves those along that do not live here and were idle for so long: the manager sees to its own.
    pub(super) async fn sweep(&self, idle_timeout: Option<SignedDuration>) -> Outcome<()> {
        let sweep = Sweep {
            runner: self.profile().id,
            idle_timeout,
            suspended_ttl: self.limits().suspended_ttl,
            except: self.manager().list().into_iter().map(|view| view.session).collect(),
            limit: SWEEP_BATCH,
        };
        while self.store().sweep(&sweep, self.steady_now()).await?.len() == SWEEP_BATCH as usize {}
        Ok(())
    }

    async fn rest(&self, session: SessionId) -> (SessionId, Result<(), StateError>) {
        (session, self.manager().suspend(session).await)
    }

    /// When the host leaves, nothing stays alive: its sessions are suspended, except those whose runs go on without it.
    pub(super) async fn suspend_all(&self) {
        let active = |state: SessionState| matches!(state, SessionState::Active | SessionState::Idle { .. });
        let sessions = self.manager().list().into_iter().filter(|view| active(view.state));
        let suspensions: Vec<_> = sessions.map(|view| self.rest(view.session)).collect();
        let done: Vec<_> = stream::iter(suspensions).buffer_unordered(AT_ONCE).collect().await;
        for (session, suspended) in done {
            if let Err(error) = suspended {
                // The next host does it.
                tracing::debug!(%session, %error, "a session was not suspended when its host left");
            }
        }
    }
}

/// What is not given stays.
fn budget_change(change: BudgetChangeWire) -> BudgetChange {
    match change {
        BudgetChangeWire::Add(by) => BudgetChange::Add(usage(by)),
        BudgetChangeWire::Set { to, any_turns, any_cost } => BudgetChange::Set(BudgetPatch {
            tokens_max: to.tokens,
            tool_calls_max: to.tool_calls,
            turns_max: limit_change(to.turns, any_turns),
            cost_micros_max: limit_change(to.cost_micros, any_cost),
        }),
    }
}

fn limit_change(to: Option<u64>, lift: bool) -> LimitChange {
    if lift { LimitChange::Lift } else { to.map_or(LimitChange::Keep, LimitChange::To) }
}

fn usage(wire: BudgetWire) -> Usage {
    let of = |amount: Option<u64>| amount.unwrap_or_default();
    Usage {
        tokens: of(wire.tokens),
        tool_calls: of(wire.tool_calls),
        turns: of(wire.turns),
        cost_micros: of(wire.cost_micros),
    }
}

fn state_failure(error: &StateError) -> Failure {
    match error {
        StateError::InUse(_) => Failure::of(Kind::Conflict, error)
            .hint("wait for it (`roomette wait`) or stop it (`roomette stop`)"),
        StateError::Unknown(_) => Failure::of(Kind::NotFound, error),
        StateError::Ended(_)
        | StateError::NotReady { .. }
        | StateError::Flush { .. }
        | StateError::Shutdown { .. }
        | StateError::Record { .. } => Failure::of(Kind::Error, error),
    }
}
