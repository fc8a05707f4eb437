//! The revision without sessions over HTTP: a request is answered as it stands, and its client is gone with it.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::head::once;
use super::reply::{Failure, JSON, not_begun};
use super::session::{Client, DEAF, refusal_line, respond};
use super::sse::Pass;
use super::{Shell, sse, text};
use crate::answers::Era;
use crate::board::{From, Next, Seat};
use crate::bridge::{BeginError, Entry, Unposted};
use crate::conversation::{Control, Parcel, Reply};
use crate::envelope::{Kind, Message, member};
use crate::modern::{self, Filter, Mirrored, ModernError};
use crate::revision::Revision;
use crate::router::{Stream, error_line};
use crate::shares::{Share, Shares};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// What is left of the older revisions, which a server with a handshake would still answer.
const GONE: [&str; 5] =
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
/// Requests that wait for their clients to come back with an answer, of which one principal has half at the most.
const PARKED_MAX: usize = 1_024;
/// Resources that one listener hears of.
const RESOURCES_MAX: usize = 64;
/// Tries to reach a session that ends and begins again meanwhile.
const TRIES: usize = 3;

/// Requests that wait for their clients to come back with an answer, by what the client shows for it.
pub(crate) struct Parked {
    visits: Mutex<HashMap<String, Waiting>>,
    room: Arc<Shares>,
}

/// One of them.
struct Waiting {
    visit: Visit,
    _share: Share,
    /// Whoever waits for its time to be over need not, once it is taken.
    _taken: DropGuard,
}

impl Default for Parked {
    fn default() -> Self {
        Self { visits: Mutex::default(), room: Shares::new(PARKED_MAX) }
    }
}

impl Parked {
    fn visits(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a request until its client comes back, for as long as a client may take.
    fn park(shell: &Arc<Shell>, state: String, visit: Visit) {
        let Some(share) = shell.parked.room.take(&visit.entry.principal, 1) else { return };
        let taken = CancellationToken::new();
        let waiting = Waiting { visit, _share: share, _taken: taken.clone().drop_guard() };
        shell.parked.visits().insert(state.clone(), waiting);
        let (shell, limit) = (Arc::clone(shell), shell.bridge.settings.times.call);
        drop(shell.bridge.tasks.clone().spawn(async move {
            tokio::select! {
                () = taken.cancelled() => return,
                () = sleep(limit) => {}
                () = shell.bridge.drain.cancelled() => {}
            }
            let gone = shell.parked.visits().remove(&state);
            drop(gone);
        }));
    }

    /// Nobody comes back any more.
    pub(super) fn clear(&self) {
        let parked = std::mem::take(&mut *self.visits());
        drop(parked);
    }

    /// What waits under this, if it is this client's and the same request.
    fn take(&self, state: &str, client: &Client<'_>, method: &str) -> Option<Visit> {
        let mut parked = self.visits();
        let is_theirs = parked.get(state).is_some_and(|Waiting { visit, .. }| {
            visit.entry.principal == *client.principal
                && visit.entry.server == client.target.server
                && visit.name == client.target.name
                && visit.method == method
        });
        if is_theirs { parked.remove(state).map(|waiting| waiting.visit) } else { None }
    }
}

/// One request, from its coming to its answer. When it is dropped before that, the server is told that nobody waits.
struct Visit {
    shell: Arc<Shell>,
    entry: Entry,
    name: Option<String>,
    method: String,
    /// The id of the request as it came, as JSON.
    id: String,
    seat: Option<Seat>,
    bell: watch::Receiver<()>,
    beat: Interval,
    /// The server has shaken hands, so what it says is put into the words of this revision.
    is_older: bool,
    /// What the client can be asked, as it says.
    capabilities: String,
    /// From which level on it hears of the log.
    log_level: Option<String>,
    /// What was asked and waits for an answer: the key, and the id that the answer goes to.
    asked: Option<(String, String)>,
    filter: Option<Filter>,
    pieces: VecDeque<Bytes>,
    over: bool,
    /// What lets it read: nothing while it waits for its client.
    pass: Option<Pass>,
    /// What becomes of what was said for it: whoever let go of these would have it forgotten.
    said: Vec<oneshot::Receiver<Reply>>,
}

/// What became of a request so far.
enum Progress {
    Answered(Response),
    /// Its session ends and begins again: it is to be looked for once more.
    Again(Parcel, Box<Visit>),
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(seat) = &self.seat {
            self.entry.board.rise(seat);
        }
        self.entry.depart();
    }
}

