//! Which resources the clients of a server have subscribed to: a server that begins again does not know it, and one that is told
//! by one of several clients tells them all.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Message, Server, Stream, Talk};
use crate::id::MessageId;
use crate::router::ClientId;

/// The most resources of one server that are remembered.
const RESOURCES_MAX: usize = 1_024;

/// Who hears of what, and what the session itself has asked for that.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By the URI, as JSON.
    by_uri: BTreeMap<String, BTreeSet<ClientId>>,
    /// Numbers of requests of our own: their answers are for nobody.
    own: BTreeSet<u64>,
}

impl Subscriptions {
    /// A client has asked this.
    pub(super) fn heard(&mut self, client: ClientId, message: &Message) {
        let Some(uri) = message.param("uri") else { return };
        match message.method() {
            Some("resources/subscribe") if self.by_uri.len() < RESOURCES_MAX => {
                self.by_uri.entry(uri.to_owned()).or_default().insert(client);
            }
            Some("resources/unsubscribe") => {
                if let Some(clients) = self.by_uri.get_mut(uri) {
                    clients.remove(&client);
                }
                self.by_uri.retain(|_, clients| !clients.is_empty());
            }
            Some(_) | None => {}
        }
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
        let all: Vec<String> = self.subscriptions.by_uri.keys().cloned().collect();
        for uri in all {
            self.say_of(&uri, "resources/subscribe", effects);
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
        if self.server != Server::Ready {
            return;
        }
        for uri in unheard {
            self.say_of(&uri, "resources/unsubscribe", effects);
        }
    }

    fn say_of(&mut self, uri: &str, method: &str, effects: &mut Vec<Effect>) {
        let number = self.router.reserve();
        self.subscriptions.own.insert(number);
        effects.push(Effect::Write(format!(
            r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{{"uri":{uri}}}}}"#
        )));
    }
}
