//! The questions of an agent that are open: asked at the desk, all at once, and withdrawn together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::asking::{Answer, Ask};
use super::desk::Desk;

/// The most questions that an agent may have open at once; to more the answer is no.
pub(super) const QUESTIONS_MAX: usize = 64;

/// The open questions, each under the agent's own name for it.
pub(super) struct Questions {
    desk: Arc<dyn Desk>,
    asked: JoinSet<(String, Answer)>,
    open: BTreeMap<String, CancellationToken>,
}

impl Questions {
    pub(super) fn new(desk: Arc<dyn Desk>) -> Self {
        Self { desk, asked: JoinSet::new(), open: BTreeMap::new() }
    }

    /// Asks; the answer comes from [`answered`](Self::answered). One that cannot be asked is answered at once.
    pub(super) fn ask(&mut self, name: String, ask: Ask) -> Result<(), Answer> {
        if self.open.len() >= QUESTIONS_MAX {
            let message = format!("{QUESTIONS_MAX} questions are open already: wait for their answers");
            return Err(Answer::Deny { message });
        }
        if self.open.contains_key(&name) {
            return Err(Answer::Deny { message: "a question of this name is open already".into() });
        }
        let withdrawn = CancellationToken::new();
        let (desk, token, asked) = (Arc::clone(&self.desk), withdrawn.clone(), name.clone());
        self.asked.spawn(async move {
            let answer = desk.ask(ask, token).await;
            (asked, answer)
        });
        self.open.insert(name, withdrawn);
        Ok(())
    }

    /// No question is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The next answer to a question that is still open. Never, while there is none.
    pub(super) async fn answered(&mut self) -> (String, Answer) {
        loop {
            match self.asked.join_next().await {
                Some(Ok((name, answer))) => {
                    if self.open.remove(&name).is_some() {
                        return (name, answer);
                    }
                }
                // A desk that fails has not answered; its question stays open until it is withdrawn.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// The agent no longer wants to know.
    pub(super) fn withdraw(&mut self, name: &str) {
        if let Some(token) = self.open.remove(name) {
            token.cancel();
        }
    }

    /// The turn is over or about to be: nobody wants to know any more. The names of what was open.
    pub(super) fn withdraw_all(&mut self) -> Vec<String> {
        let open = std::mem::take(&mut self.open);
        open.into_iter()
            .map(|(name, token)| {
                token.cancel();
                name
            })
            .collect()
    }

    /// Withdraws what is open and waits until the desk has taken all of it back, but no longer than this.
    pub(super) async fn close(mut self, bound: Duration) {
        self.withdraw_all();
        let taken_back = async { while self.asked.join_next().await.is_some() {} };
        if tokio::time::timeout(bound, taken_back).await.is_err() {
            tracing::warn!("a question was not taken back in time");
        }
        self.asked.shutdown().await;
    }
}
