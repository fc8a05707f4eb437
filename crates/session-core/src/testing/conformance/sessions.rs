//! Making sessions, and moving them through their states.

use super::{Fixture, TICK};
use crate::budget::{Budget, Usage};
use crate::event::Payload;
use crate::record;
use crate::session::{NewSession, WorkspaceKind};
use crate::state::SessionState;

/// `create` keeps every part of what it is given, and records it.
pub async fn a_created_session_is_there_as_it_was_given(f: &Fixture) {
    let parent = f.session().await;
    f.advance(TICK);
    let now = f.now();
    let new = NewSession {
        id: f.env.session_id(),
        principal: "team \"ä\" 'x'; --".parse().unwrap(),
        label: Some("$(rm -rf ~) “label”".parse().unwrap()),
        agent: Some("a:b/c".parse().unwrap()),
        kind: WorkspaceKind::Worktree,
        project: Some("/répo/with space".into()),
        metadata: Payload::parse("{ \"b\" : 1.0 , \"a\":\"\\u00e9 '\" }").unwrap(),
        budget: Budget {
            tokens_max: u64::from(u32::MAX),
            tool_calls_max: 0,
            turns_max: Some(3),
            cost_micros_max: Some(0),
        },
        parent: Some(parent.id),
    };
    let created = f.store.create(new.clone(), now).await.unwrap();
    assert_eq!(f.store.session(new.id).await.unwrap().as_ref(), Some(&created));
    assert_eq!(created.state, SessionState::Active);
    let given = NewSession {
        id: created.id,
        principal: created.principal.clone(),
        label: created.label.clone(),
        agent: created.agent.clone(),
        kind: created.workspace.kind,
        project: created.workspace.project.clone(),
        metadata: created.metadata.clone(),
        budget: created.budget,
        parent: created.parent,
    };
    assert_eq!(given, new);
    assert_eq!((created.created_at, created.active_at), (now, now));
    assert_eq!((created.usage, created.generation, created.binding.clone()), (Usage::default(), None, None));
    assert_eq!((created.workspace.runner, created.workspace.removed_at), (None, None));
    assert_eq!(f.records(new.id).await, [record::session_created(&new, None)]);
}
