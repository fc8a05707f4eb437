//! The sessions of a bridge: how they begin, how they are found, and who holds them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session_core::SessionId;
use session_core::ids::Id as _;
use session_core::names::Principal;
use thiserror::Error;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::{Answer, AnswerError, Answers, Asking, Question};
use crate::board::{Board, Room};
use crate::conversation::{Address, Control, Conversation, End, Letter, OnShaken, Parcel, Reply, Setup};
use crate::envelope::Message;
use crate::gate::{Refusal, Scope};
use crate::host::{Ending, Handshake, Host, HostError, Record, ServerName};
use crate::places::Places;
use crate::revision::Revision;
use crate::router::ClientId;
use crate::settings::{Caps, Settings};
use crate::shares::Shares;
use crate::talk::Talk;

/// Sessions that are over and of which it is still known why.
const OVER_MAX: usize = 1_024;
/// Numbers of messages begin at random below this: programs that have no integers know them all exactly.
const NUMBERS: u128 = (1 << 52) - 1;

/// A session as a client knows it.
pub(crate) struct Entry {
    pub(crate) session: SessionId,
    pub(crate) server: ServerName,
    pub(crate) principal: Principal,
    pub(crate) revision: Revision,
    pub(crate) client: ClientId,
    pub(crate) board: Arc<Board>,
    pub(crate) address: Address,
    /// The process belongs to others as well.
    pub(crate) is_shared: bool,
    /// Fires when the task has ended and the session may be looked up again.
    pub(crate) done: CancellationToken,
    /// When it was used last.
    pub(crate) used: Mutex<Instant>,
}

/// Why a session was not found.
#[derive(Debug, Clone, Error)]
pub(crate) enum FindError {
    /// There is none, or it is another's.
    #[error("there is no such session, or it is over: begin a new one with `initialize`")]
    Unknown,
    /// It is over.
    #[error("{0}")]
    Over(Refusal),
    /// There is no room for it in memory.
    #[error("as many sessions are open as may be: try again later")]
    Full,
    /// The host could not say.
    #[error("the session could not be looked up: {0}")]
    Host(HostError),
}

/// Why a session did not begin.
#[derive(Debug, Clone, Error)]
pub(crate) enum BeginError {
    /// There is no room.
    #[error("as many sessions are open as may be: end one, or try again later")]
    Full,
    /// The server did not answer.
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

/// Why a message was not posted.
#[derive(Debug)]
pub(crate) enum Unposted {
    /// The task has ended; this is the message.
    Ended(Parcel),
    /// Its server reads nothing, and as many messages wait for that as may.
    Deaf,
}

/// A session that began.
pub(crate) struct Begun {
    pub(crate) session: SessionId,
    /// The answer to `initialize`.
    pub(crate) line: String,
}

#[derive(Default)]
struct Book {
    entries: HashMap<SessionId, Arc<Entry>>,
    /// The last sessions that are over: of which server, whose, and why.
    over: VecDeque<(SessionId, ServerName, Principal, Refusal)>,
}

impl Book {
    fn has_room(&self, principal: &Principal, caps: &Caps) -> bool {
        let own = self.entries.values().filter(|entry| entry.principal == *principal).count();
        self.entries.len() < caps.sessions && own < caps.sessions_per_principal
    }
}

/// The sessions of all servers.
pub(crate) struct Bridge {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) settings: Arc<Settings>,
    /// Who owns what several clients share.
    pub(crate) owner: Principal,
    book: Mutex<Book>,
    answers: Arc<Answers>,
    /// Servers that are being asked how they begin: who hangs up meanwhile has them asked nevertheless.
    asked: Arc<Shares>,
    pub(crate) places: Arc<Places>,
    pub(crate) tasks: TaskTracker,
    pub(crate) drain: CancellationToken,
    pub(crate) commons: crate::commons::Commons,
    /// What the boards of all clients keep together.
    kept: Arc<Room>,
}

