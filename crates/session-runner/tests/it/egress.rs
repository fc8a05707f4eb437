//! The proxy of a session over real sockets: what gets through, what does not, and that nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use camino::Utf8Path;
use session_core::sandbox::Endpoint;
use session_runner::egress::{
    CONNECTIONS_MAX, DENIED_MAX, Denied, DeniedBecause, Egress, EgressError, Resolve, Scope,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::fixture::{Place, block_on};

/// Knows that every name is this address.
#[derive(Debug)]
struct Everything(IpAddr);

#[async_trait]
impl Resolve for Everything {
    async fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![self.0])
    }
}

/// A proxy with what it reported.
struct Proxy {
    _place: Place,
    egress: Egress,
    reported: Arc<Mutex<Vec<Denied>>>,
}

impl Proxy {
    async fn new(allow: &[String]) -> Self {
        let place = Place::new();
        let reported = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&reported);
        let report = move |denied| kept.lock().unwrap().push(denied);
        let egress = listen(&place.path.join("egress"), allow, report).await.unwrap();
        Self { _place: place, egress, reported }
    }

    async fn client(&self) -> UnixStream {
        UnixStream::connect(self.egress.socket()).await.unwrap()
    }

    /// Sends these bytes and returns all that comes back.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut client = self.client().await;
        client.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    async fn connect(&self, target: &str) -> UnixStream {
        let mut client = self.client().await;
        client.write_all(connect_head(target).as_bytes()).await.unwrap();
        established(&mut client).await;
        client
    }
}

async fn listen(
    directory: &Utf8Path,
    allow: &[String],
    report: impl Fn(Denied) + Send + Sync + 'static,
) -> Result<Egress, EgressError> {
    let allow: BTreeSet<Endpoint> = allow.iter().map(|text| text.parse().unwrap()).collect();
    Egress::listen(directory, allow, Arc::new(Everything(Ipv4Addr::LOCALHOST.into())), report).await
}

fn connect_head(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
}

async fn established(client: &mut UnixStream) {
    let expected = b"HTTP/1.1 200 Connection Established\r\n\r\n";
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, expected);
}

/// A server on the host's loopback, and its address.
async fn server() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A server that sends back what it gets, until the client has no more.
async fn echo() -> (JoinSet<()>, String) {
    let (listener, address) = server().await;
    let mut echoes = JoinSet::new();
    echoes.spawn(async move {
        let mut each = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            each.spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.unwrap();
            });
        }
    });
    (echoes, address)
}

pub(crate) fn a_listed_address_is_reached_and_a_half_close_is_passed_on() {
    block_on(async {
        let (listener, address) = server().await;
        let proxy = Proxy::new(std::slice::from_ref(&address)).await;
        let mut client = proxy.client().await;
        // What follows the head belongs to the tunnel, whatever it looks like.
        let sent = format!("{}GET http://other/ HTTP/1.1\r\n\r\n", connect_head(&address));
        client.write_all(sent.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "GET http://other/ HTTP/1.1\r\n\r\n");
        established(&mut client).await;
        stream.write_all(b"after the end of the other direction").await.unwrap();
        drop(stream);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "after the end of the other direction");
        assert!(proxy.egress.close().await.each.is_empty());
    });
}

pub(crate) fn what_is_not_listed_is_denied_and_told_once() {
    block_on(async {
        let proxy = Proxy::new(&["api.example.com:443".into()]).await;
        let answer = proxy.exchange(connect_head("API.example.org:443").as_bytes()).await;
        let sentence = "api.example.org:443 is not on this session's list of endpoints";
        assert!(answer.starts_with(&format!("HTTP/1.1 403 {sentence}")), "{answer}");
        assert!(answer.contains("--net-allow api.example.org:443"), "{answer}");
        for bytes in [
            &connect_head("api.example.org.:443"),
            "GET http://api.example.org:443/ HTTP/1.1\r\n\r\n",
            &connect_head("api.example.com:80"),
            &connect_head("127.0.0.1:443"),
        ] {
            assert!(proxy.exchange(bytes.as_bytes()).await.starts_with("HTTP/1.1 403 "), "{bytes}");
        }
        let why = DeniedBecause::NotListed;
        let denied = |host: &str, port| Denied { host: host.into(), port, why };
        let (org, com, address) =
            (denied("api.example.org", 443), denied("api.example.com", 80), denied("127.0.0.1", 443));
        assert_eq!(*proxy.reported.lock().unwrap(), [org.clone(), com.clone(), address.clone()]);
        let denials = proxy.egress.close().await;
        assert_eq!(denials.each, [(address, 1), (com, 1), (org, 3)]);
    });
}

