//! How servers answer `initialize`: asked of a process of their own that may touch nothing, and remembered for whoever asks
//! the same.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use session_core::names::Principal;
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::envelope::{Kind, Message, member};
use crate::host::{Exit, Host, HostError, ServerName};
use crate::id::MessageId;
use crate::inquiry::Inquiry;
use crate::places::Places;
use crate::process::{News, Opened, Process};
use crate::revision::Revision;
use crate::router::error_line;
use crate::shares::Share;

/// What a server answered: the `result`, letter for letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: String,
    pub(crate) revision: Revision,
}

/// Why a session could not begin.
#[derive(Debug, Clone, Error)]
pub(crate) enum AnswerError {
    /// The host would not start the server.
    #[error("the server could not be started: {0}")]
    Host(#[from] HostError),
    /// It went away.
    #[error("the server ended before it answered `initialize`: {0}")]
    Gone(String),
    /// It said nothing.
    #[error("the server did not answer `initialize` within {0:?}")]
    Timeout(Duration),
    /// It answered with an error, which is given letter for letter, with the id 0.
    #[error("the server answered `initialize` with an error")]
    Refused(Box<Message>),
    /// It answered with something else.
    #[error("the server's answer to `initialize` names no `protocolVersion`")]
    Malformed,
}

impl Answer {
    pub(crate) fn of(result: &str) -> Result<Self, AnswerError> {
        let version =
            member(result, "protocolVersion").and_then(|text| serde_json::from_str::<String>(text).ok());
        let revision = Revision::of_answer(&version.ok_or(AnswerError::Malformed)?);
        Ok(Self { result: result.to_owned(), revision })
    }
}

/// What makes two questions the same: nothing that could make the answer another is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) principal: Principal,
    pub(crate) server: ServerName,
    /// The parameters of `initialize`, letter for letter.
    pub(crate) params: String,
}

type Cell = Arc<Inquiry<Answer>>;

/// What is remembered for less than this is not doubted: a server that answers otherwise in each session's directories would
/// have one asked for each session.
const CERTAIN_FOR: Duration = Duration::from_mins(10);

/// Answers that are remembered; those that were used longest ago go first, of whoever asks for one more, and where it has none, of
/// who has most.
#[derive(Debug)]
pub(crate) struct Answers {
    // Few, so they are looked through.
    kept: Mutex<VecDeque<Place>>,
    max: usize,
}

/// Where an answer is remembered.
#[derive(Debug)]
struct Place {
    question: Question,
    since: Instant,
    cell: Cell,
}

impl Answers {
    pub(crate) fn new(max: usize) -> Self {
        Self { kept: Mutex::new(VecDeque::new()), max }
    }

    /// The place of this answer. Whoever comes first fills it, and the others wait for that.
    pub(crate) fn cell(&self, question: &Question, now: Instant) -> Cell {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            kept.iter().position(|place| place.question == *question).and_then(|index| kept.remove(index));
        let place =
            found.unwrap_or_else(|| Place { question: question.clone(), since: now, cell: Cell::default() });
        let cell = Arc::clone(&place.cell);
        kept.push_back(place);
        while kept.len() > self.max {
            let others = kept.len() - 1;
            let own = kept.iter().take(others).position(|of| of.question.principal == question.principal);
            let gone = own.unwrap_or_else(|| {
                let whose = |index: usize| kept.get(index).map(|of| &of.question.principal);
                let count =
                    |index| kept.iter().filter(|of| Some(&of.question.principal) == whose(index)).count();
                (0..others).max_by_key(|index| (count(*index), Reverse(*index))).unwrap_or_default()
            });
            kept.remove(gone);
        }
        cell
    }

    /// The server has answered this question inside a session's directories. What it says there is that session's alone; where
    /// it is another answer than what is remembered, that may be old, and the next who asks has a server asked that sees
    /// nothing of anybody.
    pub(crate) fn doubt(&self, question: &Question, result: &str, now: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter_mut().find(|place| place.question == *question);
        let Some(place) = found.filter(|place| now - place.since >= CERTAIN_FOR) else { return };
        if place.cell.known().is_some_and(|answer| answer.result != result) {
            (place.cell, place.since) = (Cell::default(), now);
        }
    }
}

/// How a server is asked.
pub(crate) struct Asking {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) places: Arc<Places>,
    pub(crate) tasks: TaskTracker,
    pub(crate) drain: CancellationToken,
    /// How long a server has for its answer, from when there is room for it.
    pub(crate) limit: Duration,
    pub(crate) message_max: usize,
    /// Of all that are asked at once.
    pub(crate) _share: Share,
}

