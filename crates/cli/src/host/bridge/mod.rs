//! The host's bridge: stdio MCP servers over HTTP, where each client session is a session of this host.

mod check;
mod door;
mod paste;
mod pipes;
mod port;
mod record;
mod scope;
mod servers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use jiff::SignedDuration;
use mcp_bridge::host::ServerName;
use mcp_bridge::http::access::{Access, Door};
use mcp_bridge::http::{Configuration, Running, router};
use mcp_bridge::settings::{Restart, Settings};
use sandbox::Policy;
use session_core::names::Principal;
use session_runner::Wires;
use session_runner::scope::wanted;
use session_server::serve::{self, Bounds, Listening};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::door::Tokens;
use self::pipes::Pipes;
use self::port::Port;
pub use self::scope::{Grounds, directories};
pub use self::servers::{Servers, one, read};
use super::http::token_file;
use super::operations::Operations;
use crate::context;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// A server that is never idle, where the settings say so: a hundred years.
const NEVER: Duration = Duration::from_hours(100 * 365 * 24);
/// How long the processes of a bridge that ends may take, and then what goes on when nobody waits for it.
const CLOSE_BOUND: Duration = Duration::from_secs(20);

/// What was said on the command line of a bridge.
#[derive(Debug, Clone)]
pub struct Wish {
    /// What it serves.
    pub servers: Servers,
    /// Where.
    pub listen: String,
    /// Each client session has a process of its own.
    pub isolation: bool,
    /// What sessions get.
    pub grounds: Grounds,
    /// The file that they were read from, where it holds what only they are to know; none otherwise.
    pub secrets: Option<Utf8PathBuf>,
    /// The file of the token that lets in; none where everybody is let in.
    pub token_file: Option<Utf8PathBuf>,
    /// By which names it answers, beside its address.
    pub hosts: Vec<String>,
    /// Which pages may speak to it.
    pub origins: Vec<String>,
    /// How it is reached from outside; none for its address.
    pub url: Option<String>,
    /// Who issues tokens for it, where that is not its operator.
    pub issuers: Vec<String>,
    /// How many servers run at once.
    pub sessions: u32,
    /// What becomes of a server that ends by itself.
    pub restart: Restart,
    /// It only starts each server once.
    pub check: bool,
}

/// The bridge, listening and not yet answering: who connects meanwhile waits.
#[derive(Debug)]
pub(super) struct Bridge {
    wish: Wish,
    /// None for one that is only checked.
    listener: Option<(TcpListener, SocketAddr)>,
    pipes: Arc<Pipes>,
    owner: Principal,
}

impl Bridge {
    /// Listens where it was asked for, and says where that is.
    pub(super) async fn open(operations: &Operations, wish: &Wish) -> Outcome<Self> {
        let owner = operations.principal()?;
        let (mut grounds, settings) = (wish.grounds.clone(), &operations.context().config.sandbox);
        if wish.check {
            grounds.hide(wish.secrets.as_slice(), settings)?;
            let wish = Wish { grounds, ..wish.clone() };
            return Ok(Self { wish, listener: None, pipes: Arc::new(Pipes::default()), owner });
        }
        let numeric = wish.listen.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let address: SocketAddr = numeric.as_deref().unwrap_or(&wish.listen).parse().map_err(|_| {
            Failure::usage(format!("{:?} is no address to listen at", wish.listen))
                .hint("give an IP address and a port, such as 127.0.0.1:8808 or [::1]:8808")
        })?;
        match &wish.token_file {
            Some(file) => token_file::admit(operations, file, "bridge").await?,
            None if !address.ip().to_canonical().is_loopback() => {
                let message =
                    format!("{address} can be reached from other machines: --no-auth is for loopback alone");
                return Err(
                    Failure::new(Kind::Denied, message).hint("leave out --no-auth, or listen at 127.0.0.1")
                );
            }
            None => {}
        }
        let secret: Vec<_> = wish.secrets.iter().chain(&wish.token_file).cloned().collect();
        grounds.hide(&secret, settings)?;
        let wish = Wish { grounds, ..wish.clone() };
        let failed = |error: &std::io::Error| {
            Failure::caused(Kind::Error, format!("the bridge cannot listen at {address}"), error)
        };
        let listener = TcpListener::bind(address).await.map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let level = level(operations, &wish).await?;
        paste::announce(operations.context(), &wish, address, &level)?;
        Ok(Self { wish, listener: Some((listener, address)), pipes: Arc::new(Pipes::default()), owner })
    }

    /// Where the runner leaves the pipes of servers.
    pub(super) fn pipes(&self) -> Arc<dyn Wires> {
        Arc::clone(&self.pipes) as Arc<dyn Wires>
    }

