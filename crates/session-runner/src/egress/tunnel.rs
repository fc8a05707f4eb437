//! Carries bytes both ways, in two buffers of fixed size: whoever reads slowly slows down whoever writes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until};

use super::body::Body;
use super::request::Malformed;

/// How much is read at once, for each direction.
const BUFFER_BYTES: usize = 16 << 10;

/// What a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// Whatever it likes: the connection is its own.
    Anything,
    /// The rest of one request. The connection is over when its answer is.
    Request(Body),
}

/// How a tunnel ended.
#[derive(Debug, Error)]
pub(super) enum End {
    #[error("both sides have said all they had to say")]
    Complete,
    #[error("for too long there was not a byte in either direction")]
    Idle,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("a side broke off: {0}")]
    Broken(io::Error),
}

impl Passage {
    /// What of these bytes goes to the server.
    pub(super) fn admit<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], Malformed> {
        let Self::Request(body) = self else { return Ok(bytes) };
        let taken = body.take(bytes)?;
        let (admitted, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
        // Old clients put an empty line after a body.
        if rest.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
            Ok(admitted)
        } else {
            Err(Malformed::Followed)
        }
    }
}

/// One side of a tunnel: what comes from it, and what goes to it.
pub(super) struct Side<R, W> {
    pub(super) from: R,
    pub(super) to: W,
}

/// Carries until both sides have ended, or one breaks off, or nothing moves for as long as `idle`. `first` goes to the
/// server before anything else. The end of one direction is passed on and leaves the other open.
pub(super) async fn carry<CR, CW, SR, SW>(
    client: Side<CR, CW>,
    server: Side<SR, SW>,
    first: Vec<u8>,
    passage: Passage,
    idle: Duration,
) -> End
where
    CR: AsyncRead + Unpin,
    CW: AsyncWrite + Unpin,
    SR: AsyncRead + Unpin,
    SW: AsyncWrite + Unpin,
{
    let activity = Activity::new();
    let up = async {
        match copy(client.from, server.to, &first, passage, &activity).await {
            // A server that takes no more may still have something to say.
            Ok(()) | Err(Failure::Write(_)) => Ok(()),
            Err(Failure::Read(error)) => Err(End::Broken(error)),
            Err(Failure::Malformed(malformed)) => Err(malformed.into()),
        }
    };
    let down = async {
        match copy(server.from, client.to, &[], Passage::Anything, &activity).await {
            Ok(()) if passage == Passage::Anything => Ok(()),
            Ok(()) => Err(End::Complete),
            Err(Failure::Read(error) | Failure::Write(error)) => Err(End::Broken(error)),
            Err(Failure::Malformed(malformed)) => Err(malformed.into()),
        }
    };
    tokio::select! {
        biased;
        ended = async { tokio::try_join!(up, down) } => ended.err().unwrap_or(End::Complete),
        () = activity.ceases(idle) => End::Idle,
    }
}

/// Why a direction was given up.
enum Failure {
    Read(io::Error),
    Write(io::Error),
    Malformed(Malformed),
}

/// Carries one direction until its end, which is passed on.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    first: &[u8],
    mut passage: Passage,
    activity: &Activity,
) -> Result<(), Failure> {
    send(&mut to, first, activity).await.map_err(Failure::Write)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await.map_err(Failure::Read)?;
        if read == 0 {
            return to.shutdown().await.map_err(Failure::Write);
        }
        activity.happens();
        let bytes = passage.admit(buffer.get(..read).unwrap_or_default()).map_err(Failure::Malformed)?;
        send(&mut to, bytes, activity).await.map_err(Failure::Write)?;
    }
}

/// Writes all of it. Each part that is taken counts as activity.
async fn send(to: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8], activity: &Activity) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = to.write(bytes).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        activity.happens();
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// When something moved last.
struct Activity {
    began: Instant,
    /// In milliseconds from then.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0) }
    }

    fn happens(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    /// Returns when nothing has moved for so long.
    async fn ceases(&self, idle: Duration) {
        loop {
            let end = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed)) + idle;
            if Instant::now() >= end {
                return;
            }
            sleep_until(end).await;
        }
    }
}

#[cfg(test)]
mod tests;
