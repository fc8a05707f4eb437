//! The host of a coordinator: deals with what others left behind, ends the children of sessions that are over, and
//! tells parents of the ends of the others.

use std::sync::Arc;

use session_core::ManagedSession;
use session_core::affinity::{Affinity, Place};
use session_core::error::StoreResult;
use session_core::names::ExecutorType;
use session_core::ports::{NewRun, RunOf};
use session_core::run::RunSpec;
use session_core::turn::Turn;
use session_manager::Coordinator;

use crate::runner::coordinator;
use crate::world::World;

/// Starts the host of a coordinator.
pub(crate) fn start(world: &Arc<World>, place: usize) {
    let (coordinator, world_of) = (coordinator(world, place), Arc::clone(world));
    let work = async move {
        loop {
            world_of.sleep(10_000 + world_of.below(30_000)).await;
            if let Err(error) = round(&coordinator).await {
                world_of.note(place, || format!("a round was cut short: {error}"));
            }
        }
    };
    world.begin(place, format!("rounds {place}"), Box::pin(work));
}

async fn round(coordinator: &Coordinator) -> StoreResult<()> {
    coordinator.reap().await?;
    coordinator.unclaimed().await?;
    coordinator.end_orphans().await?;
    coordinator.tell_parents().await?;
    coordinator.forget_calls().await
}

/// A further run of a session, with what it was executed with before.
pub(crate) fn further(coordinator: &Coordinator, session: &ManagedSession) -> NewRun {
    let executor = session.binding.as_ref().map_or_else(ExecutorType::command, |held| held.executor.clone());
    let turn = (!executor.is_command()).then(|| Turn::new("go on"));
    NewRun {
        id: coordinator.env().run_id(),
        of: RunOf::Existing(session.id),
        spec: RunSpec { argv: vec!["true".into()], turn, ..RunSpec::default() },
        priority: 0,
        affinity: Affinity { place: Place::Anywhere, executor, project_dir: None },
        after: Vec::new(),
        claim_by: None,
        delivers: Vec::new(),
    }
}
