//! What becomes of the runs that a host left behind, all of them together.

use std::sync::Arc;
use std::time::Duration;

use session_core::affinity::RunnerProfile;
use session_core::names::ExecutorType;
use session_core::run::{ReasonCode, Run, RunPhase};
use session_core::testing::MemoryStore;
use session_core::testing::conformance::{Fixture, LEASE, TICK};
use session_manager::recovery::OnHostLoss as Policy;
use session_manager::{Coordinator, DispatchOptions};
use session_runner::process::{OnHostLoss, ProcessIdentity, Setting};
use session_runner::workspace::Layout;
use session_runner::{Recovery, recover};

use crate::fixture::{Place, block_on, environment, living, other_host, this_program, until_ended};

/// A store with its runner, and a data directory.
struct Left {
    f: Fixture,
    runner: RunnerProfile,
    coordinator: Coordinator,
    layout: Layout,
    place: Place,
}

impl Left {
    fn new() -> Self {
        let f = Fixture::new(Arc::new(MemoryStore::new()));
        let coordinator = Coordinator::new(f.env.clone(), Arc::clone(&f.store), DispatchOptions::default());
        let place = Place::new();
        let runner = RunnerProfile { executors: vec![ExecutorType::command()], ..f.new_runner() };
        Self { runner, coordinator, layout: Layout::new(place.path.join("data")), place, f }
    }

    /// One run that was only claimed, and one that runs: enqueued in this order or in the other.
    async fn claimed_and_running(&self, claimed_first: bool) -> (Run, Run) {
        let mut runs = vec![self.f.claimed(&self.runner).await, self.f.claimed(&self.runner).await];
        let running = runs.remove(usize::from(claimed_first));
        (runs.remove(0), self.f.start(running.fence()).await)
    }

    /// A program of a run that lives on under its keeper, while its host was killed. It ends when it is told to.
    fn lives_on(&self, run: &Run) -> ProcessIdentity {
        let mut spec =
            self.place.script("trap 'exit 9' TERM; echo ready; while :; do sleep 1000 & wait; done");
        let directory = self.layout.session(run.session);
        std::fs::create_dir_all(directory.root()).unwrap();
        (spec.run, spec.session, spec.state_file) = (run.id, run.session, directory.keeper_state());
        spec.setting = Setting::Open { env: environment(run.id), cwd: self.place.path.clone() };
        spec.on_host_loss = OnHostLoss::Adopt;
        let (mut host, keeper) = other_host(this_program(), &self.place, &spec, "ready");
        host.kill();
        keeper
    }

    async fn recover(&self, policy: Policy) -> Recovery {
        let grace = Duration::from_secs(5);
        recover(&self.coordinator, &self.layout, &self.runner, policy, grace).await.unwrap()
    }
}

pub(crate) fn what_had_not_begun_takes_nothing_else_along() {
    for claimed_first in [true, false] {
        let left = Left::new();
        let (claimed, running) = block_on(left.claimed_and_running(claimed_first));
        let keeper = left.lives_on(&running);
        left.f.advance(LEASE + TICK);
        block_on(async {
            let recovery = left.recover(Policy::Adopt).await;
            assert!(recovery.ended.is_empty(), "{:?}", recovery.ended);
            let [adopted] = recovery.adopted.try_into().unwrap();
            assert_eq!(
                (adopted.claimed.run.id, left.f.phase(running.id).await),
                (running.id, RunPhase::Running)
            );
            assert_eq!(left.f.phase(claimed.id).await, RunPhase::Pending);
            assert!(left.f.store.reap(left.f.now(), 10).await.unwrap().is_empty(), "no claim has run out");
            assert!(adopted.keeper.kill().unwrap());
        });
        until_ended(&keeper);
        assert_eq!(living(running.id), []);
    }
}

pub(crate) fn what_another_host_has_ended_does_not_live_on() {
    let left = Left::new();
    let running = block_on(async { left.f.start(left.f.claimed(&left.runner).await.fence()).await });
    let keeper = left.lives_on(&running);
    left.f.advance(LEASE + TICK);
    block_on(async {
        let lost = left.f.store.reap(left.f.now(), 10).await.unwrap();
        assert_eq!(lost.len(), 1, "another host sees that the claim has run out");
        let recovery = left.recover(Policy::Adopt).await;
        assert!(recovery.adopted.is_empty() && recovery.ended.is_empty(), "{recovery:?}");
    });
    until_ended(&keeper);
    assert_eq!(living(running.id), []);
}

pub(crate) fn what_left_nothing_is_lost_and_what_had_not_begun_goes_back() {
    for claimed_first in [true, false] {
        let left = Left::new();
        block_on(async {
            let (claimed, running) = left.claimed_and_running(claimed_first).await;
            left.f.advance(LEASE + TICK);
            let recovery = left.recover(Policy::End).await;
            let [ended] = recovery.ended.try_into().unwrap();
            let (_, ending) = ended.ended().unwrap();
            assert_eq!((ended.id, ending.reason), (running.id, Some(ReasonCode::HostLost)));
            assert_eq!(left.f.phase(claimed.id).await, RunPhase::Pending);
        });
    }
}
