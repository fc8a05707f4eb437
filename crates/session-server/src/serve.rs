//! The API on a socket: connections are bounded in number, in the size and time of their heads, and end in order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::stall::Stall;
use crate::state::Access;

/// Bounds of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most connections at once; further ones wait in the socket's queue.
    pub connections: usize,
    /// The most bytes of a head.
    pub head_bytes: usize,
    /// The most headers of a request.
    pub headers: usize,
    /// How long a head may take to come, also between two requests of a connection.
    pub head_time: Duration,
    /// How long the other side may take nothing of what is written to it.
    pub write_time: Duration,
    /// How long what is being answered may take when the server ends.
    pub drain: Duration,
}

impl Default for Bounds {
    /// 4608 connections, 32 KiB and 64 headers a head within 30 s, a minute for what is written, 10 s to end.
    fn default() -> Self {
        Self {
            connections: 4_608,
            head_bytes: 32 * 1024,
            headers: 64,
            head_time: Duration::from_secs(30),
            write_time: Duration::from_mins(1),
            drain: Duration::from_secs(10),
        }
    }
}

/// Why the API is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Others could reach it, and nothing would ask who they are.
    #[error(
        "{0} can be reached from other machines, and whoever has no token would be let in: listen at 127.0.0.1 or \
         a Unix socket, or let nobody in without a token"
    )]
    Public(SocketAddr),
    /// It cannot listen there.
    #[error("the API cannot listen there")]
    Listen(#[from] io::Error),
}

/// Where the API listens.
#[derive(Debug)]
pub enum Listening {
    /// At an address.
    Tcp(TcpListener),
    /// At a path.
    #[cfg(unix)]
    Unix {
        /// The socket.
        listener: UnixListener,
        /// The only user whose processes are let in, by its number; `None` for whoever the path lets near.
        owner: Option<u32>,
    },
}

impl Listening {
    /// Listens at this address. Refused where others could reach it and somebody without a token is let in.
    pub async fn tcp(address: SocketAddr, access: &Access) -> Result<Self, ServeError> {
        if access.without_token.is_some() && !address.ip().to_canonical().is_loopback() {
            return Err(ServeError::Public(address));
        }
        Ok(Self::Tcp(TcpListener::bind(address).await?))
    }

    /// The address, where it has one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix { .. } => None,
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // An event is to leave when it is written, not when more have come together.
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            #[cfg(unix)]
            Self::Unix { listener, owner } => loop {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred().map(|peer| peer.uid()).ok();
                if owner.is_none() || peer == *owner {
                    break Box::new(stream);
                }
                tracing::warn!(peer, "a connection of another user was refused");
            },
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The port of `http` where none is said.
const HTTP_PORT: u16 = 80;

/// The hosts by whose name a server at this address answers.
#[must_use]
pub fn hosts(address: Option<SocketAddr>) -> Vec<String> {
    match address {
        Some(address) => {
            let named = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{}", address.port()));
            let own = Some(address.to_string()).filter(|own| !named.contains(own));
            let mut hosts: Vec<String> = named.into_iter().chain(own).collect();
            if address.port() == HTTP_PORT {
                // Where it is the scheme's own, clients leave it out.
                let bare = hosts.iter().filter_map(|host| host.strip_suffix(":80")).map(Into::into);
                hosts.extend(bare.collect::<Vec<_>>());
            }
            hosts
        }
        None => vec!["localhost".into()],
    }
}

/// After a connection could not be accepted, the next one is taken after this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until `drain` fires, then lets what is being answered come to its end, for as long as that may take. It must be
/// the token that the router's state has, so that streams end as well.
pub async fn serve(listening: Listening, router: Router, bounds: Bounds, drain: CancellationToken) {
    let room = Arc::new(Semaphore::new(bounds.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // Never closed: there is always a permit sooner or later.
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listening.accept().await)
        };
        tokio::select! {
            (permit, accepted) = accepted => match accepted {
                Ok(stream) => {
                    let connection = converse(stream, router.clone(), bounds, drain.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of descriptors, most likely: not to be asked again at full speed.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = drain.cancelled() => break,
        }
    }
    drop(listening);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(bounds.drain, ended).await.is_err() {
        tracing::warn!("connections that did not end in time are cut");
        connections.shutdown().await;
    }
}

async fn converse(stream: Box<dyn Stream>, router: Router, bounds: Bounds, drain: CancellationToken) {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_time)
        .max_headers(bounds.headers)
        .max_buf_size(bounds.head_bytes);
    let connection = server.serve_connection(
        TokioIo::new(Stall::new(stream, bounds.write_time)),
        TowerToHyperService::new(router),
    );
    tokio::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = drain.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_public_address_lets_nobody_in_without_a_token() {
        let open = Access { without_token: Some("me".parse().unwrap()), hosts: Vec::new() };
        for public in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
            let refused = Listening::tcp(public.parse().unwrap(), &open).await;
            assert!(matches!(refused, Err(ServeError::Public(_))), "{public}");
        }
        assert!(Listening::tcp("[::ffff:127.0.0.1]:0".parse().unwrap(), &open).await.is_ok());
        let closed = Access { without_token: None, ..open };
        assert!(Listening::tcp("0.0.0.0:0".parse().unwrap(), &closed).await.is_ok());
    }

    #[test]
    fn a_server_answers_by_the_names_of_its_address() {
        let hosts = hosts(Some("10.0.0.1:81".parse().unwrap()));
        assert_eq!(hosts, ["localhost:81", "127.0.0.1:81", "[::1]:81", "10.0.0.1:81"]);
        let bare = super::hosts(Some("[::1]:80".parse().unwrap()));
        assert_eq!(
            bare[3..],
            ["localhost", "127.0.0.1", "[::1]"],
            "as clients say it that leave out the port"
        );
        assert_eq!(super::hosts(None), ["localhost"]);
    }
}
