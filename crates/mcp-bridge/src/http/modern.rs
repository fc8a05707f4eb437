//! The revision without sessions over HTTP: a request is answered as it stands, and its client is gone with it.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::head::once;
use super::reply::{Failure, JSON, not_begun};
use super::session::{Client, respond};
use super::{Shell, sse, text};
use crate::answers::Era;
use crate::board::{From, Next, Seat};
use crate::bridge::{BeginError, Entry};
use crate::conversation::Reply;
use crate::envelope::{Kind, Message, member};
use crate::modern::{self, Filter, Mirrored, ModernError};
use crate::revision::Revision;
use crate::router::{Stream, error_line};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// What is left of the older revisions, which a server with a handshake would still answer.
const GONE: [&str; 5] =
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
/// Requests that wait for their clients to come back with an answer.
const PARKED_MAX: usize = 1_024;
/// Tries to reach a session that ends and begins again meanwhile.
const TRIES: usize = 3;

/// Requests that wait for their clients to come back with an answer, by what the client shows for it.
#[derive(Default)]
pub(crate) struct Parked(Mutex<HashMap<String, (Instant, Visit)>>);

impl Parked {
    fn park(&self, state: String, visit: Visit, now: Instant) {
        let mut parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = visit.shell.bridge.settings.times.call;
        parked.retain(|_, (since, _)| now - *since < limit);
        if parked.len() < PARKED_MAX {
            parked.insert(state, (now, visit));
        }
    }

    /// Nobody comes back any more.
    pub(super) fn clear(&self) {
        let parked = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(parked);
    }

    /// What waits under this, if it is this client's and the same request.
    fn take(&self, state: &str, client: &Client<'_>, method: &str) -> Option<Visit> {
        let mut parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_theirs = parked.get(state).is_some_and(|(_, visit)| {
            visit.entry.principal == *client.principal
                && visit.entry.server == client.target.server
                && visit.name == client.target.name
                && visit.method == method
        });
        if is_theirs { parked.remove(state).map(|(_, visit)| visit) } else { None }
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
    /// What was asked and waits for an answer: the key, and the id that the answer goes to.
    asked: Option<(String, String)>,
    filter: Option<Filter>,
    pieces: VecDeque<Bytes>,
    over: bool,
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
    pub(super) async fn alone(&self, message: Message, headers: &HeaderMap) -> Result<Response, Failure> {
        let mirrored = Mirrored {
            version: self.head.version.as_deref(),
            method: once(headers, &METHOD)?,
            name: once(headers, &NAME)?,
        };
        modern::check(&message, mirrored).map_err(|error| refused(&error))?;
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
            self.check_arguments(&message, headers, &era).await?;
        }
        let state =
            message.param("requestState").and_then(|state| serde_json::from_str::<String>(state).ok());
        let is_older = era != Era::Plain;
        if let Some(state) = state.filter(|_| is_older) {
            return self.come_back(message, &state, &method).await;
        }
        let name = self.target.name.as_deref();
        let mut message = message;
        for _ in 0..TRIES {
            let entry = bridge.visit(&self.target.server, self.principal, name, &era).await.map_err(begun)?;
            let visit = self.visit(entry, &message, is_older);
            if is_older && method == "subscriptions/listen" {
                return visit.listen(Filter::of(&message)).await;
            }
            let kind = message.kind();
            match visit.entry.post(message).await {
                Ok(reply) => return visit.begin(kind, reply).await,
                Err(unsent) => message = unsent,
            }
            visit.entry.done().await;
        }
        Err(ended())
    }

    fn visit(&self, entry: Entry, request: &Message, is_older: bool) -> Visit {
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
            asked: None,
            filter: None,
            pieces: VecDeque::new(),
            over: false,
        }
    }

    /// A client comes back with what it was asked for.
    async fn come_back(&self, message: Message, state: &str, method: &str) -> Result<Response, Failure> {
        let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, why).coded(-32_602);
        let parked = self.shell.parked.take(state, self, method);
        let mut visit = parked.ok_or_else(|| {
            bad("this `requestState` is not known, or is not known any more: send the request without it")
        })?;
        let Some((key, asked)) = visit.asked.take() else { return Err(bad("nothing was asked")) };
        let line = match modern::input(&message, &key) {
            Some(result) => format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":{result}}}"#),
            None => error_line(&asked, -32_000, "the client did not answer this"),
        };
        message.id_text().unwrap_or("null").clone_into(&mut visit.id);
        modern::capabilities(&message).clone_into(&mut visit.capabilities);
        visit.say(line).await?;
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
    /// Says something to the server for this client. Nobody waits for what becomes of it.
    async fn say(&self, line: String) -> Result<(), Failure> {
        let message = Message::parse(line.into_bytes()).map_err(|_| ended())?;
        self.entry.post(message).await.map(drop).map_err(|_| ended())
    }

    async fn begin(mut self, kind: Kind, reply: oneshot::Receiver<Reply>) -> Result<Response, Failure> {
        match reply.await.map_err(|_| ended())? {
            Reply::Answer(line) => {
                let line = self.answer(line);
                self.over = true;
                Ok(text(status_of(&line), JSON, line))
            }
            Reply::Stream(stream) => {
                self.seat = Some(self.entry.board.sit(From::Unread(stream)));
                self.go_on().await
            }
            reply @ (Reply::Accepted
            | Reply::Refused(_)
            | Reply::Full
            | Reply::NotStarted(_)
            | Reply::Over(_)
            | Reply::Again(_)
            | Reply::Draining) => respond(reply, kind, Some(&self.id)),
        }
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

    fn let_go(self) {
        if let Some((key, _)) = &self.asked {
            let (state, shell) = (key.clone(), Arc::clone(&self.shell));
            shell.parked.park(state, self, Instant::now());
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
                return Some(Piece::Beat);
            }
            tokio::select! {
                _ = self.bell.changed() => {}
                () = self.shell.bridge.drain.cancelled() => return None,
                _ = self.beat.tick() => return Some(Piece::Beat),
            }
        }
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
        for (number, uri) in filter.resources.iter().enumerate() {
            let uri = serde_json::Value::from(uri.as_str());
            let method = "resources/subscribe";
            self.say(format!(
                r#"{{"jsonrpc":"2.0","id":"subscribe-{number}","method":"{method}","params":{{"uri":{uri}}}}}"#
            ))
            .await?;
        }
        self.pieces.push_back(sse::alone(&filter.acknowledged(&self.id)));
        self.filter = Some(filter);
        self.seat = Some(self.entry.board.sit(From::Unread(Stream::General)));
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