/// What comes next of a request.
enum Piece {
    Line(String),
    Last(String),
    Beat,
}

impl Client<'_> {
    /// A request that stands for itself.
    pub(super) async fn alone(&self, parcel: Parcel) -> Result<Response, Failure> {
        let (message, headers) = (&parcel.message, self.headers);
        let mirrored = Mirrored {
            version: self.head.version.as_deref(),
            method: once(headers, &METHOD)?,
            name: once(headers, &NAME)?,
        };
        modern::check(message, mirrored).map_err(|error| refused(&error))?;
        let bridge = &self.shell.bridge;
        let begun = |error| not_begun(&BeginError::Answer(error));
        let era = bridge.era(self.principal, &self.target.server).await.map_err(begun)?;
        let method = message.method().unwrap_or_default().to_owned();
        let id = message.id_text().unwrap_or("null").to_owned();
        if let Era::Shaken(answer) = &era
            && message.kind() == Kind::Request
        {
            if method == "server/discover" {
                let result = modern::discovered(&answer.result);
                let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
                return Ok(text(StatusCode::OK, JSON, line));
            }
            if GONE.contains(&method.as_str()) {
                let why = format!("there is no method `{method}` in this revision");
                return Err(Failure::new(StatusCode::NOT_FOUND, why).coded(modern::NO_METHOD));
            }
        }
        if method == "tools/call" {
            self.check_arguments(message, headers, &era).await?;
        }
        let state =
            message.param("requestState").and_then(|state| serde_json::from_str::<String>(state).ok());
        let is_older = era != Era::Plain;
        if let Some(state) = state.filter(|_| is_older) {
            return self.come_back(message, &state, &method).await;
        }
        let mut parcel = parcel;
        for _ in 0..TRIES {
            let name = self.target.name.as_deref();
            let entry = bridge.visit(&self.target.server, self.principal, name, &era).await.map_err(begun)?;
            let pass = self.pass()?;
            let visit = self.visit(entry, &parcel.message, is_older, pass);
            if is_older && method == "subscriptions/listen" {
                return visit.listen(Filter::of(&parcel.message)).await;
            }
            let kind = parcel.message.kind();
            let visit = match visit.entry.post(parcel, bridge.settings.times.wait).await {
                Ok(reply) => match visit.begin(kind, reply).await? {
                    Progress::Answered(response) => return Ok(response),
                    Progress::Again(unread, visit) => {
                        parcel = unread;
                        *visit
                    }
                },
                Err(Unposted::Ended(unsent)) => {
                    parcel = unsent;
                    visit
                }
                Err(Unposted::Deaf) => return Err(Failure::busy(DEAF)),
            };
            visit.entry.done().await;
        }
        Err(ended())
    }

    fn visit(&self, entry: Entry, request: &Message, is_older: bool, pass: Pass) -> Visit {
        let mut beat = interval(self.shell.bridge.settings.times.heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beat.reset();
        Visit {
            shell: Arc::clone(self.shell),
            bell: entry.board.listen(),
            entry,
            name: self.target.name.clone(),
            method: request.method().unwrap_or_default().to_owned(),
            id: request.id_text().unwrap_or("null").to_owned(),
            seat: None,
            beat,
            is_older,
            capabilities: modern::capabilities(request).to_owned(),
            log_level: modern::log_level(request).map(str::to_owned),
            asked: None,
            filter: None,
            pieces: VecDeque::new(),
            over: false,
            pass: Some(pass),
            said: Vec::new(),
        }
    }

    /// A client comes back with what it was asked for.
    async fn come_back(&self, message: &Message, state: &str, method: &str) -> Result<Response, Failure> {
        let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, why).coded(-32_602);
        let pass = self.pass()?;
        let parked = self.shell.parked.take(state, self, method);
        let mut visit = parked.ok_or_else(|| {
            bad("this `requestState` is not known, or is not known any more: send the request without it")
        })?;
        let Some((key, asked)) = visit.asked.take() else { return Err(bad("nothing was asked")) };
        visit.pass = Some(pass);
        let line = match modern::input(message, &key) {
            Some(result) => format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":{result}}}"#),
            None => error_line(&asked, -32_000, "the client did not answer this"),
        };
        message.id_text().unwrap_or("null").clone_into(&mut visit.id);
        modern::capabilities(message).clone_into(&mut visit.capabilities);
        visit.log_level = modern::log_level(message).map(str::to_owned);
        drop(visit.say(line).await?);
        visit.go_on().await
    }
}

