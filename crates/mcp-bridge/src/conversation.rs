//! The task behind a session: it owns what decides ([`Talk`]), the process that the decisions are about, and the answers that
//! somebody waits for. Everybody else sends it commands and reads boards.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use session_core::SessionId;
use session_core::names::Principal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::board::Board;
use crate::envelope::{Kind, Message};
use crate::gate::{Refusal, Scope};
use crate::host::{Ending, Host, Record};
use crate::places::{Places, Rest};
use crate::process::Process;
use crate::router::{ClientId, Refused, Stream};
use crate::settings::Settings;
use crate::shares::Share;
use crate::talk::{Input, NotStarted, PostId, Talk};

#[path = "conversation/act.rs"]
mod act;
#[path = "conversation/questions.rs"]
mod questions;
#[path = "conversation/server.rs"]
mod server;
#[path = "conversation/time.rs"]
mod time;

use self::questions::Questions;

/// Messages that wait to be taken by the task.
const MAILBOX: usize = 64;
/// Commands that do not wait behind messages.
const CONTROL: usize = 1_024;
/// While something is waited for, it is looked at this often.
const TICK: Duration = Duration::from_millis(100);

/// A message that a client posted.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) client: ClientId,
    pub(crate) parcel: Parcel,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// A message, and the share of the memory that it has until it has left.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) message: Message,
    pub(crate) bytes: Option<Arc<Share>>,
}

impl From<Message> for Parcel {
    /// One of our own.
    fn from(message: Message) -> Self {
        Self { message, bytes: None }
    }
}

/// What goes before messages.
#[derive(Debug)]
pub(crate) enum Control {
    /// A client of this principal joins: what is for it stands on this board.
    Join(ClientId, Principal, Arc<Board>),
    /// A client is gone, of several.
    Leave(ClientId),
    /// How the server answers the handshake; it is started for that.
    Answer(oneshot::Sender<Result<String, NotStarted>>),
    /// This client wants to hear of the server, which is started for that and is there for as long as somebody does.
    Wake(ClientId),
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
    Again(Parcel),
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
    pub(crate) places: Arc<Places>,
    pub(crate) tasks: TaskTracker,
    pub(crate) drain: CancellationToken,
    pub(crate) on_shaken: OnShaken,
}

/// A request that the server works on.
struct Call {
    client: ClientId,
    began: Instant,
    heard: Instant,
    /// When the server told how far it is.
    told: Option<Instant>,
    /// Until when it may be answered although its client has cancelled it.
    cancelled: Option<Instant>,
    /// Its answer is that nothing more is told: for as long as its stream is read, it may be quiet.
    listens: bool,
    /// Nobody was told anything yet.
    reply: Option<oneshot::Sender<Reply>>,
}

impl Call {
    /// Time is looked at for it.
    fn is_timed(&self) -> bool {
        !self.listens || self.cancelled.is_some() || self.reply.is_some()
    }
}

/// A message that waits for the server.
struct Waiting {
    client: ClientId,
    since: Instant,
    is_request: bool,
    listens: bool,
    /// Its stream has begun, then, because it carries a question.
    carries: Option<(Stream, Instant)>,
    bytes: Option<Arc<Share>>,
    /// Nothing where its stream has begun.
    reply: Option<oneshot::Sender<Reply>>,
}

