//! Which resources the clients of a server have subscribed to: a server that begins again does not know it, and one that is told
//! by one of several clients tells them all, until the last of them has enough.

use std::collections::{BTreeMap, BTreeSet};

use super::levels::{self, Heard, Levels};
use super::{Effect, Message, Posted, SERVER_ERROR, Server, Stream, Talk, Waiting};
use crate::envelope::Kind;
use crate::id::MessageId;
use crate::router::{ClientId, error_line};

/// The most resources of one server that are remembered.
const RESOURCES_MAX: usize = 1_024;
/// The most of one of several clients.
const RESOURCES_EACH: usize = RESOURCES_MAX / 4;
const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// Who hears of what, and what the session itself has asked for that.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By the URI, as JSON.
    by_uri: BTreeMap<String, BTreeSet<ClientId>>,
    levels: Levels,
    /// Numbers of requests of our own: their answers are for nobody.
    own: BTreeSet<u64>,
}

impl Subscriptions {
    /// A client has asked this.
    pub(super) fn heard(&mut self, client: ClientId, message: &Message) {
        let Some(uri) = message.param("uri") else { return };
        match message.method() {
            Some(SUBSCRIBE) if self.by_uri.len() < RESOURCES_MAX => {
                self.by_uri.entry(uri.to_owned()).or_default().insert(client);
            }
            Some(UNSUBSCRIBE) => {
                if let Some(clients) = self.by_uri.get_mut(uri) {
                    clients.remove(&client);
                }
                self.by_uri.retain(|_, clients| !clients.is_empty());
            }
            Some(_) | None => {}
        }
    }

    /// There is no room for one more: what is not remembered would never be told.
    fn is_full(&self, client: ClientId, uri: &str) -> bool {
        let own = || self.by_uri.values().filter(|clients| clients.contains(&client)).count();
        match self.by_uri.get(uri) {
            Some(clients) => !clients.contains(&client) && own() >= RESOURCES_EACH,
            None => self.by_uri.len() >= RESOURCES_MAX || own() >= RESOURCES_EACH,
        }
    }

    /// Others than this client hear of it.
    fn is_others(&self, client: ClientId, uri: &str) -> bool {
        self.by_uri.get(uri).is_some_and(|clients| clients.iter().any(|of| *of != client))
    }

    /// Who hears of a resource that has changed; `None` where the message tells of none.
    fn of(&self, message: &Message) -> Option<Vec<ClientId>> {
        if message.method() != Some("notifications/resources/updated") {
            return None;
        }
        let clients = message.param("uri").and_then(|uri| self.by_uri.get(uri));
        Some(clients.into_iter().flatten().copied().collect())
    }

    /// True for the answer to a request of our own, once.
    pub(super) fn answered(&mut self, message: &Message) -> bool {
        let Some(MessageId::Integer(number)) = message.id() else { return false };
        u64::try_from(*number).is_ok_and(|number| self.own.remove(&number))
    }
}

impl Talk {
    /// Answers what one of several clients asks of their server and what would be done to the others as well. False where the
    /// server answers it.
    pub(super) fn answer_here(&mut self, waiting: &Waiting, effects: &mut Vec<Effect>) -> bool {
        let Waiting { client, message, .. } = waiting;
        let Some(id) = message.id_text().filter(|_| message.kind() == Kind::Request) else { return false };
        let uri = message.param("uri").unwrap_or_default();
        let mut answer = Ok(());
        match message.method() {
            Some(SUBSCRIBE) if self.is_shared() && self.subscriptions.is_full(*client, uri) => {
                answer = Err("as many resources as may be are subscribed to: unsubscribe from some");
            }
            Some(UNSUBSCRIBE) if self.is_shared() && self.subscriptions.is_others(*client, uri) => {
                self.subscriptions.heard(*client, message);
            }
            Some(levels::SET) => match self.subscriptions.levels.set(*client, message) {
                Heard::Forward => return false,
                Heard::Answer(level) => {
                    let line = level.map(|level| self.say_level(level));
                    effects.extend(line.map(Effect::Write));
                }
            },
            Some(_) | None => return false,
        }
        let line = match answer {
            Ok(()) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
            Err(why) => error_line(id, SERVER_ERROR, why),
        };
        let stream = Stream::Request(waiting.number.unwrap_or_else(|| self.router.reserve()));
        effects.push(Effect::Posted(waiting.post, Posted::Stream(stream)));
        effects.push(Effect::Send { client: *client, stream, line, last: true });
        true
    }

    /// Tells those who subscribed to it that a resource has changed. False for any other message.
    pub(super) fn updated(&self, message: &Message, effects: &mut Vec<Effect>) -> bool {
        let Some(clients) = self.subscriptions.of(message).filter(|_| self.is_shared()) else { return false };
        effects.extend(clients.into_iter().map(|client| Effect::Send {
            client,
            stream: Stream::General,
            line: message.text().to_owned(),
            last: false,
        }));
        true
    }

    /// A server that begins is told what its clients want to hear of.
    pub(super) fn subscribe_again(&mut self, effects: &mut Vec<Effect>) {
        self.subscriptions.own.clear();
        let level = self.subscriptions.levels.told().map(|level| self.say_level(level));
        effects.extend(level.map(Effect::Write));
        let all: Vec<String> = self.subscriptions.by_uri.keys().cloned().collect();
        for uri in all {
            effects.push(Effect::Write(self.say_of(SUBSCRIBE, &uri)));
        }
    }

    /// What only this client wanted to hear of, nobody hears of any more.
    pub(super) fn unsubscribe(&mut self, client: ClientId, effects: &mut Vec<Effect>) {
        let mut unheard = Vec::new();
        self.subscriptions.by_uri.retain(|uri, clients| {
            if clients.remove(&client) && clients.is_empty() {
                unheard.push(uri.clone());
            }
            !clients.is_empty()
        });
        let level = self.subscriptions.levels.leave(client);
        if self.server != Server::Ready {
            return;
        }
        let level = level.map(|level| self.say_level(level));
        effects.extend(level.map(Effect::Write));
        for uri in unheard {
            effects.push(Effect::Write(self.say_of(UNSUBSCRIBE, &uri)));
        }
    }

    fn say_of(&mut self, method: &str, uri: &str) -> String {
        self.say(method, &format!(r#"{{"uri":{uri}}}"#))
    }

    /// A request of our own.
    pub(super) fn say(&mut self, method: &str, params: &str) -> String {
        let number = self.router.reserve();
        self.subscriptions.own.insert(number);
        format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}"#)
    }
}
