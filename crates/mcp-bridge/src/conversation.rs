//! The task behind a session: it owns what decides ([`Talk`]), the process that the decisions are about, and the answers that
//! somebody waits for. Everybody else sends it commands and reads boards.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use session_core::SessionId;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::board::Board;
use crate::envelope::Message;
use crate::gate::{Refusal, Scope};
use crate::host::{Ending, Exit, Host, HostError, Record, Stray};
use crate::process::{News, Process};
use crate::router::{ClientId, Refused, Stream};
use crate::settings::{Restart, Settings};
use crate::talk::{Effect, Input, NotStarted, PostId, Posted, Talk};
use crate::wire::{Read, shown};

/// Messages that wait to be taken by the task.
const MAILBOX: usize = 64;
/// Commands that do not wait behind messages.
const CONTROL: usize = 1_024;
/// While something is waited for, it is looked at this often.
const TICK: Duration = Duration::from_millis(100);
/// Lines that are no messages are told of this often for one process.
const STRAYS_MAX: u32 = 100;
/// The pause before a server that has crashed is started again, the first time; doubled each time.
const BACKOFF: Duration = Duration::from_millis(100);

/// A message that a client posted.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) client: ClientId,
    pub(crate) message: Message,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// What goes before messages.
#[derive(Debug)]
pub(crate) enum Control {
    /// A client joins: what is for it stands on this board.
    Join(ClientId, Arc<Board>),
    /// A client is gone, of several.
    Leave(ClientId),
    /// How the server answers the handshake; it is started for that.
    Answer(oneshot::Sender<Result<String, NotStarted>>),
    /// The session is over. Answered when everybody was told.
    End(Ending, oneshot::Sender<()>),
}

/// What became of a message.
#[derive(Debug)]
pub(crate) enum Reply {
    /// It was taken, and there is nothing to say.
    Accepted,
    /// Its answer, which came at once and alone.
    Answer(String),
    /// Its answer comes on this stream.
    Stream(Stream),
    /// It was not taken.
    Refused(Refused),
    /// Too many wait already.
    Full,
    /// There is no server for it, for now.
    NotStarted(NotStarted),
    /// The session is over.
    Over(Refusal),
    /// The task ended before it came to it: look for the session again.
    Again(Message),
    /// The bridge ends: come back.
    Draining,
}

/// How to reach the task.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) letters: mpsc::Sender<Letter>,
    pub(crate) control: mpsc::Sender<Control>,
}

/// Why the task has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The session is over.
    Over(Refusal),
    /// Nothing happened for long: whoever comes again finds the session at the host.
    Forgotten,
    /// The client began and did not go on.
    Unopened,
    /// The bridge ends.
    Drained,
}

/// Told of each answer of a server to the handshake.
pub(crate) type OnShaken = Arc<dyn Fn(&Record, &str) + Send + Sync>;

/// What a task is made of.
pub(crate) struct Setup {
    pub(crate) session: SessionId,
    pub(crate) record: Record,
    pub(crate) talk: Talk,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) starts: Arc<Semaphore>,
    pub(crate) drain: CancellationToken,
    pub(crate) on_shaken: OnShaken,
}

/// A request that the server works on.
struct Call {
    client: ClientId,
    began: Instant,
    heard: Instant,
    /// Nobody was told anything yet.
    reply: Option<oneshot::Sender<Reply>>,
}

/// A message that waits for the server.
struct Waiting {
    client: ClientId,
    since: Instant,
    reply: oneshot::Sender<Reply>,
}

pub(crate) struct Conversation {
    setup: Setup,
    letters: mpsc::Receiver<Letter>,
    control: mpsc::Receiver<Control>,
    process: Process,
    /// The server is to be started in this scope, once the one before is gone.
    wanted: Option<Scope>,
    boards: HashMap<ClientId, Arc<Board>>,
    posts: u64,
    waiting: BTreeMap<PostId, Waiting>,
    calls: BTreeMap<u64, Call>,
    asking: Vec<oneshot::Sender<Result<String, NotStarted>>>,
    answer: Option<String>,
    roots_until: Option<Instant>,
    handshake_until: Option<Instant>,
    used: Instant,
    touched: Option<Instant>,
    strays: u32,
    locked: bool,
    end: Option<End>,
    /// Polled at every turn, so it is made once.
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    alarm: Pin<Box<Sleep>>,
}

impl Conversation {
    /// A task that is to be run, and how to reach it.
    pub(crate) fn new(setup: Setup) -> (Self, Address) {
        let (letters_to, letters) = mpsc::channel(MAILBOX);
        let (control_to, control) = mpsc::channel(CONTROL);
        let now = Instant::now();
        let locked = setup.talk.is_locked();
        let drained = Box::pin(setup.drain.clone().cancelled_owned());
        let conversation = Self {
            setup,
            letters,
            control,
            process: Process::default(),
            wanted: None,
            boards: HashMap::new(),
            posts: 0,
            waiting: BTreeMap::new(),
            calls: BTreeMap::new(),
            asking: Vec::new(),
            answer: None,
            roots_until: None,
            handshake_until: None,
            used: now,
            touched: None,
            strays: 0,
            locked,
            end: None,
            drained,
            alarm: Box::pin(sleep(TICK)),
        };
        (conversation, Address { letters: letters_to, control: control_to })
    }

