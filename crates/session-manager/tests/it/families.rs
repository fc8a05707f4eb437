//! Families through the coordinator, over the store in memory: who is told, what ends with whom, and what waits.

use std::sync::Arc;

use jiff::SignedDuration;
use session_core::affinity::{Affinity, RunnerProfile};
use session_core::family::Parent;
use session_core::ports::{NewRun, RunOf};
use session_core::run::{ReasonCode, Run, RunPhase, RunSpec, StopMode};
use session_core::session::NewSession;
use session_core::state::{SessionState, TerminationReason, Trigger};
use session_core::testing::MemoryStore;
use session_core::testing::conformance::Fixture;
use session_core::turn::Turn;
use session_core::{SessionId, Store};
use session_manager::{Coordinator, DispatchOptions};

const ALL: u32 = 1_000;

struct Family {
    f: Fixture,
    coordinator: Coordinator,
    runner: RunnerProfile,
}

impl Family {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let f = Fixture::new(Arc::clone(&store) as Arc<dyn Store>);
        let coordinator = Coordinator::new(f.env.clone(), store, DispatchOptions::default());
        let mut runner = f.new_runner();
        runner.executors.push("codex".parse().unwrap());
        Self { f, coordinator, runner }
    }

    /// A session below another one, with a run that is claimed and runs: an agent's, or a command's.
    async fn running(&self, parent: Option<SessionId>, is_agent: bool) -> Run {
        let parent = parent.map(|parent| Parent { callback: true, ..Parent::new(parent) });
        let session = NewSession { parent, ..self.f.new_session() };
        let mut new = NewRun { of: RunOf::New(Box::new(session)), ..self.f.new_run() };
        if is_agent {
            new.spec = RunSpec { turn: Some(Turn::new("go")), ..RunSpec::default() };
            new.affinity = Affinity { executor: "codex".parse().unwrap(), ..new.affinity };
        }
        self.f.enqueue([new]).await;
        let claimed = self.f.claim(&self.runner).await.unwrap().run;
        self.f.start(claimed.fence()).await
    }

    async fn due(&self, session: SessionId) -> usize {
        self.f.store.callbacks(session, ALL).await.unwrap().len()
    }

    /// Runs whatever is pending to its end.
    async fn work_off(&self) {
        for run in self.f.claim_all(&self.runner).await {
            self.f.start(run.fence()).await;
            self.f.complete(run.fence()).await;
        }
    }
}

#[tokio::test]
async fn an_agent_is_told_by_a_turn_and_a_command_by_its_log() {
    let family = Family::new();
    let agent = family.running(None, true).await;
    let command = family.running(None, false).await;
    for parent in [&agent, &agent, &command] {
        let child = family.running(Some(parent.session), false).await;
        family.f.complete(child.fence()).await;
    }
    assert!(family.coordinator.tell_parents().await.unwrap().is_empty(), "both are busy");
    family.f.complete(agent.fence()).await;
    family.f.complete(command.fence()).await;
    let told = family.coordinator.tell_parents().await.unwrap();
    let [turn] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((turn.session, turn.affinity.executor.as_str()), (agent.session, "codex"));
    let prompt = &turn.spec.turn.as_ref().unwrap().prompt;
    assert!(prompt.starts_with("2 runs of sessions"), "{prompt}");
    let within = DispatchOptions::default().resume_within.unwrap();
    assert_eq!(turn.claim_by, Some(family.f.now() + within));
    assert_eq!((family.due(agent.session).await, family.due(command.session).await), (0, 0));
    assert!(family.coordinator.tell_parents().await.unwrap().is_empty());
    assert!(!family.coordinator.has_family_work().await.unwrap());
}

/// More than one turn takes are told in the next.
#[tokio::test]
async fn many_ends_are_told_in_several_turns() {
    let family = Family::new();
    let parent = family.running(None, true).await;
    for _ in 0..100 {
        let child = family.running(Some(parent.session), false).await;
        family.f.complete(child.fence()).await;
    }
    family.f.complete(parent.fence()).await;
    let mut turns = 0;
    while !family.coordinator.tell_parents().await.unwrap().is_empty() {
        turns += 1;
        family.work_off().await;
    }
    assert_eq!((turns, family.due(parent.session).await), (2, 0));
}

