//! The server process of a session as its actor holds it: opened, written to, read from, and waited for to its very end.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::task::coop::consume_budget;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::host::{Child, Exit, HostError};
use crate::places::Place;
use crate::shares::Share;
use crate::wire::{Outbox, Read, Reader};

/// What happened to a process.
#[derive(Debug)]
pub(crate) enum News {
    /// It was started.
    Up,
    /// It could not be started.
    NotUp(HostError),
    /// It wrote a line.
    Line(Vec<u8>),
    /// It wrote something that cannot be a message.
    Stray(Read),
    /// It is gone, and nobody asked for that.
    Gone(Exit),
    /// It is gone, as it was asked to.
    Stopped(Exit),
}

/// Where a process stands.
#[derive(Default)]
pub(crate) enum Process {
    /// There is none.
    #[default]
    Absent,
    /// It is being started, and stopped at once when nobody wants it any more. That goes on by itself: a host that stands
    /// still in the middle of it would keep what others need.
    Opening { opening: JoinHandle<Result<Opened, HostError>>, unwanted: CancellationToken },
    /// It is there.
    Up(Box<Pipes>),
}

/// A process that was started, in its place.
pub(crate) struct Opened {
    pub(crate) child: Child,
    pub(crate) place: Place,
}

/// A process that is there.
pub(crate) struct Pipes {
    reader: Reader,
    stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    outbox: Outbox,
    ended: Pin<Box<dyn Future<Output = Exit> + Send>>,
    stop: CancellationToken,
    exit: Option<Exit>,
    /// Nothing more is read.
    silent: bool,
    /// It was asked to end.
    stopping: bool,
    /// What is waited for after one of the two ends has come.
    until: Option<Instant>,
    /// When some of what is to be written was, or there was nothing to write.
    moved: Instant,
    /// It read nothing for too long.
    deaf: bool,
    _place: Place,
}

/// With more than this to be written, no message of a client is taken.
const OUTBOX_MAX: usize = 1024 * 1024;
/// With more than this to be written, the process is not read either: it asks, and does not listen to the answers.
const OUTBOX_FULL: usize = 64 * 1024 * 1024;
/// How long what a process wrote before its end is read, when something holds the pipe open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a process lives that has closed its stdout.
const SILENCE: Duration = Duration::from_secs(2);

impl Process {
    /// One that is started like this, until nobody wants it any more.
    pub(crate) fn open(
        tasks: &TaskTracker,
        opening: impl Future<Output = Result<Opened, HostError>> + Send + 'static,
        unwanted: CancellationToken,
    ) -> Self {
        Self::Opening { opening: tasks.spawn(opening), unwanted }
    }

    /// There is a process, or there will be one.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self, Self::Absent)
    }

    /// Another message may be written.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Absent | Self::Opening { .. } => true,
            Self::Up(pipes) => pipes.outbox.bytes() < OUTBOX_MAX,
        }
    }

    /// Writes a line, in time. To what is not there, nothing is written.
    pub(crate) fn push(&mut self, line: String) {
        match self {
            Self::Up(pipes) if pipes.stdin.is_some() => {
                if pipes.outbox.is_empty() {
                    pipes.moved = Instant::now();
                }
                pipes.outbox.push(line);
            }
            Self::Absent | Self::Opening { .. } | Self::Up(_) => {}
        }
    }

    /// This share of the memory is of what was written last, until it has left.
    pub(crate) fn keep(&mut self, share: Arc<Share>) {
        if let Self::Up(pipes) = self {
            pipes.outbox.keep(share);
        }
    }

    /// It is to end. [`News::Stopped`] comes when it has.
    pub(crate) fn stop(&mut self) {
        match self {
            Self::Absent => {}
            Self::Opening { unwanted, .. } => unwanted.cancel(),
            Self::Up(pipes) => pipes.stop(),
        }
    }

    /// It is at work, and may read nothing meanwhile.
    pub(crate) fn excuse(&mut self, now: Instant) {
        if let Self::Up(pipes) = self {
            pipes.moved = now;
        }
    }

    /// Ends it where it has read nothing of what waits for it for as long as it may: that is a crash.
    pub(crate) fn look(&mut self, now: Instant, limit: Duration) {
        if let Self::Up(pipes) = self {
            let is_deaf = !pipes.outbox.is_empty() && now.saturating_duration_since(pipes.moved) >= limit;
            if is_deaf && !pipes.stopping {
                pipes.deaf = true;
                pipes.hang_up();
                pipes.stop.cancel();
            }
        }
    }

    /// What happens next. May be given up and asked again at any time.
    pub(crate) async fn next(&mut self, message_max: usize) -> News {
        loop {
            // Lines that were read already cost no turn by themselves: a server that writes many must leave some to others.
            consume_budget().await;
            match self {
                Self::Absent => std::future::pending().await,
                Self::Opening { opening, unwanted } => {
                    let failed = |error: JoinError| Err(HostError::Other(error.to_string()));
                    let opened = opening.await.unwrap_or_else(failed);
                    let stopping = unwanted.is_cancelled();
                    match opened {
                        Ok(opened) => {
                            let mut pipes = Pipes::of(opened, message_max);
                            if stopping {
                                pipes.stop();
                            }
                            *self = Self::Up(Box::new(pipes));
                            if !stopping {
                                return News::Up;
                            }
                        }
                        Err(error) => {
                            *self = Self::Absent;
                            return if stopping {
                                News::Stopped(Exit::Ended(error.to_string()))
                            } else {
                                News::NotUp(error)
                            };
                        }
                    }
                }
                Self::Up(pipes) => {
                    let news = pipes.next().await;
                    if matches!(news, News::Gone(_) | News::Stopped(_)) {
                        *self = Self::Absent;
                    }
                    return news;
                }
            }
        }
    }
}

