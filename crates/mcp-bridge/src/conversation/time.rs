//! What a session does as time passes, and how its task comes to its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Call, Control, Conversation, End, Reply, TICK, Waiting};
use crate::gate::Refusal;
use crate::process::Process;
use crate::router::{ClientId, Stream};
use crate::talk::{Input, PostId};

/// With nobody waiting, time is looked at no more often than this.
const PAUSE: Duration = Duration::from_secs(1);
/// And no less often where clients may have gone without a word.
const SWEEP: Duration = Duration::from_mins(1);

impl Conversation {
    /// While somebody waits, time is looked at.
    pub(super) fn be_woken(&mut self) {
        let now = Instant::now();
        let is_resting = !self.is_busy() && self.process.is_there() && !self.is_held();
        self.rest.set(is_resting.then_some(self.used));
        if self.is_busy() && self.alarm.deadline() > now + TICK {
            self.alarm.as_mut().reset(now + TICK);
        }
    }

    fn is_busy(&self) -> bool {
        let timed = self.roots_since.is_some() || self.handshake_until.is_some();
        let waits = !self.waiting.is_empty() || !self.asking.is_empty();
        timed || waits || self.calls.values().any(Call::is_timed)
    }

    /// Somebody listens for what the server says by itself.
    pub(super) fn is_held(&self) -> bool {
        let listens = self.calls.values().any(|call| !call.is_timed());
        listens || self.boards.values().any(|board| board.is_held())
    }

    /// Somebody else waits for the room of the server. It was free when it was asked for, and may be needed again by now.
    pub(super) async fn give_way(&mut self) {
        if !self.is_busy() && !self.is_held() {
            self.on(Input::Suspend).await;
        }
    }

    /// Looks at what has lasted for too long.
    pub(super) async fn look(&mut self) {
        let now = Instant::now();
        let limit = self.setup.settings.times.roots;
        if self.roots_since.take_if(|since| now - *since >= limit).is_some() {
            self.on(Input::RootsTimedOut).await;
        }
        if self.handshake_until.take_if(|until| *until <= now).is_some() {
            self.unshaken().await;
        }
        if self.retry_at.take_if(|at| *at <= now).is_some() {
            self.on(Input::Retry).await;
        }
        let call = self.setup.settings.times.call;
        // Who tells how far it is may do one thing at a time: what it does not read meanwhile is given up alone. Nobody's call
        // keeps the calls of others waiting for so long.
        let tells = |of: &Call| !of.listens && of.told.is_some_and(|told| now - told < call);
        if !self.is_mixed && self.calls.values().any(tells) {
            self.process.excuse(now);
        } else {
            self.process.look(now, call);
        }
        self.look_at_roots(now).await;
        self.look_at_waiting(now).await;
        self.look_at_calls(now).await;
        self.look_at_questions(now).await;
        self.look_at_clients().await;
        self.look_at_idleness(now).await;
        let next = self.next_look(now);
        self.alarm.as_mut().reset(next);
    }

    /// A client that was asked for its roots, and reads nothing but what it asked, is asked there; and where that is not read
    /// any more, at the next request that waits.
    async fn look_at_roots(&mut self, now: Instant) {
        let Some(since) = self.roots_since else { return };
        let patience = self.setup.settings.times.patience;
        let reads = |stream: Stream| self.boards.values().any(|board| board.is_read(stream));
        let is_carried = |waiting: &Waiting| {
            // Whoever is told that its stream has begun reads it a moment later.
            waiting.carries.is_some_and(|(stream, begun)| reads(stream) || now - begun < patience)
        };
        if now - since < patience || reads(Stream::General) || self.waiting.values().any(is_carried) {
            return;
        }
        let may_carry = |waiting: &Waiting| waiting.is_request && waiting.reply.is_some();
        let first = self.waiting.iter().find(|(_, waiting)| may_carry(waiting)).map(|(post, _)| *post);
        if let Some(post) = first {
            self.on(Input::Carry(post)).await;
        }
    }

