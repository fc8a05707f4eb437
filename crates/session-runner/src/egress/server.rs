//! Takes the connections of a session, and serves each in a task of its own.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use session_core::sandbox::Endpoint;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::CONNECTIONS_MAX;
use super::answer::{ESTABLISHED, Refusal};
use super::denied::{DenialCount, Denials, Denied, DeniedBecause};
use super::reach::reach;
use super::request::{self, Forward, HEAD_BYTES_MAX, Malformed, Request};
use super::resolve::Resolve;
use super::target::Target;
use super::tunnel::{Passage, Side, carry};

/// How long a client may take to say what it wants.
pub(super) const HEAD_WAIT: Duration = Duration::from_secs(10);
/// How long a tunnel may be silent.
const IDLE_MAX: Duration = Duration::from_mins(10);
/// How long a client may take to hear why it gets no connection.
const REFUSAL_WAIT: Duration = Duration::from_secs(2);
/// How many names of one session are asked for at once.
const LOOKUPS_MAX: usize = 8;
/// After a client could not be accepted, the next one is taken after this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// What is read of a client that gets no connection, so that it has sent all before it hears so.
const UNHEARD_BYTES_MAX: u64 = 64 << 10;

/// What decides about each connection.
pub(super) struct Gate {
    allow: BTreeSet<Endpoint>,
    resolver: Arc<dyn Resolve>,
    lookups: Semaphore,
    // A std mutex: held to count, never across an await or a report.
    denials: Mutex<DenialCount>,
    report: Box<dyn Fn(Denied) + Send + Sync>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("allow", &self.allow)
            .field("denials", &self.denials)
            .finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn new(
        allow: BTreeSet<Endpoint>,
        resolver: Arc<dyn Resolve>,
        report: impl Fn(Denied) + Send + Sync + 'static,
    ) -> Self {
        let lookups = Semaphore::new(LOOKUPS_MAX);
        Self { allow, resolver, lookups, denials: Mutex::default(), report: Box::new(report) }
    }

    pub(super) fn denials(&self) -> Denials {
        // Counting cannot leave it half done.
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).denials()
    }

    fn tell(&self, denied: &Denied) {
        let is_first = self.denials.lock().unwrap_or_else(PoisonError::into_inner).note(denied);
        if is_first {
            (self.report)(denied.clone());
        }
    }

    /// A connection to there, if it may be.
    async fn open(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let reached = if target.is_listed(&self.allow) {
            reach(target, &self.allow, self.resolver.as_ref(), &self.lookups).await
        } else {
            Err(Denied::new(target, DeniedBecause::NotListed).into())
        };
        if let Err(Refusal::Denied(denied)) = &reached {
            self.tell(denied);
        }
        reached
    }
}

/// Serves until it is told to stop; then no connection is left.
pub(super) async fn serve(listener: UnixListener, gate: Arc<Gate>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => note_end(ended),
            accepted = listener.accept() => match accepted {
                Ok((client, _)) if connections.len() < CONNECTIONS_MAX => {
                    let gate = Arc::clone(&gate);
                    connections.spawn(async move { attend(client, &gate).await });
                }
                Ok((client, _)) => turn_away(client),
                Err(error) => {
                    tracing::warn!(%error, "a session's proxy cannot accept");
                    stop.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
                }
            }
        }
    }
    connections.shutdown().await;
}

fn note_end(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection of a session's proxy panicked");
    }
}

/// One connection too many. It gets its answer at once or not at all: nobody has time for it.
fn turn_away(client: UnixStream) {
    let answered = client.into_std().and_then(|mut client| client.write_all(&Refusal::Full.to_bytes()));
    tracing::debug!(?answered, "a session has too many connections");
}

/// Serves one connection to its end.
async fn attend(mut client: UnixStream, gate: &Gate) {
    let opening = match admit(&mut client, gate).await {
        Ok(Some(opening)) => opening,
        Ok(None) => return,
        Err(refusal) => return turn_down(client, &refusal).await,
    };
    let Opening { target, mut server, first, passage } = opening;
    let (from, to) = client.split();
    let inside = Side { from, to };
    let (from, to) = server.split();
    let end = carry(inside, Side { from, to }, first, passage, IDLE_MAX).await;
    tracing::debug!(%target, %end, "a connection through a session's proxy ended");
}

/// A connection that may be carried.
struct Opening {
    target: Target,
    server: TcpStream,
    /// What the server gets before anything else.
    first: Vec<u8>,
    passage: Passage,
}

/// Hears what the client wants and connects to there; `None` when it left before it was answered.
async fn admit(client: &mut UnixStream, gate: &Gate) -> Result<Option<Opening>, Refusal> {
    let Some((head, early)) = hear(client).await? else { return Ok(None) };
    let (target, mut first, mut passage) = match request::parse(&head)? {
        Request::Connect(target) => (target, Vec::new(), Passage::Anything),
        Request::Forward(Forward { target, head, body }) => (target, head, Passage::Request(body)),
    };
    first.extend_from_slice(passage.admit(&early)?);
    let server = gate.open(&target).await?;
    // Nothing was sent to the client yet, so there is room for this.
    if passage == Passage::Anything && client.write_all(ESTABLISHED).await.is_err() {
        return Ok(None);
    }
    Ok(Some(Opening { target, server, first, passage }))
}

/// Waits for the head of a request. What has come after it already is kept apart; `None` when nothing came at all.
async fn hear(client: &mut (impl AsyncRead + Unpin)) -> Result<Option<(Vec<u8>, Vec<u8>)>, Refusal> {
    let mut bytes = vec![0; HEAD_BYTES_MAX];
    let mut filled = 0;
    let read = async {
        loop {
            let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) else {
                return Err(Refusal::HeadTooLong);
            };
            // Whoever breaks off has left.
            let read = client.read(room).await.unwrap_or_default();
            if read == 0 {
                return if filled == 0 { Ok(None) } else { Err(Malformed::Head("it ends too early").into()) };
            }
            let before = filled;
            filled += read;
            let end = request::end_of_head(bytes.get(..filled).unwrap_or_default(), before);
            if end.is_some() {
                return Ok(end);
            }
        }
    };
    let heard = timeout(HEAD_WAIT, read).await.unwrap_or(Err(Refusal::HeadTooSlow))?;
    bytes.truncate(filled);
    Ok(heard.map(|end| {
        let early = bytes.split_off(end.min(filled));
        (bytes, early)
    }))
}

/// Says why not. A client that does not listen is left alone soon.
async fn turn_down(mut client: UnixStream, refusal: &Refusal) {
    tracing::debug!(%refusal, "a session's proxy gives no connection");
    let answer = async {
        client.write_all(&refusal.to_bytes()).await?;
        client.shutdown().await?;
        tokio::io::copy(&mut client.take(UNHEARD_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let heard: Result<io::Result<u64>, _> = timeout(REFUSAL_WAIT, answer).await;
    if !matches!(heard, Ok(Ok(_))) {
        tracing::debug!(?heard, "a client did not hear why it gets no connection");
    }
}

#[cfg(test)]
mod tests;
