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
}

/// One request of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    client: ClientId,
    id: MessageId,
    id_text: String,
}

/// The requests in flight of one server process, in both directions.
#[derive(Debug, Default)]
pub struct Router {
    next: u64,
    /// The one client that there is, if the process works for one alone.
    only: Option<ClientId>,
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

    /// Nothing is in flight in either direction.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.asked.is_empty()
    }

    /// A message of a client.
    pub fn from_client(&mut self, client: ClientId, message: &Message) -> FromClient {
        match message.kind() {
            Kind::Request => self.request(client, message),
            Kind::Notification if message.method() == Some(CANCELLED) => self.cancelled(client, message),
            Kind::Notification => FromClient::Forward { line: message.text().to_owned(), request: None },
            Kind::Success | Kind::Error => self.answer(client, message),
        }
    }

    fn request(&mut self, client: ClientId, message: &Message) -> FromClient {
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
        let number = self.reserve();
        let ours = number.to_string();
        let token = message.progress_token();
        let line = message.with_id_and(&ours, token.map(|token| (token, ours.as_str())));
        let pending = Pending {
            client,
            id: id.clone(),
            id_text: id_text.to_owned(),
            token_text: token.map(str::to_owned),
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
        let Some(number) = number else { return FromClient::Late };
        let line = message.with_id_and("", Some((text, &number.to_string())));
        FromClient::Forward { line, request: None }
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

    /// A message of the server. Where it may not be told whom it is for, it is for the client that asked last.
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

    /// Questions belong to the request that is being worked on, and only one can be named: the newest.
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
        let alone = self.only.map(|client| (Stream::General, client));
        let Some((stream, client)) = self.newest().or(alone) else {
            return FromServer::Back(error_line(
                id_text,
                -32_000,
                "no client waits for anything, so nobody is asked",
            ));
        };
        let number = self.reserve();
        self.asked.insert(number, Asked { client, id: id.clone(), id_text: id_text.to_owned() });
        self.asked_by_id.insert(id.clone(), number);
        let line = message.with_id(&number.to_string());
        FromServer::ToClient { client, stream, line, last: false }
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
        let stream = self.newest_of(asked.client).map_or(Stream::General, Stream::Request);
        FromServer::ToClient { client: asked.client, stream, line, last: false }
    }

    /// What is told during the only request in flight belongs to it. Else nobody can say, and all may know; but what may be
    /// about the request of one client is not told to another.
    fn told(&self, message: &Message) -> FromServer {
        if let Some(subscribed) = self.subscribed(message) {
            return subscribed;
        }
        let line = message.text().to_owned();
        let is_for_all = message.method().is_some_and(|method| {
            method.ends_with("/list_changed") || method == "notifications/resources/updated"
        });
        let newest = self.newest().filter(|_| !is_for_all);
        let Some((stream, client)) = newest else { return FromServer::ToAll(line) };
        if self.pending.len() == 1 {
            return FromServer::ToClient { client, stream, line, last: false };
        }
        if self.only.is_some() {
            return FromServer::ToAll(line);
        }
        if self.pending.values().all(|pending| pending.client == client) {
            return FromServer::ToClient { client, stream: Stream::General, line, last: false };
        }
        FromServer::Stray
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

    fn newest(&self) -> Option<(Stream, ClientId)> {
        self.pending.last_key_value().map(|(number, pending)| (Stream::Request(*number), pending.client))
    }

    fn newest_of(&self, client: ClientId) -> Option<u64> {
        self.pending.iter().rev().find(|(_, pending)| pending.client == client).map(|(number, _)| *number)
    }

    /// A client is gone: what it asked is cancelled, and what it was asked is answered for it. Returns lines for the
    /// server.
    pub fn leave(&mut self, client: ClientId) -> Vec<String> {
        let mut lines = Vec::new();
        self.pending.retain(|number, pending| {
            let stays = pending.client != client;
            if !stays {
                lines.push(format!(
                    r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"{REQUEST_ID}":{number},"reason":"the client is gone"}}}}"#
                ));
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

    /// The server is gone: everything that waits for it is answered. Returns lines for clients, on their streams.
    pub fn fail(&mut self, code: i32, why: &str) -> Vec<(ClientId, Stream, String)> {
        self.by_client.clear();
        self.asked.clear();
        self.asked_by_id.clear();
        let pending = std::mem::take(&mut self.pending).into_iter();
        pending
            .map(|(number, pending)| {
                (pending.client, Stream::Request(number), error_line(&pending.id_text, code, why))
            })
            .collect()
    }

    /// Gives up on one request: its answer, should it come, is a stray. Returns what its client is told, and what the
    /// server is.
    pub fn give_up(&mut self, number: u64, code: i32, why: &str) -> Option<(ClientId, String, String)> {
        let pending = self.pending.remove(&number)?;
        let answer = error_line(&pending.id_text, code, why);
        self.by_client.remove(&(pending.client, pending.id));
        let reason = serde_json::Value::from(why);
        let cancelled = format!(
            r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"{REQUEST_ID}":{number},"reason":{reason}}}}}"#
        );
        Some((pending.client, answer, cancelled))
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
