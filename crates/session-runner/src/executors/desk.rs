//! The desk of a run whose executor is an agent: what the agent says goes into the session's log, what it uses is counted,
//! and what it asks leave for is answered by what was granted, by the run's list, or by a person.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use camino::Utf8PathBuf;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use session_core::RunId;
use session_core::approval::{Approval, ApprovalState, NewApproval, Question, Withdrawal};
use session_core::approvals::{CommandSignature, Verdict};
use session_core::budget::{Resource, Usage};
use session_core::error::StoreError;
use session_core::event::{EventKind, NewEvent, Origin, Payload};
use session_core::names::{ExecutorSessionId, Producer};
use session_core::run::{Fence, ReasonCode};
use session_core::session::Binding;
use session_core::turn::{Decision, Permissions};
use session_manager::{DispatchError, Dispatcher, SessionHandle};
use tokio_util::sync::CancellationToken;

use super::execution::{RETRY_FIRST, RETRY_LAST, pause, sentence};
use crate::agents::{Answer, Ask, Desk, Reported, Said};
use crate::progress::Progress;
use crate::room::Room;
use crate::tally::Tally;
use crate::workspace::agent_state::AgentState;

/// How long an answer is waited for at a time.
const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(30);

/// What a desk is made of.
pub(super) struct RunDesk {
    pub(super) dispatcher: Arc<dyn Dispatcher>,
    pub(super) session: Arc<SessionHandle<Room>>,
    pub(super) fence: Fence,
    pub(super) run: RunId,
    pub(super) progress: Progress,
    /// What the session is bound to once the conversation has an id.
    pub(super) place: Place,
    pub(super) permissions: Permissions,
    pub(super) counted: Mutex<Counted>,
    /// What the turn has used, which renewals tell.
    pub(super) tally: Tally,
    pub(super) numbers: AtomicU64,
    pub(super) producer: Producer,
    /// Why the turn cannot go on.
    pub(super) trouble: OnceLock<Trouble>,
    /// Fires with it.
    pub(super) troubled: CancellationToken,
}

/// Where the agent works: a binding without the conversation.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The binding of a conversation here.
    pub(super) binding: Binding,
    /// Where the agent's own count is recorded.
    pub(super) state_file: Utf8PathBuf,
}

/// What was counted in the turn so far.
#[derive(Debug)]
pub(super) struct Counted {
    used: Usage,
    /// What the turn may use up before it is ended.
    left: Usage,
    conversation: Option<ExecutorSessionId>,
}

impl Counted {
    /// Nothing yet, of so much.
    pub(super) fn within(left: Usage) -> Self {
        Self { used: Usage::NONE, left, conversation: None }
    }

    /// A resource of which more was used than there is.
    fn spent(&self) -> Option<Resource> {
        Resource::ALL.iter().copied().find(|resource| self.used.of(*resource) > self.left.of(*resource))
    }
}

/// Why a turn cannot go on, by our account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The run belongs to another claim: nothing that is said of it counts any more.
    NotOurs,
    /// For this reason.
    Because(ReasonCode, String),
}

/// What is told to the store.
enum News {
    Bound(Binding),
    Resumable,
    Event(NewEvent),
}

impl News {
    fn what(&self) -> &'static str {
        match self {
            Self::Bound(_) => "the agent's conversation",
            Self::Resumable => "that the conversation can be resumed",
            Self::Event(_) => "what the agent said",
        }
    }
}

impl fmt::Debug for RunDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunDesk").field("run", &self.run).finish_non_exhaustive()
    }
}

impl RunDesk {
    /// What the turn has used up.
    pub(super) fn used(&self) -> Usage {
        self.counted().used
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // Each change is whole.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self, trouble: Trouble) {
        // The first one counts.
        let _first = self.trouble.set(trouble);
        self.troubled.cancel();
    }

    /// Tries until the store takes it, says that it is not ours, or the turn is over anyway.
    async fn tell(&self, news: News) {
        let mut wait = RETRY_FIRST;
        loop {
            let told = match &news {
                News::Bound(binding) => self.dispatcher.bind(self.fence, binding.clone()).await,
                News::Resumable => self.dispatcher.resumable(self.fence).await,
                News::Event(event) => self.dispatcher.append(self.fence, vec![event.clone()]).await,
            };
            match told {
                Ok(()) => return,
                Err(error) if error.may_pass() => {
                    self.progress
                        .line(self.run, Some(format!("(waiting for the store) {}", sentence(&error))));
                }
                Err(
                    error @ (StoreError::Fenced { .. }
                    | StoreError::Transition(_)
                    | StoreError::UnknownRun(_)),
                ) => {
                    tracing::warn!(run = %self.run, %error, "the run belongs to another claim");
                    return self.stop(Trouble::NotOurs);
                }
                Err(error) => {
                    let message = format!("{} could not be recorded: {}", news.what(), sentence(&error));
                    return self.stop(Trouble::Because(ReasonCode::ExecutorError, message));
                }
            }
            tokio::select! {
                next = pause(wait) => wait = next,
                () = self.troubled.cancelled() => return,
            }
        }
    }