pub(crate) struct Conversation {
    setup: Setup,
    letters: mpsc::Receiver<Letter>,
    control: mpsc::Receiver<Control>,
    process: Process,
    /// The server is to be started in this scope, once the one before is gone.
    wanted: Option<Scope>,
    boards: HashMap<ClientId, Arc<Board>>,
    /// Whose client the first one was.
    whose: Option<Principal>,
    /// There were clients of others.
    is_mixed: bool,
    posts: u64,
    waiting: BTreeMap<PostId, Waiting>,
    calls: BTreeMap<u64, Call>,
    /// Until when a question may be answered.
    questions: Questions,
    asking: Vec<oneshot::Sender<Result<String, NotStarted>>>,
    /// How the server that is there has answered the handshake.
    answer: Option<String>,
    /// Why there was no server the last time.
    missing: NotStarted,
    roots_since: Option<Instant>,
    handshake_until: Option<Instant>,
    /// When the server answered the handshake.
    up_since: Option<Instant>,
    /// When a server that was given up is tried again.
    retry_at: Option<Instant>,
    /// When a client said something, or the last of what it asked was answered.
    used: Instant,
    /// When the server said something: that counts where somebody reads it.
    heard: Instant,
    /// What it says just now is how far it is.
    tells: bool,
    touched: Option<Instant>,
    strays: u32,
    locked: bool,
    rest: Arc<Rest>,
    end: Option<End>,
    ending: Option<Ending>,
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
        let why = "the server is not there".to_owned();
        let conversation = Self {
            setup,
            letters,
            control,
            process: Process::default(),
            wanted: None,
            boards: HashMap::new(),
            whose: None,
            is_mixed: false,
            posts: 0,
            waiting: BTreeMap::new(),
            calls: BTreeMap::new(),
            questions: Questions::default(),
            asking: Vec::new(),
            answer: None,
            missing: NotStarted { why, retry_after: None },
            roots_since: None,
            handshake_until: None,
            up_since: None,
            retry_at: None,
            used: now,
            heard: now,
            tells: false,
            touched: None,
            strays: 0,
            locked,
            rest: Arc::default(),
            end: None,
            ending: None,
            drained,
            alarm: Box::pin(sleep(TICK)),
        };
        (conversation, Address { letters: letters_to, control: control_to })
    }

    /// A client joins.
    pub(crate) fn join(&mut self, client: ClientId, principal: &Principal, board: Arc<Board>) {
        if *self.whose.get_or_insert_with(|| principal.clone()) != *principal {
            self.setup.talk.mix();
            self.is_mixed = true;
        }
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
            // First of all: each look sets it to later, so it keeps nothing else from being done, and nobody can keep time
            // from passing, neither a server that never stops writing nor clients that never stop posting.
            () = &mut self.alarm => self.look().await,
            Some(control) = self.control.recv() => self.told(control).await,
            () = &mut self.drained => self.end = Some(End::Drained),
            () = self.rest.wanted() => self.give_way().await,
            // Before the process: a server that never stops talking must be told things nevertheless, and how much clients
            // may say before it is written is bounded.
            Some(letter) = self.letters.recv(), if self.process.has_room() => self.posted(letter).await,
            news = self.process.next(max) => self.heard(news).await,
        }
    }

    async fn told(&mut self, control: Control) {
        match control {
            Control::Join(client, principal, board) => self.join(client, &principal, board),
            Control::Leave(client) => self.leave(client).await,
            Control::Answer(reply) => {
                self.use_it();
                if let Some(answer) = &self.answer {
                    drop(reply.send(Ok(answer.clone())));
                } else {
                    self.asking.push(reply);
                    self.on(Input::Wake).await;
                }
            }
            Control::Wake(client) => {
                self.use_it();
                if let Some(board) = self.boards.get(&client) {
                    board.hold();
                }
                self.on(Input::Wake).await;
            }
            Control::End(ending, done) => {
                self.on(Input::Over(ending.code().to_owned())).await;
                // Also where nobody knows of it yet: it may be on its way.
                if self.ending.is_none() {
                    self.setup.host_end(&ending).await;
                    self.ending = Some(ending);
                }
                let _told = done.send(());
            }
        }
    }

    /// What a client that is gone waits for, nobody waits for.
    async fn leave(&mut self, client: ClientId) {
        let cancelled =
            self.calls.iter().filter(|(_, call)| call.client == client && call.cancelled.is_some());
        for number in cancelled.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.finish(client, Stream::Request(number));
        }
        self.boards.remove(&client);
        self.on(Input::Leave(client)).await;
        for (_, call) in self.calls.extract_if(.., |_, call| call.client == client) {
            if let Some(reply) = call.reply {
                drop(reply.send(Reply::Over(deleted())));
            }
        }
        self.be_woken();
    }

    async fn posted(&mut self, letter: Letter) {
        self.use_it();
        let Letter { client, parcel, reply } = letter;
        let Parcel { message, bytes } = parcel;
        let is_request = message.kind() == Kind::Request;
        if is_request && reply.is_closed() {
            // Whoever asked was told to come again, or is gone: what is done now would be done twice.
            return;
        }
        if !self.boards.contains_key(&client) {
            // It left while this was on its way: nobody could be told of what it asks, or cancel it.
            drop(reply.send(Reply::Over(deleted())));
            return;
        }
        self.posts += 1;
        let post = PostId(self.posts);
        let listens = self.setup.talk.is_plain() && message.method() == Some("subscriptions/listen");
        let waiting = Waiting {
            client,
            since: self.used,
            is_request,
            listens,
            carries: None,
            bytes,
            reply: Some(reply),
        };
        self.waiting.insert(post, waiting);
        self.on(Input::Post(post, client, message)).await;
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

/// Why a client of several is over.
fn deleted() -> Refusal {
    Refusal::Ended(Ending::Deleted.code().to_owned())
}

impl Setup {
    async fn host_end(&self, ending: &Ending) {
        if let Err(error) = self.host.end(self.session, ending).await {
            tracing::warn!(session = %self.session, %error, "the end of a session was not recorded");
        }
    }
}

#[cfg(test)]
#[path = "conversation/tests.rs"]
mod tests;
