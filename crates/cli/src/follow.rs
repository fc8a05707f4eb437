//! Watching runs until they are over: live lines on a terminal, plain lines elsewhere, Ctrl-C passed on.

mod display;

use jiff::SignedDuration;
use session_core::{RunId, SessionId};
use tokio::time::Instant;

use display::Display;
pub use display::Watched;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::Connection;
use crate::host::protocol::{Reply, Request, Update};
use crate::output;
use crate::waiting::{EndSignals, until};

/// What Ctrl-C means to the runs that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnInterrupt {
    /// They are stopped; a second time, killed.
    Stop,
    /// They go on; only the watching ends.
    Leave,
}

/// How the watching ended.
#[derive(Debug)]
pub struct Followed {
    /// The last that is known of each run, in the order in which they were given.
    pub updates: Vec<Update>,
    /// Somebody pressed Ctrl-C.
    pub interrupted: bool,
}

/// Watches runs until all are over.
pub async fn until_over(
    context: &Context,
    connection: Connection,
    watched: Vec<Watched>,
    on_interrupt: OnInterrupt,
    timeout: Option<SignedDuration>,
) -> Outcome<Followed> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout.unsigned_abs()));
    let mut follower = Follower {
        context,
        display: Display::new(context.json, &watched),
        latest: vec![None; watched.len()],
        watched,
        interrupts: 0,
    };
    let result = follower.watch(connection, on_interrupt, deadline).await;
    follower.display.finish();
    result?;
    Ok(Followed {
        interrupted: follower.interrupts > 0,
        updates: follower.latest.into_iter().flatten().collect(),
    })
}

struct Follower<'c> {
    context: &'c Context,
    display: Display,
    watched: Vec<Watched>,
    latest: Vec<Option<Update>>,
    interrupts: u32,
}

/// What a follower waits for.
enum Happening {
    Reply(Outcome<Reply>),
    Interrupt,
    Deadline,
    Tick,
}

impl Follower<'_> {
    async fn watch(
        &mut self,
        mut connection: Connection,
        on_interrupt: OnInterrupt,
        deadline: Option<Instant>,
    ) -> Outcome<()> {
        let runs: Vec<RunId> = self.watched.iter().map(|watched| watched.run).collect();
        let mut signals = EndSignals::new()?;
        connection.send(&Request::Follow { runs }).await?;
        loop {
            match self.next(&mut connection, &mut signals, deadline).await {
                Happening::Reply(reply) => match reply? {
                    Reply::Update(update) => self.note(update),
                    Reply::Over => return Ok(()),
                    Reply::Submitted(_)
                    | Reply::Stopped { .. }
                    | Reply::Changed
                    | Reply::Done
                    | Reply::Killed(_)
                    | Reply::Forked(_)
                    | Reply::Cleaned(_)
                    | Reply::Imported(_)
                    | Reply::Issued(_)
                    | Reply::LegacyImported(_)
                    | Reply::Forgotten(_)
                    | Reply::Recovered(_)
                    | Reply::Answered(_)
                    | Reply::Refused(_)
                    | Reply::Failed(_) => return Err(Reply::unexpected()),
                },
                Happening::Tick => self.display.tick(self.context.env.now()),
                Happening::Deadline => {
                    return Err(Failure::new(Kind::Timeout, "not all runs were over in time"));
                }
                Happening::Interrupt => self.interrupt(on_interrupt, &mut signals).await?,
            }
        }
    }

    async fn next(
        &mut self,
        connection: &mut Connection,
        signals: &mut EndSignals,
        deadline: Option<Instant>,
    ) -> Happening {
        let redraw = self.display.next_redraw();
        tokio::select! {
            biased;
            () = signals.next() => Happening::Interrupt,
            reply = connection.next() => Happening::Reply(reply),
            () = until(deadline) => Happening::Deadline,
            () = until(redraw) => Happening::Tick,
        }
    }

    fn note(&mut self, update: Update) {
        let Some(index) = self.watched.iter().position(|watched| watched.run == update.run) else { return };
        self.display.show(index, &self.watched[index], &update, self.context.env.now());
        self.latest[index] = Some(update);
    }

    /// The first time asks the runs to stop, the second kills them, the third leaves at once.
    async fn interrupt(&mut self, on_interrupt: OnInterrupt, signals: &mut EndSignals) -> Outcome<()> {
        self.interrupts += 1;
        let interrupted = || Failure::new(Kind::Interrupted, "interrupted");
        if on_interrupt == OnInterrupt::Leave || self.interrupts > 2 {
            return Err(interrupted().hint("what runs goes on; `roomette ps` shows it"));
        }
        let now = self.interrupts == 2;
        self.display.say(if now {
            "killing … (Ctrl-C again leaves at once)"
        } else {
            "stopping … (Ctrl-C again kills)"
        });
        let open = self.watched.iter().zip(&self.latest);
        let open = open.filter(|(_, latest)| !latest.as_ref().is_some_and(Update::ended));
        let sessions: Vec<SessionId> = open.map(|(watched, _)| watched.session).collect();
        let order = async {
            let Some(mut connection) = Connection::open(self.context).await? else {
                return Err(interrupted());
            };
            connection.ask(&Request::Stop { sessions, now }).await.map(drop)
        };
        tokio::select! {
            ordered = order => ordered,
            // The host takes its time, and whoever waits does not.
            () = signals.next() => Err(interrupted().hint("the host has not confirmed the order yet")),
        }
    }
}

/// The failure that runs which did not all complete come to; nothing when they did.
pub fn verdict(followed: &Followed) -> Option<Failure> {
    if followed.interrupted {
        return Some(Failure::new(Kind::Interrupted, "interrupted"));
    }
    let not_completed: Vec<_> =
        followed.updates.iter().filter(|update| update.state != "completed").collect();
    let first = not_completed.first()?;
    let all = |reason: &str| not_completed.iter().all(|update| update.reason.as_deref() == Some(reason));
    let kind = if all("timeout") {
        Kind::Timeout
    } else if all("budget_exhausted") {
        Kind::Budget
    } else if all("sandbox_unavailable") {
        Kind::Denied
    } else {
        Kind::Error
    };
    let message = format!("{} of {} did not complete", not_completed.len(), followed.updates.len());
    let session = crate::view::short(&first.session.to_string()).to_owned();
    let hint = match first.message.as_deref() {
        Some(message) if followed.updates.len() == 1 => output::harmless(message, 400),
        _ => {
            format!("`roomette logs {session}` shows what it said, `roomette inspect {session}` why it ended")
        }
    };
    Some(Failure::new(kind, message).hint(hint))
}
