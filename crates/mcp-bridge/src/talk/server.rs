//! What a session does about its server process: brings it, waits for it, and answers in its place when it is gone.

use super::{
    Effect, FAILED_STARTS_MAX, Gate, NotStarted, PostId, Posted, Refusal, SERVER_ERROR, Server, Stream, Talk,
};
use crate::envelope::{Kind, Message};
use crate::router::{ClientId, error_line};

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
        for (post, client, message) in std::mem::take(&mut self.waiting) {
            self.forward(post, client, &message, effects);
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
        for (post, client, message) in std::mem::take(&mut self.waiting) {
            self.refuse_lost(post, client, &message, effects);
        }
    }

    /// What the server was working on is answered in its place.
    pub(super) fn fail(&mut self, why: &str, effects: &mut Vec<Effect>) {
        for (client, stream, line) in self.router.fail(SERVER_ERROR, why) {
            effects.push(Effect::Send { client, stream, line, last: true });
        }
    }

    pub(super) fn not_started(&mut self, why: &NotStarted, effects: &mut Vec<Effect>) {
        if !matches!(self.server, Server::Starting | Server::Shaking) {
            return;
        }
        self.server = Server::Absent;
        for (post, ..) in std::mem::take(&mut self.waiting) {
            effects.push(Effect::Posted(post, Posted::NotStarted(why.clone())));
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
        self.waiting.retain(|(_, of, _)| *of != client);
        for line in self.router.leave(client) {
            effects.push(Effect::Write(line));
        }
    }

    pub(super) fn waited_too_long(&mut self, post: PostId, effects: &mut Vec<Effect>) {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, ..)| *waiting != post);
        if self.waiting.len() < before {
            let why = format!("it waited for as long as it may: {}", self.waits_for());
            let not_started = NotStarted { why, retry_after: None };
            effects.push(Effect::Posted(post, Posted::NotStarted(not_started)));
        }
    }

    pub(super) fn give_up(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let why = "the server took too long to answer";
        if let Some((client, answer, cancelled)) = self.router.give_up(number, -32_001, why) {
            let stream = Stream::Request(number);
            effects.push(Effect::Send { client, stream, line: answer, last: true });
            effects.push(Effect::Write(cancelled));
        }
    }

    /// A request to a server that is gone for good is answered in its place.
    pub(super) fn refuse_lost(
        &mut self,
        post: PostId,
        client: ClientId,
        message: &Message,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = message.id_text().filter(|_| message.kind() == Kind::Request) else {
            effects.push(Effect::Posted(post, Posted::Accepted));
            return;
        };
        let stream = Stream::Request(self.router.reserve());
        effects.push(Effect::Posted(post, Posted::Stream(stream)));
        effects.push(Effect::Send {
            client,
            stream,
            line: error_line(id, SERVER_ERROR, &self.lost),
            last: true,
        });
    }
}
