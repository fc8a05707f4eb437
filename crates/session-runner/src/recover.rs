//! After the loss of a host: what became of the runs that it held on this machine.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use session_core::RunId;
use session_core::affinity::RunnerProfile;
use session_core::error::{StoreError, StoreResult};
use session_core::event::Payload;
use session_core::ports::{ClaimedRun, RunProgress};
use session_core::run::{EndKind, Ending, Run};
use session_core::{ManagedSession, RunPhase};
use session_manager::recovery::{self, Decision, EndCause, Found, KeeperEnding, OnHostLoss};
use session_manager::{Dispatcher, Holding};

use crate::executors::outcome;
use crate::process::orphans;
use crate::process::{
    KeeperState, LivingKeeper, RunEnd, RunOutcome, any_living_keeper, protocol, recover_keeper,
};
use crate::workspace::{Layout, SessionDir};

/// How much longer than its grace a keeper has to end its tree before it is killed.
const KEEPER_PATIENCE: Duration = Duration::from_secs(5);

/// What became of the runs of a host that went away.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Those that are over now.
    pub ended: Vec<Run>,
    /// Those that live on and are to be taken over.
    pub adopted: Vec<Adopted>,
}

/// A run that lives on under its keeper.
#[derive(Debug)]
pub struct Adopted {
    /// The run, under its new claim.
    pub claimed: ClaimedRun,
    /// Its keeper.
    pub keeper: LivingKeeper,
}

/// Decides and acts for every run that this runner's last host left in flight. All are taken over before the first is
/// decided on: nothing that the old host may still send counts, and no claim has run out while others are seen to.
/// Living processes that are to end have `grace` for it, from the moment their host was lost. The caller is the only
/// host of this runner.
pub async fn recover(
    dispatcher: &dyn Dispatcher,
    layout: &Layout,
    profile: &RunnerProfile,
    policy: OnHostLoss,
    grace: Duration,
) -> StoreResult<Recovery> {
    let mut result = Recovery::default();
    let mut taken = Vec::new();
    for ClaimedRun { session, run } in dispatcher.held(profile.id).await? {
        let left = Left { directory: layout.session(run.session), dispatcher, session, grace };
        match dispatcher.take_over(run.id, profile.id).await {
            Ok(run) => taken.push((left, run)),
            // Another host saw its claim run out: the run is not ours any more, what lives of it is.
            Err(StoreError::Transition(_)) => end_what_lives(run.id, left.look(&run).await, grace).await,
            Err(error) => return Err(error),
        }
    }
    if policy == OnHostLoss::Adopt {
        end_strays(layout, taken.iter().map(|(_, run)| run.id).collect(), grace).await;
    }
    for (left, run) in taken {
        let id = run.id;
        match left.settle(run, policy, &mut result).await {
            // The ends of others took longer than its claim holds, and another host saw that.
            Err(error @ (StoreError::Transition(_) | StoreError::Fenced { .. })) => {
                tracing::warn!(run = %id, error = &error as &dyn std::error::Error, "the run is another host's");
            }
            settled => settled?,
        }
    }
    let adopted: Vec<_> =
        result.adopted.iter().map(|adopted| Holding::from(adopted.claimed.run.fence())).collect();
    if !adopted.is_empty() {
        // The ends of the others may have taken as long as a claim holds. What becomes of each, and its order to stop if
        // there is one, comes with every later renewal too.
        let _heard = dispatcher.heartbeat(profile.id, adopted).await?;
    }
    Ok(result)
}

fn found(state: &KeeperState) -> Found {
    match state {
        KeeperState::Alive(_) => Found::Alive,
        KeeperState::Ended(RunOutcome::Ended(end)) => Found::Ended(outcome::keeper_ending(end)),
        // What it came to is said by its record; here it counts that it is over.
        KeeperState::Ended(RunOutcome::SpawnFailed(_)) => {
            Found::Ended(KeeperEnding { cause: EndCause::Exited, exit: None })
        }
        KeeperState::Gone(_) | KeeperState::Never => Found::Nothing,
    }
}

