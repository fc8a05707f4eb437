//! After the loss of a host: what became of the runs that it held on this machine.

use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::error::StoreResult;
use session_core::event::Payload;
use session_core::ports::{ClaimedRun, RunProgress};
use session_core::run::{EndKind, Ending, Run};
use session_core::{ManagedSession, RunPhase};
use session_manager::Coordinator;
use session_manager::recovery::{self, Decision, EndCause, Found, KeeperEnding, OnHostLoss};

use crate::executors::outcome;
use crate::process::orphans;
use crate::process::{KeeperState, LivingKeeper, RunOutcome, recover_keeper};
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

/// Decides and acts for every run that this runner's last host left in flight. Each is taken over first, so that
/// nothing the old host may still send counts. Living processes that are to end have `grace` for it, from the moment
/// their host was lost. The caller is the only host of this runner.
pub async fn recover(
    coordinator: &Coordinator,
    layout: &Layout,
    profile: &RunnerProfile,
    policy: OnHostLoss,
    grace: Duration,
) -> StoreResult<Recovery> {
    let mut result = Recovery::default();
    for run in coordinator.store().in_flight(profile.id).await? {
        let Some(session) = coordinator.store().session(run.session).await? else { continue };
        let left = Left { directory: layout.session(run.session), coordinator, session, grace };
        let phase = run.state.phase();
        let state = left.look(&run).await;
        let run = coordinator.take_over(run.id, profile.id).await?;
        let stop = run.stop.map(|stop| stop.mode);
        let found = found(&state);
        match (recovery::decide(phase, stop, &found, policy), state) {
            (Decision::Adopt, KeeperState::Alive(keeper)) => {
                result.adopted.push(Adopted { claimed: ClaimedRun { session: left.session, run }, keeper });
            }
            (Decision::Requeue, _) => coordinator.give_back(run.fence()).await?,
            (Decision::End(ending), KeeperState::Ended(outcome)) => {
                // What could not even be started says so itself.
                let ending = match &outcome {
                    RunOutcome::SpawnFailed(_) => outcome::ending(&outcome),
                    RunOutcome::Ended(_) => ending,
                };
                result.ended.push(left.end(run, ending, outcome::result(&outcome)).await?);
            }
            (Decision::EndThen(ending) | Decision::End(ending), state) => {
                result.ended.push(left.end_processes(run, state, ending).await?);
            }
            (Decision::Adopt, state) => {
                let lost = recovery::lost("its keeper went away while it was being taken over");
                result.ended.push(left.end_processes(run, state, lost).await?);
            }
        }
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

/// What a lost host left of one run.
struct Left<'c> {
    directory: SessionDir,
    coordinator: &'c Coordinator,
    session: ManagedSession,
    grace: Duration,
}

impl Left<'_> {
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
        let cgroup = match state {
            KeeperState::Alive(keeper) => {
                self.end_keeper(&keeper).await;
                keeper.record().cgroup.clone()
            }
            KeeperState::Gone(record) => record.and_then(|record| record.cgroup),
            KeeperState::Ended(_) | KeeperState::Never => None,
        };
        let id = run.id;
        let swept = tokio::task::spawn_blocking(move || orphans::end_run(id, cgroup.as_deref())).await;
        match swept {
            Ok(Ok(ended)) if ended.survivors == 0 => {}
            Ok(Ok(ended)) => tracing::warn!(run = %id, ended.survivors, "processes hang in the kernel"),
            Ok(Err(error)) => tracing::warn!(run = %id, %error, "processes of the run may be left"),
            Err(error) => tracing::warn!(run = %id, %error, "processes of the run were not looked for"),
        }
        match self.look(&run).await {
            KeeperState::Ended(outcome) if run.stop.is_none() => {
                self.end(run, outcome::ending(&outcome), outcome::result(&outcome)).await
            }
            KeeperState::Ended(_) | KeeperState::Alive(_) | KeeperState::Gone(_) | KeeperState::Never => {
                self.end(run, ending, None).await
            }
        }
    }

    /// Waits for a keeper that lost its host to end its tree, and forces it if it takes too long.
    async fn end_keeper(&self, keeper: &LivingKeeper) {
        let patience = self.grace + KEEPER_PATIENCE;
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

    async fn end(&self, run: Run, ending: Ending, result: Option<Payload>) -> StoreResult<Run> {
        let run = reach(self.coordinator, run, ending.kind).await?;
        let finished = self.coordinator.finish(run.fence(), ending, result).await?;
        outcome::record(&self.directory, &self.session, &finished, self.coordinator.env().now());
        Ok(finished)
    }
}

/// A run that completed before its host could say that it ran is brought to where it really was.
async fn reach(coordinator: &Coordinator, mut run: Run, kind: EndKind) -> StoreResult<Run> {
    if kind == EndKind::Completed {
        if run.state.phase() == RunPhase::Claimed {
            run = coordinator.advance(run.fence(), RunProgress::Starting).await?;
        }
        if run.state.phase() == RunPhase::Starting {
            run = coordinator.advance(run.fence(), RunProgress::Running).await?;
        }
    }
    Ok(run)
}
