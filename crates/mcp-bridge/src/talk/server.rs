//! What a session does about its server process: brings it, waits for it, and answers in its place when it is gone.

use std::collections::VecDeque;

use super::{
    Effect, FAILED_STARTS_MAX, Gate, NotStarted, PostId, Posted, Refusal, SERVER_ERROR, Server, Stream, Talk,
    Waiting, tell,
};
use crate::envelope::{Kind, Message};
use crate::router::{ClientId, error_line};

/// The end of a stream, with what answers its request, if anybody waits for that.
fn last(client: ClientId, stream: Stream, line: Option<String>) -> Effect {
    match line {
        Some(line) => Effect::Send { client, stream, line, last: true },
        None => Effect::Finish { client, stream },
    }
}

/// Why a client of several is gone.
const DELETED: &str = "deleted";

impl Talk {
    /// Starts the server, if it may be started and is not.
    pub(super) fn bring(&mut self, effects: &mut Vec<Effect>) {
        if let (Server::Absent, Some(scope)) = (self.server, self.gate.scope()) {
            self.server = Server::Starting;
            effects.push(Effect::Start(scope.clone()));
        }
    }

    /// The server has answered the handshake.
    pub(super) fn answered(&mut self, message: &Message, effects: &mut Vec<Effect>) {
        if message.kind() == Kind::Error {
            effects.push(Effect::Stop);
            self.gone("the server refused the handshake that it had accepted before", false, effects);
            return;
        }
        self.shaken(message.result().unwrap_or_default(), effects);
    }

    /// The server is ready to work.
    pub(super) fn shaken(&mut self, answer: &str, effects: &mut Vec<Effect>) {
        self.server = Server::Ready;
        effects.push(Effect::Shaken(answer.to_owned()));
        if let Some(initialized) = &self.initialized {
            effects.push(Effect::Write(initialized.text().to_owned()));
        }
        self.subscribe_again(effects);
        for waiting in std::mem::take(&mut self.waiting) {
            self.forward(&waiting, effects);
        }
    }

    pub(super) fn gone(&mut self, why: &str, restart: bool, effects: &mut Vec<Effect>) {
        if matches!(self.server, Server::Absent | Server::Lost) {
            return;
        }
        let was_up = self.server == Server::Ready;
        self.failed_starts += 1;
        self.fail(why, effects);
        if restart && self.failed_starts < FAILED_STARTS_MAX {
            self.server = Server::Absent;
            // Whoever waits for it gets it; what it was working on may have been done, and is not done twice.
            if !self.waiting.is_empty() || was_up {
                self.bring(effects);
            }
            return;
        }
        self.server = Server::Lost;
        why.clone_into(&mut self.lost);
        for waiting in std::mem::take(&mut self.waiting) {
            self.refuse_lost(&waiting, effects);
        }
    }

    /// The server was started and said nothing: it counts as one that cannot stay up.
    pub(super) fn unshaken(&mut self, why: &NotStarted, effects: &mut Vec<Effect>) {
        if matches!(self.server, Server::Starting | Server::Shaking) {
            self.failed_starts += 1;
            self.not_started(why, effects);
            if self.failed_starts >= FAILED_STARTS_MAX {
                self.server = Server::Lost;
                why.why.clone_into(&mut self.lost);
            }
        }
    }

    /// A server that was given up gets one more chance.
    pub(super) fn retry(&mut self) {
        if self.server == Server::Lost && !matches!(self.gate, Gate::Refused(_)) {
            self.server = Server::Absent;
            self.failed_starts = FAILED_STARTS_MAX - 1;
        }
    }

    /// What is asked to find out whether somebody is here, while the server is not.
    pub(super) fn pong(&mut self, post: PostId, client: ClientId, ping: &Message, effects: &mut Vec<Effect>) {
        let stream = Stream::Request(self.router.reserve());
        let id = ping.id_text().unwrap_or("null");
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        effects.push(Effect::Posted(post, Posted::Stream(stream)));
        effects.push(Effect::Send { client, stream, line, last: true });
    }

