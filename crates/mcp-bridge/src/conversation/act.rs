//! What follows from what happened: who is told what, on which stream, and what the server is told.

use bytes::Bytes;
use tokio::time::Instant;

use super::{Call, Conversation, End, Reply, Waiting};
use crate::gate::Refusal;
use crate::host::{Ending, Stray};
use crate::router::{ClientId, Stream};
use crate::talk::{Effect, Input, PostId, Posted};

impl Conversation {
    /// What happened, and everything that follows from it.
    pub(super) async fn on(&mut self, input: Input) {
        for effect in self.setup.talk.on(input) {
            match effect {
                Effect::Posted(post, posted) => self.settle(post, posted),
                Effect::Begin(post, number) => self.begin(post, Stream::Request(number)),
                Effect::Send { client, stream, line, last } => {
                    let _is_sent = self.send(client, stream, line, last);
                }
                Effect::Finish { client, stream } => self.finish(client, stream),
                Effect::Ask { client, stream, line, number } => {
                    let until = Instant::now() + self.setup.settings.times.call;
                    self.questions.ask(number, until, |number| self.setup.talk.is_asked(number));
                    self.ask(client, stream, line);
                }
                Effect::SendAll(line) => {
                    let line = Bytes::from(line);
                    for board in self.boards.values() {
                        board.send(Stream::General, line.clone(), false);
                    }
                }
                Effect::Write(line) => self.process.push(line),
                Effect::Stray => self.note(Stray::Unasked),
                Effect::Shaken(answer) => self.shaken(answer),
                Effect::AwaitRoots => self.roots_since = Some(Instant::now()),
                // The call is entered when it is known who waits for it.
                Effect::AwaitCall(_) => {}
                Effect::AwaitCancelled(number) => {
                    let until = Instant::now() + self.setup.settings.times.cancelled;
                    if let Some(call) = self.calls.get_mut(&number) {
                        call.cancelled.get_or_insert(until);
                    }
                }
                Effect::Start(scope) => {
                    self.locked = true;
                    self.roots_since = None;
                    self.wanted = Some(scope);
                    self.start();
                }
                Effect::Stop => {
                    self.wanted = None;
                    self.answer = None;
                    self.handshake_until = None;
                    self.up_since = None;
                    self.questions.clear();
                    self.process.stop();
                }
                Effect::End(refusal) => self.over(refusal).await,
            }
        }
        self.answer_asking();
        self.dismiss_listeners();
        self.await_retry(Instant::now());
        self.be_woken();
    }

    async fn over(&mut self, refusal: Refusal) {
        if refusal == Refusal::Changed || self.locked {
            let ending = Ending::named(refusal.code());
            self.setup.host_end(&ending).await;
            self.ending = Some(ending);
        }
        self.end = Some(End::Over(refusal));
    }

    /// Tells who posted a message what became of it.
    fn settle(&mut self, post: PostId, posted: Posted) {
        let Some(Waiting { reply, client, listens, bytes, .. }) = self.waiting.remove(&post) else { return };
        // Its line, if it was passed on, is among what is to be written already.
        if let Some(bytes) = bytes {
            self.process.keep(bytes);
        }
        let reply_with = match posted {
            Posted::Stream(Stream::Request(number)) => {
                let began = Instant::now();
                let call = Call { client, began, heard: began, told: None, cancelled: None, listens, reply };
                self.calls.insert(number, call);
                return;
            }
            Posted::Stream(Stream::General) | Posted::Accepted => Reply::Accepted,
            Posted::Refused(refused) => Reply::Refused(refused),
            Posted::Full => Reply::Full,
            Posted::NotStarted(why) => Reply::NotStarted(why),
            Posted::Over(refusal) => Reply::Over(refusal),
        };
        if let Some(reply) = reply {
            // Whoever does not wait any more does not want to know.
            drop(reply.send(reply_with));
        }
    }

    /// The stream of a message that waits begins. What was asked on the general one, and nobody has read, comes on it instead.
    fn begin(&mut self, post: PostId, stream: Stream) {
        let Some(waiting) = self.waiting.get_mut(&post) else { return };
        let Some(board) = self.boards.get(&waiting.client) else { return };
        board.take_back();
        board.open(stream);
        waiting.carries = Some((stream, Instant::now()));
        if let Some(reply) = waiting.reply.take() {
            drop(reply.send(Reply::Stream(stream)));
        }
    }

    /// False where nobody can read it: the stream never was one.
    fn send(&mut self, client: ClientId, stream: Stream, line: String, last: bool) -> bool {
        let board = self.boards.get(&client);
        let Stream::Request(number) = stream else {
            return board.is_some_and(|board| board.send(stream, line, last));
        };
        let mut is_sent = true;
        let reply = self.calls.get_mut(&number).and_then(|call| {
            call.heard = Instant::now();
            call.told = if self.tells { Some(call.heard) } else { call.told };
            call.reply.take()
        });
        match (reply, board) {
            (Some(reply), _) if last => drop(reply.send(Reply::Answer(line))),
            (reply, Some(board)) => {
                if let Some(reply) = reply {
                    board.open(stream);
                    drop(reply.send(Reply::Stream(stream)));
                }
                is_sent = board.send(stream, line, last);
            }
            (_, None) => is_sent = false,
        }
        if last && self.calls.remove(&number).is_some() {
            self.used = Instant::now();
        }
        is_sent
    }

    /// The stream of a request that nobody waits for ends as it is.
    pub(super) fn finish(&mut self, client: ClientId, stream: Stream) {
        let Stream::Request(number) = stream else { return };
        let Some(call) = self.calls.remove(&number) else { return };
        self.used = Instant::now();
        let Some(board) = self.boards.get(&client) else { return };
        if let Some(reply) = call.reply {
            board.open(stream);
            drop(reply.send(Reply::Stream(stream)));
        }
        board.finish(stream);
    }

    /// A question reaches the client where it reads: it may have hung up on the request that the question is for, and wait
    /// for the rest elsewhere.
    fn ask(&mut self, client: ClientId, stream: Stream, line: String) {
        let Some(board) = self.boards.get(&client) else { return };
        let is_there = match stream {
            Stream::Request(number) => {
                let is_awaited = self.calls.get(&number).and_then(|call| call.reply.as_ref());
                let is_awaited = is_awaited.is_some_and(|reply| !reply.is_closed());
                is_awaited || board.is_open(stream) || !board.has_general()
            }
            Stream::General => true,
        };
        self.send(client, if is_there { stream } else { Stream::General }, line, false);
    }
}
