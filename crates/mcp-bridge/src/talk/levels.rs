//! How much of its log a server tells: each client says it for itself, and a process that several share tells what one of them
//! wants.

use std::collections::BTreeMap;

use super::{Message, Talk};
use crate::level::{LEVELS, rank};
use crate::router::ClientId;

/// How a client says it.
pub(super) const SET: &str = "logging/setLevel";

/// What each client has asked for.
#[derive(Debug, Default)]
pub(super) struct Levels(BTreeMap<ClientId, usize>);

impl Levels {
    /// A client has asked this. Where another wants as much, the server need not be told by this client; what it is to be told
    /// instead comes with that, if it is something else than before.
    pub(super) fn set(&mut self, client: ClientId, message: &Message) -> Heard {
        let Some(level) = message.param("level").and_then(rank) else { return Heard::Forward };
        let before = self.lowest();
        self.0.insert(client, level);
        let others = self.0.iter().filter(|(of, _)| **of != client).map(|(_, level)| *level).min();
        match others {
            Some(others) if others <= level => Heard::Answer(self.changed(before)),
            Some(_) | None => Heard::Forward,
        }
    }

    /// A client is gone. What the server is told because of that, if anything.
    pub(super) fn leave(&mut self, client: ClientId) -> Option<&'static str> {
        let before = self.lowest();
        self.0.remove(&client);
        self.changed(before)
    }

    /// What a server that begins again is told, as JSON.
    pub(super) fn told(&self) -> Option<&'static str> {
        LEVELS.get(self.lowest()?).copied()
    }

    fn lowest(&self) -> Option<usize> {
        self.0.values().min().copied()
    }

    fn changed(&self, before: Option<usize>) -> Option<&'static str> {
        if self.lowest() == before { None } else { self.told() }
    }
}

/// What becomes of what a client asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The server answers it.
    Forward,
    /// It is answered here, and the server is told this level, if any.
    Answer(Option<&'static str>),
}

impl Talk {
    /// The server is told this level.
    pub(super) fn say_level(&mut self, level: &str) -> String {
        self.say(SET, &format!(r#"{{"level":{level}}}"#))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_who_wants_most_is_served() {
        let set = |level: &str| {
            let text = r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"#;
            Message::parse(format!("{text}{level}}}}}").into_bytes()).unwrap()
        };
        let mut levels = Levels::default();
        let (ada, bob) = (ClientId(1), ClientId(2));
        assert_eq!(levels.set(ada, &set("\"info\"")), Heard::Forward);
        assert_eq!(levels.set(bob, &set("\"error\"")), Heard::Answer(None));
        assert_eq!(levels.set(bob, &set("\"debug\"")), Heard::Forward);
        assert_eq!(levels.set(bob, &set("\"error\"")), Heard::Answer(Some("\"info\"")));
        assert_eq!(levels.set(bob, &set("\"loud\"")), Heard::Forward, "the server says that there is none");
        assert_eq!(levels.leave(ada), Some("\"error\""));
        assert_eq!((levels.told(), levels.leave(bob), levels.told()), (Some("\"error\""), None, None));
    }
}
