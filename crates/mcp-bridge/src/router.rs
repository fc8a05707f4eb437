//! Whose message is whose, between one server process and the clients that talk to it. Every request gets an id of ours on
//! its way to the other side, so that no two askers can meet under one id; the answer goes back under the id that the
//! asker chose, letter for letter. A value: it decides, and others send.

use std::collections::{BTreeMap, HashMap};

use crate::envelope::{Kind, Message, member};
use crate::id::MessageId;

/// A client, as the router tells clients apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// Where a message for a client goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// The answer to this request of the client's, by our number for it.
    Request(u64),
    /// What belongs to no request.
    General,
}

/// The most requests of one client that are not answered.
pub const PENDING_MAX: usize = 256;
/// The most requests of a server that a client has not answered.
pub const ASKED_MAX: usize = 256;

/// What becomes of a client's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromClient {
    /// To the server, as this line. A request's answers come on the stream of this number.
    Forward {
        /// The line.
        line: String,
        /// Our number for a request.
        request: Option<u64>,
    },
    /// To the server, as this line: the request of this number is cancelled, and is not asked anything for any more.
    Cancel {
        /// The line.
        line: String,
        /// Our number for the request.
        request: u64,
    },
    /// Nothing to do: what it is about is over.
    Late,
    /// It cannot be taken.
    Refused(Refused),
}

/// Why a client's message is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A request with that id is not answered yet.
    #[error("a request with this id is not answered yet: use another id")]
    Duplicate,
    /// Too many requests are not answered yet.
    #[error("{PENDING_MAX} requests are not answered yet: wait for some of them")]
    Pending,
    /// It answers what nobody asked.
    #[error("nobody asked what this answers")]
    Unasked,
}

/// What becomes of a server's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromServer {
    /// To this client, on this stream, as this line.
    ToClient {
        /// Whom it is for.
        client: ClientId,
        /// On which of its streams.
        stream: Stream,
        /// The line.
        line: String,
        /// It ends that stream.
        last: bool,
    },
    /// A question for this client, under this number of ours.
    Ask {
        /// Whom it is for.
        client: ClientId,
        /// On which of its streams.
        stream: Stream,
        /// The line.
        line: String,
        /// Our number for it.
        number: u64,
    },
    /// To every client's general stream, as this line.
    ToAll(String),
    /// Back to the server, as this line: nobody is there to be asked.
    Back(String),
    /// To nobody: it answers what is over, or was never asked.
    Stray,
}

/// One request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pending {
    client: ClientId,
    id: MessageId,
    id_text: String,
    token_text: Option<String>,
    /// The client has lost interest in it.
    cancelled: bool,
}

/// One request of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    client: ClientId,
    id: MessageId,
    id_text: String,
    token_text: Option<String>,
    /// For which request of the client, by our number, as far as that can be said.
    of: Option<u64>,
}

/// The requests in flight of one server process, in both directions.
#[derive(Debug, Default)]
pub struct Router {
    next: u64,
    /// The one client that there is, if the process works for one alone.
    only: Option<ClientId>,
    /// The clients are not all one principal's.
    mixed: bool,
    // By our number, so that the newest is last.
    pending: BTreeMap<u64, Pending>,
    by_client: HashMap<(ClientId, MessageId), u64>,
    asked: BTreeMap<u64, Asked>,
    asked_by_id: HashMap<MessageId, u64>,
}

impl Router {
    /// Of a process that works for this client alone, and may ask it whenever it likes.
    #[must_use]
    pub fn of(client: ClientId) -> Self {
        Self { only: Some(client), ..Self::default() }
    }

    /// How many requests of this client are not answered.
    #[must_use]
    pub fn pending_of(&self, client: ClientId) -> usize {
        self.pending.values().filter(|pending| pending.client == client).count()
    }

    /// No client waits for an answer. What clients were asked does not count: they may never answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The question of this number of ours is neither answered nor withdrawn.
    #[must_use]
    pub fn is_asked(&self, number: u64) -> bool {
        self.asked.contains_key(&number)
    }

    /// From here on clients of several principals share the process: what cannot be said to be one's is nobody's.
    pub fn mix(&mut self) {
        self.mixed = true;
    }