impl Asking {
    /// Starts a server of its own for this question, and ends it again.
    pub(crate) async fn ask(self, question: Question, initialize: Message) -> Result<Answer, AnswerError> {
        self.unless_drained(self.asked(&question, &initialize)).await
    }

    /// Finds out in which way a server is spoken to: it is asked as one that wants no handshake, and if it does not
    /// understand that, with this handshake.
    pub(crate) async fn probe(self, question: Question, initialize: Message) -> Result<Era, AnswerError> {
        self.unless_drained(self.probed(&question, &initialize)).await
    }

    /// Nothing is found out any more when the bridge ends.
    async fn unless_drained<T>(
        &self,
        found: impl Future<Output = Result<T, AnswerError>>,
    ) -> Result<T, AnswerError> {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => {
                let message = "this bridge is ending: come back".to_owned();
                Err(HostError::Limit { message, retry_after: Duration::from_secs(1) }.into())
            }
            found = found => found,
        }
    }

    async fn asked(&self, question: &Question, initialize: &Message) -> Result<Answer, AnswerError> {
        let mut owned = self.start(question).await?;
        let asking = async {
            owned.up().await?;
            answer_of(owned.exchange(initialize.with_id("0")).await?)
        };
        timeout(self.limit, asking).await.unwrap_or(Err(AnswerError::Timeout(self.limit)))
    }

    async fn probed(&self, question: &Question, initialize: &Message) -> Result<Era, AnswerError> {
        let mut owned = self.start(question).await?;
        let asking = async {
            owned.up().await?;
            owned.process.push(DISCOVER.to_owned());
            // A server that does not know a question may be silent about it, and one that begins slowly answers them in turn.
            let first = timeout(DISCOVER_LIMIT, owned.answer()).await;
            if let Ok(discovered) = first {
                if is_plain(&discovered?) {
                    return Ok(Era::Plain);
                }
                return answer_of(owned.exchange(initialize.with_id("0")).await?).map(Era::Shaken);
            }
            owned.process.push(initialize.with_id("0"));
            let message = owned.answer().await?;
            if is_plain(&message) {
                return Ok(Era::Plain);
            }
            if message.result().is_some() {
                return answer_of(message).map(Era::Shaken);
            }
            // It said that it does not know the first question: the second is on its way.
            answer_of(owned.answer().await?).map(Era::Shaken)
        };
        match timeout(self.limit, asking).await {
            Ok(Err(AnswerError::Gone(_))) | Err(_) => {}
            Ok(found) => return found,
        }
        drop(owned);
        // What it does not know has confused it: it is asked as it knows it.
        self.asked(question, initialize).await.map(Era::Shaken)
    }

    /// A process of its own, once there is room for it: what nobody waits for any more by then is not started.
    async fn start(&self, question: &Question) -> Result<Owned, AnswerError> {
        let Question { principal, server, .. } = question.clone();
        let place = self.places.ask(&principal).await?;
        let starting = self.places.start(&principal).await;
        let host = Arc::clone(&self.host);
        let opening = async move {
            let opened = host.provisional(&principal, &server).await;
            drop(starting);
            Ok(Opened { child: opened?, place })
        };
        let process = Process::open(&self.tasks, opening, CancellationToken::new());
        // Ended in a task of its own, whatever becomes of whoever asked.
        Ok(Owned { process, tasks: self.tasks.clone(), message_max: self.message_max })
    }
}

/// In which way a server is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Era {
    /// Each request stands for itself.
    Plain,
    /// After a handshake, which it answers like this.
    Shaken(Answer),
}

/// How long a server that does not know a question may be silent about it.
const DISCOVER_LIMIT: Duration = Duration::from_secs(5);
const DISCOVER: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":{"#,
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"roomette","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""},"io.modelcontextprotocol/clientCapabilities":{}}}}"#
);

/// It answers `server/discover` as one that wants no handshake.
fn is_plain(discovered: &Message) -> bool {
    let version = format!("{:?}", Revision::V2026_07_28.name());
    let versions = discovered.result().and_then(|result| member(result, "supportedVersions"));
    versions.is_some_and(|versions| versions.contains(&version))
}

fn answer_of(message: Message) -> Result<Answer, AnswerError> {
    match message.result() {
        Some(result) => Answer::of(result),
        None => Err(AnswerError::Refused(Box::new(message))),
    }
}

impl Owned {
    async fn up(&mut self) -> Result<(), AnswerError> {
        loop {
            match self.process.next(self.message_max).await {
                News::Up => return Ok(()),
                News::NotUp(error) => return Err(error.into()),
                News::Gone(exit) | News::Stopped(exit) => return Err(AnswerError::Gone(how(exit))),
                News::Stray(_) | News::Line(_) => {}
            }
        }
    }

