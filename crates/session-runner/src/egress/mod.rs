//! The way out of a session that may reach a list of endpoints and nothing else.
//!
//! The session has a loopback of its own and no other network. A relay inside carries what arrives at
//! `http://127.0.0.1:3128` to a Unix socket, and at that socket listens the [`Egress`] of the session: an HTTP proxy of
//! the host, which resolves names, judges, connects and carries bytes. It must never look into what it carries, and it
//! must never trust what it is sent: whoever connects may be any program.
//!
//! ```text
//! accept ── hear the head ── parse ── listed? ── resolve ── near? ── dial ── carry
//!   503       408 431         400       403        502       403    502 504
//! ```
//!
//! It takes `CONNECT host:port` for any protocol, and requests of plain HTTP (`GET http://host/path`), which tools send to
//! a proxy where there is no TLS. Of those it passes on exactly one per connection: what follows it is not sent to a
//! server that it may not be meant for.
//!
//! Everything is bounded: the head in bytes and time, the connections of a session, the lookups at once, the time to
//! connect, the silence in a tunnel, its buffers, and the number of denials that are remembered.

mod address;
mod answer;
mod body;
mod denied;
mod reach;
mod request;
mod resolve;
mod server;
mod socket;
mod target;
mod tunnel;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use session_core::sandbox::Endpoint;
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use address::Scope;
pub use denied::{DENIED_MAX, Denials, Denied, DeniedBecause};
pub use resolve::{Resolve, SystemResolver};

use server::Gate;
use socket::Socket;

/// How many connections a session may have open at once.
pub const CONNECTIONS_MAX: usize = 128;

/// The proxy of one session. Dropping it ends it too, and does not wait for the ends of its connections.
#[derive(Debug)]
pub struct Egress {
    socket: Socket,
    gate: Arc<Gate>,
    stop: CancellationToken,
    serving: AbortOnDropHandle<()>,
}

impl Egress {
    /// Listens at `proxy.sock` in `directory`, which is made if it is not there and holds nothing else; a socket that a
    /// dead host left is replaced. A session has one at a time.
    ///
    /// `report` hears of the first denial to each target, up to [`DENIED_MAX`] targets, on a task of the proxy: it must not
    /// wait for anything.
    ///
    /// Fails when the directory cannot be made or belongs to somebody else, or when the socket cannot be made.
    pub async fn listen(
        directory: &Utf8Path,
        allow: BTreeSet<Endpoint>,
        resolver: Arc<dyn Resolve>,
        report: impl Fn(Denied) + Send + Sync + 'static,
    ) -> Result<Self, EgressError> {
        let place = directory.to_owned();
        let failed = |source| EgressError::Listen { path: socket::path(directory), source };
        let made = spawn_blocking(move || socket::listen(&place)).await;
        let (listener, socket) = made.map_err(|error| failed(io::Error::other(error)))??;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        let gate = Arc::new(Gate::new(allow, resolver, report));
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server::serve(listener, Arc::clone(&gate), stop.clone()));
        Ok(Self { socket, gate, stop, serving: AbortOnDropHandle::new(serving) })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Utf8Path {
        &self.socket.path
    }

    /// What the session was denied so far.
    #[must_use]
    pub fn denials(&self) -> Denials {
        self.gate.denials()
    }

    /// Ends all connections and removes the socket; returns when no task of it is left, with what the session was denied.
    pub async fn close(self) -> Denials {
        let Self { socket, gate, stop, serving } = self;
        stop.cancel();
        if let Err(error) = serving.await {
            tracing::error!(socket = %socket.path, %error, "a session's proxy had ended before it was closed");
        }
        drop(socket);
        gate.denials()
    }
}

/// Why a session has no proxy.
#[derive(Debug, Error)]
pub enum EgressError {
    /// Its directory cannot be made or opened.
    #[error("the directory {path} of the session's proxy cannot be made or opened")]
    Directory {
        /// The directory.
        path: Utf8PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Its directory belongs to another user.
    #[error("the directory {0} of the session's proxy belongs to another user: move it away")]
    NotOurs(Utf8PathBuf),
    /// Something else is where its socket must be.
    #[error("{0} is in the place of the session's proxy and is no socket: move it away")]
    NotASocket(Utf8PathBuf),
    /// Its socket cannot be made.
    #[error("the session's proxy cannot listen at {path}")]
    Listen {
        /// The socket.
        path: Utf8PathBuf,
        /// What the system says.
        source: io::Error,
    },
}
