//! A run that outlived its host, watched to its end by the next one.

use std::io;

use session_core::RunPhase;
use session_core::ports::RunProgress;
use session_core::run::StopMode;
use session_manager::recovery;

use super::execution::{Came, Execution, next_order, pass_on};
use super::{Order, outcome};
use crate::process::{KeeperState, LivingKeeper};

impl Execution {
    /// Watches a run whose keeper has no pipe to this host: its record says how it ended.
    pub(super) async fn adopted(&mut self, keeper: &LivingKeeper) -> Came {
        // Its host may have gone before it could say how far the run had come.
        let sandbox = keeper.record().applied.as_ref().map(|applied| self.report(applied));
        for to in [RunProgress::Starting, RunProgress::Running { sandbox }] {
            let wanted = match to {
                RunProgress::Starting => RunPhase::Claimed,
                RunProgress::Running { .. } => RunPhase::Starting,
            };
            if self.run.state.phase() == wanted
                && let Err(came) = self.advance(to).await
            {
                pass_on(keeper.kill());
                return came;
            }
        }
        loop {
            tokio::select! {
                state = keeper.wait() => return match state {
                    Ok(KeeperState::Ended(outcome)) => Came::to(&outcome),
                    Ok(KeeperState::Gone(_) | KeeperState::Never | KeeperState::Alive(_)) => {
                        let (run, cgroups) = (self.run.id, keeper.record().cgroups.clone());
                        let swept = tokio::task::spawn_blocking(move || {
                            crate::process::orphans::end_run(run, &cgroups)
                        });
                        match swept.await.map_err(io::Error::other).and_then(|swept| swept) {
                            Ok(orphans) => Came::ToEnd(outcome::keeper_lost(orphans), None),
                            Err(error) => {
                                Came::ToEnd(recovery::lost(&format!("its keeper was killed ({error})")), None)
                            }
                        }
                    }
                    Err(error) => {
                        Came::ToEnd(recovery::lost(&format!("its keeper cannot be watched ({error})")), None)
                    }
                },
                order = next_order(&mut self.orders) => match order {
                    Order::Leave => return Came::ToNothing,
                    Order::HostEnds | Order::Stop(StopMode::Graceful) => pass_on(keeper.stop()),
                    Order::Stop(StopMode::Kill) => pass_on(keeper.kill()),
                },
            }
        }
    }
}
