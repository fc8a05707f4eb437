//! One run from its claim to its end: into its session, its workspace and its sandbox, under a keeper, and what it came to.
//! The executor `command` runs any argv as it is; an [agent](super::agent) is spoken with.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::budget::Usage;
use session_core::error::StoreError;
use session_core::event::Payload;
use session_core::history::History;
use session_core::ports::RunProgress;
use session_core::run::{EndKind, Ending, Fence, ReasonCode, Run, StopMode};
use session_core::{ManagedSession, RunPhase};
use session_manager::recovery;
use session_manager::{Dispatcher, InFlight};
use tokio::sync::{mpsc, watch};

use super::agent::Engagement;
use super::{Order, outcome};
use crate::agents::Launch;
use crate::door::Door;
use crate::egress::{Denials, Egress, SystemResolver};
use crate::process::{
    Control, LivingKeeper, RunEnd, RunOutcome, RunReport, SpawnError, SpawnFailureKind, Supervised, protocol,
};
use crate::progress::Progress;
use crate::room::Rooms;
use crate::runner::RunnerOptions;
use crate::scope::Settlement;
use crate::slots::Slots;
use crate::tally::Tally;
use crate::wires::Wires;
use crate::workspace::{Layout, SessionDir, Workspace, WorkspaceRequest, conversation, prepare};

/// Before what the store could not take is sent again: at first, and at the most.
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(100);
pub(super) const RETRY_LAST: Duration = Duration::from_secs(5);
/// How long the end of a tree that was killed is waited for.
const END_BOUND: Duration = Duration::from_secs(40);

/// One run, from its claim to its end.
pub(crate) struct Execution {
    pub(crate) dispatcher: Arc<dyn Dispatcher>,
    pub(crate) layout: Layout,
    /// Whose machine it is executed on.
    pub(crate) profile: RunnerProfile,
    pub(crate) options: Arc<RunnerOptions>,
    pub(crate) progress: Progress,
    /// One for all: it bounds the lookups of all sessions.
    pub(crate) resolver: Arc<SystemResolver>,
    pub(crate) door: Arc<dyn Door>,
    pub(crate) slots: Slots,
    /// Where the pipes go of programs that a bridge speaks with.
    pub(crate) wires: Option<Arc<dyn Wires>>,
    pub(crate) orders: mpsc::Receiver<Order>,
    /// The other end of `orders`, for the session's engine.
    pub(crate) ordering: mpsc::Sender<Order>,
    /// What the run may use in all, as renewals tell it.
    pub(crate) left: watch::Receiver<Option<Usage>>,
    /// What the run has used, which renewals tell.
    pub(crate) tally: Tally,
    pub(crate) fence: Fence,
    pub(crate) session: ManagedSession,
    /// What this machine has made of the session's scope, where its record leaves that to the machine.
    pub(crate) settlement: Option<Settlement>,
    pub(crate) run: Run,
}

/// How an execution begins.
pub(crate) enum Start {
    /// From nothing.
    Fresh,
    /// With a keeper that outlived its host.
    Adopted(Box<LivingKeeper>),
}

/// What the processes of a run came to.
pub(super) enum Came {
    /// To this end.
    ToEnd(Ending, Option<Payload>),
    /// To nothing that is ours to say: the run goes on without us, or belongs to another claim.
    ToNothing,
}

impl Came {
    /// Adds what the run's proxy did not let through to what is told of its end.
    fn with_denials(self, denials: &Denials) -> Self {
        match self {
            Self::ToEnd(ending, result) => Self::ToEnd(ending, outcome::with_denials(result, denials)),
            Self::ToNothing => Self::ToNothing,
        }
    }

    pub(super) fn to(outcome: &RunOutcome) -> Self {
        Self::ToEnd(outcome::ending(outcome), outcome::result(outcome))
    }
}