    /// A client joins before the task runs.
    pub(crate) fn join(&mut self, client: ClientId, board: Arc<Board>) {
        self.boards.insert(client, board);
    }

    /// Runs to the end of the session, or until nothing happens for long. Its process may still be there:
    /// [`close`](Self::close) waits for it.
    pub(crate) async fn run(&mut self) -> End {
        loop {
            if let Some(end) = self.end.take() {
                self.letters.close();
                self.control.close();
                return end;
            }
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        let max = self.setup.settings.caps.message;
        tokio::select! {
            biased;
            Some(control) = self.control.recv() => self.told(control).await,
            () = &mut self.drained => self.end = Some(End::Drained),
            // Before the process: a server that never stops talking must be told things nevertheless, and how much clients
            // may say before it is written is bounded.
            Some(letter) = self.letters.recv(), if self.process.has_room() => self.posted(letter).await,
            news = self.process.next(max) => self.heard(news).await,
            () = &mut self.alarm => self.look().await,
        }
    }

    async fn told(&mut self, control: Control) {
        match control {
            Control::Join(client, board) => self.join(client, board),
            Control::Leave(client) => {
                self.boards.remove(&client);
                self.on(Input::Leave(client)).await;
            }
            Control::Answer(reply) => {
                if let Some(answer) = &self.answer {
                    drop(reply.send(Ok(answer.clone())));
                } else {
                    self.asking.push(reply);
                    self.on(Input::Wake).await;
                    if let Some(why) = self.setup.talk.lost() {
                        let not_started = NotStarted { why: why.to_owned(), retry_after: None };
                        self.answer_asking(&Err(not_started));
                    }
                }
            }
            Control::End(ending, done) => {
                self.on(Input::Over(ending.code().to_owned())).await;
                self.setup.host_end(&ending).await;
                let _told = done.send(());
            }
        }
    }

    async fn posted(&mut self, letter: Letter) {
        self.use_it();
        self.posts += 1;
        let post = PostId(self.posts);
        let Letter { client, message, reply } = letter;
        self.waiting.insert(post, Waiting { client, since: self.used, reply });
        self.on(Input::Post(post, client, message)).await;
    }

    async fn heard(&mut self, news: News) {
        match news {
            News::Up => {
                self.strays = 0;
                self.on(Input::Started).await;
            }
            News::NotUp(error) => self.not_up(error).await,
            News::Line(line) => self.line(line).await,
            News::Stray(read) => self.stray(&read),
            News::Gone(exit) => self.gone(exit).await,
            News::Stopped(Exit::Over(ending)) => self.on(Input::Over(ending.code().to_owned())).await,
            News::Stopped(Exit::Ended(_) | Exit::Suspended) => self.start(),
        }
    }

    async fn line(&mut self, line: Vec<u8>) {
        let beginning = shown(&line).to_vec();
        match Message::parse(line) {
            Ok(message) => {
                self.used = Instant::now();
                self.on(Input::Line(message)).await;
            }
            Err(error) => {
                self.note(Stray::Line(&beginning, &error.to_string()));
            }
        }
    }

    fn stray(&mut self, read: &Read) {
        match read {
            Read::Long(bytes) => self.note(Stray::Long(*bytes)),
            Read::Half(line) => self.note(Stray::Half(shown(line))),
            Read::Line(_) | Read::End => {}
        }
    }

    fn note(&mut self, stray: Stray<'_>) {
        if self.strays < STRAYS_MAX {
            self.strays += 1;
            self.setup.host.stray(self.setup.session, stray);
        }
    }

    async fn not_up(&mut self, error: HostError) {
        self.handshake_until = None;
        let why = error.to_string();
        let retry_after = match error {
            HostError::Limit { retry_after, .. } => Some(retry_after),
            HostError::Scope { code, message } => {
                return self.on(Input::ScopeRefused { code, message }).await;
            }
            HostError::Over(ending) => return self.on(Input::Over(ending.code().to_owned())).await,
            HostError::Sandbox(_) | HostError::Budget(_) | HostError::Other(_) => None,
        };
        let not_started = NotStarted { why, retry_after };
        self.answer_asking(&Err(not_started.clone()));
        self.on(Input::NotStarted(not_started)).await;
    }

    async fn gone(&mut self, exit: Exit) {
        self.handshake_until = None;
        match exit {
            Exit::Ended(how) => {
                let why = format!("the server process ended: {how}");
                tracing::info!(session = %self.setup.session, why, "a server process ended by itself");
                let restart = self.setup.settings.restart == Restart::OnCrash;
                self.on(Input::Gone { why: why.clone(), restart }).await;
                if !self.process.is_there() {
                    self.answer_asking(&Err(NotStarted { why, retry_after: None }));
                }
            }
            Exit::Suspended => self.on(Input::Suspended).await,
            Exit::Over(ending) => self.on(Input::Over(ending.code().to_owned())).await,
        }
    }

    /// What happened, and everything that follows from it.
    async fn on(&mut self, input: Input) {
        for effect in self.setup.talk.on(input) {
            match effect {
                Effect::Posted(post, posted) => self.settle(post, posted),
                Effect::Send { client, stream, line, last } => self.send(client, stream, line, last),
                Effect::SendAll(line) => {
                    for board in self.boards.values() {
                        board.send(Stream::General, line.clone(), false);
                    }
                }
                Effect::Write(line) => self.process.push(line),
                Effect::Stray => self.note(Stray::Unasked),
                Effect::Shaken(answer) => self.shaken(answer),
                Effect::AwaitRoots => {
                    self.roots_until = Some(Instant::now() + self.setup.settings.times.roots);
                }
                // The call is entered when it is known who waits for it.
                Effect::AwaitCall(_) => {}
                Effect::Start(scope) => {
                    self.locked = true;
                    self.roots_until = None;
                    self.wanted = Some(scope);
                    self.start();
                }
                Effect::Stop => {
                    self.wanted = None;
                    self.handshake_until = None;
                    self.process.stop();
                }
                Effect::End(refusal) => {
                    if refusal == Refusal::Changed {
                        self.setup.host_end(&Ending::RootsChanged).await;
                    } else if self.locked {
                        self.setup.host_end(&Ending::Other(refusal.code().to_owned())).await;
                    }
                    self.end = Some(End::Over(refusal));
                }
            }
        }
        self.be_woken();
    }

    /// Starts the server that is wanted, unless the one before is still there.
    fn start(&mut self) {
        if self.process.is_there() {
            return;
        }
        let Some(scope) = self.wanted.take() else { return };
        let (host, starts) = (Arc::clone(&self.setup.host), Arc::clone(&self.setup.starts));
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
        let opening = async move {
            sleep(pause).await;
            // Never closed: there is always a permit sooner or later.
            let _permit = starts.acquire().await;
            host.open(session, &record).await
        };
        self.process = Process::Opening { opening: Box::pin(opening), unwanted: false };
        self.handshake_until = Some(Instant::now() + pause + self.setup.settings.times.handshake);
    }

    fn shaken(&mut self, answer: String) {
        self.handshake_until = None;
        (self.setup.on_shaken)(&self.setup.record, &answer);
        self.answer_asking(&Ok(answer.clone()));
        self.answer = Some(answer);
    }

    fn answer_asking(&mut self, answer: &Result<String, NotStarted>) {
        for asking in self.asking.drain(..) {
            drop(asking.send(answer.clone()));
        }
    }

    /// Tells who posted a message what became of it.
    fn settle(&mut self, post: PostId, posted: Posted) {
        let Some(Waiting { reply, client, .. }) = self.waiting.remove(&post) else { return };
        let reply_with = match posted {
            Posted::Stream(Stream::Request(number)) => {
                let began = Instant::now();
                self.calls.insert(number, Call { client, began, heard: began, reply: Some(reply) });
                return;
            }
            Posted::Stream(Stream::General) | Posted::Accepted => Reply::Accepted,
            Posted::Refused(refused) => Reply::Refused(refused),
            Posted::Full => Reply::Full,
            Posted::NotStarted(why) => Reply::NotStarted(why),
            Posted::Over(refusal) => Reply::Over(refusal),
        };
        // Whoever does not wait any more does not want to know.
        drop(reply.send(reply_with));
    }

    fn send(&mut self, client: ClientId, stream: Stream, line: String, last: bool) {
        let board = self.boards.get(&client);
        let Stream::Request(number) = stream else {
            if let Some(board) = board {
                board.send(stream, line, last);
            }
            return;
        };
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.heard = Instant::now();
        match call.reply.take() {
            Some(reply) if last => drop(reply.send(Reply::Answer(line))),
            reply => {
                if let Some(board) = board {
                    if let Some(reply) = reply {
                        board.open(stream);
                        drop(reply.send(Reply::Stream(stream)));
                    }
                    board.send(stream, line, last);
                }
            }
        }
        if last {
            self.calls.remove(&number);
        }
    }

    fn use_it(&mut self) {
        let now = Instant::now();
        self.used = now;
        if self.locked && self.touched.is_none_or(|touched| now - touched >= Duration::from_secs(1)) {
            self.touched = Some(now);
            self.setup.host.touch(self.setup.session);
        }
    }
}

impl Setup {
    async fn host_end(&self, ending: &Ending) {
        if let Err(error) = self.host.end(self.session, ending).await {
            tracing::warn!(session = %self.session, %error, "the end of a session was not recorded");
        }
    }
}

#[path = "conversation/time.rs"]
mod time;
