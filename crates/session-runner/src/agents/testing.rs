//! Doubles for the tests of the agent layer: turns, and a desk that records what it is told and answers as it is asked to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use session_core::names::ExecutorSessionId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Answer, Ask, Conversation, Desk, Said, Totals, Turn};

/// The id that new conversations are given.
pub(super) const OURS: &str = "11111111-1111-4111-8111-111111111111";

pub(super) fn id(text: &str) -> ExecutorSessionId {
    ExecutorSessionId::new(text).unwrap()
}

/// A turn that begins a conversation.
pub(super) fn turn() -> Turn {
    Turn {
        prompt: "hello there".into(),
        cwd: "/p".into(),
        conversation: Conversation::New { id: id(OURS) },
        primer: None,
        model: None,
        mode: None,
        allow: Vec::new(),
        arguments: Vec::new(),
    }
}

/// A turn that resumes one, of which nothing was counted yet.
pub(super) fn resumed(of: &str) -> Turn {
    Turn { conversation: Conversation::Resumed { id: id(of), totals: Totals::default() }, ..turn() }
}

/// What is said, as short lines: the kind of an entry and what is in it.
pub(super) fn brief(said: &[Said]) -> Vec<String> {
    said.iter().map(line).collect()
}

fn line(said: &Said) -> String {
    match said {
        Said::Bound(id) => format!("bound {id}"),
        Said::Resumable => "resumable".into(),
        Said::Event { kind, payload } => {
            let mut value = payload.value().unwrap();
            let raw = value.as_object_mut().and_then(|fields| fields.remove("raw"));
            if kind.as_str() == super::entry::RAW_KIND {
                let of = raw
                    .as_ref()
                    .map(|raw| ["type", "subtype"].map(|field| raw[field].as_str().unwrap_or_default()));
                return format!("{kind} {}", of.unwrap_or_default().join(" ").trim());
            }
            format!("{kind} {value}")
        }
        Said::Usage(reported) => format!(
            "usage {} tokens, {} micros, {}; totals {} {}",
            reported.tokens,
            reported.cost_micros,
            reported.quality.as_str(),
            reported.totals.tokens,
            reported.totals.cost_micros
        ),
        Said::Degraded(text) => format!("degraded {text}"),
        Said::Progress(text) => format!("progress {text}"),
    }
}

/// Records what it is told, and answers what it is asked from a list; when the list is empty it waits to be withdrawn.
#[derive(Default)]
pub(super) struct Recorder {
    said: Mutex<Vec<Said>>,
    asked: Mutex<Vec<Ask>>,
    /// How much had been said when each question came.
    said_before: Mutex<Vec<usize>>,
    answers: Mutex<VecDeque<Answer>>,
    withdrawn: Mutex<usize>,
    changed: Notify,
}

impl Recorder {
    pub(super) fn answering(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    pub(super) fn said(&self) -> Vec<Said> {
        self.said.lock().unwrap().clone()
    }

    pub(super) fn asked(&self) -> Vec<Ask> {
        self.asked.lock().unwrap().clone()
    }

    /// How much had been said when each question came.
    pub(super) fn said_before(&self) -> Vec<usize> {
        self.said_before.lock().unwrap().clone()
    }

    /// How many questions were withdrawn.
    pub(super) fn withdrawn(&self) -> usize {
        *self.withdrawn.lock().unwrap()
    }

    /// Waits until what was told is as wanted.
    pub(super) async fn until(&self, wanted: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if wanted(self) {
                return;
            }
            changed.await;
        }
    }
}

#[async_trait]
impl Desk for Recorder {
    async fn said(&self, said: Said) {
        self.said.lock().unwrap().push(said);
        self.changed.notify_waiters();
    }

    async fn ask(&self, ask: Ask, withdrawn: CancellationToken) -> Answer {
        let answer = self.answers.lock().unwrap().pop_front();
        self.said_before.lock().unwrap().push(self.said().len());
        self.asked.lock().unwrap().push(ask);
        self.changed.notify_waiters();
        if let Some(answer) = answer {
            return answer;
        }
        withdrawn.cancelled().await;
        *self.withdrawn.lock().unwrap() += 1;
        self.changed.notify_waiters();
        Answer::Cancelled
    }
}
