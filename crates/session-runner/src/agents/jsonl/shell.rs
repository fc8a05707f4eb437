//! Holds a turn over the agent's stdio: reads lines, asks the desk, writes answers, keeps the time.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::AsyncRead;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pen::Pen;
use super::protocol::{Closing, Heard, Protocol};
use crate::agents::asking::Answer;
use crate::agents::bounds::Bounds;
use crate::agents::desk::{Desk, Dialogue, Wire};
use crate::agents::ending::TurnEnd;
use crate::agents::entry;
use crate::agents::lines::{LINE_MAX, Line, Lines};
use crate::agents::questions::Questions;
use crate::agents::said::Said;

/// A turn with an agent that prints one JSON object a line.
pub(in crate::agents) struct JsonLines {
    protocol: Box<dyn Protocol>,
    bounds: Bounds,
}

impl JsonLines {
    pub(in crate::agents) fn boxed(protocol: impl Protocol + 'static, bounds: Bounds) -> Box<dyn Dialogue> {
        Box::new(Self { protocol: Box::new(protocol), bounds })
    }
}

#[async_trait]
impl Dialogue for JsonLines {
    async fn hold(self: Box<Self>, wire: Wire, desk: Arc<dyn Desk>, cancel: CancellationToken) -> TurnEnd {
        let now = Instant::now();
        let talk = Talk {
            protocol: self.protocol,
            bounds: self.bounds,
            lines: Lines::new(wire.from_agent, LINE_MAX),
            pen: Pen::new(wire.to_agent),
            questions: Questions::new(Arc::clone(&desk)),
            desk,
            heard: VecDeque::new(),
            telling: None,
            clock: Clock { began: now, heard: None, untold: None, interrupted: None, over: None },
            given_up: None,
        };
        talk.hold(&cancel).await
    }
}

/// What is told to the desk, and not taken yet.
type Telling = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One turn, being held.
struct Talk {
    protocol: Box<dyn Protocol>,
    bounds: Bounds,
    lines: Lines<Box<dyn AsyncRead + Send + Unpin>>,
    pen: Pen,
    questions: Questions,
    desk: Arc<dyn Desk>,
    /// What was heard and not done yet.
    heard: VecDeque<Heard>,
    telling: Option<Telling>,
    clock: Clock,
    /// Why we no longer wait for the agent's own end.
    given_up: Option<GivenUp>,
}

/// When what happened.
struct Clock {
    began: Instant,
    heard: Option<Instant>,
    untold: Option<Untold>,
    interrupted: Option<Instant>,
    over: Option<Instant>,
}

/// What the agent has said and the protocol holds back, for what may belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Untold {
    amount: usize,
    /// When the first of it came, and the last.
    first: Instant,
    last: Instant,
}

/// Why a turn is ended by us.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GivenUp {
    /// Somebody wants it to end.
    Cancelled,
    /// A bound was passed, or the stream broke: what is said of it.
    Because(String),
}

/// Whether the turn goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    End,
}

impl Talk {
    async fn hold(mut self, cancel: &CancellationToken) -> TurnEnd {
        let opening = self.protocol.open();
        self.pen.write(opening.text);
        if !opening.stays_open {
            self.pen.close();
        }
        while self.turn(cancel).await == Next::Go {}
        self.end().await
    }