pub(crate) fn a_name_does_not_lead_to_the_host() {
    block_on(async {
        let (listener, address) = server().await;
        let port = address.rsplit(':').next().unwrap();
        let named = format!("api.example.com:{port}");
        let proxy = Proxy::new(&[named.clone(), format!("localhost:{port}")]).await;
        let answer = proxy.exchange(connect_head(&named).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("leads to 127.0.0.1, a loopback address"), "{answer}");
        let why = DeniedBecause::Near(Ipv4Addr::LOCALHOST.into(), Scope::Loopback);
        let port = port.parse().unwrap();
        assert_eq!(*proxy.reported.lock().unwrap(), [Denied { host: "api.example.com".into(), port, why }]);
        // The one name that is meant to.
        let client = proxy.connect(&format!("LocalHost.:{port}")).await;
        let (first, _) = listener.accept().await.unwrap();
        drop((client, first));
    });
}

pub(crate) fn what_cannot_be_reached_says_why() {
    block_on(async {
        let (listener, address) = server().await;
        drop(listener);
        let proxy = Proxy::new(std::slice::from_ref(&address)).await;
        let answer = proxy.exchange(connect_head(&address).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 502 127.0.0.1 does not take connections on port "), "{answer}");
        assert!(answer.contains("error=connection_refused"), "{answer}");
        assert!(proxy.reported.lock().unwrap().is_empty(), "nothing was denied");
    });
}

pub(crate) fn plain_http_is_passed_on_one_request_at_a_time() {
    block_on(async {
        let (listener, address) = server().await;
        let proxy = Proxy::new(std::slice::from_ref(&address)).await;
        let mut client = proxy.client().await;
        let request = format!("POST http://{address}/a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo");
        client.write_all(request.as_bytes()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let expected = format!(
            "POST /a?b HTTP/1.1\r\nHost: {address}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
        );
        client.write_all(b"dy").await.unwrap();
        let mut heard = vec![0; expected.len()];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(String::from_utf8(heard).unwrap(), expected);
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        let mut answer = [0; 27];
        client.read_exact(&mut answer).await.unwrap();
        client.write_all(b"GET http://elsewhere/ HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0, "the next request is not for this server");
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_or_default(), 0);
        // Two at once are refused before anything is connected.
        let two = format!("GET http://{address}/ HTTP/1.1\r\n\r\n").repeat(2);
        let answer = proxy.exchange(two.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 the request is followed by something else"), "{answer}");
    });
}

pub(crate) fn thirty_two_tunnels_carry_at_once() {
    const BYTES: usize = 1 << 20;
    block_on(async {
        let (_echoes, address) = echo().await;
        let proxy = Proxy::new(std::slice::from_ref(&address)).await;
        let mut tunnels = JoinSet::new();
        for number in 0..32_u8 {
            let mut client = proxy.connect(&address).await;
            tunnels.spawn(async move {
                let (mut from, mut to) = client.split();
                let send = async {
                    to.write_all(&vec![number; BYTES]).await.unwrap();
                    to.shutdown().await.unwrap();
                };
                let mut heard = Vec::new();
                let (read, ()) = tokio::join!(from.read_to_end(&mut heard), send);
                assert_eq!(read.unwrap(), BYTES);
                assert!(heard.iter().all(|byte| *byte == number));
            });
        }
        while let Some(ended) = tunnels.join_next().await {
            ended.unwrap();
        }
    });
}

pub(crate) fn one_connection_too_many_is_told_so() {
    block_on(async {
        let proxy = Proxy::new(&[]).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(proxy.client().await);
        }
        let answer = proxy.exchange(b"").await;
        assert!(answer.starts_with("HTTP/1.1 503 this session has 128 connections open"), "{answer}");
        // The end of one makes room, as soon as the proxy has noticed.
        drop(silent.pop());
        while proxy.exchange(connect_head("a:1").as_bytes()).await.starts_with("HTTP/1.1 503 ") {}
        assert_eq!(proxy.reported.lock().unwrap().len(), 1);
    });
}

pub(crate) fn whatever_is_sent_is_answered_or_ended() {
    block_on(async {
        let proxy = Proxy::new(&["a:1".into()]).await;
        let long = vec![b'a'; 50_000];
        for bytes in [
            &b"\r\n\r\n"[..],
            b"\0\0\0\n\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"CONNECT a:1:1 HTTP/1.1\r\n\r\n",
            b"\x05\x01\x00\n\n",
        ] {
            let answer = proxy.exchange(bytes).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{}: {answer}", bytes.escape_ascii());
        }
        assert!(proxy.exchange(&long).await.starts_with("HTTP/1.1 431 "));
        // One that never reads, and one that leaves in the middle.
        let mut deaf = proxy.client().await;
        deaf.write_all(b"nonsense\n\n").await.unwrap();
        let mut hasty = proxy.client().await;
        hasty.write_all(b"CONNECT a").await.unwrap();
        drop(hasty);
        // Others than those that are remembered are counted.
        for number in 0..DENIED_MAX + 3 {
            proxy.exchange(connect_head(&format!("h{number}:1")).as_bytes()).await;
        }
        assert_eq!(proxy.reported.lock().unwrap().len(), DENIED_MAX);
        let denials = proxy.egress.close().await;
        assert_eq!((denials.each.len(), denials.others), (DENIED_MAX, 3));
    });
}

/// Every end of every connection sees that it is over.
async fn all_over(clients: Vec<UnixStream>, servers: Vec<TcpStream>) {
    for mut client in clients {
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_or_default(), 0);
    }
    for mut server in servers {
        assert_eq!(server.read(&mut [0; 8]).await.unwrap_or_default(), 0);
    }
}

pub(crate) fn the_end_of_the_proxy_ends_its_connections() {
    block_on(async {
        for is_dropped in [false, true] {
            let (listener, address) = server().await;
            let proxy = Proxy::new(std::slice::from_ref(&address)).await;
            let (mut clients, mut servers) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                clients.push(proxy.connect(&address).await);
                servers.push(listener.accept().await.unwrap().0);
            }
            // One that has not said anything yet.
            clients.push(proxy.client().await);
            let socket = proxy.egress.socket().to_owned();
            if is_dropped {
                drop(proxy.egress);
            } else {
                proxy.egress.close().await;
                let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
                assert_eq!(tasks, 0, "no task is left");
            }
            assert!(!socket.exists());
            assert!(UnixStream::connect(&socket).await.is_err());
            all_over(clients, servers).await;
        }
    });
}

