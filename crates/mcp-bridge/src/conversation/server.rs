//! What happens to the server process of a session, and how it is started.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Conversation;
use crate::envelope::Message;
use crate::host::{Exit, HostError, Stray};
use crate::process::{News, Opened, Process};
use crate::settings::Restart;
use crate::talk::{Input, NotStarted};
use crate::wire::{Read, answered_id, shown};

/// Lines that are no messages are told of this often for one process.
const STRAYS_MAX: u32 = 100;
/// The pause before a server that has crashed is started again, the first time; doubled each time.
const BACKOFF: Duration = Duration::from_millis(100);
/// When it is worth asking a host again that could not do something.
const AGAIN: Duration = Duration::from_secs(5);
/// A server that was there for so long can stay up.
const LASTED: Duration = Duration::from_mins(1);
/// A server that could not stay up is tried again after this, once.
const RETRY: Duration = Duration::from_mins(5);

impl Conversation {
    pub(super) async fn heard(&mut self, news: News) {
        match news {
            News::Up => {
                self.strays = 0;
                self.handshake_until = Some(Instant::now() + self.setup.settings.times.handshake);
                self.on(Input::Started).await;
            }
            News::NotUp(error) => self.not_up(error).await,
            News::Line(line) => self.line(line).await,
            News::Stray(read) => self.stray(&read).await,
            News::Gone(exit) => self.gone(exit).await,
            News::Stopped(Exit::Over(ending)) => self.on(Input::Over(ending.code().to_owned())).await,
            News::Stopped(Exit::Ended(_) | Exit::Suspended) => self.start(),
        }
    }

    async fn line(&mut self, line: Vec<u8>) {
        // Both ends of it, for the case that it is no message: it is gone then.
        let (beginning, answers) = (shown(&line).to_vec(), answered_id(&line));
        match Message::parse(line) {
            Ok(message) => {
                self.heard = Instant::now();
                self.tells = message.method() == Some("notifications/progress");
                self.on(Input::Line(message)).await;
                self.tells = false;
            }
            Err(error) => {
                let why = error.to_string();
                self.note(Stray::Line(&beginning, &why));
                self.unreadable(answers, why).await;
            }
        }
    }

    async fn stray(&mut self, read: &Read) {
        match read {
            Read::Long(bytes, answers) => {
                self.note(Stray::Long(*bytes));
                self.unreadable(*answers, format!("it has {bytes} bytes, which is too long")).await;
            }
            Read::Half(line) => self.note(Stray::Half(shown(line))),
            Read::Line(_) | Read::End => {}
        }
    }

    /// Whoever waits for an answer that cannot be read hears of it now.
    async fn unreadable(&mut self, answers: Option<u64>, why: String) {
        if let Some(number) = answers {
            self.on(Input::Unreadable(number, why)).await;
        }
    }

    pub(super) fn note(&mut self, stray: Stray<'_>) {
        if self.strays < STRAYS_MAX {
            self.strays += 1;
            self.setup.host.stray(self.setup.session, stray);
        }
    }

    async fn not_up(&mut self, error: HostError) {
        self.handshake_until = None;
        let why = error.to_string();
        // Who asks how the server begins is told to come again for the same reasons.
        let again = matches!(error, HostError::Other(_)).then_some(AGAIN);
        let retry_after = match error {
            HostError::Limit { retry_after, .. } => Some(retry_after),
            HostError::Scope { code, message } => {
                return self.on(Input::ScopeRefused { code, message }).await;
            }
            HostError::Over(ending) => return self.on(Input::Over(ending.code().to_owned())).await,
            HostError::Sandbox(_) | HostError::Budget(_) | HostError::Broken(_) | HostError::Other(_) => None,
        };
        self.missing = NotStarted { why: why.clone(), retry_after: retry_after.or(again) };
        self.on(Input::NotStarted(NotStarted { why, retry_after })).await;
    }

