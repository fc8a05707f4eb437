//! What a session does as time passes, and how its task comes to its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Control, Conversation, End, NotStarted, Reply, TICK};
use crate::router::{ClientId, Stream};
use crate::talk::{Input, PostId};

/// With nobody waiting, time is looked at no more often than this.
const PAUSE: Duration = Duration::from_secs(1);
/// And no less often where clients may have gone without a word.
const SWEEP: Duration = Duration::from_mins(1);

impl Conversation {
    /// While somebody waits, time is looked at.
    pub(super) fn be_woken(&mut self) {
        let soon = Instant::now() + TICK;
        if self.is_busy() && self.alarm.deadline() > soon {
            self.alarm.as_mut().reset(soon);
        }
    }

    fn is_busy(&self) -> bool {
        let timed = self.roots_until.is_some() || self.handshake_until.is_some();
        timed || !self.calls.is_empty() || !self.waiting.is_empty()
    }

    /// Looks at what has lasted for too long.
    pub(super) async fn look(&mut self) {
        let now = Instant::now();
        if self.roots_until.take_if(|until| *until <= now).is_some() {
            self.on(Input::RootsTimedOut).await;
        }
        if self.handshake_until.take_if(|until| *until <= now).is_some() {
            self.process.stop();
            let why = "the server did not answer the handshake in time".to_owned();
            let not_started = NotStarted { why, retry_after: None };
            self.answer_asking(&Err(not_started.clone()));
            self.on(Input::NotStarted(not_started)).await;
        }
        self.look_at_waiting(now).await;
        self.look_at_calls(now).await;
        self.look_at_clients().await;
        self.look_at_idleness(now).await;
        let next = self.next_look(now);
        self.alarm.as_mut().reset(next);
    }

    async fn look_at_waiting(&mut self, now: Instant) {
        let limit = self.setup.settings.times.wait;
        let late: Vec<(PostId, bool)> = self
            .waiting
            .iter()
            .map(|(post, waiting)| (*post, waiting.reply.is_closed(), now - waiting.since >= limit))
            .filter(|(_, nobody, late)| *nobody || *late)
            .map(|(post, nobody, _)| (post, nobody))
            .collect();
        for (post, nobody) in late {
            if nobody {
                self.waiting.remove(&post);
                self.on(Input::Forget(post)).await;
            } else {
                self.on(Input::WaitedTooLong(post)).await;
            }
        }
    }

    async fn look_at_calls(&mut self, now: Instant) {
        let times = self.setup.settings.times;
        for (number, call) in &mut self.calls {
            let is_long = now - call.began >= times.patience;
            let Some(reply) = call.reply.take_if(|reply| is_long || reply.is_closed()) else { continue };
            // Where nobody waits any more there is no stream, and what is sent on it is dropped.
            if let Some(board) = self.boards.get(&call.client).filter(|_| !reply.is_closed()) {
                let stream = Stream::Request(*number);
                board.open(stream);
                drop(reply.send(Reply::Stream(stream)));
            }
        }
        let late = self.calls.iter().filter(|(_, call)| now - call.heard >= times.call);
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.on(Input::CallTimedOut(number)).await;
            self.calls.remove(&number);
        }
    }

    /// Clients whose board nobody else holds are gone.
    async fn look_at_clients(&mut self) {
        if !self.setup.talk.is_shared() {
            return;
        }
        let gone = self.boards.iter().filter(|(_, board)| Arc::strong_count(board) == 1);
        for client in gone.map(|(client, _)| *client).collect::<Vec<ClientId>>() {
            self.boards.remove(&client);
            self.on(Input::Leave(client)).await;
        }
    }

    async fn look_at_idleness(&mut self, now: Instant) {
        let (times, quiet) = (self.setup.settings.times, now - self.used);
        if self.is_busy() || self.end.is_some() {
            return;
        }
        let is_read = self.boards.values().any(|board| board.reading() > 0);
        if self.process.is_there() {
            if quiet >= times.idle {
                self.on(Input::Suspend).await;
            }
        } else if !self.locked && quiet >= times.opening {
            self.end = Some(End::Unopened);
        } else if self.locked
            && quiet >= times.idle + times.forget
            && !is_read
            && !self.has_clients_elsewhere()
        {
            self.end = Some(End::Forgotten);
        }
    }

    /// Clients that are known to this task alone are not forgotten.
    fn has_clients_elsewhere(&self) -> bool {
        self.setup.talk.is_shared() && !self.boards.is_empty()
    }

    fn next_look(&self, now: Instant) -> Instant {
        if self.is_busy() {
            return now + TICK;
        }
        let times = self.setup.settings.times;
        let limit = match (self.process.is_there(), self.locked) {
            (true, _) => times.idle,
            (false, true) => times.idle + times.forget,
            (false, false) => times.opening,
        };
        (self.used + limit).min(now + SWEEP).max(now + PAUSE)
    }

    /// Tells everybody who waits, ends the process and waits for its end.
    pub(crate) async fn close(mut self, end: &End) {
        self.process.stop();
        let reply = || match end {
            End::Over(refusal) => Reply::Over(refusal.clone()),
            End::Forgotten | End::Unopened | End::Drained => Reply::Draining,
        };
        let waiting = std::mem::take(&mut self.waiting).into_values().map(|waiting| waiting.reply);
        let calls = std::mem::take(&mut self.calls).into_values().filter_map(|call| call.reply);
        for waiting in waiting.chain(calls) {
            drop(waiting.send(reply()));
        }
        let why = "the session's task has ended".to_owned();
        self.answer_asking(&Err(NotStarted { why, retry_after: Some(PAUSE) }));
        // Both are closed: what is left in them was sent before.
        while let Ok(letter) = self.letters.try_recv() {
            drop(letter.reply.send(match end {
                End::Forgotten => Reply::Again(letter.message),
                End::Over(_) | End::Unopened | End::Drained => reply(),
            }));
        }
        while let Ok(control) = self.control.try_recv() {
            if let Control::End(ending, done) = control {
                self.setup.host_end(&ending).await;
                let _told = done.send(());
            }
        }
        for board in self.boards.values() {
            board.close();
        }
        let max = self.setup.settings.caps.message;
        while self.process.is_there() {
            let _news = self.process.next(max).await;
        }
    }
}