    /// The next thing that happens.
    async fn turn(&mut self, cancel: &CancellationToken) -> Next {
        let due = self.clock.due(&self.bounds, self.questions.is_empty() && self.telling.is_none());
        let at = due.as_ref().map(|(at, _)| *at);
        let tells = self.clock.untold.map(|untold| untold.due(&self.bounds));
        tokio::select! {
            biased;
            () = cancel.cancelled(), if self.given_up.is_none() && self.clock.over.is_none() => {
                self.interrupt(GivenUp::Cancelled)
            }
            () = until(at), if at.is_some() => match due {
                Some((_, Some(why))) => self.interrupt(GivenUp::Because(why)),
                Some((_, None)) | None => Next::End,
            },
            (question, answer) = self.questions.answered() => {
                self.answer(&question, answer);
                Next::Go
            }
            () = self.pen.step(), if self.pen.is_busy() => Next::Go,
            () = taken(&mut self.telling), if self.telling.is_some() => {
                self.telling = None;
                self.proceed()
            }
            () = until(tells), if tells.is_some() && self.telling.is_none() => {
                self.clock.untold = None;
                self.heard.extend(self.protocol.tell().into_iter().map(Heard::Said));
                self.proceed()
            }
            line = self.lines.next(), if self.telling.is_none() => self.heard(line),
        }
    }

    fn heard(&mut self, line: io::Result<Option<Line>>) -> Next {
        let heard = match line {
            Ok(Some(Line::Text(line))) => {
                self.clock.heard = Some(Instant::now());
                if line.trim().is_empty() { Vec::new() } else { self.protocol.hear(&line) }
            }
            Ok(Some(Line::TooLong(bytes))) => {
                self.clock.heard = Some(Instant::now());
                let message =
                    format!("it printed a line of {bytes} bytes, {LINE_MAX} are read; the line was skipped");
                vec![Heard::Said(entry::complaint(&message))]
            }
            Ok(None) => return Next::End,
            Err(error) => {
                let why = format!("its output cannot be read: {error}");
                self.given_up.get_or_insert(GivenUp::Because(why));
                return Next::End;
            }
        };
        self.heard.extend(heard);
        self.clock.untold = Untold::now(self.clock.untold, self.protocol.untold(), Instant::now());
        self.proceed()
    }

    /// Does what was heard, in order: a question comes to the desk after what was said before it.
    fn proceed(&mut self) -> Next {
        while self.telling.is_none() {
            match self.heard.pop_front() {
                Some(Heard::Said(words)) => self.tell(words),
                // The turn is to end: nobody is asked any more.
                Some(Heard::Asks(name, _)) if self.given_up.is_some() => {
                    self.answer(&name, Answer::Cancelled);
                }
                Some(Heard::Asks(name, ask)) => {
                    if let Err(answer) = self.questions.ask(name.clone(), ask) {
                        self.answer(&name, answer);
                    }
                }
                Some(Heard::Withdraws(name)) => self.questions.withdraw(&name),
                Some(Heard::Sends(line)) => self.pen.write_line(line),
                Some(Heard::Over) => {
                    self.clock.over.get_or_insert_with(Instant::now);
                    self.pen.close();
                }
                Some(Heard::Wrong) => return Next::End,
                None => break,
            }
        }
        Next::Go
    }

    /// Tells the desk this, and all that was said right after it.
    fn tell(&mut self, first: Said) {
        let mut said = vec![first];
        while let Some(Heard::Said(_)) = self.heard.front() {
            if let Some(Heard::Said(words)) = self.heard.pop_front() {
                said.push(words);
            }
        }
        let desk = Arc::clone(&self.desk);
        self.telling = Some(Box::pin(async move {
            for words in said {
                desk.said(words).await;
            }
        }));
    }

    fn answer(&mut self, question: &str, answer: Answer) {
        if let Some(line) = self.protocol.answer(question, answer) {
            self.pen.write_line(line);
        }
    }

    /// Makes the agent end its turn, and waits for that; at once where it has no way to.
    fn interrupt(&mut self, why: GivenUp) -> Next {
        self.given_up.get_or_insert(why);
        self.questions.withdraw_all();
        let lines = self.protocol.interrupt();
        if lines.is_empty() {
            return Next::End;
        }
        self.clock.interrupted = Some(Instant::now());
        for line in lines {
            self.pen.write_line(line);
        }
        Next::Go
    }

