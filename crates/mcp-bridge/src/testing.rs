//! What tests speak to: a host whose servers are tasks, a bridge on a loopback port, and a client of it.

mod client;
mod host;
mod server;

pub(crate) use self::client::{Answer, Client, INITIALIZED, call, message};
pub(crate) use self::host::TestHost;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use session_core::names::Principal;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http::access::{Access, Authenticator, Door, Unavailable};
use crate::http::{Configuration, Running, router};
use crate::settings::Settings;

/// A bridge on a port, with its host.
pub(crate) struct World {
    pub(crate) host: Arc<TestHost>,
    pub(crate) address: SocketAddr,
    pub(crate) running: Running,
    pub(crate) drain: CancellationToken,
    /// Whose tokens count no more.
    pub(crate) revoked: Arc<Mutex<Vec<String>>>,
}

/// Tokens that are the name of whoever shows them, after `t-`, unless they were revoked.
#[derive(Debug)]
struct Names(Arc<Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl Authenticator for Names {
    async fn principal(&self, token: &str) -> Result<Option<Principal>, Unavailable> {
        let name =
            token.strip_prefix("t-").filter(|name| !self.0.lock().unwrap().iter().any(|of| of == name));
        Ok(name.and_then(|name| name.parse().ok()))
    }
}

impl World {
    pub(crate) async fn new(settings: Settings) -> Self {
        Self::with(Arc::new(TestHost::default()), settings, false).await
    }

    pub(crate) async fn with(host: Arc<TestHost>, settings: Settings, tokens: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let drain = CancellationToken::new();
        let owner: Principal = "ada".parse().unwrap();
        let revoked = Arc::default();
        let door = if tokens {
            Door::Tokens(Arc::new(Names(Arc::clone(&revoked))))
        } else {
            Door::Open(owner.clone())
        };
        let configuration = Configuration {
            servers: vec!["fake".parse().unwrap()],
            access: Access {
                hosts: vec![address.to_string()],
                origins: Vec::new(),
                door,
                issuers: if tokens { vec!["https://issuer.example".into()] } else { Vec::new() },
                url: None,
            },
            owner,
            settings,
        };
        let (router, running) = router(Arc::clone(&host) as _, configuration, drain.clone());
        tokio::spawn(accept(listener, router));
        Self { host, address, running, drain, revoked }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// The bridge ends as it should: every process is gone.
    pub(crate) async fn end(self) {
        self.drain.cancel();
        self.running.closed().await;
        assert_eq!(self.host.alive(), 0, "a process was left behind");
    }
}

/// Serves this router at this port.
pub(crate) async fn accept(listener: TcpListener, router: Router) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
    }
}
