//! The tokens of runs: signed, for one claim, stored nowhere.

use jiff::SignedDuration;
use session_core::env::whole_milliseconds;
use session_core::error::StoreResult;
use session_core::token::{RunToken, SigningKey, Verb};
use session_core::{ManagedSession, Run};

use super::Coordinator;

/// For how long the token of a run without a time limit counts at the most. It counts no longer than its claim anyway.
const TOKEN_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

impl Coordinator {
    /// The token of the claim under which this run is executed: with it the run's own processes report, read their session,
    /// ask for approvals and start children.
    pub async fn run_token(&self, session: &ManagedSession, run: &Run) -> StoreResult<String> {
        // Proposes one where the store has none: from then on it is the same for all.
        let key = self.store.signing_key(SigningKey::new(self.env.secret())).await?;
        // What ends a run in time is its keeper: what is reported after that is still heard.
        let time = run.spec.timeout.map_or(TOKEN_MAX, |timeout| timeout.saturating_add(self.lease()));
        let expires_at = self.env.now().saturating_add(time.min(TOKEN_MAX)).unwrap_or(jiff::Timestamp::MAX);
        let token = RunToken {
            session: session.id,
            run: run.id,
            epoch: run.epoch,
            principal: session.principal.clone(),
            verbs: [Verb::Read, Verb::Run].into_iter().collect(),
            expires_at: whole_milliseconds(expires_at),
        };
        Ok(token.seal(&key))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use session_core::affinity::{Place, RunnerProfile};
    use session_core::budget::Budget;
    use session_core::event::Payload;
    use session_core::names::ExecutorType;
    use session_core::testing::{self, MemoryStore};
    use session_core::token::RunAct;
    use session_core::{SandboxSpec, WorkspaceKind};

    use super::*;
    use crate::{DispatchOptions, Draft, Submission, Task, TaskSession};

    fn command(timeout: Option<SignedDuration>) -> Submission {
        let draft = Draft {
            label: None,
            agent: None,
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox: SandboxSpec::default(),
            metadata: Payload::parse("{}").unwrap(),
            budget: Budget::default(),
            parent: None,
        };
        let task = Task {
            name: None,
            after: Vec::new(),
            session: TaskSession::New(draft),
            executor: ExecutorType::command(),
            turn: None,
            argv: vec!["true".into()],
            env: Vec::new(),
            timeout,
            claim_within: None,
            priority: 0,
        };
        Submission {
            principal: "me".parse().unwrap(),
            place: Place::Anywhere,
            at_once: None,
            tasks: vec![task],
        }
    }

    #[tokio::test]
    async fn a_run_has_a_token_of_its_claim_for_as_long_as_it_may_take() {
        let (env, _) = testing::env();
        let store = Arc::new(MemoryStore::new());
        let coordinator = Coordinator::new(env.clone(), store, DispatchOptions::default());
        coordinator.submit(command(Some(SignedDuration::from_mins(10)))).await.unwrap();
        let profile = RunnerProfile {
            id: env.runner_id(),
            hostname: "box".parse().unwrap(),
            executors: vec![ExecutorType::command()],
            project_dirs: None,
        };
        let claimed = coordinator.claim(&profile).await.unwrap().unwrap();
        let text = coordinator.run_token(&claimed.session, &claimed.run).await.unwrap();
        let key = coordinator.store().signing_key(SigningKey::new(env.secret())).await.unwrap();
        let token = RunToken::open(&text, &key, env.now()).unwrap();
        assert!(token.admits(RunAct::Report(claimed.run.fence())));
        assert!(token.admits(RunAct::StartChild(claimed.session.id)));
        assert_eq!(token.expires_at, env.now() + SignedDuration::from_mins(10) + coordinator.lease());
    }
}