/// How a turn ended whose host went away: nobody heard the agent say that it is done, and its exit code says nothing.
fn cut(run: &Run, end: &RunEnd) -> Option<Ending> {
    let by_itself = matches!(end.cause, protocol::EndCause::Exited | protocol::EndCause::HostLost);
    let lost = || recovery::lost("its host went away before the end of the turn was recorded");
    (run.spec.turn.is_some() && by_itself).then(lost)
}

/// What a lost host left of one run.
struct Left<'c> {
    directory: SessionDir,
    dispatcher: &'c dyn Dispatcher,
    session: ManagedSession,
    grace: Duration,
}

impl Left<'_> {
    /// Decides on the run, which is taken over, and acts.
    async fn settle(self, run: Run, policy: OnHostLoss, result: &mut Recovery) -> StoreResult<()> {
        let state = self.look(&run).await;
        let stop = run.stop.map(|stop| stop.mode);
        // An agent without the host that it spoke with is of no use.
        let policy = if run.spec.turn.is_some() { OnHostLoss::End } else { policy };
        match (recovery::decide(run.state.phase(), stop, &found(&state), policy), state) {
            (Decision::Adopt, KeeperState::Alive(keeper)) => {
                result.adopted.push(Adopted { claimed: ClaimedRun { session: self.session, run }, keeper });
            }
            (Decision::Requeue, _) => {
                let run = self.dispatcher.give_back(run.fence()).await?;
                if run.ended().is_some() {
                    // Its end was asked for a moment ago.
                    self.record(&run);
                    result.ended.push(run);
                }
            }
            (Decision::End(ending), KeeperState::Ended(outcome)) => {
                // What could not even be started says so itself.
                let ending = match &outcome {
                    RunOutcome::SpawnFailed(_) => outcome::ending(&outcome),
                    RunOutcome::Ended(end) => cut(&run, end).unwrap_or(ending),
                };
                result.ended.push(self.end(run, ending, outcome::result(&outcome)).await?);
            }
            (Decision::EndThen(ending) | Decision::End(ending), state) => {
                result.ended.push(self.end_processes(run, state, ending).await?);
            }
            (Decision::Adopt, state) => {
                let lost = recovery::lost("its keeper went away while it was being taken over");
                result.ended.push(self.end_processes(run, state, lost).await?);
            }
        }
        Ok(())
    }

    async fn look(&self, run: &Run) -> KeeperState {
        let (path, id) = (self.directory.keeper_state(), run.id);
        match tokio::task::spawn_blocking(move || recover_keeper(&path, id)).await {
            Ok(Ok(state)) => state,
            Ok(Err(error)) => {
                tracing::warn!(run = %run.id, %error, "the keeper's record cannot be read");
                KeeperState::Gone(None)
            }
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "the keeper's record was not read");
                KeeperState::Gone(None)
            }
        }
    }

    /// Sees to it that no process of the run is left, then ends the run: as its keeper recorded it, if it did
    /// so meanwhile and nobody had asked for the end, else as `ending` says.
    async fn end_processes(&self, run: Run, state: KeeperState, ending: Ending) -> StoreResult<Run> {
        end_what_lives(run.id, state, self.grace).await;
        match self.look(&run).await {
            KeeperState::Ended(outcome) if run.stop.is_none() => {
                let ending = match &outcome {
                    RunOutcome::Ended(end) => cut(&run, end),
                    RunOutcome::SpawnFailed(_) => None,
                };
                let ending = ending.unwrap_or_else(|| outcome::ending(&outcome));
                self.end(run, ending, outcome::result(&outcome)).await
            }
            KeeperState::Ended(_) | KeeperState::Alive(_) | KeeperState::Gone(_) | KeeperState::Never => {
                self.end(run, ending, None).await
            }
        }
    }

    async fn end(&self, run: Run, ending: Ending, result: Option<Payload>) -> StoreResult<Run> {
        let run = reach(self.dispatcher, run, ending.kind).await?;
        let (directory, id) = (self.directory.clone(), run.id);
        let told = tokio::task::spawn_blocking(move || outcome::changes(&directory, id)).await;
        let result = outcome::with_changes(result, &told.unwrap_or_default());
        let finished = self.dispatcher.finish(run.fence(), ending, result).await?;
        self.record(&finished);
        Ok(finished)
    }

    fn record(&self, run: &Run) {
        outcome::record(&self.directory, &self.session, run, self.dispatcher.env().now());
    }
}

