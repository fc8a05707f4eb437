//! From a listed target to a connection. The addresses that were judged are those that are connected to: a name is
//! resolved once.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use session_core::sandbox::Endpoint;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::address::{Scope, scope};
use super::answer::Refusal;
use super::denied::{Denied, DeniedBecause};
use super::resolve::Resolve;
use super::target::{Host, Target};

/// How long a name and all its addresses may take together.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long one address may take.
const ADDRESS_WAIT: Duration = Duration::from_secs(10);
/// How many addresses of a name are tried.
const ADDRESSES_MAX: usize = 16;

/// Connects to a target that is on the list. At most `lookups` names are asked for at once.
pub(super) async fn reach(
    target: &Target,
    allow: &BTreeSet<Endpoint>,
    resolver: &dyn Resolve,
    lookups: &Semaphore,
) -> Result<TcpStream, Refusal> {
    let attempt = async {
        let addresses = match &target.host {
            // Whoever listed an address meant that machine.
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let _place = lookups.acquire().await;
                let found = resolver.resolve(name).await;
                let found = found.map_err(|source| Refusal::NotFound { name: name.clone(), source })?;
                permitted(target, allow, &found)?
            }
        };
        dial(&addresses, target).await
    };
    let reached = timeout(WAIT_MAX, attempt).await;
    reached.unwrap_or_else(|_| Err(Refusal::TooSlow { target: target.to_string() }))
}

/// Which of the addresses of a listed name may be connected to: one at least. One that is listed itself may, whatever
/// it is: the session reaches it without the name too.
fn permitted(target: &Target, allow: &BTreeSet<Endpoint>, found: &[IpAddr]) -> Result<Vec<IpAddr>, Refusal> {
    let is_listed = |address| Target { host: Host::Address(address), port: target.port }.is_listed(allow);
    let judge = |address: IpAddr| match (target.host.is_localhost(), scope(address)) {
        (true, Some(Scope::Loopback)) | (false, None) => Ok(address),
        _ if is_listed(address) => Ok(address),
        (true, _) => Err(DeniedBecause::NotThisMachine(address)),
        (false, Some(scope)) => Err(DeniedBecause::Near(address, scope)),
    };
    let addresses: Vec<IpAddr> =
        found.iter().filter_map(|address| judge(*address).ok()).take(ADDRESSES_MAX).collect();
    if !addresses.is_empty() {
        return Ok(addresses);
    }
    let why = found.iter().find_map(|address| judge(*address).err());
    let nothing =
        || Refusal::NotFound { name: target.host.to_string(), source: io::ErrorKind::NotFound.into() };
    Err(why.map_or_else(nothing, |why| Denied::new(target, why).into()))
}

/// Tries one address after the other; the error is that of the last.
async fn dial(addresses: &[IpAddr], target: &Target) -> Result<TcpStream, Refusal> {
    let port = target.port;
    let mut failed = Refusal::TooSlow { target: target.to_string() };
    for address in addresses.iter().copied() {
        failed = match timeout(ADDRESS_WAIT, TcpStream::connect((address, port))).await {
            Ok(Ok(stream)) => {
                // Without it small messages wait for each other; they arrive all the same.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%target, %error, "a connection stays slow");
                }
                return Ok(stream);
            }
            Ok(Err(source)) => Refusal::Unreachable { address, port, source },
            Err(_) => Refusal::NoAnswer { address, port },
        };
        tracing::debug!(%target, %failed, "an address did not do");
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use async_trait::async_trait;

    use super::*;

    /// Knows these addresses for every name.
    #[derive(Debug)]
    struct Knows(Vec<IpAddr>);

    #[async_trait]
    impl Resolve for Knows {
        async fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
            Ok(self.0.clone())
        }
    }

    /// Never says anything.
    #[derive(Debug)]
    struct Silent;

    #[async_trait]
    impl Resolve for Silent {
        async fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
            std::future::pending().await
        }
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn target(text: &str) -> Target {
        Target::parse(text, None).unwrap()
    }

    async fn try_reach(text: &str, resolver: &dyn Resolve) -> Result<TcpStream, Refusal> {
        reach(&target(text), &BTreeSet::new(), resolver, &Semaphore::new(1)).await
    }

    #[test]
    fn what_is_near_is_left_out() {
        let found = addresses(&["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1111"]);
        let none = BTreeSet::new();
        let kept = permitted(&target("a.example.com:443"), &none, &found).unwrap();
        assert_eq!(kept, addresses(&["1.1.1.1", "2606:4700::1111"]));
        let near = BTreeSet::from(["10.0.0.1:443", "[::1]:80"].map(|text| text.parse().unwrap()));
        let kept = permitted(&target("a.example.com:443"), &near, &found).unwrap();
        assert_eq!(kept, addresses(&["10.0.0.1", "1.1.1.1", "2606:4700::1111"]), "what is listed itself");
        let found = addresses(&["1.1.1.1", "127.0.0.1", "::1"]);
        assert_eq!(
            permitted(&target("localhost:1"), &none, &found).unwrap(),
            addresses(&["127.0.0.1", "::1"])
        );
    }

    #[test]
    fn a_name_that_leads_to_nothing_else_is_denied() {
        let denied = |text: &str, found: &[&str]| match permitted(
            &target(text),
            &BTreeSet::new(),
            &addresses(found),
        ) {
            Err(Refusal::Denied(denied)) => denied.why,
            other => panic!("{text}: {other:?}"),
        };
        let near = DeniedBecause::Near([169, 254, 169, 254].into(), Scope::LinkLocal);
        assert_eq!(denied("a.b:80", &["169.254.169.254", "10.0.0.1"]), near);
        let near = DeniedBecause::Near("::ffff:127.0.0.1".parse().unwrap(), Scope::Loopback);
        assert_eq!(denied("localhost.example.com:80", &["::ffff:127.0.0.1"]), near);
        let away = DeniedBecause::NotThisMachine([1, 1, 1, 1].into());
        assert_eq!(denied("localhost:80", &["1.1.1.1"]), away);
        assert!(matches!(permitted(&target("a.b:80"), &BTreeSet::new(), &[]), Err(Refusal::NotFound { .. })));
    }

    #[tokio::test]
    async fn the_next_address_is_tried() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let both = Knows(addresses(&["127.9.9.9", "127.0.0.1"]));
        let reached = try_reach(&format!("localhost:{port}"), &both).await.unwrap();
        assert_eq!(reached.peer_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        let first = Knows(addresses(&["127.9.9.9"]));
        let refused = try_reach(&format!("localhost:{port}"), &first).await.unwrap_err();
        assert!(refused.to_string().starts_with("127.9.9.9 does not take connections"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_is_silent_is_not_waited_for() {
        let refusal = try_reach("a.example.com:443", &Silent).await.unwrap_err();
        assert_eq!(refusal.to_string(), "a.example.com:443 could not be reached within 30 seconds");
    }
}
