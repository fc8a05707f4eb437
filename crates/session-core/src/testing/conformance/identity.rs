//! Get-or-create by identity (SPEC section 3).

use std::collections::HashSet;

use super::Fixture;

/// Two agents, two executions, two repositories: each its own session; the same again: the same session.
pub async fn the_truth_table_holds(f: &Fixture) {
    let rows = [
        ("/repo", "run-1", "one"),
        ("/repo", "run-1", "two"),
        ("/repo", "run-2", "one"),
        ("/other", "run-1", "one"),
        ("/repo", "run-1", "default"),
        ("/repo", "run-2", "default"),
        ("/repo", "a:b", "c"),
        ("/repo", "a", "b:c"),
    ];
    let mut sessions = HashSet::new();
    for (repo, execution, agent) in rows {
        let opened = f.store.open(f.open(repo, execution, agent), f.now()).await.unwrap();
        assert!(opened.created && sessions.insert(opened.session), "{repo} {execution} {agent} met another");
        assert_eq!((opened.generation, opened.previous), (1, None));
    }
    for (repo, execution, agent) in rows {
        let opened = f.store.open(f.open(repo, execution, agent), f.now()).await.unwrap();
        assert!(
            !opened.created && sessions.remove(&opened.session),
            "{repo} {execution} {agent} was not found"
        );
    }
}