pub(crate) fn a_dead_hosts_socket_is_replaced_and_nothing_else_is() {
    block_on(async {
        let place = Place::new();
        let directory = place.path.join("egress");
        fs::create_dir(&directory).unwrap();
        let path = directory.join("proxy.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = listen(&directory, &[], drop).await.unwrap();
        assert_eq!(first.socket(), path);
        let mode = |path: &Utf8Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&path)), (0o700, 0o600));
        // A successor's socket is not removed by the end of what was there before.
        let second = listen(&directory, &[], drop).await.unwrap();
        first.close().await;
        UnixStream::connect(second.socket()).await.unwrap();
        second.close().await;
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);

        fs::write(&path, "a person's").unwrap();
        let error = listen(&directory, &[], drop).await.unwrap_err();
        assert!(matches!(&error, EgressError::NotASocket(found) if *found == path), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a person's");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        let error = listen(&directory, &[], drop).await.unwrap_err();
        assert!(matches!(error, EgressError::NotASocket(_)), "{error}");

        let link = place.path.join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        for wrong in [&link, &place.path.join("no/such"), &path] {
            let error = listen(wrong, &[], drop).await.unwrap_err();
            assert!(matches!(error, EgressError::Directory { .. }), "{wrong}: {error}");
        }
    });
}

pub(crate) fn a_path_may_be_longer_than_an_address_of_a_socket() {
    block_on(async {
        let (listener, address) = server().await;
        let place = Place::new();
        let directory = place.path.join("d".repeat(200)).join("egress");
        fs::create_dir(directory.parent().unwrap()).unwrap();
        let egress = listen(&directory, std::slice::from_ref(&address), drop).await.unwrap();
        // As a relay finds it: mounted somewhere with a short name.
        let short = place.path.join("short");
        std::os::unix::fs::symlink(&directory, &short).unwrap();
        let mut client = UnixStream::connect(short.join("proxy.sock")).await.unwrap();
        client.write_all(connect_head(&address).as_bytes()).await.unwrap();
        established(&mut client).await;
        drop(listener.accept().await.unwrap());
        let socket = egress.socket().to_owned();
        egress.close().await;
        assert!(!socket.exists());
    });
}