/// Ends what lives on here of runs that are not among `ours`: while nobody was here, another host saw their claims run out,
/// and gave their sessions to somebody else perhaps.
async fn end_strays(layout: &Layout, ours: HashSet<RunId>, grace: Duration) {
    let directories = layout.clone();
    match tokio::task::spawn_blocking(move || strays(&directories, &ours)).await {
        Ok(Ok(strays)) => {
            for keeper in strays {
                let run = keeper.record().run;
                tracing::info!(%run, "a run that is not this host's any more is ended");
                end_what_lives(run, KeeperState::Alive(keeper), grace).await;
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, "what lives on of others' runs could not be looked for"),
        Err(error) => tracing::warn!(%error, "what lives on of others' runs was not looked for"),
    }
}

/// The keepers at work here whose run is not among `ours`.
fn strays(layout: &Layout, ours: &HashSet<RunId>) -> io::Result<Vec<LivingKeeper>> {
    let entries = match layout.sessions().read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut strays = Vec::new();
    for entry in entries {
        let Ok(session) = entry?.file_name().parse() else { continue };
        if let Some(keeper) = any_living_keeper(&layout.session(session).keeper_state())?
            && !ours.contains(&keeper.record().run)
        {
            strays.push(keeper);
        }
    }
    Ok(strays)
}

/// Sees to it that no process of the run is left.
async fn end_what_lives(run: RunId, state: KeeperState, grace: Duration) {
    let cgroups = match state {
        KeeperState::Alive(keeper) => {
            end_keeper(&keeper, grace).await;
            keeper.record().cgroups.clone()
        }
        KeeperState::Gone(record) => record.map(|record| record.cgroups).unwrap_or_default(),
        KeeperState::Ended(_) | KeeperState::Never => Vec::new(),
    };
    let swept = tokio::task::spawn_blocking(move || orphans::end_run(run, &cgroups)).await;
    match swept {
        Ok(Ok(ended)) if ended.survivors == 0 => {}
        Ok(Ok(ended)) => tracing::warn!(%run, ended.survivors, "processes hang in the kernel"),
        Ok(Err(error)) => tracing::warn!(%run, %error, "processes of the run may be left"),
        Err(error) => tracing::warn!(%run, %error, "processes of the run were not looked for"),
    }
}

/// Waits for a keeper that lost its host to end its tree, and forces it if it takes too long.
async fn end_keeper(keeper: &LivingKeeper, grace: Duration) {
    let patience = grace + KEEPER_PATIENCE;
    for order in [LivingKeeper::stop, LivingKeeper::kill] {
        if let Err(error) = order(keeper) {
            tracing::warn!(%error, "a keeper could not be told to end");
        }
        if tokio::time::timeout(patience, keeper.wait()).await.is_ok() {
            return;
        }
    }
    tracing::warn!("a keeper does not end");
}

/// A run that completed before its host could say that it ran is brought to where it really was.
async fn reach(dispatcher: &dyn Dispatcher, mut run: Run, kind: EndKind) -> StoreResult<Run> {
    if kind == EndKind::Completed {
        if run.state.phase() == RunPhase::Claimed {
            run = dispatcher.advance(run.fence(), RunProgress::Starting).await?;
        }
        if run.state.phase() == RunPhase::Starting {
            run = dispatcher.advance(run.fence(), RunProgress::RUNNING).await?;
        }
    }
    Ok(run)
}