    /// Numbers begin after this one, so that those of an earlier process are not ours.
    pub fn begin_after(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// A message of a client.
    pub fn from_client(&mut self, client: ClientId, message: &Message) -> FromClient {
        self.from_client_as(client, message, None)
    }

    /// The same; a request gets this number, which was [reserved](Self::reserve) for it.
    pub fn from_client_as(&mut self, client: ClientId, message: &Message, number: Option<u64>) -> FromClient {
        match message.kind() {
            Kind::Request => self.request(client, message, number),
            Kind::Notification if message.method() == Some(CANCELLED) => self.cancelled(client, message),
            Kind::Notification if message.method() == Some(PROGRESS) => self.progress_of(client, message),
            Kind::Notification => FromClient::Forward { line: message.text().to_owned(), request: None },
            Kind::Success | Kind::Error => self.answer(client, message),
        }
    }

    fn request(&mut self, client: ClientId, message: &Message, number: Option<u64>) -> FromClient {
        let (Some(id), Some(id_text)) = (message.id(), message.id_text()) else {
            return FromClient::Refused(Refused::Unasked);
        };
        let key = (client, id.clone());
        if self.by_client.contains_key(&key) {
            return FromClient::Refused(Refused::Duplicate);
        }
        if self.pending_of(client) >= PENDING_MAX {
            return FromClient::Refused(Refused::Pending);
        }
        let number = number.unwrap_or_else(|| self.reserve());
        let ours = number.to_string();
        let token = message.progress_token();
        let line = message.with_id_and(&ours, token.map(|token| (token, ours.as_str())));
        let pending = Pending {
            client,
            id: id.clone(),
            id_text: id_text.to_owned(),
            token_text: token.map(str::to_owned),
            cancelled: false,
        };
        self.pending.insert(number, pending);
        self.by_client.insert(key, number);
        FromClient::Forward { line, request: Some(number) }
    }

    /// A client has lost interest in a request of its own.
    fn cancelled(&mut self, client: ClientId, message: &Message) -> FromClient {
        let Some(text) = message.param(REQUEST_ID) else { return FromClient::Late };
        let number = MessageId::parse(text).ok().and_then(|id| self.by_client.get(&(client, id)));
        // Some clients cancel what was answered long ago.
        let Some(number) = number.copied() else { return FromClient::Late };
        let line = message.with_id_and("", Some((text, &number.to_string())));
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.cancelled = true;
        }
        FromClient::Cancel { line, request: number }
    }

    /// A client tells how far it is with what it was asked.
    fn progress_of(&self, client: ClientId, message: &Message) -> FromClient {
        let Some(token) = message.param(PROGRESS_TOKEN) else { return FromClient::Late };
        let asked = token.parse::<u64>().ok().and_then(|number| self.asked.get(&number));
        let theirs = asked.filter(|asked| asked.client == client).and_then(|asked| asked.token_text.as_ref());
        let Some(theirs) = theirs else { return FromClient::Late };
        FromClient::Forward { line: message.with_id_and("", Some((token, theirs))), request: None }
    }

    fn answer(&mut self, client: ClientId, message: &Message) -> FromClient {
        let Some(MessageId::Integer(number)) = message.id() else {
            return FromClient::Refused(Refused::Unasked);
        };
        let number = u64::try_from(*number).unwrap_or(u64::MAX);
        match self.asked.get(&number) {
            Some(asked) if asked.client == client => {}
            Some(_) | None => return FromClient::Refused(Refused::Unasked),
        }
        let Some(asked) = self.asked.remove(&number) else { return FromClient::Refused(Refused::Unasked) };
        self.asked_by_id.remove(&asked.id);
        FromClient::Forward { line: message.with_id(&asked.id_text), request: None }
    }

    /// A message of the server. Where it cannot be said whom it is for, it is for nobody, unless one alone can hear it.
    pub fn from_server(&mut self, message: &Message) -> FromServer {
        match message.kind() {
            Kind::Success | Kind::Error => self.answered(message),
            Kind::Request => self.ask(message),
            Kind::Notification if message.method() == Some(PROGRESS) => self.progress(message),
            Kind::Notification if message.method() == Some(CANCELLED) => self.withdrawn(message),
            Kind::Notification => self.told(message),
        }
    }

    fn answered(&mut self, message: &Message) -> FromServer {
        let Some(MessageId::Integer(number)) = message.id() else { return FromServer::Stray };
        let number = u64::try_from(*number).unwrap_or(u64::MAX);
        let Some(pending) = self.pending.remove(&number) else { return FromServer::Stray };
        let line = message.with_id(&pending.id_text);
        self.by_client.remove(&(pending.client, pending.id));
        FromServer::ToClient { client: pending.client, stream: Stream::Request(number), line, last: true }
    }

