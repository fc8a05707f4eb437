//! The era with sessions, as a client sees it: POST, the GET stream and DELETE.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use session_core::SessionId;
use session_core::names::Principal;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::head::{Head, SESSION};
use super::reply::{Failure, JSON, failure, not_begun};
use super::sse::Pass;
use super::{Shell, Target, body, sse, text};
use crate::answers::AnswerError;
use crate::board::From;
use crate::bridge::{BeginError, Entry, Unposted};
use crate::conversation::{Parcel, Reply};
use crate::envelope::{Envelope, EnvelopeError, Kind, Message, member};
use crate::gate::Refusal;
use crate::modern;
use crate::revision::Revision;
use crate::router::{Refused, error_line};

/// Tries to reach a session that ends and begins again meanwhile.
const TRIES: usize = 3;

/// The longest message with which a client begins, in bytes.
const BEGINNING_MAX: usize = 64 * 1024;
/// Why a message was not taken in time.
pub(super) const DEAF: &str = "the session's server takes no more messages just now";

/// Who asks, and for what.
pub(super) struct Client<'r> {
    pub(super) shell: &'r Arc<Shell>,
    pub(super) target: &'r Target,
    pub(super) principal: &'r Principal,
    pub(super) head: &'r Head,
    pub(super) headers: &'r HeaderMap,
}

pub(super) type Answered = Result<Response, Failure>;

