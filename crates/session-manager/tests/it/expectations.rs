//! What the manager may ask of others, and how often: said beforehand to doubles that accept nothing else.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mockall::predicate::{always, eq};
use mockall::{Sequence, mock};
use session_core::ports::{
    Engine, EngineError, LifecycleEvent, LifecycleSink, Release, ResumeStep, SessionFactory, SinkError,
};
use session_core::state::Trigger;
use session_core::{ManagedSession, TerminationReason, testing};
use session_manager::{ManagerOptions, Parting, SessionManager};

use crate::world::request;

mock! {
    Engine {}
    #[async_trait]
    impl Engine for Engine {
        async fn suspend(&self) -> Result<(), EngineError>;
        async fn shutdown(&self, why: Release);
    }
}

mock! {
    Factory {}
    #[async_trait]
    impl SessionFactory for Factory {
        type Engine = MockEngine;
        async fn create(&self, session: &ManagedSession) -> Result<MockEngine, EngineError>;
    }
}

mock! {
    Sink {}
    #[async_trait]
    impl LifecycleSink for Sink {
        async fn on(&self, event: &LifecycleEvent) -> Result<(), SinkError>;
    }
}

fn manager(factory: MockFactory, sink: MockSink) -> SessionManager<MockFactory> {
    let (env, _) = testing::env();
    SessionManager::new(env, ManagerOptions::default(), factory, Arc::new(sink)).unwrap()
}

/// An engine that is let go of once, for this reason.
fn released_once(why: Release) -> MockEngine {
    let mut engine = MockEngine::new();
    engine.expect_shutdown().with(eq(why)).times(1).return_const(());
    engine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_many_end_a_session_its_engine_is_let_go_of_once() {
    let (mut factory, mut sink) = (MockFactory::new(), MockSink::new());
    let killed = Release::Terminated(TerminationReason::Killed);
    factory.expect_create().times(1).returning(move |_| Ok(released_once(killed)));
    // The creation and the end.
    sink.expect_on().times(2).returning(|_| Ok(()));
    let manager = manager(factory, sink);
    let session = manager.create(request("me")).await.unwrap().id();
    let racers: Vec<_> = (0..16)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move { manager.terminate(session, TerminationReason::Killed).await })
        })
        .collect();
    for racer in racers {
        // The first ends it; the rest wait for that, or come too late.
        let _ended = racer.await.unwrap();
    }
    let report = manager.shutdown(Parting::Leave, Duration::from_mins(1)).await;
    assert!(report.joined && report.ended.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_life_is_reported_in_its_order_and_nothing_besides() {
    let (mut factory, mut sink) = (MockFactory::new(), MockSink::new());
    let mut order = Sequence::new();
    let mut report = |expected: fn(&LifecycleEvent) -> bool| {
        let on = sink.expect_on().times(1).in_sequence(&mut order);
        on.withf(expected).returning(|_| Ok(()));
    };
    report(|event| matches!(event, LifecycleEvent::Created(_)));
    report(|event| matches!(event, LifecycleEvent::Moved { trigger: Trigger::Suspend { .. }, .. }));
    report(|event| matches!(event, LifecycleEvent::Resuming { step: ResumeStep::Opened, .. }));
    report(|event| matches!(event, LifecycleEvent::Resuming { step: ResumeStep::Restored, .. }));
    report(|event| matches!(event, LifecycleEvent::Moved { trigger: Trigger::Resume, .. }));
    let stopped = TerminationReason::Stopped;
    let over = move |event: &LifecycleEvent| matches!(event, LifecycleEvent::Moved { trigger: Trigger::Terminate(reason), .. } if *reason == stopped);
    sink.expect_on().times(1).in_sequence(&mut order).withf(over).returning(|_| Ok(()));
    let mut made = Sequence::new();
    factory.expect_create().with(always()).times(1).in_sequence(&mut made).returning(|_| {
        let mut engine = released_once(Release::Suspended);
        engine.expect_suspend().times(1).returning(|| Ok(()));
        Ok(engine)
    });
    let again = factory.expect_create().times(1).in_sequence(&mut made);
    again.returning(move |_| Ok(released_once(Release::Terminated(stopped))));
    let manager = manager(factory, sink);
    let session = manager.create(request("me")).await.unwrap().id();
    manager.suspend(session).await.unwrap();
    manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    manager.terminate(session, stopped).await.unwrap();
}