fn ended() -> Failure {
    Failure::busy("the session ends and begins again: send the request again")
}

pub(super) fn refused(error: &ModernError) -> Failure {
    let failure = Failure::new(StatusCode::BAD_REQUEST, error.to_string()).coded(error.code());
    match error {
        ModernError::Version(requested) => {
            let supported = [Revision::V2026_07_28.name()];
            failure.with(serde_json::json!({ "supported": supported, "requested": requested }).to_string())
        }
        ModernError::Mismatch { .. } | ModernError::Meta(_) => failure,
    }
}

impl Visit {
    /// Says something to the server for this client. A request is forgotten where nobody keeps what is returned.
    async fn say(&self, line: String) -> Result<oneshot::Receiver<Reply>, Failure> {
        let message = Message::parse(line.into_bytes()).map_err(|_| ended())?;
        let limit = self.shell.bridge.settings.times.wait;
        self.entry.post(message.into(), limit).await.map_err(|unposted| match unposted {
            Unposted::Ended(_) => ended(),
            Unposted::Deaf => Failure::busy(DEAF),
        })
    }

    async fn begin(mut self, kind: Kind, reply: oneshot::Receiver<Reply>) -> Result<Progress, Failure> {
        let limit = self.shell.bridge.settings.times.wait * 2;
        let reply = timeout(limit, reply).await.map_err(|_| Failure::busy(DEAF))?.map_err(|_| ended())?;
        let answered = match reply {
            Reply::Again(unread) => return Ok(Progress::Again(unread, Box::new(self))),
            Reply::Answer(line) => {
                let line = self.answer(line);
                self.over = true;
                Ok(text(status_of(&line), JSON, line))
            }
            Reply::Stream(stream) => {
                self.seat = Some(self.entry.board.sit(From::Unread(stream)));
                self.go_on().await
            }
            // There is no session that this client could begin anew.
            over @ Reply::Over(_) => Ok(text(StatusCode::OK, JSON, refusal_line(over, Some(&self.id)))),
            reply @ (Reply::Accepted
            | Reply::Refused(_)
            | Reply::Full
            | Reply::NotStarted(_)
            | Reply::Draining) => respond(reply, kind, Some(&self.id)),
        };
        answered.map(Progress::Answered)
    }

    /// What the server has said to a request that is on its way already: its answer alone, if that is next, or a stream.
    async fn go_on(mut self) -> Result<Response, Failure> {
        if let Some(piece) = self.take().await {
            match piece {
                Piece::Last(line) => return Ok(self.finish(line)),
                Piece::Line(line) => self.pieces.push_back(sse::alone(&line)),
                Piece::Beat => {}
            }
        }
        Ok(self.stream())
    }

    /// The answer. Where it is a question, the request waits for the client.
    fn finish(self, line: String) -> Response {
        let status = status_of(&line);
        self.let_go();
        text(status, JSON, line)
    }

    fn let_go(mut self) {
        self.pass = None;
        if let Some((key, _)) = &self.asked {
            let (state, shell) = (key.clone(), Arc::clone(&self.shell));
            Parked::park(&shell, state, self);
        }
    }

    fn stream(self) -> Response {
        let pieces = stream::unfold(Some(self), |visit| async move {
            let mut visit = visit?;
            if let Some(piece) = visit.pieces.pop_front() {
                return Some((Ok::<_, Infallible>(piece), Some(visit)));
            }
            match visit.take().await? {
                Piece::Line(line) => Some((Ok(sse::alone(&line)), Some(visit))),
                Piece::Beat => Some((Ok(Bytes::from_static(sse::HEARTBEAT)), Some(visit))),
                Piece::Last(line) => {
                    visit.let_go();
                    Some((Ok(sse::alone(&line)), None))
                }
            }
        });
        sse::response(pieces.boxed())
    }

    /// What comes next; `None` where nothing comes any more.
    async fn take(&mut self) -> Option<Piece> {
        loop {
            let seat = self.seat.as_mut()?;
            match self.entry.board.next(seat) {
                Next::Event { line, .. } => {
                    let line = String::from_utf8(line.into()).ok()?;
                    if let Some(piece) = self.put(line).await {
                        return Some(piece);
                    }
                    continue;
                }
                Next::Ended => return None,
                Next::Nothing => {}
            }
            if self.beat.tick().now_or_never().is_some() {
                return self.beat().await;
            }
            tokio::select! {
                _ = self.bell.changed() => {}
                () = self.shell.bridge.drain.cancelled() => return None,
                _ = self.beat.tick() => return self.beat().await,
            }
        }
    }