impl Execution {
    /// Enters the session, executes the run in it and says what it came to.
    pub(crate) async fn execute(mut self, start: Start) {
        // The session counts as used, and the slot as taken, until the run's end is recorded.
        let (came, _entered, _session) = match start {
            Start::Fresh => match self.enter().await {
                Ok(entered) => (self.fresh(&entered.session).await, Some(entered), None),
                Err(came) => (came, None, None),
            },
            Start::Adopted(keeper) => {
                let entered = self.door.enter(self.session.id).await;
                if let Err(refusal) = &entered {
                    // It runs already: it is watched to its end all the same.
                    tracing::warn!(run = %self.run.id, %refusal, "the session of a run that lives on is not open");
                }
                let session = entered.ok();
                if let Err(ending) = self.settle().await {
                    tracing::warn!(run = %self.run.id, ending.message, "the scope of a run that lives on cannot be told");
                }
                let came = {
                    let _occupied =
                        session.as_ref().map(|session| session.engine().occupy(self.ordering.clone()));
                    // The processes find a proxy that comes back under the name that it had.
                    let egress = self.egress().await.unwrap_or_else(|ending| {
                        tracing::warn!(run = %self.run.id, ending.message, "a run that lives on has no proxy");
                        None
                    });
                    let came = self.adopted(&keeper).await;
                    match egress {
                        Some(egress) => came.with_denials(&egress.close().await),
                        None => came,
                    }
                };
                (came, None, session)
            }
        };
        match came {
            Came::ToEnd(ending, result) => {
                self.finish(ending.clone(), result).await;
                self.tell_over(Some(&ending)).await;
            }
            Came::ToNothing => self.tell_over(None).await,
        }
    }

    /// One turn of the session, paid for before it begins and settled after it.
    async fn fresh(&mut self, session: &InFlight<Rooms>) -> Came {
        if self.run.spec.turn.is_some() {
            // What its children have, and used since, is told by the record alone.
            session.look_up_budget().await;
        }
        let worst = self.worst(session);
        let spending = match self.pay(session, worst).await {
            Ok(spending) => spending,
            Err(came) => return came,
        };
        self.tally.begin(worst);
        let mut used = self.least();
        let came = {
            let _occupied = session.engine().occupy(self.ordering.clone());
            self.turn(session, &mut used).await
        };
        let began = self.run.state.phase() == RunPhase::Running;
        let spending = spending.recorded(self.tally.close().await);
        let _account = spending.settle(if began { used } else { Usage::NONE }).await;
        came
    }

    async fn turn(&mut self, session: &InFlight<Rooms>, used: &mut Usage) -> Came {
        let framework = match self.framework() {
            Ok(framework) => framework,
            Err(ending) => return Came::ToEnd(ending, None),
        };
        if let Err(came) = self.advance(RunProgress::Starting).await {
            return came;
        }
        if let Err(ending) = self.settle().await {
            return Came::ToEnd(ending, None);
        }
        let workspace = match self.workspace().await {
            Ok(workspace) => workspace,
            Err(ending) => return Came::ToEnd(ending, None),
        };
        if let Some(history) = session.engine().history() {
            if let Err(ending) = self.leave_history(history).await {
                return Came::ToEnd(ending, None);
            }
            session.engine().history_left();
        }
        let engagement = match framework {
            None => None,
            Some(framework) => match self.engage(framework, &workspace).await {
                Ok(engagement) => Some(engagement),
                Err(ending) => return Came::ToEnd(ending, None),
            },
        };
        let egress = match self.egress().await {
            Ok(egress) => egress,
            Err(ending) => return Came::ToEnd(ending, None),
        };
        let came = match self
            .start(&workspace, egress.as_ref(), engagement.as_ref().map(Engagement::launched))
            .await
        {
            Err(came) => came,
            Ok(supervised) => match engagement {
                None if self.run.affinity.executor.is_mcp() => self.bridge(supervised).await,
                None => self.supervise(supervised, std::future::pending()).await,
                Some(engagement) => self.converse(session, supervised, engagement, used).await,
            },
        };
        match egress {
            Some(egress) => came.with_denials(&egress.close().await),
            None => came,
        }
    }

    /// Starts the program of the turn. It runs, and that is recorded, when this returns.
    async fn start(
        &mut self,
        workspace: &Workspace,
        egress: Option<&Egress>,
        launch: Option<&Launch>,
    ) -> Result<Supervised, Came> {
        let spec = self.spec(workspace, egress, launch).await;
        let spec = spec.map_err(|ending| Came::ToEnd(ending, None))?;
        if let Ok(order) = self.orders.try_recv() {
            return Err(before_start(order));
        }
        let supervised = Supervised::start(&self.options.keeper, &spec).await.map_err(|error| {
            if matches!(&error, SpawnError::Program(failure) if failure.kind == SpawnFailureKind::Sandbox) {
                self.options.launcher.forget();
            }
            Came::ToEnd(not_started(error), None)
        })?;
        let sandbox = supervised.applied().map(|applied| self.report(applied));
        if let Err(came) = self.advance(RunProgress::Running { sandbox }).await {
            end_now(supervised).await;
            return Err(came);
        }
        outcome::record(&self.directory(), &self.session, &self.run, self.dispatcher.env().now());
        Ok(supervised)
    }