    /// Writes a request with the id 0. Returns its answer.
    async fn exchange(&mut self, line: String) -> Result<Message, AnswerError> {
        self.process.push(line);
        self.answer().await
    }

    /// The next answer to a request with the id 0.
    async fn answer(&mut self) -> Result<Message, AnswerError> {
        loop {
            let line = match self.process.next(self.message_max).await {
                News::Up | News::Stray(_) => continue,
                News::NotUp(error) => return Err(error.into()),
                News::Gone(exit) | News::Stopped(exit) => return Err(AnswerError::Gone(how(exit))),
                News::Line(line) => line,
            };
            let Ok(message) = Message::parse(line) else { continue };
            let is_answer = message.id() == Some(&MessageId::Integer(0));
            match message.kind() {
                Kind::Success | Kind::Error if is_answer => return Ok(message),
                Kind::Request => {
                    let id = message.id_text().unwrap_or("null");
                    self.process.push(match message.method() {
                        Some("ping") => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
                        Some(_) | None => error_line(id, -32_000, "nobody is asked before the handshake"),
                    });
                }
                Kind::Success | Kind::Error | Kind::Notification => {}
            }
        }
    }
}

fn how(exit: Exit) -> String {
    match exit {
        Exit::Ended(how) => how,
        Exit::Suspended => "the host needed its room".into(),
        Exit::Over(ending) => ending.code().to_owned(),
    }
}

/// A process that is ended and waited for when its holder lets go of it.
struct Owned {
    process: Process,
    tasks: TaskTracker,
    message_max: usize,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut process = std::mem::take(&mut self.process);
        process.stop();
        let max = self.message_max;
        if process.is_there() {
            drop(self.tasks.spawn(async move {
                while process.is_there() {
                    let _news = process.next(max).await;
                }
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(params: &str) -> Question {
        Question {
            principal: "ada".parse().unwrap(),
            server: "s".parse().unwrap(),
            params: params.to_owned(),
        }
    }

    fn answer(version: &str) -> Answer {
        Answer::of(&format!(r#"{{"protocolVersion":"{version}"}}"#)).unwrap()
    }

    #[test]
    fn the_answer_to_another_question_is_another() {
        let (answers, now) = (Answers::new(2), Instant::now());
        let cell = |question: &Question| answers.cell(question, now);
        let first = cell(&question("1"));
        first.set(answer("2025-06-18"));
        assert!(cell(&question("2")).known().is_none());
        assert_eq!(cell(&question("1")).known(), Some(answer("2025-06-18")));
        let _third = cell(&question("3"));
        assert!(cell(&question("2")).known().is_none(), "it was used longest ago");
        let of_another = Question { principal: "bob".parse().unwrap(), ..question("1") };
        assert!(cell(&of_another).known().is_none());
        cell(&of_another).set(answer("2025-06-18"));
        for number in 4..9 {
            let _another = cell(&question(&number.to_string()));
        }
        assert!(cell(&of_another).known().is_some(), "who asks for many lets go of its own");
    }

    #[test]
    fn who_has_none_takes_the_place_of_an_answer_of_who_has_most() {
        let (answers, now) = (Answers::new(3), Instant::now());
        let of = |whose: &str, params: &str| {
            let principal = whose.parse().unwrap();
            answers.cell(&Question { principal, ..question(params) }, now)
        };
        for (whose, params) in [("bob", "1"), ("ada", "1"), ("ada", "2")] {
            of(whose, params).set(answer("2025-06-18"));
        }
        of("cyd", "1").set(answer("2025-06-18"));
        assert!(of("bob", "1").known().is_some() && of("ada", "2").known().is_some());
        assert!(of("ada", "1").known().is_none(), "the oldest of the most");
    }

    #[test]
    fn what_a_server_says_inside_a_session_is_never_anothers_and_only_makes_it_be_asked_again() {
        let (answers, now) = (Answers::new(2), Instant::now());
        let (newer, older) = (answer("2025-11-25"), answer("2025-06-18"));
        answers.doubt(&question("1"), &newer.result, now);
        answers.cell(&question("1"), now).set(older.clone());
        answers.doubt(&question("1"), &newer.result, now);
        assert_eq!(answers.cell(&question("1"), now).known(), Some(older.clone()));
        let later = now + CERTAIN_FOR;
        answers.doubt(&question("1"), &older.result, later);
        assert_eq!(answers.cell(&question("1"), later).known(), Some(older.clone()));
        answers.doubt(&question("1"), &newer.result, later);
        assert_eq!(answers.cell(&question("1"), later).known(), None);
        answers.cell(&question("1"), later).set(older.clone());
        answers.doubt(&question("1"), &newer.result, later);
        assert_eq!(answers.cell(&question("1"), later).known(), Some(older.clone()), "it was asked just now");
    }
}