    /// Questions belong to a request that is being worked on, and do not say to which.
    fn ask(&mut self, message: &Message) -> FromServer {
        let (Some(id), Some(id_text)) = (message.id(), message.id_text()) else { return FromServer::Stray };
        if self.asked_by_id.contains_key(id) {
            return FromServer::Back(error_line(
                id_text,
                -32_600,
                "a request with this id is not answered yet",
            ));
        }
        if self.asked.len() >= ASKED_MAX {
            return FromServer::Back(error_line(id_text, -32_000, "too many requests are not answered yet"));
        }
        let (client, of) = match self.whom() {
            Ok(found) => found,
            Err(why) => return FromServer::Back(error_line(id_text, -32_000, why)),
        };
        let (id, number, token) = (id.clone(), self.reserve(), message.progress_token());
        let ours = number.to_string();
        let line = message.with_id_and(&ours, token.map(|token| (token, ours.as_str())));
        let asked = Asked {
            client,
            id: id.clone(),
            id_text: id_text.to_owned(),
            token_text: token.map(str::to_owned),
            of,
        };
        self.asked.insert(number, asked);
        self.asked_by_id.insert(id, number);
        let stream = of.map_or(Stream::General, Stream::Request);
        FromServer::Ask { client, stream, line, number }
    }