    async fn look_at_questions(&mut self, now: Instant) {
        for number in self.questions.late(now, |number| self.setup.talk.is_asked(number)) {
            self.on(Input::QuestionTimedOut(number)).await;
        }
    }

    async fn look_at_waiting(&mut self, now: Instant) {
        let limit = self.setup.settings.times.wait;
        let late: Vec<(PostId, bool)> = self
            .waiting
            .iter()
            .map(|(post, waiting)| {
                let nobody = waiting.reply.as_ref().is_some_and(oneshot::Sender::is_closed);
                (*post, nobody, now - waiting.since >= limit)
            })
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
        let is_late = |call: &Call| now - call.heard >= times.call || now - call.began >= times.whole_call;
        let is_over = |call: &Call| call.cancelled.is_some_and(|until| until <= now);
        let is_read = |number: u64, call: &Call| {
            let board = self.boards.get(&call.client);
            board.is_some_and(|board| board.is_read(Stream::Request(number)))
        };
        let over = self.calls.iter().filter(|(number, call)| {
            let may_be_quiet = !call.is_timed() && is_read(**number, call);
            (is_late(call) && !may_be_quiet) || is_over(call)
        });
        let over: Vec<(u64, bool)> = over.map(|(number, call)| (*number, is_over(call))).collect();
        for (number, is_cancelled) in over {
            let input = if is_cancelled { Input::CallCancelled } else { Input::CallTimedOut };
            self.on(input(number)).await;
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
            self.leave(client).await;
        }
    }

    async fn look_at_idleness(&mut self, now: Instant) {
        if self.is_busy() || self.end.is_some() {
            return;
        }
        let is_read = self.boards.values().any(|board| board.reading() > 0);
        // What a server says to nobody keeps nothing up.
        let used = if is_read { self.used.max(self.heard) } else { self.used };
        let (times, quiet) = (self.setup.settings.times, now - used);
        if quiet >= times.away() {
            self.boards.values().for_each(|board| board.forget_ended());
        }
        if self.process.is_there() {
            if quiet >= times.idle && !self.is_held() {
                self.on(Input::Suspend).await;
            }
        } else if !self.locked && quiet >= times.opening {
            self.end = Some(End::Unopened);
        } else if self.locked
            && quiet >= times.away() + times.forget
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
            (false, true) => times.away() + times.forget,
            (false, false) => times.opening,
        };
        let question = self.questions.next().unwrap_or(now + SWEEP);
        (self.used + limit).min(now + SWEEP).max(now + PAUSE).min(question.max(now + TICK))
    }

    /// Tells everybody who waits, ends the process and waits for its end.
    pub(crate) async fn close(mut self, end: &End) {
        let is_opening = matches!(self.process, Process::Opening { .. });
        self.process.stop();
        let reply = || match end {
            End::Over(refusal) => Reply::Over(refusal.clone()),
            // Its client begins anew.
            End::Unopened => Reply::Over(Refusal::Ended("unopened".to_owned())),
            End::Forgotten | End::Drained => Reply::Draining,
        };
        let cancelled = self.calls.iter().filter(|(_, call)| call.cancelled.is_some());
        for (client, number) in cancelled.map(|(number, call)| (call.client, *number)).collect::<Vec<_>>() {
            self.finish(client, Stream::Request(number));
        }
        let waiting = std::mem::take(&mut self.waiting).into_values().filter_map(|waiting| waiting.reply);
        let calls = std::mem::take(&mut self.calls).into_values().filter_map(|call| call.reply);
        for waiting in waiting.chain(calls) {
            drop(waiting.send(reply()));
        }
        // Whoever asks how the server answers asks again.
        self.asking.clear();
        // Both are closed: what is left in them was sent before.
        while let Ok(letter) = self.letters.try_recv() {
            drop(letter.reply.send(match end {
                End::Forgotten => Reply::Again(letter.parcel),
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
        // It may have been recorded after it was ended.
        if let Some(ending) = self.ending.take_if(|_| is_opening) {
            self.setup.host_end(&ending).await;
        }
    }
}
