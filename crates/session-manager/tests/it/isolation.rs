//! Two sessions that look alike in everything but their ids: nothing crosses between them.

use camino::Utf8Path;
use session_core::approvals::{CommandSignature, Grant, Verdict};
use session_core::budget::{Budget, Usage};
use session_core::context::Restored;
use session_core::event::{Payload, Seq};
use session_core::grants::Access;
use session_core::history::{History, Message, Part, Role};
use session_core::names::{AgentKey, Label, ToolName};
use session_core::tools::{RiskTier, ToolSpec};
use session_manager::SessionRequest;

use crate::world::{Handle, World, request};

fn alike() -> SessionRequest {
    SessionRequest {
        label: Some(Label::new("twin").unwrap()),
        agent: Some(AgentKey::new("coder").unwrap()),
        parent_agent: Some(AgentKey::new("lead").unwrap()),
        metadata: Payload::parse(r#"{"role": "reviewer"}"#).unwrap(),
        budget: Budget { tokens_max: 100, ..Budget::default() },
        ..request("me")
    }
}

fn tool() -> ToolName {
    ToolName::new("shell").unwrap()
}

/// Gives the session everything that a session can have.
fn fill(handle: &Handle) {
    let signature = CommandSignature::new(vec!["git".into(), "push".into()], Utf8Path::new("/p"));
    handle.with_context(|context| {
        assert!(context.answer(Grant::Tool { name: tool(), verdict: Verdict::Allow }));
        assert!(context.answer(Grant::Command { signature, verdict: Verdict::Allow }));
        assert!(context.answer(Grant::Directory { path: "/srv".into(), access: Access::Write }));
        let spec = ToolSpec {
            name: tool(),
            description: String::new(),
            input_schema: Payload::parse("{}").unwrap(),
            tier: RiskTier::Dangerous,
        };
        context.tools.register(spec).unwrap();
        context.correlation.turn = 7;
    });
    drop(handle.meter().reserve(Usage { tokens: 60, ..Usage::default() }).unwrap());
}

fn is_filled(handle: &Handle) -> bool {
    handle.with_context(|context| {
        let parts = [
            context.approvals.len() == 2,
            context.grants.allows(Utf8Path::new("/srv/a"), Access::Write),
            context.tools.get(&tool()).is_some(),
            context.correlation.turn == 7,
            handle.meter().used().tokens == 60,
        ];
        assert!(parts.iter().all(|part| *part == parts[0]), "all or nothing: {parts:?}");
        parts[0]
    })
}

#[tokio::test(start_paused = true)]
async fn what_one_session_has_the_other_never_sees() {
    let world = World::new();
    let (one, two) =
        (world.manager.create(alike()).await.unwrap(), world.manager.create(alike()).await.unwrap());
    for handle in [&one, &two] {
        handle.with_context(|context| {
            assert_eq!(context.correlation.session, handle.id());
            assert_eq!(context.correlation.agent, alike().agent);
            assert_eq!(context.correlation.parent_agent, alike().parent_agent);
            assert_eq!(context.correlation.role.as_deref(), Some("reviewer"));
        });
    }
    fill(&one);
    assert!(is_filled(&one) && !is_filled(&two));
    // Neither through a suspension and a resume, in whatever order.
    for handle in [&one, &two] {
        world.manager.suspend(handle.id()).await.unwrap();
    }
    let mut second = world.manager.begin_resume(two.id()).await.unwrap();
    let mut first = world.manager.begin_resume(one.id()).await.unwrap();
    second.restore(Restored::default()).await.unwrap();
    first.restore(Restored::default()).await.unwrap();
    let second = second.complete().await.unwrap();
    let first = first.complete().await.unwrap();
    assert!(is_filled(&first), "approvals, grants, tools, correlation and usage survive");
    assert!(!is_filled(&second));
    assert_eq!(first.session().label, alike().label);
    let views = world.manager.list();
    let usage = |session| views.iter().find(|view| view.session == session).unwrap().usage.tokens;
    assert_eq!((usage(first.id()), usage(second.id())), (60, 0));
    // A session that takes the place of an ended one starts with nothing.
    world.manager.terminate(first.id(), session_core::TerminationReason::Stopped).await.unwrap();
    assert!(!is_filled(&world.manager.create(alike()).await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn the_conversation_is_freed_while_suspended_and_comes_back_from_the_log_alone() {
    let world = World::new();
    let session = world.suspended().await;
    let mut resuming = world.manager.begin_resume(session).await.unwrap();
    let message = Message { seq: Seq(3), role: Role::User, parts: vec![Part::Text("hello".into())] };
    let history = History { messages: vec![message], ..History::default() };
    let deny = Grant::Tool { name: tool(), verdict: Verdict::Deny };
    let restored = Restored { history: history.clone(), grants: vec![deny] };
    resuming.restore(restored).await.unwrap();
    let handle = resuming.complete().await.unwrap();
    handle.with_context(|context| {
        assert_eq!(context.history, history);
        assert_eq!(context.approvals.verdict(&tool(), None), Some(Verdict::Deny));
    });
    world.manager.suspend(session).await.unwrap();
    handle.with_context(|context| assert_eq!(context.history, History::default()));
    let handle = world.manager.begin_resume(session).await.unwrap().complete().await.unwrap();
    handle.with_context(|context| {
        assert_eq!(context.history, History::default());
        assert_eq!(context.approvals.verdict(&tool(), None), Some(Verdict::Deny));
    });
}