#[tokio::test]
async fn who_is_stopped_takes_its_children_along_and_is_told_when_it_is_used() {
    let family = Family::new();
    let root = family.running(None, true).await;
    family.f.complete(root.fence()).await;
    let child = family.running(Some(root.session), true).await;
    let grandchild = family.running(Some(child.session), false).await;
    let other = family.running(None, false).await;
    let stopped = family.coordinator.stop(&[root.session], StopMode::Kill).await.unwrap();
    let mut sessions: Vec<_> = stopped.iter().map(|run| run.session).collect();
    sessions.sort();
    let mut expected = vec![child.session, grandchild.session];
    expected.sort();
    assert_eq!(sessions, expected);
    assert!(family.f.run(other.id).await.stop.is_none());
    for run in [&grandchild, &child] {
        family.f.complete(run.fence()).await;
    }
    assert!(family.coordinator.tell_parents().await.unwrap().is_empty(), "they are left in peace");
    family
        .f
        .enqueue([NewRun {
            affinity: root.affinity.clone(),
            spec: root.spec.clone(),
            ..family.f.resume(root.session)
        }])
        .await;
    family.work_off().await;
    let told = family.coordinator.tell_parents().await.unwrap();
    assert_eq!(told.iter().map(|run| run.session).collect::<Vec<_>>(), [root.session]);
}

#[tokio::test]
async fn who_is_killed_takes_its_children_along() {
    let family = Family::new();
    let root = family.running(None, false).await.session;
    let child = family.running(Some(root), false).await.session;
    let below =
        [family.running(Some(child), false).await.session, family.running(Some(root), false).await.session];
    let mut killed = family.coordinator.kill_family(root).await.unwrap();
    assert_eq!(killed.first(), Some(&root), "a parent goes first");
    killed.sort();
    let mut expected = vec![root, child, below[0], below[1]];
    expected.sort();
    assert_eq!(killed, expected);
    assert_eq!(family.coordinator.kill_family(root).await.unwrap(), []);
}

/// A parent that is over by its time, or whose host died half way, leaves nothing behind.
#[tokio::test]
async fn orphans_are_ended_level_by_level() {
    let family = Family::new();
    let root = family.running(None, false).await.session;
    let child = family.running(Some(root), false).await;
    let grandchild = family.running(Some(child.session), false).await;
    family.f.transition(root, Trigger::Terminate(TerminationReason::Evicted)).await;
    assert!(family.coordinator.has_family_work().await.unwrap());
    let ended = family.coordinator.end_orphans().await.unwrap();
    let because = TerminationReason::ParentEnded;
    assert_eq!(ended, [(child.session, because), (grandchild.session, because)]);
    for run in [child, grandchild] {
        let SessionState::Terminated { reason, .. } = family.f.state(run.session).await else { panic!() };
        assert_eq!(reason, because);
        assert_eq!(family.f.run(run.id).await.stop.unwrap().mode, StopMode::Kill);
    }
    assert_eq!(family.coordinator.end_orphans().await.unwrap(), []);
    // Whoever of the two is first when a family is killed, the reason is the same.
    let root = family.running(None, false).await.session;
    let child = family.running(Some(root), false).await.session;
    family.f.transition(root, Trigger::Terminate(TerminationReason::Killed)).await;
    let ended = family.coordinator.end_orphans().await.unwrap();
    assert_eq!(ended, [(child, TerminationReason::Killed)]);
}

#[tokio::test]
async fn a_run_that_nobody_takes_ends_and_one_that_waits_its_turn_does_not() {
    let family = Family::new();
    family.f.store.register(family.runner.clone(), "1.0.0".parse().unwrap(), family.f.now()).await.unwrap();
    let claim_by = Some(family.f.now() + SignedDuration::from_secs(1));
    let mut strange = NewRun { claim_by, ..family.f.new_run() };
    strange.affinity.executor = "gemini".parse().unwrap();
    let [waits, strange] = family.f.enqueue([NewRun { claim_by, ..family.f.new_run() }, strange]).await;
    assert_eq!(family.coordinator.unclaimed().await.unwrap().len(), 0, "there is time");
    family.f.advance(SignedDuration::from_secs(2));
    let failed = family.coordinator.unclaimed().await.unwrap();
    assert_eq!(failed.iter().map(|run| run.id).collect::<Vec<_>>(), [strange.id]);
    assert_eq!(failed[0].ended().unwrap().1.reason, Some(ReasonCode::NoMatchingRunner));
    assert_eq!(family.f.run(waits.id).await.state.phase(), RunPhase::Pending);
    family.coordinator.forget_calls().await.unwrap();
}
