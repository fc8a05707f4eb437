//! The host's HTTP API: where it listens, whom it lets in, and how it ends.

mod address;
pub(super) mod port;
pub(super) mod token_file;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use camino::Utf8PathBuf;
use session_server::serve::{self, Bounds, Listening, ServeError};
use session_server::state::{Access, Limits, State};
use tokio_util::sync::CancellationToken;

use self::address::ListenAt;
use self::port::Port;
use super::operations::Operations;
use super::socket;
use super::tools::Tools;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// What was said on the command line of where to serve.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// Where to listen; the setting where nothing was said.
    pub listen: Option<String>,
    /// The file of the token that is let in.
    pub token_file: Option<Utf8PathBuf>,
}

/// The API, listening and not yet answering: who connects meanwhile waits.
#[derive(Debug)]
pub(super) struct Api {
    listening: Listening,
    access: Access,
    limits: Limits,
    /// The socket's path, which goes with it.
    path: Option<Utf8PathBuf>,
    /// No token lets anybody in yet, and nobody is let in without one.
    closed: bool,
}

impl Api {
    /// Listens where it was asked for; `None` where that is nowhere.
    pub(super) async fn open(operations: &Operations, wish: &Wish) -> Outcome<Option<Self>> {
        let context = operations.context();
        let text = wish.listen.as_deref().unwrap_or(&context.config.serve.listen);
        if text.is_empty() {
            return match wish.token_file {
                Some(_) => Err(Failure::usage("--token-file is for the HTTP API, and it is served nowhere")
                    .hint("say where: --listen 127.0.0.1:7777")),
                None => Ok(None),
            };
        }
        let at: ListenAt = text.parse()?;
        if let Some(file) = &wish.token_file {
            token_file::admit(operations, file, "serve --token-file").await?;
        }
        Ok(Some(match at {
            ListenAt::Tcp(address) => Self::tcp(operations, address).await?,
            ListenAt::Unix(path) => Self::unix(context, path).await?,
        }))
    }

    async fn tcp(operations: &Operations, address: SocketAddr) -> Outcome<Self> {
        let context = operations.context();
        let serve = &context.config.serve;
        let has_tokens = operations.has_tokens().await?;
        let loopback = address.ip().to_canonical().is_loopback();
        if !loopback && !has_tokens && !serve.without_token {
            let message =
                format!("{address} can be reached from other machines, and no token lets anybody in");
            return Err(Failure::new(Kind::Denied, message).hint(
                "make one first: `roomette token create --name NAME`, or `--token-file FILE`; or listen at 127.0.0.1",
            ));
        }
        let without_token = if serve.without_token { Some(context.principal()?) } else { None };
        let mut access = Access { without_token, hosts: serve.hosts.clone() };
        let listening = Listening::tcp(address, &access).await.map_err(|error| match &error {
            ServeError::Public(_) => Failure::of(Kind::Denied, &error)
                .hint("set serve.without_token = false; `roomette token create` makes tokens"),
            ServeError::Listen(error) => {
                Failure::caused(Kind::Error, format!("the API cannot listen at {address}"), error)
            }
        })?;
        let closed = !has_tokens && access.without_token.is_none();
        access.hosts.extend(serve::hosts(listening.address()));
        Ok(Self { listening, access, limits: limits(context), path: None, closed })
    }

    async fn unix(context: &Context, path: Utf8PathBuf) -> Outcome<Self> {
        let listener = socket::listen_privately(&path).await.map_err(|error| {
            Failure::caused(Kind::Error, format!("the API cannot listen at {path}"), &error)
        })?;
        let listening = Listening::Unix { listener, owner: Some(rustix::process::geteuid().as_raw()) };
        let mut hosts = context.config.serve.hosts.clone();
        hosts.extend(serve::hosts(None));
        let access = Access { without_token: Some(context.principal()?), hosts };
        Ok(Self { listening, access, limits: limits(context), path: Some(path), closed: false })
    }

    /// Where processes of this machine find it over TCP.
    pub(super) fn url(&self) -> Option<String> {
        self.listening.address().map(|address| format!("http://{}", reached_here(address)))
    }

    /// Tells a person where it is, and what it takes to be let in.
    pub(super) fn announce(&self) {
        match (self.listening.address(), &self.path) {
            (Some(address), _) => output::say(&format!("the API is at http://{address}")),
            (None, Some(path)) => output::say(&format!("the API is at unix:{path}, for this user alone")),
            (None, None) => {}
        }
        if self.closed {
            output::say("no token lets anybody in yet: `roomette token create --name NAME` makes one");
        }
        if self.access.without_token.is_some() && self.path.is_none() {
            output::say(
                "whoever can reach it on this machine is let in without a token, agents in sandboxes too (serve.without_token)",
            );
        }
    }

    /// Answers until `drain` fires and what is being answered has come to its end.
    pub(super) async fn serve(self, operations: Arc<Operations>, tools: Tools, drain: CancellationToken) {
        let Self { listening, access, limits, path, closed: _ } = self;
        let coordinator = operations.coordinator().clone();
        let scribe = tools.service(drain.clone());
        let port = Arc::new(Port::new(&operations, Some(tools)));
        let state = State::new(coordinator, port, access, limits, drain.clone());
        // As many streams as there may be, and requests beside them.
        let bounds = Bounds { connections: limits.readers + limits.requests, ..Bounds::default() };
        serve::serve(listening, session_server::router_with(state, scribe), bounds, drain).await;
        if let Some(path) = path
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%path, %error, "the API's socket could not be removed");
        }
    }
}

/// An address that stands for all of the machine's, as the machine itself reaches it.
fn reached_here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn limits(context: &Context) -> Limits {
    let serve = &context.config.serve;
    let time = serve.request_timeout.unsigned_abs();
    Limits {
        body_bytes: usize::try_from(serve.body_bytes).unwrap_or(usize::MAX),
        body_time: time,
        request_time: time,
        requests: serve.requests as usize,
        readers: serve.readers as usize,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_this_machine_reach_an_address_that_is_none() {
        for (at, found) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("192.0.2.1:1", "192.0.2.1:1")]
        {
            assert_eq!(reached_here(at.parse().unwrap()).to_string(), found);
        }
    }
}