impl Client<'_> {
    pub(super) async fn post(&self, body: Body) -> Answered {
        if !self.head.is_json {
            let why = "a message is posted with `Content-Type: application/json`";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
        }
        if !(self.head.takes_json && self.head.takes_events) {
            let why = "`Accept` must list application/json and text/event-stream: the answer is one of them";
            return Err(Failure::new(StatusCode::NOT_ACCEPTABLE, why));
        }
        let settings = &self.shell.bridge.settings;
        let (max, limit) = (settings.caps.message, settings.times.body);
        let share = self.shell.waiting.take(self.principal, 0);
        let share = share.ok_or_else(|| Failure::busy("as much as may waits to be passed on already"))?;
        let (body, share) = body::read(body, self.head.length, max, limit, share).await?;
        let bytes = Some(Arc::new(share));
        let refused = |error: &EnvelopeError| {
            Failure::new(StatusCode::BAD_REQUEST, error.to_string()).coded(error.code())
        };
        match Envelope::parse(body).map_err(|error| refused(&error))? {
            Envelope::One(message) => {
                let id = message.id_text().map(str::to_owned);
                self.one(Parcel { message, bytes }).await.map_err(|failure| failure.of(id.as_deref()))
            }
            Envelope::Batch(messages) => {
                let parcel = |message| Parcel { message, bytes: bytes.clone() };
                self.batch(messages.into_iter().map(parcel).collect()).await
            }
        }
    }

    async fn one(&self, parcel: Parcel) -> Answered {
        let Parcel { message, .. } = &parcel;
        acceptable(message)?;
        if self.stands_alone(message) {
            self.alone(parcel).await
        } else if message.method() == Some("initialize") {
            self.begin(parcel.message).await
        } else {
            self.message(parcel).await
        }
    }

    /// A request of the revision without sessions. Where its headers and its body differ in that, it is refused as one.
    fn stands_alone(&self, message: &Message) -> bool {
        self.head.version.as_deref() == Some(Revision::V2026_07_28.name())
            || (self.head.session.is_none() && modern::stands_alone(message))
    }

    async fn begin(&self, initialize: Message) -> Answered {
        let id = initialize.id_text().map(str::to_owned);
        let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, why).of(id.as_deref());
        if initialize.kind() != Kind::Request {
            return Err(bad("`initialize` is a request: it needs an id"));
        }
        if self.head.session.is_some() {
            return Err(bad("this session has begun: leave out `Mcp-Session-Id` to begin another"));
        }
        let version = initialize.params().and_then(|params| member(params, "protocolVersion"));
        if !version.is_some_and(|version| version.starts_with('"')) {
            return Err(bad("`initialize` names no `protocolVersion`").coded(-32_602));
        }
        match self.shell.bridge.begin(&self.target.server, self.principal, initialize).await {
            Ok(begun) => {
                let mut response = text(StatusCode::OK, JSON, begun.line);
                if let Ok(value) = HeaderValue::try_from(begun.session.to_string()) {
                    response.headers_mut().insert(SESSION, value);
                }
                Ok(response)
            }
            // What the server itself says is the answer, under the client's id.
            Err(BeginError::Answer(AnswerError::Refused(error))) => {
                Ok(text(StatusCode::OK, JSON, error.with_id(id.as_deref().unwrap_or("null"))))
            }
            Err(error) => Err(not_begun(&error).of(id.as_deref())),
        }
    }

    /// The session that the headers name.
    pub(super) async fn entry(&self) -> Result<(Arc<Entry>, Revision), Failure> {
        let Some(text) = &self.head.session else {
            let why = "`Mcp-Session-Id` is missing: begin a session with `initialize`";
            return Err(Failure::new(StatusCode::BAD_REQUEST, why));
        };
        let unknown = || Failure::from(crate::bridge::FindError::Unknown);
        // As we wrote it, and in no other way.
        let session = text.parse::<SessionId>().ok().filter(|session| session.to_string() == *text);
        let session = session.ok_or_else(unknown)?;
        let entry = self.shell.bridge.find(&self.target.server, self.principal, session).await?;
        let revision =
            Revision::of_request(self.head.version.as_deref(), entry.revision).map_err(|error| {
                let supported = Revision::ALL.map(Revision::name);
                let data = serde_json::json!({ "supported": supported, "requested": error.0 });
                Failure::new(StatusCode::BAD_REQUEST, error.to_string()).with(data.to_string())
            })?;
        Ok((entry, revision))
    }

    /// How long a message may wait until it is posted.
    pub(super) fn limit(&self) -> Duration {
        self.shell.bridge.settings.times.wait
    }

    /// Posts a message to its session, wherever that is by then.
    pub(super) async fn deliver(&self, mut parcel: Parcel, until: Instant) -> Result<Delivered, Failure> {
        for _ in 0..TRIES {
            let (entry, revision) = self.entry().await?;
            parcel = match entry.post(parcel, until.saturating_duration_since(Instant::now())).await {
                Ok(reply) => return Ok(Delivered { entry, revision, reply }),
                Err(Unposted::Ended(unsent)) => unsent,
                Err(Unposted::Deaf) => return Err(Failure::busy(DEAF)),
            };
            entry.done().await;
        }
        Err(Failure::busy("the session ends and begins again: try again"))
    }

    async fn message(&self, parcel: Parcel) -> Answered {
        let (kind, id) = (parcel.message.kind(), parcel.message.id_text().map(str::to_owned));
        // Before anything is done: whoever is told to come again has lost nothing.
        let pass = (kind == Kind::Request).then(|| self.pass()).transpose()?;
        let Replied { entry, revision, reply } = self.reply(parcel).await?;
        match (reply, pass) {
            (Reply::Stream(stream), Some(pass)) => {
                let from = From::Unread(stream);
                Ok(sse::response(sse::follow(self.shell, &entry.board, from, revision, pass)))
            }
            (reply, _) => respond(reply, kind, id.as_deref()),
        }
    }

    /// Delivers a message, and waits for what becomes of it.
    async fn reply(&self, parcel: Parcel) -> Result<Replied, Failure> {
        let delivered = self.deliver(parcel, Instant::now() + self.limit()).await?;
        self.replied(delivered, Instant::now() + self.limit() * 2).await
    }

    /// What becomes of it: it is taken in time, and then it is a stream, or waits for as long as it may.
    pub(super) async fn replied(&self, mut delivered: Delivered, until: Instant) -> Result<Replied, Failure> {
        for _ in 0..TRIES {
            let Delivered { entry, revision, reply } = delivered;
            match timeout_at(until, reply).await {
                Ok(Ok(Reply::Again(unread))) => {
                    entry.done().await;
                    delivered = self.deliver(unread, until).await?;
                }
                Ok(Ok(reply)) => return Ok(Replied { entry, revision, reply }),
                Ok(Err(_)) => break,
                Err(_elapsed) => return Err(Failure::busy(DEAF)),
            }
        }
        Err(draining())
    }

    pub(super) fn pass(&self) -> Result<Pass, Failure> {
        Pass::new(self.shell, self.principal, self.headers)
    }

    fn has_session(&self) -> Result<(), Failure> {
        if self.head.version.as_deref() != Some(Revision::V2026_07_28.name()) {
            return Ok(());
        }
        Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "this revision has POST alone"))
    }

    /// The stream of what belongs to no request, or of what was not seen of another.
    pub(super) async fn get(&self) -> Answered {
        self.has_session()?;
        if !self.head.takes_events {
            let why = "`Accept` must list text/event-stream";
            return Err(Failure::new(StatusCode::NOT_ACCEPTABLE, why));
        }
        let (entry, revision) = self.entry().await?;
        let from = match &self.head.last_event_id {
            None => From::Unread(crate::router::Stream::General),
            Some(id) => entry.board.after(id).ok_or_else(|| {
                let why = "what came after this event is not kept any more: send the request again";
                Failure::new(StatusCode::BAD_REQUEST, why)
            })?,
        };
        // What is gone on with has been primed.
        let revision = if self.head.last_event_id.is_some() { Revision::V2025_03_26 } else { revision };
        let pass = self.pass()?;
        Ok(sse::response(sse::follow(self.shell, &entry.board, from, revision, pass)))
    }

    pub(super) async fn delete(&self) -> Answered {
        self.has_session()?;
        let (entry, _) = self.entry().await?;
        self.shell.bridge.end(&entry).await;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}