    /// Answers from now on.
    pub(super) fn start(self, operations: &Arc<Operations>) -> Standing {
        let Self { wish, listener, pipes, owner } = self;
        let servers: Vec<ServerName> = wish.servers.keys().cloned().collect();
        let port = Port {
            operations: Arc::clone(operations),
            pipes,
            servers: Arc::new(wish.servers.clone()),
            grounds: Arc::new(wish.grounds.clone()),
            tasks: TaskTracker::new(),
        };
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let check = wish.check;
        let serving = listener.map(|(listener, address)| {
            let door = match wish.token_file {
                Some(_) => Door::Tokens(Arc::new(Tokens::new(Arc::clone(operations)))),
                None => Door::Open(owner.clone()),
            };
            let mut hosts = serve::hosts(Some(address));
            // By the name under which it is announced, it answers.
            let outside = wish.url.as_deref().and_then(|url| url.split_once("://"));
            hosts.extend(outside.map(|(_, host)| host.to_owned()));
            let settings = settings(operations, &wish);
            hosts.extend(wish.hosts);
            let Wish { origins, issuers, url, .. } = wish;
            let access = Access { hosts, origins, door, issuers, url };
            let caps = settings.caps;
            let configuration =
                Configuration { servers: servers.clone(), access, owner: owner.clone(), settings };
            let (router, running) = router(Arc::new(port.clone()), configuration, drain.clone());
            let bounds = Bounds { connections: caps.streams + caps.requests, ..Bounds::default() };
            let served = serve::serve(Listening::Tcp(listener), router, bounds, stop.clone());
            (running, tokio::spawn(served))
        });
        Standing { port, servers, owner, check, drain, stop, serving }
    }
}

/// A bridge that answers.
#[derive(Debug)]
pub(super) struct Standing {
    port: Port,
    servers: Vec<ServerName>,
    owner: Principal,
    check: bool,
    drain: CancellationToken,
    stop: CancellationToken,
    serving: Option<(Running, JoinHandle<()>)>,
}

impl Standing {
    /// Whether it was only started for a look.
    pub(super) fn is_check(&self) -> bool {
        self.check
    }

    /// Starts each server once, and prints its tools.
    pub(super) async fn check(&self) -> Outcome<()> {
        let (mut failed, named) = (Ok(()), self.servers.len() > 1);
        for server in &self.servers {
            let found = check::print(&self.port, &self.owner, server, named).await;
            let Err(failure) = found else { continue };
            // The first one is what the command ends with; a person hears of each.
            if failed.is_ok() {
                failed = Err(failure);
            } else {
                output::say(&failure.in_one_line());
            }
        }
        failed
    }

    /// Ends its processes, and returns when they have gone. The sessions stay: the next bridge brings them back.
    pub(super) async fn close(self) {
        self.drain.cancel();
        if let Some((running, serving)) = self.serving {
            if timeout(CLOSE_BOUND, running.closed()).await.is_err() {
                tracing::warn!("processes of the bridge did not go in time");
            }
            drop(running);
            self.stop.cancel();
            if let Err(error) = serving.await {
                tracing::error!(%error, "the bridge's listener failed");
            }
        }
        self.port.tasks.close();
        if timeout(CLOSE_BOUND, self.port.tasks.wait()).await.is_err() {
            tracing::warn!("sessions that were only asked something were not cleared away in time");
        }
    }
}

fn settings(operations: &Operations, wish: &Wish) -> Settings {
    let mut settings = Settings { isolation: wish.isolation, restart: wish.restart, ..Settings::default() };
    settings.caps.processes = usize::try_from(wish.sessions).unwrap_or(usize::MAX);
    settings.times.idle = operations.limits().idle_timeout.map_or(NEVER, SignedDuration::unsigned_abs);
    settings
}

/// What the kernel holds of every session here, as a person reads it. Refused where it cannot hold what was asked for.
async fn level(operations: &Operations, wish: &Wish) -> Outcome<String> {
    let asked = wish.grounds.level.unwrap_or(operations.config().sandbox.level);
    let Some(wanted) = wanted(asked) else { return Ok("off: nothing confines the servers".into()) };
    let launcher = context::launcher();
    let found = tokio::task::spawn_blocking(move || {
        let support = launcher.support().map_err(|error| Failure::of(Kind::Denied, &error))?;
        let policy = Policy::new("/").with_level(wanted);
        support.choose(&policy).map_err(|error| Failure::of(Kind::Denied, &error))
    });
    let found = found.await.map_err(|error| Failure::of(Kind::Error, &error))?;
    let level = found.map_err(|failure| {
        failure.hint("`roomette doctor` shows what this machine offers; --sandbox=off confines nothing")
    })?;
    Ok(level.to_string())
}