    /// Watches the run until its tree has ended, and passes orders on. Once `let_go` has come it is stopped, with this grace.
    pub(super) async fn supervise(
        &mut self,
        mut supervised: Supervised,
        let_go: impl Future<Output = Duration>,
    ) -> Came {
        let control = supervised.control();
        let (mut host_ends, mut stop_ordered) = (false, false);
        let (mut let_go, mut went) = (pin!(let_go), false);
        loop {
            tokio::select! {
                report = supervised.next_report() => match report {
                    Ok(Some(RunReport::Progress(progress))) => self.progress.line(self.run.id, progress.last_line),
                    Ok(Some(RunReport::Ended(end))) => {
                        self.progress.line(self.run.id, end.output.last_line.clone());
                        return over(end, host_ends && !stop_ordered);
                    }
                    Ok(Some(RunReport::KeeperLost(orphans))) => {
                        return Came::ToEnd(outcome::keeper_lost(orphans), None);
                    }
                    Ok(None) => return Came::ToEnd(recovery::lost("its end was not reported"), None),
                    Err(error) => {
                        end_now(supervised).await;
                        let what = format!("its keeper could not be heard any more ({error})");
                        return Came::ToEnd(recovery::lost(&what), None);
                    }
                },
                grace = &mut let_go, if !went => {
                    (went, stop_ordered) = (true, true);
                    pass_on(control.stop(Some(grace)));
                }
                order = next_order(&mut self.orders) => match order {
                    Order::Leave => return Came::ToNothing,
                    Order::HostEnds => {
                        host_ends = true;
                        pass_on(control.stop(None));
                    }
                    Order::Stop(mode) => {
                        stop_ordered = true;
                        self.pass_stop(&control, mode);
                    }
                },
            }
        }
    }

    fn pass_stop(&self, control: &Control, mode: StopMode) {
        pass_on(match mode {
            StopMode::Graceful => control.stop(Some(self.options.grace)),
            StopMode::Kill => control.kill(),
        });
    }

