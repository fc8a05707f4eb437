//! Listeners of the host, and what reached them; and the host that tries to reach a listener of a session.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use camino::Utf8Path;
use session_tests::home::Home;

use super::ground::Ground;

const TCP: [&str; 5] = ["N01", "N11", "N12", "N08", "N15"];
/// Listeners inside, each with the number of its pipe and its file.
const INSIDE: [&str; 2] = ["port-2", "port-14"];

pub(super) struct Listeners {
    tcp: BTreeMap<&'static str, TcpListener>,
    udp: UdpSocket,
    abstracts: UnixListener,
    stream: UnixListener,
    datagram: UnixDatagram,
    reached_inside: RefCell<BTreeSet<&'static str>>,
}

impl Listeners {
    pub(super) fn new(ground: &Ground, mark: &str) -> Self {
        let mut tcp: BTreeMap<_, _> =
            TCP.iter().map(|name| (*name, TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        tcp.extend(TcpListener::bind("[::1]:0").ok().map(|listener| ("N10", listener)));
        for listener in tcp.values() {
            listener.set_nonblocking(true).unwrap();
        }
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_nonblocking(true).unwrap();
        let abstracts = UnixListener::bind_addr(&SocketAddr::from_abstract_name(mark).unwrap()).unwrap();
        abstracts.set_nonblocking(true).unwrap();
        let stream = UnixListener::bind(ground.path("outside/stream")).unwrap();
        stream.set_nonblocking(true).unwrap();
        let datagram = UnixDatagram::bind(ground.path("outside/datagram")).unwrap();
        datagram.set_nonblocking(true).unwrap();
        for name in ["outside/stream", "outside/datagram"] {
            fs::set_permissions(ground.path(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self { tcp, udp, abstracts, stream, datagram, reached_inside: RefCell::default() }
    }

    /// The ports by name. Where the machine has no IPv6 its port is one that nobody listens on.
    pub(super) fn ports(&self) -> Vec<(&'static str, u16)> {
        let tcp = self.tcp.iter().map(|(name, listener)| (*name, listener.local_addr().unwrap().port()));
        let udp = ("UDP", self.udp.local_addr().unwrap().port());
        tcp.chain([udp]).chain((!self.tcp.contains_key("N10")).then_some(("N10", 1))).collect()
    }

    /// Tries to connect to what listens inside, and lets it end.
    pub(super) fn meet(&self, home: &Home, session: &str, work: &Utf8Path) {
        for name in INSIDE {
            let read = || fs::read_to_string(work.join(name)).unwrap_or_default();
            home.until(|| read().ends_with('\n') || home.inspect(session)["status"] != "running");
            let Some(port) = read().trim().strip_prefix("port ").map(|port| port.parse::<u16>().unwrap())
            else {
                continue;
            };
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                self.reached_inside.borrow_mut().insert(name);
            }
            let pipe = work.join(name.replace("port", "release"));
            fs::OpenOptions::new().write(true).open(pipe).unwrap().write_all(b"x").unwrap();
        }
    }

    /// Whether something came to the listener of this name, or from it.
    pub(super) fn reached(&self, name: &str) -> bool {
        match name {
            "abstract" => self.abstracts.accept().is_ok(),
            "stream" => self.stream.accept().is_ok(),
            "datagram" => self.datagram.recv(&mut [0; 8]).is_ok(),
            "UDP" => self.udp.recv(&mut [0; 8]).is_ok(),
            _ => match self.tcp.get(name) {
                Some(listener) => listener.accept().is_ok(),
                None => self.reached_inside.borrow().contains(name),
            },
        }
    }
}
