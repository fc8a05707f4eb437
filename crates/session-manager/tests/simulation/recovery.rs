//! After the loss of a host: what became of the runs that it held, as `session-runner` sees to it.

use session_core::error::StoreError;
use session_core::ports::{ClaimedRun, RunProgress};
use session_core::run::{EndKind, Ending, Run};
use session_core::{RunPhase, StoreResult};
use session_manager::recovery::{self, Decision, EndCause, Found};

use crate::runner::Host;

/// Decides and acts for every run that the last host left in flight. Returns those that live on.
pub(crate) async fn recover(host: &Host) -> StoreResult<Vec<ClaimedRun>> {
    let runner = host.machine().profile.id;
    let mut taken = Vec::new();
    for run in host.store().in_flight(runner).await? {
        match host.coordinator.take_over(run.id, runner).await {
            Ok(run) => taken.push(run),
            // Another host saw its claim run out.
            Err(StoreError::Transition(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for (run, _) in host.machine().living(host.world.now()) {
        if taken.iter().all(|taken| taken.id != run) {
            end_processes(host, run).await;
        }
    }
    let (mut adopted, mut ended) = (Vec::new(), Vec::new());
    for run in taken {
        let Some(session) = host.store().session(run.session).await? else { continue };
        let found = host.machine().look(run.id, host.world.now());
        let stop = run.stop.map(|stop| stop.mode);
        match recovery::decide(run.state.phase(), stop, &found, host.machine().on_host_loss) {
            Decision::Adopt => adopted.push(ClaimedRun { session, run }),
            Decision::Requeue => {
                let run = host.coordinator.give_back(run.fence()).await?;
                ended.extend(run.ended().map(|_| run.clone()));
            }
            Decision::End(ending) => ended.push(end(host, run, ending).await?),
            Decision::EndThen(ending) => {
                end_processes(host, run.id).await;
                let recorded = match host.machine().look(run.id, host.world.now()) {
                    Found::Ended(ended) if run.stop.is_none() => Some(recovery::ending(ended)),
                    Found::Ended(_) | Found::Alive | Found::Nothing => None,
                };
                ended.push(end(host, run, recorded.unwrap_or(ending)).await?);
            }
        }
    }
    for claimed in &adopted {
        let _directive = host.coordinator.renew(claimed.run.fence()).await?;
    }
    for run in &ended {
        // What its turn had set aside, nobody settles any more.
        let _account = host.store().forfeit(run.session, host.env().now()).await?;
    }
    Ok(adopted)
}

/// Sees to it that no process of the run is left.
async fn end_processes(host: &Host, run: session_core::RunId) {
    let (machine, world) = (host.machine(), &host.world);
    machine.end(run, EndCause::HostLost, world.now());
    world.until(machine.ends_at(run)).await;
}

async fn end(host: &Host, mut run: Run, ending: Ending) -> StoreResult<Run> {
    if ending.kind == EndKind::Completed {
        for (phase, to) in
            [(RunPhase::Claimed, RunProgress::Starting), (RunPhase::Starting, RunProgress::RUNNING)]
        {
            if run.state.phase() == phase {
                run = host.coordinator.advance(run.fence(), to).await?;
            }
        }
    }
    host.coordinator.finish(run.fence(), ending, None).await
}