/// A message that its session has.
pub(super) struct Delivered {
    entry: Arc<Entry>,
    revision: Revision,
    reply: oneshot::Receiver<Reply>,
}

/// What became of a message that its session has.
pub(super) struct Replied {
    pub(super) entry: Arc<Entry>,
    pub(super) revision: Revision,
    pub(super) reply: Reply,
}

/// How a client begins is remembered, and written down: it is short.
pub(super) fn acceptable(message: &Message) -> Result<(), Failure> {
    let begins = matches!(message.method(), Some("initialize" | "notifications/initialized"));
    if begins && message.text().len() > BEGINNING_MAX {
        let why = format!("`initialize` and `notifications/initialized` may have {BEGINNING_MAX} bytes");
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    if message.is_ambiguous() {
        let why =
            "a member of `params` or of its `_meta` comes twice: two readers could each believe another";
        return Err(Failure::new(StatusCode::BAD_REQUEST, why));
    }
    Ok(())
}

fn draining() -> Failure {
    Failure::busy("this bridge is ending: come back")
}

pub(super) fn accepted() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// What a message is answered with that gets no stream.
pub(super) fn respond(reply: Reply, kind: Kind, id: Option<&str>) -> Answered {
    let is_request = kind == Kind::Request;
    match reply {
        Reply::Accepted | Reply::Stream(_) => Ok(accepted()),
        Reply::Answer(line) => Ok(text(StatusCode::OK, JSON, line)),
        Reply::Refused(refused @ (Refused::Duplicate | Refused::Unasked)) => {
            Err(Failure::new(StatusCode::BAD_REQUEST, refused.to_string()))
        }
        Reply::Refused(refused @ Refused::Pending) => Err(Failure::busy(refused.to_string())),
        Reply::Full => Err(Failure::busy("as many messages as may wait for this session's server already")),
        Reply::NotStarted(why) => match why.retry_after {
            Some(after) => Err(Failure::busy(why.why).retry_after(after)),
            None if is_request => Ok(text(StatusCode::OK, JSON, refusal_line(Reply::NotStarted(why), id))),
            None => Err(Failure::busy(why.why)),
        },
        Reply::Over(Refusal::Changed) => {
            Ok(failure(&Failure::from(crate::bridge::FindError::Over(Refusal::Changed)).of(id)))
        }
        // Who comes later is told that there is no such session, and begins a new one.
        Reply::Over(refusal @ Refusal::Ended(_)) => Err(crate::bridge::FindError::Over(refusal).into()),
        // Who waited for an answer gets one that says why.
        Reply::Over(refusal) if is_request => {
            Ok(text(StatusCode::OK, JSON, refusal_line(Reply::Over(refusal), id)))
        }
        Reply::Over(refusal) => Err(crate::bridge::FindError::Over(refusal).into()),
        Reply::Again(_) | Reply::Draining => Err(draining()),
    }
}

/// The answer to a request that was not taken, as a message.
pub(super) fn refusal_line(reply: Reply, id: Option<&str>) -> String {
    let why = match reply {
        Reply::Refused(refused) => refused.to_string(),
        Reply::NotStarted(why) => why.why,
        Reply::Over(refusal) => refusal.to_string(),
        Reply::Full => "as many messages as may wait for this session's server already".into(),
        Reply::Accepted | Reply::Answer(_) | Reply::Stream(_) | Reply::Again(_) | Reply::Draining => {
            "this bridge is ending: come back".into()
        }
    };
    error_line(id.unwrap_or("null"), -32_000, &why)
}