    async fn gone(&mut self, exit: Exit) {
        // The next one may be another program.
        self.answer = None;
        self.handshake_until = None;
        let lasted = self.up_since.take().is_some_and(|since| since.elapsed() >= LASTED);
        match exit {
            Exit::Ended(how) => {
                let why = format!("the server process ended: {how}");
                tracing::info!(session = %self.setup.session, why, "a server process ended by itself");
                let restart = self.setup.settings.restart == Restart::OnCrash;
                self.missing = NotStarted { why: why.clone(), retry_after: None };
                self.on(Input::Gone { why, restart, lasted }).await;
            }
            Exit::Suspended => {
                let why = "the host needed the room of the server".to_owned();
                self.missing = NotStarted { why, retry_after: Some(BACKOFF) };
                self.on(Input::Suspended).await;
            }
            Exit::Over(ending) => self.on(Input::Over(ending.code().to_owned())).await,
        }
    }

    /// The handshake has taken too long.
    pub(super) async fn unshaken(&mut self) {
        self.process.stop();
        let why = "the server did not answer the handshake in time".to_owned();
        self.missing = NotStarted { why, retry_after: None };
        self.on(Input::Unshaken(self.missing.clone())).await;
    }

    /// A server that was given up is tried again, after a while and once, where servers are started again at all.
    pub(super) fn await_retry(&mut self, now: Instant) {
        let is_lost = self.setup.talk.lost().is_some() && self.setup.settings.restart == Restart::OnCrash;
        if !is_lost {
            self.retry_at = None;
        } else if self.retry_at.is_none() {
            self.retry_at = Some(now + RETRY);
        }
    }

    /// Starts the server that is wanted, unless the one before is still there.
    pub(super) fn start(&mut self) {
        if self.process.is_there() {
            return;
        }
        let Some(scope) = self.wanted.take() else { return };
        let (session, mut record) = (self.setup.session, self.setup.record.clone());
        record.scope = scope;
        if let Some(initialized) = self.setup.talk.initialized() {
            initialized.text().clone_into(&mut record.handshake.initialized);
        }
        self.setup.record = record.clone();
        let pause = match self.setup.talk.failed_starts() {
            0 => Duration::ZERO,
            failed => BACKOFF.saturating_mul(1 << (failed - 1).min(6)),
        };
        let (host, places) = (Arc::clone(&self.setup.host), Arc::clone(&self.setup.places));
        let (unwanted, rest) = (CancellationToken::new(), Arc::clone(&self.rest));
        let nobody = unwanted.clone();
        let opening = async move {
            let ready = async {
                sleep(pause).await;
                let place = places.take(&record.principal, Some(rest)).await?;
                Ok::<_, HostError>((place, places.start(&record.principal).await))
            };
            let (place, _starting) = tokio::select! {
                biased;
                // From here on there is nothing to undo: what nobody wants is not even recorded.
                () = nobody.cancelled() => return Err(HostError::Other("nobody wants it any more".into())),
                ready = ready => ready?,
            };
            Ok(Opened { child: host.open(session, &record).await?, place })
        };
        self.process = Process::open(&self.setup.tasks, opening, unwanted);
    }

    /// Whoever listens cannot know that there is nobody to be heard, and that nobody starts one: its stream ends, and who
    /// listens again has the server started.
    pub(super) fn dismiss_listeners(&self) {
        if !self.setup.talk.has_server() {
            self.boards.values().filter(|board| board.is_held()).for_each(|board| board.close());
        }
    }

    pub(super) fn shaken(&mut self, answer: String) {
        self.handshake_until = None;
        self.up_since = Some(Instant::now());
        (self.setup.on_shaken)(&self.setup.record, &answer);
        for asking in self.asking.drain(..) {
            drop(asking.send(Ok(answer.clone())));
        }
        self.answer = Some(answer);
    }

    /// Whoever wants to know how the server answers hears why it does not, once nobody starts it any more.
    pub(super) fn answer_asking(&mut self) {
        if self.asking.is_empty() || self.setup.talk.has_server() {
            return;
        }
        let lost = self.setup.talk.lost();
        let why = lost.map_or_else(
            || self.missing.clone(),
            |why| NotStarted { why: why.to_owned(), retry_after: None },
        );
        for asking in self.asking.drain(..) {
            drop(asking.send(Err(why.clone())));
        }
    }
}