    /// Whom a question is for: the newest request of the only client that waits for something. Where several do and all are one
    /// principal's, the newest for which nothing else is asked, and if there is none the newest: it is the same one who answers.
    fn whom(&self) -> Result<(ClientId, Option<u64>), &'static str> {
        let mut live = self.live();
        let newest = live.next();
        if let Some(client) = self.only {
            return Ok((client, newest.map(|(number, _)| number)));
        }
        let Some((number, pending)) = newest else {
            return Err("no client waits for anything, so nobody is asked");
        };
        if live.all(|(_, other)| other.client == pending.client) {
            return Ok((pending.client, Some(number)));
        }
        if self.mixed {
            return Err("several clients wait for something, and nobody can say which of them is asked");
        }
        let is_free = |number: u64| !self.asked.values().any(|asked| asked.of == Some(number));
        let free = self.live().find(|(number, _)| is_free(*number));
        let (number, pending) = free.unwrap_or((number, pending));
        Ok((pending.client, Some(number)))
    }

    /// The requests that their clients still wait for, the newest first.
    fn live(&self) -> impl Iterator<Item = (u64, &Pending)> {
        let pending = self.pending.iter().rev().map(|(number, pending)| (*number, pending));
        pending.filter(|(_, pending)| !pending.cancelled)
    }

    fn progress(&self, message: &Message) -> FromServer {
        let Some(token) = message.param(PROGRESS_TOKEN) else { return FromServer::Stray };
        let number = token.parse::<u64>().ok();
        let pending = number.and_then(|number| Some((number, self.pending.get(&number)?)));
        let Some((number, pending)) = pending else { return FromServer::Stray };
        let Some(theirs) = &pending.token_text else { return FromServer::Stray };
        let line = message.with_id_and("", Some((token, theirs)));
        FromServer::ToClient { client: pending.client, stream: Stream::Request(number), line, last: false }
    }

    /// The server has lost interest in a question of its own.
    fn withdrawn(&mut self, message: &Message) -> FromServer {
        let Some(text) = message.param(REQUEST_ID) else { return FromServer::Stray };
        let number = MessageId::parse(text).ok().and_then(|id| self.asked_by_id.remove(&id));
        let Some((number, asked)) = number.and_then(|number| Some((number, self.asked.remove(&number)?)))
        else {
            return FromServer::Stray;
        };
        let line = message.with_id_and("", Some((text, &number.to_string())));
        let stream = asked.of.filter(|number| self.pending.contains_key(number));
        let stream = stream.map_or(Stream::General, Stream::Request);
        FromServer::ToClient { client: asked.client, stream, line, last: false }
    }

    /// What is told during the only request in flight belongs to it. Else nobody can say, and what may be about one principal is
    /// not told to another.
    fn told(&self, message: &Message) -> FromServer {
        if let Some(subscribed) = self.subscribed(message) {
            return subscribed;
        }
        let line = message.text().to_owned();
        let is_for_all = message.method().is_some_and(|method| {
            method.ends_with("/list_changed") || method == "notifications/resources/updated"
        });
        if is_for_all {
            return FromServer::ToAll(line);
        }
        if self.mixed {
            return FromServer::Stray;
        }
        let mut waited_for = self.live();
        let Some((number, pending)) = waited_for.next() else { return FromServer::ToAll(line) };
        let (client, is_only) = (pending.client, waited_for.next().is_none());
        // Several of one client's: nobody can say for which it is, and the client hears it once.
        let is_general = !is_only && self.live().all(|(_, other)| other.client == client);
        let stream = if is_general { Stream::General } else { Stream::Request(number) };
        FromServer::ToClient { client, stream, line, last: false }
    }

    /// What comes of a subscription says of which, by the id of the request that made it.
    fn subscribed(&self, message: &Message) -> Option<FromServer> {
        let id = member(message.param("_meta")?, SUBSCRIPTION_ID)?;
        let number: u64 = id.trim_matches('"').parse().ok()?;
        let pending = self.pending.get(&number)?;
        let line = message.with_id_and("", Some((id, &pending.id_text)));
        let stream = Stream::Request(number);
        Some(FromServer::ToClient { client: pending.client, stream, line, last: false })
    }

    /// A client is gone: what it asked is cancelled, and what it was asked is answered for it. Returns lines for the
    /// server.
    pub fn leave(&mut self, client: ClientId) -> Vec<String> {
        let mut lines = Vec::new();
        self.pending.retain(|number, pending| {
            let stays = pending.client != client;
            // Of what it has cancelled itself the server knows.
            if !stays && !pending.cancelled {
                lines.push(cancelled(*number, "the client is gone"));
            }
            stays
        });
        self.by_client.retain(|(of, _), _| *of != client);
        self.asked.retain(|_, asked| {
            let stays = asked.client != client;
            if !stays {
                lines.push(error_line(&asked.id_text, -32_000, "the client is gone"));
                self.asked_by_id.remove(&asked.id);
            }
            stays
        });
        lines
    }

    /// The server is gone: everything that waits for it is answered. Returns lines for clients, on their streams; none for what
    /// was cancelled, because nobody there knows of it any more.
    pub fn fail(&mut self, code: i32, why: &str) -> Vec<(ClientId, Stream, Option<String>)> {
        self.by_client.clear();
        self.forget_asked();
        let pending = std::mem::take(&mut self.pending).into_iter();
        pending
            .map(|(number, pending)| {
                let line = (!pending.cancelled).then(|| error_line(&pending.id_text, code, why));
                (pending.client, Stream::Request(number), line)
            })
            .collect()
    }

    /// Gives up on one request: its answer, should it come, is a stray. Returns what its client is told, which is nothing if it
    /// has cancelled it, and what the server is.
    pub fn give_up(
        &mut self,
        number: u64,
        code: i32,
        why: &str,
    ) -> Option<(ClientId, Option<String>, String)> {
        let pending = self.pending.remove(&number)?;
        let answer = (!pending.cancelled).then(|| error_line(&pending.id_text, code, why));
        self.by_client.remove(&(pending.client, pending.id));
        Some((pending.client, answer, cancelled(number, why)))
    }

    /// Gives up on a question: an answer, should it come, answers nothing. Returns whom it was for and on which stream, what
    /// that client is told, and what the server is.
    pub fn expire(&mut self, number: u64, why: &str) -> Option<(ClientId, Stream, String, String)> {
        let asked = self.asked.remove(&number)?;
        self.asked_by_id.remove(&asked.id);
        let stream = asked.of.filter(|number| self.pending.contains_key(number));
        let withdrawn = cancelled(number, why);
        let answer = error_line(&asked.id_text, -32_001, why);
        Some((asked.client, stream.map_or(Stream::General, Stream::Request), withdrawn, answer))
    }

    /// The server that asked is gone, or will be.
    pub fn forget_asked(&mut self) {
        self.asked.clear();
        self.asked_by_id.clear();
    }

    /// A number that no request gets.
    pub fn reserve(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

const CANCELLED: &str = "notifications/cancelled";
const PROGRESS: &str = "notifications/progress";
const REQUEST_ID: &str = "requestId";
const PROGRESS_TOKEN: &str = "progressToken";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// That nobody waits for the answer to the request of this number.
fn cancelled(number: u64, why: &str) -> String {
    let reason = serde_json::Value::from(why);
    format!(
        r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"{REQUEST_ID}":{number},"reason":{reason}}}}}"#
    )
}

/// An error that answers the request with this id, which is JSON.
#[must_use]
pub fn error_line(id: &str, code: i32, message: &str) -> String {
    let message = serde_json::Value::from(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
}

/// The parameters of a request name this capability of its sender.
#[must_use]
pub fn has_capability(params: &str, name: &str) -> bool {
    member(params, "capabilities").and_then(|capabilities| member(capabilities, name)).is_some()
}

#[cfg(test)]
#[path = "router/tests.rs"]
mod tests;