impl Bridge {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        settings: Settings,
        owner: Principal,
        drain: CancellationToken,
    ) -> Self {
        Self {
            host,
            book: Mutex::default(),
            answers: Arc::new(Answers::new(settings.caps.answers)),
            asked: Shares::new(settings.caps.requests),
            places: Arc::new(Places::new(&settings, owner.clone())),
            tasks: TaskTracker::new(),
            drain,
            commons: crate::commons::Commons::default(),
            kept: Room::new(settings.caps.kept),
            settings: Arc::new(settings),
            owner,
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing in here is ever half done.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sessions are in memory.
    pub(crate) fn sessions(&self) -> usize {
        self.book().entries.len()
    }

    /// A client begins.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        server: &ServerName,
        principal: &Principal,
        initialize: Message,
    ) -> Result<Begun, BeginError> {
        // Before anything is started for it.
        let has_room = self.has_room(principal) || (self.make_room(principal) && self.has_room(principal));
        if !has_room {
            return Err(BeginError::Full);
        }
        if !self.settings.isolation {
            return self.join(server, principal, &initialize).await;
        }
        let params = initialize.params().unwrap_or("{}").to_owned();
        let question = Question { principal: principal.clone(), server: server.clone(), params };
        let answer = self.answer(question, &initialize).await?;
        let line = answered(&initialize, &answer.result);
        let session = self.host.session_id();
        let handshake = Handshake {
            initialize: initialize.text().to_owned(),
            initialized: String::new(),
            revision: answer.revision,
        };
        let record =
            Record { server: server.clone(), principal: principal.clone(), scope: Scope::Default, handshake };
        let talk = Talk::begin(ClientId(0), initialize);
        self.enter(session, record, talk).ok_or(BeginError::Full)?;
        Ok(Begun { session, line })
    }

    async fn answer(&self, question: Question, initialize: &Message) -> Result<Answer, AnswerError> {
        let cell = self.answers.cell(&question, Instant::now());
        let ask = || Ok(self.asking(&question.principal)?.ask(question, initialize.clone()));
        cell.answer(&self.tasks, ask).await
    }

    /// How a server is asked.
    pub(crate) fn asking(&self, principal: &Principal) -> Result<Asking, AnswerError> {
        let share = self.asked.take(principal, 1).ok_or_else(|| HostError::Limit {
            message: "as many servers as may be are asked how they begin already".to_owned(),
            retry_after: Duration::from_secs(5),
        })?;
        Ok(Asking {
            host: Arc::clone(&self.host),
            places: Arc::clone(&self.places),
            tasks: self.tasks.clone(),
            drain: self.drain.clone(),
            limit: self.settings.times.handshake,
            message_max: self.settings.caps.message,
            _share: share,
        })
    }

    fn has_room(&self, principal: &Principal) -> bool {
        self.book().has_room(principal, &self.settings.caps)
    }

    /// A client that shares its process says nothing when it goes: where there is no room, the one that was away longest
    /// is let go, this one's own before another's. True if there was one.
    fn make_room(&self, principal: &Principal) -> bool {
        let book = self.book();
        let (now, away) = (Instant::now(), self.settings.times.away());
        let gone = book.entries.values().filter(|entry| {
            let unread = entry.board.reading() == 0;
            entry.is_shared && unread && now.saturating_duration_since(entry.used()) >= away
        });
        let longest = gone.min_by_key(|entry| (entry.principal != *principal, entry.used()));
        let Some(entry) = longest.map(Arc::clone) else { return false };
        drop(book);
        self.over(&entry, Refusal::Ended(Ending::Deleted.code().to_owned()));
        entry.depart();
        true
    }

    /// The session of this id, if it is this one's: from memory, or brought back.
    pub(crate) async fn find(
        self: &Arc<Self>,
        server: &ServerName,
        principal: &Principal,
        session: SessionId,
    ) -> Result<Arc<Entry>, FindError> {
        {
            let book = self.book();
            if let Some(entry) = book.entries.get(&session) {
                let is_theirs = entry.principal == *principal && entry.server == *server;
                return if is_theirs { Ok(Arc::clone(entry)) } else { Err(FindError::Unknown) };
            }
            if let Some((_, of, whose, refusal)) = book.over.iter().find(|(id, ..)| *id == session) {
                let is_theirs = whose == principal && of == server;
                return Err(if is_theirs { FindError::Over(refusal.clone()) } else { FindError::Unknown });
            }
        }
        if !self.settings.isolation {
            return self.rejoin(server, principal, session).await;
        }
        let recalled = self.host.recall(session).await.map_err(FindError::Host)?;
        let recalled = recalled
            .filter(|recalled| recalled.record.principal == *principal && recalled.record.server == *server)
            .ok_or(FindError::Unknown)?;
        match recalled.ended {
            Some(Ending::RootsChanged) => return Err(FindError::Over(Refusal::Changed)),
            Some(Ending::Deleted) => return Err(FindError::Unknown),
            Some(Ending::Other(code)) => return Err(FindError::Over(Refusal::Ended(code))),
            None => {}
        }
        let message = |text: &str| Message::parse(text.as_bytes().to_vec()).map_err(|_| FindError::Unknown);
        let record = recalled.record;
        let handshake = &record.handshake;
        let (initialize, initialized) = (message(&handshake.initialize)?, message(&handshake.initialized)?);
        let talk = Talk::again(ClientId(0), initialize, initialized, record.scope.clone());
        self.enter(session, record, talk).ok_or(FindError::Full)
    }

    /// A session with a process of its own is in memory from here on. Where it is already, because somebody else was
    /// faster, that one counts. `None` where there is no room.
    fn enter(self: &Arc<Self>, session: SessionId, record: Record, talk: Talk) -> Option<Arc<Entry>> {
        let mut book = self.book();
        if let Some(entry) = book.entries.get(&session) {
            return Some(Arc::clone(entry));
        }
        if !book.has_room(&record.principal, &self.settings.caps) {
            return None;
        }
        let (server, principal) = (record.server.clone(), record.principal.clone());
        let revision = record.handshake.revision;
        let answers = Arc::clone(&self.answers);
        let doubt = move |record: &Record, result: &str| {
            if let Some(question) = question(record) {
                answers.doubt(&question, result, Instant::now());
            }
        };
        let (mut conversation, address) =
            Conversation::new(self.setup(session, record, talk, Arc::new(doubt)));
        let board = self.board(&principal);
        conversation.join(ClientId(0), &principal, Arc::clone(&board));
        let done = CancellationToken::new();
        let entry = Arc::new(Entry {
            session,
            server,
            principal,
            revision,
            client: ClientId(0),
            board,
            address,
            is_shared: false,
            done: done.clone(),
            used: Mutex::new(Instant::now()),
        });
        book.entries.insert(session, Arc::clone(&entry));
        drop(book);
        let (bridge, of) = (Arc::clone(self), Arc::clone(&entry));
        drop(self.tasks.spawn(async move {
            let end = conversation.run().await;
            if let End::Over(refusal) = &end {
                bridge.over(&of, refusal.clone());
            }
            conversation.close(&end).await;
            bridge.leave(session);
            done.cancel();
        }));
        Some(entry)
    }

    pub(crate) fn setup(
        &self,
        session: SessionId,
        record: Record,
        mut talk: Talk,
        on_shaken: OnShaken,
    ) -> Setup {
        // What a client still says to an earlier process of this session means nothing to this one.
        let random = self.host.session_id().uuid().as_u128() & NUMBERS;
        talk.begin_after(u64::try_from(random).unwrap_or_default());
        Setup {
            session,
            record,
            talk,
            host: Arc::clone(&self.host),
            settings: Arc::clone(&self.settings),
            places: Arc::clone(&self.places),
            tasks: self.tasks.clone(),
            drain: self.drain.clone(),
            on_shaken,
        }
    }

    /// A board with a tag of its own.
    pub(crate) fn board(&self, principal: &Principal) -> Arc<Board> {
        let id = self.host.session_id().to_string();
        let tag = id.get(id.len() - 6..).unwrap_or_default();
        let room = Arc::clone(&self.kept);
        Board::new(self.settings.kept, room, principal.clone(), format!("{tag}."))
    }

    /// A client that shares its process with others is in memory from here on.
    pub(crate) fn enter_shared(&self, entry: Entry) -> Option<Arc<Entry>> {
        let mut book = self.book();
        if let Some(found) = book.entries.get(&entry.session) {
            return Some(Arc::clone(found));
        }
        if !book.has_room(&entry.principal, &self.settings.caps) {
            return None;
        }
        let entry = Arc::new(entry);
        book.entries.insert(entry.session, Arc::clone(&entry));
        Some(entry)
    }

    fn over(&self, entry: &Entry, refusal: Refusal) {
        let mut book = self.book();
        book.entries.remove(&entry.session);
        if book.over.iter().any(|(session, ..)| *session == entry.session) {
            return;
        }
        book.over.push_back((entry.session, entry.server.clone(), entry.principal.clone(), refusal));
        if book.over.len() > OVER_MAX {
            book.over.pop_front();
        }
    }

    /// The process that these clients shared is over, and they with it: they find nothing under their ids, and begin anew.
    pub(crate) fn dismiss(&self, address: &Address) {
        let is_of = |entry: &Entry| entry.is_shared && entry.address.control.same_channel(&address.control);
        self.book().entries.retain(|_, entry| !is_of(entry));
    }

    /// No longer in memory.
    pub(crate) fn leave(&self, session: SessionId) {
        self.book().entries.remove(&session);
    }

    /// The client ends its session. Returns when everybody who waits was told.
    pub(crate) async fn end(&self, entry: &Entry) {
        if entry.is_shared {
            self.over(entry, Refusal::Ended(Ending::Deleted.code().to_owned()));
            entry.board.close();
            let (host, session) = (Arc::clone(&self.host), entry.session);
            let (principal, server) = (entry.principal.clone(), entry.server.clone());
            // Its id says by itself whose it is, so the next bridge would go on with it: also where its client, which has said
            // all that it had to, does not wait for the answer.
            let buried = self.tasks.spawn(async move {
                if let Err(error) = host.bury(session, &principal, &server).await {
                    tracing::warn!(%session, %error, "the end of a session was not recorded");
                }
            });
            drop(entry.address.control.send(Control::Leave(entry.client)).await);
            drop(buried.await);
            return;
        }
        let (done, ended) = oneshot::channel();
        let is_told = entry.address.control.send(Control::End(Ending::Deleted, done)).await.is_ok();
        // Where its task has ended meanwhile, only the record is left to be ended.
        if (!is_told || ended.await.is_err())
            && let Err(error) = self.host.end(entry.session, &Ending::Deleted).await
        {
            tracing::warn!(session = %entry.session, %error, "the end of a session was not recorded");
        }
        // From here on nobody finds it, also where its task has not come so far.
        self.over(entry, Refusal::Ended(Ending::Deleted.code().to_owned()));
    }

    /// All that was begun has come to its end.
    pub(crate) async fn closed(&self) {
        self.drain.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// What the cache would be asked for this session.
fn question(record: &Record) -> Option<Question> {
    let initialize = Message::parse(record.handshake.initialize.clone().into_bytes()).ok()?;
    let params = initialize.params().unwrap_or("{}").to_owned();
    Some(Question { principal: record.principal.clone(), server: record.server.clone(), params })
}

/// The answer to this request with this result.
pub(crate) fn answered(request: &Message, result: &str) -> String {
    let id = request.id_text().unwrap_or("null");
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

impl Entry {
    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a message, within this time; what becomes of it comes later.
    pub(crate) async fn post(
        &self,
        parcel: Parcel,
        limit: Duration,
    ) -> Result<oneshot::Receiver<Reply>, Unposted> {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let (reply, replied) = oneshot::channel();
        let letter = Letter { client: self.client, parcel, reply };
        match self.address.letters.send_timeout(letter, limit).await {
            Ok(()) => Ok(replied),
            Err(SendTimeoutError::Closed(unsent)) => Err(Unposted::Ended(unsent.parcel)),
            Err(SendTimeoutError::Timeout(_)) => Err(Unposted::Deaf),
        }
    }

    /// A client that came for one request is gone: what it asked is cancelled.
    pub(crate) fn depart(&self) {
        self.board.close();
        // Where there is no room for that now, the task finds out by itself.
        drop(self.address.control.try_send(Control::Leave(self.client)));
    }

    /// Waits until the session may be looked up again.
    pub(crate) async fn done(&self) {
        self.done.cancelled().await;
    }
}