    async fn bind(&self, id: ExecutorSessionId) {
        self.counted().conversation = Some(id.clone());
        self.tell(News::Bound(Binding { executor_session_id: id, ..self.place.binding.clone() })).await;
    }

    async fn record(&self, kind: EventKind, payload: Payload) {
        let seq = self.numbers.fetch_add(1, Ordering::Relaxed);
        let origin = Some(Origin { producer: self.producer.clone(), seq });
        self.tell(News::Event(NewEvent { run: Some(self.run), kind, payload, origin })).await;
    }

    /// Counts, and ends the turn when more is used up than there was.
    fn count(&self, more: Usage) {
        self.recount(|counted| counted.used = counted.used.plus(more));
    }

    /// What the turn may use up has changed: the session started children, they are over, or its limits are others.
    pub(super) fn may_use(&self, left: Usage) {
        self.recount(|counted| counted.left = left);
    }

    fn recount(&self, change: impl FnOnce(&mut Counted)) {
        let spent = {
            let mut counted = self.counted();
            change(&mut counted);
            self.tally.used(Usage { turns: 1, ..counted.used }, counted.left);
            counted.spent()
        };
        if let Some(resource) = spent {
            let message = format!(
                "the session's budget of {resource} is spent; `roomette budget top-up {}` gives it more",
                self.session.id()
            );
            self.stop(Trouble::Because(ReasonCode::BudgetExhausted, message));
        }
    }

    async fn reported(&self, reported: Reported) {
        let Reported { tokens, cost_micros, totals, quality, raw } = reported;
        let conversation = self.counted().conversation.clone();
        if let Some(id) = conversation {
            let state = AgentState {
                executor: self.place.binding.executor.clone(),
                executor_session_id: id,
                tokens: totals.tokens,
                cost_micros: totals.cost_micros,
            };
            let path = self.place.state_file.clone();
            let written = tokio::task::spawn_blocking(move || state.write(&path)).await;
            if let Err(error) = written.map_err(std::io::Error::other).flatten() {
                tracing::warn!(run = %self.run, %error, "agent.json could not be written");
            }
        }
        let raw = raw.value().unwrap_or_default();
        let told =
            json!({ "tokens": tokens, "cost_micros": cost_micros, "quality": quality.as_str(), "raw": raw });
        if let Ok(kind) = "agent.usage".parse() {
            self.record(kind, Payload::from_value(&told)).await;
        }
        self.count(Usage { tokens, cost_micros, ..Usage::NONE });
    }

    fn question(
        &self,
        ask: &Ask,
        command: Option<CommandSignature>,
        deadline: Option<Timestamp>,
    ) -> NewApproval {
        NewApproval {
            id: self.dispatcher.env().approval_id(),
            question: Question {
                tool: ask.tool.clone(),
                title: cut(&ask.title, session_core::approval::TITLE_MAX),
                command,
                input: ask.input.clone(),
                deadline,
            },
        }
    }