    /// A sign of life, for whoever is still let in and hears of what it wants to.
    async fn beat(&mut self) -> Option<Piece> {
        if self.is_refused() {
            return None;
        }
        match &self.pass {
            Some(pass) if !pass.counts().await => None,
            Some(_) | None => Some(Piece::Beat),
        }
    }

    /// Some of what was said for it did not reach the server.
    fn is_refused(&mut self) -> bool {
        let mut is_refused = false;
        self.said.retain_mut(|said| match said.try_recv() {
            Err(TryRecvError::Empty) => true,
            Ok(Reply::Accepted | Reply::Answer(_) | Reply::Stream(_)) => false,
            Ok(
                Reply::Refused(_)
                | Reply::Full
                | Reply::NotStarted(_)
                | Reply::Over(_)
                | Reply::Again(_)
                | Reply::Draining,
            )
            | Err(TryRecvError::Closed) => {
                is_refused = true;
                false
            }
        });
        is_refused
    }

    /// A line of the server's in the words of this revision; `None` for what the client does not hear.
    async fn put(&mut self, line: String) -> Option<Piece> {
        let message = Message::parse(line.into_bytes()).ok()?;
        if let Some(filter) = &self.filter {
            let is_wanted = message.kind() == Kind::Notification && filter.admits(&message);
            return is_wanted.then(|| Piece::Line(modern::of_subscription(&message, &self.id)));
        }
        match message.kind() {
            Kind::Success | Kind::Error => Some(Piece::Last(self.answer(message.into_text()))),
            Kind::Request if self.is_older => {
                let method = message.method().unwrap_or_default();
                let asked = message.id_text().unwrap_or("null").to_owned();
                let needed = modern::needed(method);
                if member(&self.capabilities, needed).is_none() {
                    let why = format!("the client does not say that it can do `{needed}`");
                    drop(self.say(error_line(&asked, modern::NO_METHOD, &why)).await);
                    return None;
                }
                // 128 random bits, known to this client alone, and asked for with its principal.
                let key = self.shell.bridge.host.session_id().to_string();
                let line = modern::input_required(&self.id, &key, &message, &key);
                self.asked = Some((key, asked));
                Some(Piece::Last(line))
            }
            Kind::Notification if self.is_older && !modern::hears(self.log_level.as_deref(), &message) => {
                None
            }
            Kind::Request | Kind::Notification => Some(Piece::Line(message.into_text())),
        }
    }

    fn answer(&self, line: String) -> String {
        if !self.is_older {
            return line;
        }
        // It was a message when it came, and is one with another id.
        Message::parse(line.into_bytes())
            .map_or_else(|_| String::new(), |answer| modern::completed(&answer, &self.method, &self.id))
    }

    /// What changes, for as long as somebody listens.
    async fn listen(mut self, filter: Filter) -> Result<Response, Failure> {
        if filter.resources.len() > RESOURCES_MAX {
            let why = format!("a listener hears of {RESOURCES_MAX} resources at the most");
            return Err(Failure::new(StatusCode::BAD_REQUEST, why).coded(-32_602));
        }
        self.seat = Some(self.entry.board.sit(From::Unread(Stream::General)));
        self.entry.address.control.send(Control::Wake(self.entry.client)).await.map_err(|_| ended())?;
        for (number, uri) in filter.resources.iter().enumerate() {
            let uri = serde_json::Value::from(uri.as_str());
            let method = "resources/subscribe";
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":"subscribe-{number}","method":"{method}","params":{{"uri":{uri}}}}}"#
            );
            self.said.push(self.say(line).await?);
        }
        self.pieces.push_back(sse::alone(&filter.acknowledged(&self.id)));
        self.filter = Some(filter);
        Ok(self.stream())
    }
}

/// The status that goes with an answer.
fn status_of(line: &str) -> StatusCode {
    if !line.contains("\"error\"") {
        return StatusCode::OK;
    }
    let Ok(message) = Message::parse(line.as_bytes().to_vec()) else { return StatusCode::OK };
    let code = message.error().and_then(|error| member(error, "code"));
    match code.and_then(|code| code.parse::<i32>().ok()) {
        Some(modern::NO_METHOD) => StatusCode::NOT_FOUND,
        Some(modern::HEADER_MISMATCH | modern::MISSING_CAPABILITY | modern::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        Some(_) | None => StatusCode::OK,
    }
}