    /// What it came to. What was read is told before.
    async fn end(mut self) -> TurnEnd {
        if let Some(telling) = self.telling.take() {
            telling.await;
        }
        for heard in std::mem::take(&mut self.heard) {
            if let Heard::Said(words) = heard {
                self.desk.said(words).await;
            }
        }
        self.questions.close(self.bounds.settle).await;
        let Closing { said, end } = self.protocol.close();
        for words in said {
            self.desk.said(words).await;
        }
        judged(end, self.given_up)
    }
}

/// What a turn came to, between the agent's account and ours. An agent that completed its turn has completed it, whatever
/// we wanted by then.
fn judged(end: TurnEnd, given_up: Option<GivenUp>) -> TurnEnd {
    match (end, given_up) {
        (TurnEnd::Failed { .. } | TurnEnd::Cut { .. }, Some(GivenUp::Cancelled)) => TurnEnd::Cancelled,
        (TurnEnd::Failed { .. } | TurnEnd::Cut { .. }, Some(GivenUp::Because(message))) => {
            TurnEnd::Cut { message }
        }
        (end, _) => end,
    }
}

impl Clock {
    /// The next bound: when it is passed, and what is said of it; `None` for the last ones, which end the turn.
    fn due(&self, bounds: &Bounds, may_idle: bool) -> Option<(Instant, Option<String>)> {
        if let Some(over) = self.over {
            return Some((over + bounds.settle, None));
        }
        if let Some(interrupted) = self.interrupted {
            return Some((interrupted + bounds.interrupt, None));
        }
        let turn = bounds.turn.map(|turn| (self.began + turn, format!("its turn took longer than {turn:?}")));
        let silence = match (self.heard, bounds.idle) {
            (None, _) => {
                Some((self.began + bounds.start, format!("it said nothing within {:?}", bounds.start)))
            }
            (Some(heard), Some(idle)) if may_idle => {
                Some((heard + idle, format!("it said nothing more within {idle:?}")))
            }
            (Some(_), _) => None,
        };
        let next = turn.into_iter().chain(silence).min_by_key(|(at, _)| *at);
        next.map(|(at, why)| (at, Some(why)))
    }
}

impl Untold {
    /// What is held back now, after so much was held back before; `None` for nothing.
    fn now(before: Option<Self>, amount: usize, now: Instant) -> Option<Self> {
        match before {
            _ if amount == 0 => None,
            Some(before) if before.amount == amount => Some(before),
            // What is less than it was is something else.
            Some(before) if before.amount < amount => Some(Self { amount, last: now, ..before }),
            Some(_) | None => Some(Self { amount, first: now, last: now }),
        }
    }

    /// When it is told at the latest.
    fn due(&self, bounds: &Bounds) -> Instant {
        (self.last + bounds.quiet).min(self.first + bounds.untold)
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn taken(telling: &mut Option<Telling>) {
    match telling {
        Some(telling) => telling.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_is_due_after_a_moment_and_at_the_latest_after_a_while() {
        let (bounds, began) = (Bounds::default(), Instant::now());
        let after = |parts: u32| began + bounds.quiet / 10 * parts;
        assert_eq!(Untold::now(None, 0, began), None);
        let first = Untold::now(None, 3, began);
        assert_eq!(first.unwrap().due(&bounds), began + bounds.quiet);
        let same = Untold::now(first, 3, after(5));
        assert_eq!(same, first, "nothing more came");
        let more = Untold::now(first, 4, after(5)).unwrap();
        assert_eq!(more.due(&bounds), after(5) + bounds.quiet);
        let late = Untold::now(Some(more), 9, began + bounds.untold).unwrap();
        assert_eq!(late.due(&bounds), began + bounds.untold);
        let another = Untold::now(Some(late), 2, after(60)).unwrap();
        assert_eq!(another.due(&bounds), after(60) + bounds.quiet);
        assert_eq!(Untold::now(Some(another), 0, after(61)), None);
    }
}