impl Pipes {
    fn of(opened: Opened, message_max: usize) -> Self {
        let Opened { child, place } = opened;
        Self {
            reader: Reader::new(child.stdout, message_max),
            stdin: Some(child.stdin),
            outbox: Outbox::default(),
            ended: child.ended,
            stop: child.stop,
            exit: None,
            silent: false,
            stopping: false,
            until: None,
            moved: Instant::now(),
            deaf: false,
            _place: place,
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.hang_up();
        self.stop.cancel();
    }

    fn hang_up(&mut self) {
        self.stdin = None;
        self.outbox.clear();
    }

    async fn next(&mut self) -> News {
        loop {
            if self.silent
                && let Some(exit) = self.exit.take()
            {
                let exit = match exit {
                    Exit::Ended(_) if self.deaf => {
                        Exit::Ended("it read nothing of what it was told, and was ended".into())
                    }
                    Exit::Ended(_) | Exit::Suspended | Exit::Over(_) => exit,
                };
                return if self.stopping { News::Stopped(exit) } else { News::Gone(exit) };
            }
            let writes = !self.outbox.is_empty();
            let reads = !self.silent && self.outbox.bytes() < OUTBOX_FULL;
            let until = self.until.unwrap_or_else(Instant::now);
            tokio::select! {
                read = self.reader.next(), if reads => match read {
                    Read::End => {
                        self.silent = true;
                        self.hang_up();
                        self.until = Some(Instant::now() + SILENCE);
                    }
                    _ if self.stopping => {}
                    Read::Line(line) => return News::Line(line),
                    Read::Long(..) | Read::Half(_) => return News::Stray(read),
                },
                written = write(&mut self.outbox, self.stdin.as_mut()), if writes => {
                    self.moved = Instant::now();
                    if !written {
                        self.hang_up();
                    }
                }
                exit = &mut self.ended, if self.exit.is_none() => {
                    self.exit = Some(exit);
                    self.hang_up();
                    self.until = Some(Instant::now() + LAST_WORDS);
                }
                () = sleep_until(until), if self.until.is_some() => {
                    self.until = None;
                    if self.exit.is_some() {
                        self.silent = true;
                    } else {
                        self.stop.cancel();
                    }
                }
            }
        }
    }
}

/// Writes some of it; false when nobody reads any more.
async fn write(outbox: &mut Outbox, stdin: Option<&mut Box<dyn AsyncWrite + Send + Unpin>>) -> bool {
    match stdin {
        Some(stdin) => outbox.write(stdin.as_mut()).await.is_ok(),
        None => false,
    }
}

impl Drop for Pipes {
    /// A process that nobody holds any more is not left alone.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