    /// Asks a person, and waits for the answer, for the deadline, or until nobody wants to know any more.
    async fn ask_a_person(
        &self,
        ask: Ask,
        command: Option<CommandSignature>,
        deadline: Option<SignedDuration>,
        withdrawn: &CancellationToken,
    ) -> Answer {
        let until = deadline.and_then(|span| self.dispatcher.env().now().checked_add(span).ok());
        let new = self.question(&ask, command, until);
        let approval = match self.dispatcher.ask(self.fence, new).await {
            Ok(approval) => approval,
            Err(error) => {
                let message = match &error {
                    DispatchError::Invalid { .. } => format!("a person cannot be asked about this: {error}"),
                    DispatchError::Store(error) => {
                        format!("a person could not be asked: {}", sentence(error))
                    }
                };
                return Answer::Deny { message };
            }
        };
        let line = format!("(waiting for an answer) {}: {}", ask.tool, ask.title);
        let expires = deadline.map(|span| tokio::time::Instant::now() + span.unsigned_abs());
        // Only after a look that failed: otherwise the answer is waited for.
        let mut look_again = None;
        loop {
            self.progress.line(self.run, Some(line.clone()));
            let answered = async {
                at_once_or(look_again).await;
                self.dispatcher.answered(self.fence, self.session.id(), approval.id, ANSWER_WAIT).await
            };
            let found = tokio::select! {
                found = answered => found,
                () = at(expires) => return self.take_back(&approval, Withdrawal::Expired).await,
                () = withdrawn.cancelled() => return self.take_back(&approval, Withdrawal::Withdrawn).await,
                () = self.troubled.cancelled() => return self.take_back(&approval, Withdrawal::Withdrawn).await,
            };
            look_again = None;
            match found {
                Ok(Some(now)) => {
                    if let Some(answer) = self.answer(&now) {
                        self.progress.line(self.run, None);
                        return answer;
                    }
                }
                Ok(None) => return Answer::Cancelled,
                Err(error) => {
                    tracing::warn!(run = %self.run, %error, "an answer could not be looked for");
                    look_again = Some(tokio::time::Instant::now() + RETRY_LAST);
                }
            }
        }
    }

    /// What was answered by now; `None` while nobody did.
    fn answer(&self, approval: &Approval) -> Option<Answer> {
        match &approval.state {
            ApprovalState::Open => None,
            ApprovalState::Withdrawn { why: Withdrawal::Expired, .. } => {
                Some(Answer::Deny { message: "nobody answered in time".into() })
            }
            ApprovalState::Withdrawn { why: Withdrawal::Withdrawn, .. } => Some(Answer::Cancelled),
            ApprovalState::Answered { reply, .. } => {
                if let Some(grant) = approval.grant(reply) {
                    // One that there is no room for holds this once; it is in the log all the same.
                    let _kept = self.session.with_context(|context| context.answer(grant));
                }
                Some(match reply.verdict {
                    Verdict::Allow => Answer::Allow,
                    Verdict::Deny => Answer::Deny {
                        message: reply.message.clone().unwrap_or_else(|| "this was refused".into()),
                    },
                })
            }
        }
    }

    /// Takes the question back. An answer that came first counts.
    async fn take_back(&self, approval: &Approval, why: Withdrawal) -> Answer {
        match self.dispatcher.withdraw(self.fence, approval.id, why).await {
            Ok(now) => self.answer(&now).unwrap_or(Answer::Cancelled),
            Err(error) => {
                // The end of the run takes it back.
                tracing::debug!(run = %self.run, %error, "a question was not taken back");
                Answer::Cancelled
            }
        }
    }
}

#[async_trait]
impl Desk for RunDesk {
    async fn said(&self, said: Said) {
        if self.troubled.is_cancelled() && self.trouble.get() == Some(&Trouble::NotOurs) {
            return;
        }
        match said {
            Said::Bound(id) => self.bind(id).await,
            Said::Resumable => self.tell(News::Resumable).await,
            Said::Event { kind, payload } => {
                let is_call = kind == EventKind::ToolCall;
                self.record(kind, payload).await;
                if is_call {
                    self.count(Usage { tool_calls: 1, ..Usage::NONE });
                }
            }
            Said::Usage(reported) => self.reported(reported).await,
            Said::Degraded(why) => self.progress.line(self.run, Some(format!("(in trouble) {why}"))),
            Said::Progress(line) => self.progress.line(self.run, Some(line)),
        }
    }

    async fn ask(&self, ask: Ask, withdrawn: CancellationToken) -> Answer {
        // The turn is about to end: what it asks for now is what there is no budget for.
        if self.troubled.is_cancelled() {
            return Answer::Cancelled;
        }
        let cwd = &self.place.binding.project_dir;
        let command = ask.command.clone().map(|argv| CommandSignature::new(argv, cwd));
        let held =
            self.session.with_context(|context| context.approvals.verdict(&ask.tool, command.as_ref()));
        match self.permissions.decide(held, &ask.tool) {
            Decision::Allow => Answer::Allow,
            Decision::Deny { why } => Answer::Deny { message: why },
            Decision::Ask { deadline } => self.ask_a_person(ask, command, deadline, &withdrawn).await,
        }
    }
}

fn cut(text: &str, bytes_max: usize) -> String {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default().to_owned()
}

async fn at_once_or(instant: Option<tokio::time::Instant>) {
    if let Some(instant) = instant {
        tokio::time::sleep_until(instant).await;
    }
}

async fn at(instant: Option<tokio::time::Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
