//! From names to addresses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// How many names the machine is asked for at once, by all sessions together: each takes a thread until it is answered.
const LOOKUPS_MAX: usize = 32;

/// Says which addresses a name has.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug + 'static {
    /// The addresses of a host's name, the best first; an error when it has none or nobody can say.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The machine's own way: its `hosts` file and its name servers. One serves all sessions.
#[derive(Debug, Clone)]
pub struct SystemResolver {
    places: Arc<Semaphore>,
}

impl SystemResolver {
    /// A resolver that nobody uses yet.
    #[must_use]
    pub fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        let lookup = spawn_blocking(move || {
            // A lookup cannot be called back: its place is taken until it has ended, whoever still waits for it.
            let _place = place;
            (name.as_str(), 0)
                .to_socket_addrs()
                .map(|found| found.map(|address| SocketAddr::ip(&address)).collect())
        });
        lookup.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_machine_knows_itself() {
        let found = SystemResolver::new().resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