    /// What the server was working on is answered in its place.
    pub(super) fn fail(&mut self, why: &str, effects: &mut Vec<Effect>) {
        for (client, stream, line) in self.router.fail(SERVER_ERROR, why) {
            effects.push(last(client, stream, line));
        }
    }

    pub(super) fn not_started(&mut self, why: &NotStarted, effects: &mut Vec<Effect>) {
        if !matches!(self.server, Server::Starting | Server::Shaking) {
            return;
        }
        self.server = Server::Absent;
        for waiting in std::mem::take(&mut self.waiting) {
            tell(&waiting, Posted::NotStarted(why.clone()), effects);
        }
    }

    pub(super) fn refuse_scope(&mut self, code: String, message: String, effects: &mut Vec<Effect>) {
        if self.server == Server::Starting {
            self.server = Server::Absent;
            self.refuse(Refusal::Host { code, message }, effects);
        }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal, effects: &mut Vec<Effect>) {
        if !matches!(self.gate, Gate::Refused(_)) {
            self.gate = Gate::Refused(refusal);
            self.end(effects);
        }
    }

    pub(super) fn suspended(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.server, Server::Absent | Server::Lost) {
            return;
        }
        self.server = Server::Absent;
        self.fail("the host needed the room of this session's server: ask again", effects);
        if !self.waiting.is_empty() {
            self.bring(effects);
        }
    }

    pub(super) fn leave(&mut self, client: ClientId, effects: &mut Vec<Effect>) {
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.client == client);
        self.waiting = stay;
        for waiting in gone {
            tell(&waiting, Posted::Over(Refusal::Ended(DELETED.to_owned())), effects);
        }
        self.unsubscribe(client, effects);
        for line in self.router.leave(client) {
            effects.push(Effect::Write(line));
        }
    }

    pub(super) fn waited_too_long(&mut self, post: PostId, effects: &mut Vec<Effect>) {
        let found = self.waiting.iter().position(|waiting| waiting.post == post);
        if let Some(waiting) = found.and_then(|index| self.waiting.remove(index)) {
            let why = format!("it waited for as long as it may: {}", self.waits_for());
            tell(&waiting, Posted::NotStarted(NotStarted { why, retry_after: None }), effects);
        }
    }

    /// A request is answered in the server's place, which is told so where it may still work on it.
    pub(super) fn give_up(
        &mut self,
        number: u64,
        code: i32,
        why: &str,
        tell: bool,
        effects: &mut Vec<Effect>,
    ) {
        if let Some((client, answer, cancelled)) = self.router.give_up(number, code, why) {
            effects.push(last(client, Stream::Request(number), answer));
            if tell {
                effects.push(Effect::Write(cancelled));
            }
        }
    }

    /// A question is answered in the client's place.
    pub(super) fn expire(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let why = "the client did not answer for as long as it may";
        if let Some((client, stream, withdrawn, answer)) = self.router.expire(number, why) {
            effects.push(Effect::Send { client, stream, line: withdrawn, last: false });
            effects.push(Effect::Write(answer));
        }
    }

    /// A request to a server that is gone for good is answered in its place.
    pub(super) fn refuse_lost(&mut self, waiting: &Waiting, effects: &mut Vec<Effect>) {
        let Waiting { post, client, message, number } = waiting;
        let Some(id) = message.id_text().filter(|_| message.kind() == Kind::Request) else {
            effects.push(Effect::Posted(*post, Posted::Accepted));
            return;
        };
        let stream = Stream::Request(number.unwrap_or_else(|| self.router.reserve()));
        effects.push(Effect::Posted(*post, Posted::Stream(stream)));
        let line = error_line(id, SERVER_ERROR, &self.lost);
        effects.push(Effect::Send { client: *client, stream, line, last: true });
    }
}
