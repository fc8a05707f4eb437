//! How a session is told of the ends of its children's runs: decided from its own runs and from what is due to it.

use jiff::Timestamp;
use session_core::affinity::{Affinity, Place};
use session_core::family::{Callback, account};
use session_core::ports::{NewRun, RunOf};
use session_core::run::{Run, RunSpec};
use session_core::turn::Turn;
use session_core::{ManagedSession, RunId};

/// The most ends that one turn tells of; further ones are told in the next.
pub(super) const ENDS_MAX: u32 = 64;

/// How a session is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// By a turn of its agent.
    Turn(Box<NewRun>),
    /// By its log alone: nobody in it can be asked for anything.
    Log,
}

/// What a turn is made with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making<'a> {
    /// A fresh id for its run.
    pub(super) run: RunId,
    /// What nobody can guess and nothing in the prompt can therefore hold: digits and letters.
    pub(super) mark: &'a str,
    /// Until when a runner must take it.
    pub(super) claim_by: Option<Timestamp>,
}

/// How this session is told of what is due to it, the oldest end first, where `runs` are its newest runs, newest first.
///
/// The agent that holds its conversation is told, or else that of its last run, as it was asked last: with the same
/// arguments, variables, tools and model.
pub(super) fn telling(
    session: &ManagedSession,
    runs: &[Run],
    due: &[Callback],
    making: &Making<'_>,
) -> Telling {
    let bound = session.binding.as_ref().map(|binding| &binding.executor);
    let executor = bound.or_else(|| runs.first().map(|run| &run.affinity.executor));
    let last = executor.and_then(|executor| runs.iter().find(|run| run.affinity.executor == *executor));
    let Some((last, before)) = last.and_then(|last| Some((last, last.spec.turn.as_ref()?))) else {
        return Telling::Log;
    };
    let (prompt, told) = account(due, making.mark);
    let turn = Turn {
        prompt,
        from_history: false,
        permissions: before.permissions.clone(),
        model: before.model.clone(),
    };
    Telling::Turn(Box::new(NewRun {
        id: making.run,
        of: RunOf::Existing(session.id),
        spec: RunSpec { turn: Some(turn), ..last.spec.clone() },
        priority: last.priority,
        // Where its files are, which the store knows: by now that may be another place than for its last run.
        affinity: Affinity {
            place: session.workspace.runner.map_or_else(|| last.affinity.place.clone(), |_| Place::Anywhere),
            ..last.affinity.clone()
        },
        after: Vec::new(),
        claim_by: making.claim_by,
        delivers: due.iter().take(told).map(|callback| callback.run).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use session_core::event::Payload;
    use session_core::run::{Ending, Epoch, RunKind, RunState};
    use session_core::testing;
    use session_core::turn::{Asking, Permissions};
    use session_core::{Env, SessionId};

    use super::*;

    const MARK: &str = "4f9c";

    fn callback(env: &Env, parent: SessionId, said: &str) -> Callback {
        let payload = json!({ "state": "completed", "text": { "by": "child", "said": said } });
        let (run, child) = (env.run_id(), env.session_id());
        Callback { run, child, parent, at: env.now(), payload: Payload::from_value(&payload) }
    }

    fn run(env: &Env, session: SessionId, executor: &str, turn: Option<Turn>) -> Run {
        let ending = Ending::completed(None);
        Run {
            id: env.run_id(),
            session,
            kind: RunKind::Start,
            spec: RunSpec { argv: vec!["--flag".into()], turn, ..RunSpec::default() },
            priority: 3,
            affinity: Affinity {
                place: Place::Anywhere,
                executor: executor.parse().unwrap(),
                project_dir: None,
            },
            crew: None,
            waiting_for: 0,
            epoch: Epoch(1),
            state: RunState::Ended { at: env.now(), ending },
            stop: None,
            created_at: env.now(),
            claim_by: None,
            started_at: None,
            sandbox: None,
        }
    }

    /// A session, and its runs, newest first.
    async fn parent(env: &Env, runs: &[(&str, Option<Turn>)]) -> (ManagedSession, Vec<Run>) {
        let fixture =
            testing::conformance::Fixture::new(std::sync::Arc::new(testing::MemoryStore::default()));
        let session = fixture.store.create(fixture.new_session(), env.now()).await.unwrap();
        let runs = runs.iter().map(|(executor, turn)| run(env, session.id, executor, turn.clone()));
        let runs = runs.collect();
        (session, runs)
    }

    fn making(env: &Env) -> Making<'static> {
        Making { run: env.run_id(), mark: MARK, claim_by: Some(env.now()) }
    }

    #[tokio::test]
    async fn an_agent_is_told_as_it_was_asked_last() {
        let (env, _) = testing::env();
        let permissions = Permissions { allow: vec!["Read".parse().unwrap()], asking: Asking::Never };
        let turn = Turn { permissions, model: Some("m".into()), from_history: true, ..Turn::new("go") };
        let (session, runs) = parent(&env, &[("codex", Some(turn.clone())), ("command", None)]).await;
        let due = [callback(&env, session.id, "one"), callback(&env, session.id, "two")];
        let making = making(&env);
        let Telling::Turn(told) = telling(&session, &runs, &due, &making) else { panic!() };
        let asked = told.spec.turn.clone().unwrap();
        assert_eq!((told.id, &told.of), (making.run, &RunOf::Existing(session.id)));
        assert_eq!(
            (&told.spec.argv, told.priority, &told.affinity),
            (&runs[0].spec.argv, 3, &runs[0].affinity)
        );
        assert_eq!((&asked.permissions, &asked.model), (&turn.permissions, &turn.model));
        assert!(!asked.from_history, "its conversation goes on");
        assert_eq!((told.delivers, told.claim_by), (vec![due[0].run, due[1].run], making.claim_by));
        assert!(asked.prompt.starts_with("2 runs of sessions that you started"), "{}", asked.prompt);
    }

    #[tokio::test]
    async fn who_cannot_be_asked_is_told_by_its_log() {
        let (env, _) = testing::env();
        for runs in
            [vec![], vec![("command", None)], vec![("command", None), ("codex", Some(Turn::new("go")))]]
        {
            let (session, runs) = parent(&env, &runs).await;
            let due = [callback(&env, session.id, "one")];
            assert_eq!(telling(&session, &runs, &due, &making(&env)), Telling::Log);
        }
    }
}
