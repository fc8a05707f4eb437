//! What a host does to the lives of sessions: those that live in this process through their manager, all others through
//! their records.

use session_core::budget::{Budget, BudgetChange, Usage};
use session_core::error::StoreError;
use session_core::event::Seq;
use session_core::names::{Label, Principal};
use session_core::ports::{Ledger as _, Page, SessionFilter, SessionStore as _, Sweep};
use session_core::run::StopMode;
use session_core::session::NewSession;
use session_core::state::{TerminationReason, Trigger};
use session_core::{ManagedSession, SessionId};
use session_manager::{ChangeError, StateError};

use super::operations::{Operations, bad_name};
use super::protocol::{BudgetChangeWire, BudgetWire, Reply};
use crate::failure::{Failure, Kind, Outcome};

/// How many records are swept in one transaction.
const SWEEP_BATCH: u32 = 100;

impl Operations {
    /// Ends them for good: every one, whatever becomes of the others; one that is over already is done.
    pub(super) async fn kill(&self, sessions: &[SessionId]) -> Outcome<Reply> {
        let mut killed = Vec::with_capacity(sessions.len());
        let mut failed = None;
        for &session in sessions {
            match self.kill_one(session).await {
                Ok(()) => killed.push(session),
                Err(failure) => failed = Some(failure),
            }
        }
        failed.map_or(Ok(Reply::Killed(killed)), Err)
    }

    async fn kill_one(&self, session: SessionId) -> Outcome<()> {
        match self.manager().terminate(session, TerminationReason::Killed).await {
            Ok(()) => return Ok(()),
            // It is over here; that this was not recorded is said below, where it is tried once more.
            Err(StateError::Record { .. } | StateError::Unknown(_)) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%session, error, "a session did not end in order");
            }
        }
        match self.coordinator().kill(session).await {
            Ok(_) | Err(StoreError::Transition(_)) => Ok(()),
            Err(error) => Err(self.past_the_store(&[session], StopMode::Kill, error)),
        }
    }

    /// The kill switch: every session of an owner, or of all.
    pub(super) async fn kill_all(&self, principal: Option<&str>) -> Outcome<Reply> {
        let principal = principal.map(Principal::new).transpose().map_err(bad_name)?;
        let filter = SessionFilter { principal, live: true, ..SessionFilter::default() };
        let mut killed = Vec::new();
        let mut page = Page::first(Page::MAX);
        loop {
            let listing = self.store().list(&filter, &page).await?;
            let sessions: Vec<_> = listing.items.iter().map(|item| item.session.id).collect();
            if let Reply::Killed(done) = self.kill(&sessions).await? {
                killed.extend(done);
            }
            match listing.next {
                Some(cursor) => page = page.after(cursor),
                None => return Ok(Reply::Killed(killed)),
            }
        }
    }

    /// Lets go of what is alive behind them.
    pub(super) async fn suspend(&self, sessions: &[SessionId]) -> Outcome<Reply> {
        for &session in sessions {
            match self.manager().suspend(session).await {
                Ok(()) => {}
                Err(StateError::Unknown(_)) => self.suspend_record(session).await?,
                Err(error) => return Err(state_failure(&error)),
            }
        }
        Ok(Reply::Done)
    }

    /// Nothing of it is alive here: its record says all.
    async fn suspend_record(&self, session: SessionId) -> Outcome<()> {
        let ttl = self.limits().suspended_ttl.unwrap_or(jiff::SignedDuration::MAX);
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
            label: label.or(like.label),
            agent: like.agent,
            kind: like.workspace.kind,
            project: like.workspace.project,
            metadata: like.metadata,
            budget: like.budget,
            parent: None,
            key: None,
        };
        let forked = self.store().fork(source, upto.map(Seq), new, self.now()).await?;
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
        let Some(record) = self.store().session(session).await? else {
            return Err(StoreError::UnknownSession(session).into());
        };
        let change = budget_change(&record, change);
        match self.manager().change_budget(session, change, by.clone()).await {
            Ok(()) => {}
            Err(ChangeError::Unknown(_)) => {
                self.store().set_budget(session, change, &by, self.now()).await?;
            }
            Err(error) => return Err(Failure::of(Kind::Error, &error)),
        }
        Ok(Reply::Done)
    }

    /// Moves those along whose time has come and that do not live here: the manager sees to its own.
    pub(super) async fn sweep_records(&self) -> Outcome<()> {
        let sweep = Sweep {
            runner: self.profile().id,
            idle_timeout: self.limits().idle_timeout,
            suspended_ttl: self.limits().suspended_ttl,
            except: self.manager().list().into_iter().map(|view| view.session).collect(),
            limit: SWEEP_BATCH,
        };
        while self.store().sweep(&sweep, self.now()).await?.len() == SWEEP_BATCH as usize {}
        Ok(())
    }
}

/// What is not given stays.
fn budget_change(record: &ManagedSession, change: BudgetChangeWire) -> BudgetChange {
    match change {
        BudgetChangeWire::Add(by) => BudgetChange::Add(usage(by)),
        BudgetChangeWire::Set { to, any_turns, any_cost } => {
            let now = record.budget;
            BudgetChange::Set(Budget {
                tokens_max: to.tokens.unwrap_or(now.tokens_max),
                tool_calls_max: to.tool_calls.unwrap_or(now.tool_calls_max),
                turns_max: if any_turns { None } else { to.turns.or(now.turns_max) },
                cost_micros_max: if any_cost { None } else { to.cost_micros.or(now.cost_micros_max) },
            })
        }
    }
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