    async fn workspace(&self) -> Result<Workspace, Ending> {
        let (layout, git) = (self.layout.clone(), self.options.git.clone());
        let request = WorkspaceRequest {
            session: self.session.id,
            kind: self.session.workspace.kind,
            project: self.session.workspace.project.clone(),
            base: None,
            sandbox: self.session.sandbox.clone(),
            settlement: self.settlement.clone(),
        };
        let failed =
            |message: String| Ending::because(EndKind::Failed, ReasonCode::WorkspaceFailed, None, message);
        self.not_redirected()?;
        self.must_be_held().await?;
        match tokio::task::spawn_blocking(move || prepare(&layout, &git, &request)).await {
            Ok(prepared) => prepared.map_err(|error| failed(sentence(&error))),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Puts the conversation so far where the run's program finds it. One that says nothing leaves no file.
    async fn leave_history(&self, history: History) -> Result<(), Ending> {
        let path = self.directory().history();
        if history.messages.is_empty() {
            return Ok(());
        }
        let written = tokio::task::spawn_blocking(move || conversation::write(&path, &history)).await;
        written.map_err(io::Error::other).and_then(|written| written).map_err(|error| {
            let message = format!("the conversation so far could not be written to history.json: {error}");
            Ending::because(EndKind::Failed, ReasonCode::WorkspaceFailed, None, message)
        })
    }

    pub(super) fn directory(&self) -> SessionDir {
        self.layout.session(self.session.id)
    }

    /// Says how far the run is. If that cannot be said because an order came, or because the run is not ours any
    /// more, what it came to comes back.
    pub(super) async fn advance(&mut self, to: RunProgress) -> Result<(), Came> {
        let mut wait = RETRY_FIRST;
        loop {
            match self.dispatcher.advance(self.fence, to.clone()).await {
                Ok(run) => {
                    self.run = run;
                    return Ok(());
                }
                Err(error) if error.may_pass() => self.held_up(&error, wait),
                Err(error) => {
                    self.complain(&error, "the run belongs to another claim");
                    return Err(Came::ToNothing);
                }
            }
            tokio::select! {
                next = pause(wait) => wait = next,
                order = next_order(&mut self.orders) => return Err(before_start(order)),
            }
        }
    }

    /// Says how the run ended, until the store has it or says that it is not ours.
    async fn finish(&mut self, ending: Ending, result: Option<Payload>) {
        let said = self.progress.last_line(self.run.id);
        let (directory, run) = (self.directory(), self.run.id);
        let told = tokio::task::spawn_blocking(move || outcome::changes(&directory, run)).await;
        let result = outcome::with_changes(result, &told.unwrap_or_default());
        let mut wait = RETRY_FIRST;
        loop {
            self.progress.line(self.run.id, said.clone());
            match self.dispatcher.finish(self.fence, ending.clone(), result.clone()).await {
                Ok(run) => {
                    outcome::record(&self.directory(), &self.session, &run, self.dispatcher.env().now());
                    return;
                }
                Err(error) if error.may_pass() => self.held_up(&error, wait),
                Err(error) => return self.complain(&error, "the end of the run was not recorded"),
            }
            tokio::select! {
                next = pause(wait) => wait = next,
                // The keeper's record is on disk; the next host finds it there.
                order = next_order(&mut self.orders) => {
                    if matches!(order, Order::HostEnds | Order::Leave) {
                        return;
                    }
                }
            }
        }
    }

    /// The store does not take what it is told: said once in the log, and shown to those who watch.
    fn held_up(&self, error: &StoreError, wait: Duration) {
        if wait == RETRY_FIRST {
            self.complain(error, "the store does not take how far the run is; it is told again and again");
        }
        self.progress.line(self.run.id, Some(format!("(waiting for the store) {}", sentence(error))));
    }

    pub(super) fn complain(&self, error: &StoreError, what: &str) {
        tracing::warn!(run = %self.run.id, error = error as &dyn std::error::Error, "{what}");
    }
}

/// What a run comes to by an order that came before it ran.
pub(super) fn before_start(order: Order) -> Came {
    match order {
        Order::Stop(_) => Came::ToEnd(recovery::stopped(None), None),
        Order::HostEnds => Came::ToEnd(recovery::lost("its host ended before it ran"), None),
        // It stays claimed; the next host goes on with it.
        Order::Leave => Came::ToNothing,
    }
}

/// A run that ended because its host left was not stopped by anybody: it is lost, and can be resumed.
fn over(end: RunEnd, left_behind: bool) -> Came {
    let stopped = end.cause == protocol::EndCause::Stopped;
    let outcome = RunOutcome::Ended(end);
    if left_behind && stopped {
        return Came::ToEnd(recovery::lost("its host ended"), outcome::result(&outcome));
    }
    Came::to(&outcome)
}

/// Ends a tree that nobody is to watch any more, whatever its keeper would do about a lost host.
pub(super) async fn end_now(mut supervised: Supervised) {
    pass_on(supervised.control().kill());
    let ended = async { while let Ok(Some(_)) = supervised.next_report().await {} };
    if tokio::time::timeout(END_BOUND, ended).await.is_err() {
        tracing::warn!("a keeper does not end its tree");
    }
}

/// Waits, and says for how long to wait the next time.
pub(super) async fn pause(wait: Duration) -> Duration {
    tokio::time::sleep(wait).await;
    (wait * 2).min(RETRY_LAST)
}

/// The next order; never, when nobody is left to give one.
pub(super) async fn next_order(orders: &mut mpsc::Receiver<Order>) -> Order {
    match orders.recv().await {
        Some(order) => order,
        None => std::future::pending().await,
    }
}

pub(super) fn pass_on(passed: io::Result<bool>) {
    if let Err(error) = passed {
        tracing::warn!(%error, "an order did not reach the keeper");
    }
}

fn not_started(error: SpawnError) -> Ending {
    match error {
        SpawnError::Program(failure) => outcome::not_started(&failure),
        SpawnError::Spec(_) | SpawnError::Keeper { .. } | SpawnError::Lost { .. } => {
            Ending::because(EndKind::Failed, ReasonCode::SpawnFailed, None, sentence(&error))
        }
    }
}

/// An error and what lies behind it, in one sentence.
pub(super) fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
